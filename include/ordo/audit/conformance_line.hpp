// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The conformance report: one digest for each operation and policy.

#include <string>
#include <vector>

#include <ordo/digest/sha256.hpp>

namespace ordo::audit {

/// One line of the conformance report.
struct conformance_line {
  std::string name, sizes;
  digest::hash256 hash;
  friend bool operator==(const conformance_line&, const conformance_line&) = default;
};

/// Digest of the whole report: SHA-256 over "name sizes hash\n" of every line.
inline digest::hash256 conformance_digest(const std::vector<conformance_line>& lines) {
  digest::sha256 hash;
  for (const conformance_line& line : lines) {
    hash.update(line.name + " " + line.sizes + " " + digest::hex(line.hash) + "\n");
  }
  return hash.finish();
}

} // namespace ordo::audit
