// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The one exception type of the library.

#include <stdexcept>
#include <string>

namespace ordo {

/// Thrown by host entry points: names the operation, what is wrong (with both shapes where shapes
/// disagree) and what to do about it.
class error : public std::runtime_error {
 public:
  error(const std::string& where, const std::string& what, const std::string& remedy = {})
      : std::runtime_error(where + ": " + what + (remedy.empty() ? "" : "; " + remedy)) {}
};

/// Throws `error(where, what, remedy)` unless `condition` holds.
inline void require(bool condition, const char* where, const std::string& what,
                    const std::string& remedy = {}) {
  if (!condition) throw error(where, what, remedy);
}

/// "4 x 128": a shape as errors print it.
template <class... Extents>
std::string shape(Extents... extents) {
  std::string text;
  ((text += (text.empty() ? "" : " x ") + std::to_string(extents)), ...);
  return text;
}

}  // namespace ordo
