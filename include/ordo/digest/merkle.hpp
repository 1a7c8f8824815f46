// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Merkle trees over SHA-256 as in RFC 9162, section 2.1.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <openssl/evp.h>

#include <ordo/digest/sha256.hpp>

namespace ordo::digest {

/// Leaf and node hashes one after the other, without an allocation or an exception: what kernels
/// use. A hash that could not be made says so by its result; the caller throws after the kernel.
class tree_hasher {
public:
  tree_hasher() noexcept : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    ready_ = context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
  }

  /// out = SHA-256(0x00 || data).
  bool leaf(std::span<const std::byte> data, hash256& out) noexcept {
    constexpr unsigned char prefix = 0;
    return add(&prefix, 1) && add(data.data(), data.size()) && finish(out);
  }

  /// out = SHA-256(0x01 || left || right). `out` may be one of the two.
  bool node(const hash256& left, const hash256& right, hash256& out) noexcept {
    constexpr unsigned char prefix = 1;
    return add(&prefix, 1) && add(left.data(), left.size()) && add(right.data(), right.size()) &&
           finish(out);
  }

  /// out = the root over `hashes`, of which there is at least one; they are overwritten.
  bool reduce(std::span<hash256> hashes, hash256& out) noexcept {
    // Joining neighbours level by level and handing on an odd last one is the tree of the RFC,
    // whose left part is the largest power of two below the whole.
    for (std::size_t n = hashes.size(); n > 1; n = (n + 1) / 2) {
      for (std::size_t i = 0; i < n / 2; ++i) {
        if (!node(hashes[2 * i], hashes[2 * i + 1], hashes[i]))
          return false;
      }
      if (n % 2 == 1)
        hashes[n / 2] = hashes[n - 1];
    }
    out = hashes.front();
    return true;
  }

  /// The calling thread's own.
  static tree_hasher& of_thread() noexcept {
    thread_local tree_hasher hasher;
    return hasher;
  }

private:
  bool add(const void* data, std::size_t size) noexcept {
    return ready_ && EVP_DigestUpdate(context_.get(), data, size) == 1;
  }
  bool finish(hash256& out) noexcept {
    // Starting again with the method already set spares a search among OpenSSL's providers.
    ready_ = EVP_DigestFinal_ex(context_.get(), out.data(), nullptr) == 1 &&
             EVP_DigestInit_ex(context_.get(), nullptr, nullptr) == 1;
    return ready_;
  }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
  bool ready_ = false;
};

namespace detail {

inline void require_hashed(bool hashed) {
  if (!hashed)
    throw error("ordo::digest", "OpenSSL could not make a SHA-256");
}

} // namespace detail

/// SHA-256(0x00 || data).
inline hash256 leaf_hash(std::span<const std::byte> data) {
  hash256 out;
  detail::require_hashed(tree_hasher::of_thread().leaf(data, out));
  return out;
}

/// SHA-256(0x01 || left || right).
inline hash256 node_hash(const hash256& left, const hash256& right) {
  hash256 out;
  detail::require_hashed(tree_hasher::of_thread().node(left, right, out));
  return out;
}

/// The root over leaf hashes that arrive one after the other, in O(log n) memory.
class merkle_accumulator {
public:
  void append(const hash256& hash) { append_block(hash, 1); }

  /// `count` leaves at once, by the root over them: a power of two that divides the number of
  /// leaves so far, or all leaves there are.
  void append_block(hash256 hash, std::uint64_t count) {
    require((count & (count - 1)) == 0 ? leaves_ % std::max<std::uint64_t>(count, 1) == 0
                                       : leaves_ == 0,
            "ordo::digest::merkle_accumulator",
            std::to_string(count) + " leaves after " + std::to_string(leaves_) +
                " are no block of the tree");
    if (count == 0)
      return;
    std::uint64_t size = count;
    while (!stack_.empty() && stack_.back().first == size) {
      hash = node_hash(stack_.back().second, hash);
      stack_.pop_back();
      size *= 2;
    }
    stack_.emplace_back(size, hash);
    leaves_ += count;
  }

  std::uint64_t leaves() const { return leaves_; }

  /// The root of everything appended so far; of nothing, SHA-256 of nothing.
  hash256 root() const {
    if (stack_.empty())
      return sha256_of(std::string_view());
    hash256 hash = stack_.back().second;
    for (std::size_t i = stack_.size() - 1; i-- > 0;)
      hash = node_hash(stack_[i].second, hash);
    return hash;
  }

private:
  std::vector<std::pair<std::uint64_t, hash256>> stack_; ///< roots of full trees, largest first
  std::uint64_t leaves_ = 0;
};

/// The root over leaf hashes; of none, SHA-256 of nothing.
inline hash256 merkle_root(std::span<const hash256> leaves) {
  merkle_accumulator tree;
  for (const hash256& leaf : leaves)
    tree.append(leaf);
  return tree.root();
}

} // namespace ordo::digest
