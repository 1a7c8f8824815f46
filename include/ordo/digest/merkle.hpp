// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Merkle trees over SHA-256 as in RFC 9162, section 2.1.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ordo/digest/sha256.hpp>

namespace ordo::digest {

/// SHA-256(0x00 || data).
inline hash256 leaf_hash(std::span<const std::byte> data) {
  constexpr std::byte prefix[] = {std::byte{0}};
  return sha256().update(std::span<const std::byte>(prefix)).update(data).finish();
}

/// SHA-256(0x01 || left || right).
inline hash256 node_hash(const hash256& left, const hash256& right) {
  constexpr std::byte prefix[] = {std::byte{1}};
  return sha256().update(std::span<const std::byte>(prefix)).update(left).update(right).finish();
}

/// The root over leaf hashes that arrive one after the other, in O(log n) memory.
class merkle_accumulator {
 public:
  void append(hash256 hash) {
    std::uint64_t size = 1;
    while (!stack_.empty() && stack_.back().first == size) {
      hash = node_hash(stack_.back().second, hash);
      stack_.pop_back();
      size *= 2;
    }
    stack_.emplace_back(size, hash);
    ++leaves_;
  }

  std::uint64_t leaves() const { return leaves_; }

  /// The root of everything appended so far; of nothing, SHA-256 of nothing.
  hash256 root() const {
    if (stack_.empty()) return sha256_of(std::string_view());
    hash256 hash = stack_.back().second;
    for (std::size_t i = stack_.size() - 1; i-- > 0;) hash = node_hash(stack_[i].second, hash);
    return hash;
  }

 private:
  std::vector<std::pair<std::uint64_t, hash256>> stack_;
  std::uint64_t leaves_ = 0;
};

/// The root over leaf hashes.
inline hash256 merkle_root(std::span<const hash256> leaves) {
  merkle_accumulator tree;
  for (const hash256& leaf : leaves) tree.append(leaf);
  return tree.root();
}

}  // namespace ordo::digest
