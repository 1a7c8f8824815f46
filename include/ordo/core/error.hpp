// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The one exception type of the library.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace ordo {

/// Thrown by host entry points: names the operation, what is wrong (with both shapes where shapes
/// disagree) and what to do about it.
class error : public std::runtime_error {
public:
  error(const std::string& where, const std::string& what, const std::string& remedy = {})
      : std::runtime_error(where + ": " + what + (remedy.empty() ? "" : "; " + remedy)) {}
};

/// Thrown where two digests that must be equal differ: not a failure to check, but its outcome.
class mismatch : public error {
public:
  mismatch(const std::string& where, const std::string& what, std::uint64_t step_of,
           std::string expected_root, std::string found_root)
      : error(where, what + ": expected " + expected_root + ", found " + found_root), step(step_of),
        expected(std::move(expected_root)), found(std::move(found_root)) {}

  std::uint64_t step;          ///< the step in whose record or state they differ
  std::string expected, found; ///< hexadecimal
};

/// Throws `error(where, what, remedy)` unless `condition` holds.
inline void require(bool condition, const std::string& where, const std::string& what,
                    const std::string& remedy = {}) {
  if (!condition)
    throw error(where, what, remedy);
}

/// "4 x 128": a shape as errors print it.
template <class... Extents>
std::string shape(Extents... extents) {
  std::string text;
  ((text += (text.empty() ? "" : " x ") + std::to_string(extents)), ...);
  return text;
}

} // namespace ordo
