// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Digests of named tensors that do not depend on how the tensors are sharded: chunks of 16 KiB,
/// tensors in name order. SHA-256, because a run's claims are made of them.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/digest/merkle.hpp>

namespace ordo::digest {

static_assert(
    std::endian::native == std::endian::little,
    "ordo::digest: tensors are hashed as they lie in memory, which must be little-endian; "
    "there is no version for big-endian machines");

enum class dtype { f32, bf16, i64, i32, u32, i8, u8 };

/// Name as in safetensors, and bytes of an element.
inline const char* dtype_name(dtype type) {
  switch (type) {
  case dtype::f32:
    return "F32";
  case dtype::bf16:
    return "BF16";
  case dtype::i64:
    return "I64";
  case dtype::i32:
    return "I32";
  case dtype::u32:
    return "U32";
  case dtype::i8:
    return "I8";
  case dtype::u8:
    return "U8";
  }
  return "?";
}
inline std::uint64_t dtype_bytes(dtype type) {
  switch (type) {
  case dtype::i64:
    return 8;
  case dtype::f32:
  case dtype::i32:
  case dtype::u32:
    return 4;
  case dtype::bf16:
    return 2;
  default:
    return 1;
  }
}

/// A tensor as digests and files see it: little-endian bytes that somebody else owns.
struct tensor_ref {
  std::string name;
  dtype type = dtype::f32;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
};

struct named_root {
  std::string name;
  hash256 root;
  friend bool operator==(const named_root&, const named_root&) = default;
};

/// Bytes of one leaf. Part of the contract.
inline constexpr std::size_t tensor_chunk_bytes = 16384;

/// What is known of the NaNs in float tensors. Where it is true, `canonical` gives the same digests
/// as `any` and spares one look at the bytes.
enum class nans {
  any,       ///< chips differ in them: each is hashed as 7fc00000 (F32) or 7fc0 (BF16)
  canonical, ///< the caller vouches for it
};

/// Whether `bytes` hold a NaN. Integers do not.
inline bool holds_nan(dtype type, std::span<const std::byte> bytes) {
  const auto search = [&]<class Word>(Word magnitude, Word infinity) {
    Word found = 0;
    for (std::size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
      Word u;
      std::memcpy(&u, bytes.data() + i * sizeof(Word), sizeof(Word));
      found |= static_cast<Word>((u & magnitude) > infinity);
    }
    return found != 0;
  };
  if (type == dtype::f32)
    return search(std::uint32_t{0x7fffffff}, std::uint32_t{0x7f800000});
  if (type == dtype::bf16)
    return search(std::uint16_t{0x7fff}, std::uint16_t{0x7f80});
  return false;
}

/// Replaces every NaN in `bytes` by 7fc00000 (F32) or 7fc0 (BF16). Other types stay as they are.
inline void canonicalize(dtype type, std::span<std::byte> bytes) {
  const auto replace = [&]<class Word>(Word magnitude, Word infinity, Word nan) {
    for (std::size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
      Word u;
      std::memcpy(&u, bytes.data() + i * sizeof(Word), sizeof(Word));
      u = (u & magnitude) > infinity ? nan : u;
      std::memcpy(bytes.data() + i * sizeof(Word), &u, sizeof(Word));
    }
  };
  if (type == dtype::f32) {
    replace(std::uint32_t{0x7fffffff}, std::uint32_t{0x7f800000}, arith::canonical_nan);
  }
  if (type == dtype::bf16) {
    replace(std::uint16_t{0x7fff}, std::uint16_t{0x7f80}, std::uint16_t{0x7fc0});
  }
}

/// SHA-256 of "ordo tensor 1\0", the length of the name and the name, the type likewise, the rank
/// and extents, all integers as 64-bit little-endian, and the Merkle root of the chunks.
inline hash256 tensor_root(const tensor_ref& tensor, const hash256& chunks) {
  sha256 hash;
  const auto number = [&](std::uint64_t n) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i)
      bytes[i] = static_cast<std::byte>(n >> (8 * i));
    hash.update(std::span<const std::byte>(bytes));
  };
  const auto text = [&](std::string_view t) {
    number(t.size());
    hash.update(t);
  };
  hash.update(std::string_view("ordo tensor 1\0", 14));
  text(tensor.name);
  text(dtype_name(tensor.type));
  number(tensor.shape.size());
  for (const std::uint64_t extent : tensor.shape)
    number(extent);
  return hash.update(chunks).finish();
}

/// Throws, naming `where`, unless the bytes fill the shape.
inline void require_filled(const tensor_ref& tensor, const std::string& where) {
  std::uint64_t size = dtype_bytes(tensor.type);
  bool fits = true;
  for (const std::uint64_t extent : tensor.shape) {
    fits = fits && !__builtin_mul_overflow(size, extent, &size);
  }
  require(fits, where, "the shape of tensor '" + tensor.name + "' overflows");
  require(size == tensor.bytes.size(), where,
          "tensor '" + tensor.name + "' has " + std::to_string(tensor.bytes.size()) +
              " bytes, its shape asks for " + std::to_string(size));
}

namespace detail {

/// Chunks of a work item. A power of two, so that the roots of a tensor's blocks have the tensor's
/// root as theirs; which one is tuning.
inline constexpr std::size_t block_chunks = 32;
inline constexpr std::size_t block_bytes = block_chunks * tensor_chunk_bytes;

/// The Merkle root over the chunks of `bytes`, at least one byte and at most a block.
inline bool block_root(dtype type, std::span<const std::byte> bytes, nans known, hash256& out) {
  tree_hasher& hasher = tree_hasher::of_thread();
  hash256 leaves[block_chunks];
  std::byte replaced[tensor_chunk_bytes];
  std::size_t n = 0;
  for (; !bytes.empty(); ++n) {
    const auto chunk = bytes.first(std::min(bytes.size(), tensor_chunk_bytes));
    bytes = bytes.subspan(chunk.size());
    if (!hasher.leaf(chunk, leaves[n]))
      return false;
    // Hashed first, so that the search finds the chunk in the cache; few are hashed twice.
    if (known == nans::any && holds_nan(type, chunk)) {
      const std::span<std::byte> copy(replaced, chunk.size());
      std::memcpy(copy.data(), chunk.data(), chunk.size());
      canonicalize(type, copy);
      if (!hasher.leaf(copy, leaves[n]))
        return false;
    }
  }
  return hasher.reduce(std::span(leaves, n), out);
}

} // namespace detail

/// Roots of tensors in the order given; blocks of chunks of all of them are hashed in parallel.
///
/// Bits: of names, types, shapes and bytes alone, NaNs being equal. Cost: reads every byte once; 32
/// bytes of memory for 512 KiB. Sync: returns when done. Throws: bytes that do not fill the shape.
template <execution_space Space>
std::vector<named_root> tensor_roots(const Space& space, std::span<const tensor_ref> tensors,
                                     nans known = nans::any) {
  static_assert(
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible,
      "ordo::digest::tensor_roots: hashes host memory; copy the tensors to the host");
  std::vector<std::size_t> first_block{0};
  for (const tensor_ref& t : tensors) {
    require_filled(t, "ordo::digest::tensor_roots");
    first_block.push_back(first_block.back() +
                          (t.bytes.size() + detail::block_bytes - 1) / detail::block_bytes);
  }
  std::vector<hash256> blocks(first_block.back());
  std::atomic<bool> hashed{true};
  std::atomic<bool>* const all_hashed = &hashed;
  hash256* const out = blocks.data();
  const std::size_t* const first = first_block.data();
  const std::size_t* const last = first + first_block.size();
  const tensor_ref* const all = tensors.data();
  ordo::detail::for_each(
      space, "ordo::digest::tensor_roots", static_cast<std::int64_t>(blocks.size()),
      [=](std::int64_t i) {
        const auto block = static_cast<std::size_t>(i);
        const auto tensor =
            static_cast<std::size_t>(std::upper_bound(first, last, block) - first) - 1;
        const auto rest = all[tensor].bytes.subspan((block - first[tensor]) * detail::block_bytes);
        const auto bytes = rest.first(std::min(rest.size(), detail::block_bytes));
        if (!detail::block_root(all[tensor].type, bytes, known, out[block]))
          *all_hashed = false;
      });
  detail::require_hashed(hashed);
  std::vector<named_root> roots;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto own = std::span(blocks).subspan(first[t], first[t + 1] - first[t]);
    roots.push_back({tensors[t].name, tensor_root(tensors[t], merkle_root(own))});
  }
  return roots;
}

/// The root over tensor roots in ascending byte-wise order of their names, whatever the order
/// given. Throws: a name twice.
inline hash256 state_root(std::span<const named_root> roots) {
  std::vector<const named_root*> order;
  for (const named_root& entry : roots)
    order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const named_root* a, const named_root* b) { return a->name < b->name; });
  merkle_accumulator tree;
  for (std::size_t i = 0; i < order.size(); ++i) {
    require(i == 0 || order[i]->name != order[i - 1]->name, "ordo::digest::state_root",
            "two tensors are called '" + order[i]->name + "'", "names give the order");
    tree.append(leaf_hash(std::as_bytes(std::span(order[i]->root))));
  }
  return tree.root();
}

} // namespace ordo::digest
