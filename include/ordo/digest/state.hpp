// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Digests of named tensors that do not depend on how the tensors are sharded: chunks of 16 KiB,
/// tensors in name order. SHA-256, because a run's claims are made of them.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ordo/core/execution.hpp>
#include <ordo/digest/merkle.hpp>

namespace ordo::digest {

enum class dtype { f32, bf16, i64, i32, u32, i8, u8 };

/// Name as in safetensors, and bytes of an element.
inline const char* dtype_name(dtype type) {
  switch (type) {
    case dtype::f32: return "F32";
    case dtype::bf16: return "BF16";
    case dtype::i64: return "I64";
    case dtype::i32: return "I32";
    case dtype::u32: return "U32";
    case dtype::i8: return "I8";
    case dtype::u8: return "U8";
  }
  return "?";
}
inline std::uint64_t dtype_bytes(dtype type) {
  switch (type) {
    case dtype::i64: return 8;
    case dtype::f32:
    case dtype::i32:
    case dtype::u32: return 4;
    case dtype::bf16: return 2;
    default: return 1;
  }
}

/// A tensor as digests and files see it: little-endian bytes that somebody else owns. Floats must
/// hold canonical NaNs (`arith::canonical`).
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

/// SHA-256 of "ordo tensor 1\0", the length of the name and the name, the type likewise, the rank
/// and extents, all integers as 64-bit little-endian, and the Merkle root of the chunks.
inline hash256 tensor_root(const tensor_ref& tensor, const hash256& chunks) {
  sha256 hash;
  const auto number = [&](std::uint64_t n) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(n >> (8 * i));
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
  for (const std::uint64_t extent : tensor.shape) number(extent);
  return hash.update(chunks).finish();
}

/// Roots of tensors in the order given; chunks of all of them are hashed in parallel.
///
/// Bits: of names, types, shapes and bytes alone. Throws: bytes that do not fill the shape.
template <execution_space Space>
std::vector<named_root> tensor_roots(const Space& space, std::span<const tensor_ref> tensors) {
  static_assert(
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible,
      "ordo::digest::tensor_roots: hashes host memory; copy the tensors to the host");
  std::vector<std::size_t> first_chunk{0};
  for (const tensor_ref& t : tensors) {
    std::uint64_t size = dtype_bytes(t.type);
    for (const std::uint64_t extent : t.shape) size *= extent;
    require(size == t.bytes.size(), "ordo::digest::tensor_roots",
            "tensor '" + t.name + "' has " + std::to_string(t.bytes.size()) +
                " bytes, its shape asks for " + std::to_string(size));
    first_chunk.push_back(first_chunk.back() +
                          (t.bytes.size() + tensor_chunk_bytes - 1) / tensor_chunk_bytes);
  }
  std::vector<hash256> leaves(first_chunk.back());
  hash256* const out = leaves.data();
  const std::size_t* const first = first_chunk.data();
  const std::size_t count = tensors.size();
  const tensor_ref* const all = tensors.data();
  ordo::detail::for_blocks(
      space, "ordo::digest::tensor_roots", static_cast<std::int64_t>(leaves.size()), 32,
      [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const auto chunk = static_cast<std::size_t>(i);
          const auto tensor = static_cast<std::size_t>(
              std::upper_bound(first, first + count + 1, chunk) - first - 1);
          const std::size_t offset = (chunk - first[tensor]) * tensor_chunk_bytes;
          const auto bytes = all[tensor].bytes.subspan(offset);
          out[chunk] = leaf_hash(bytes.first(std::min(bytes.size(), tensor_chunk_bytes)));
        }
      });
  std::vector<named_root> roots;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    roots.push_back({tensors[t].name,
                     tensor_root(tensors[t], merkle_root(std::span(leaves).subspan(
                                                 first[t], first[t + 1] - first[t])))});
  }
  return roots;
}

/// The root over tensor roots in ascending byte-wise order of their names. Throws: a name twice.
inline hash256 state_root(std::vector<named_root> roots) {
  std::sort(roots.begin(), roots.end(),
            [](const named_root& a, const named_root& b) { return a.name < b.name; });
  merkle_accumulator tree;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    require(i == 0 || roots[i].name != roots[i - 1].name, "ordo::digest::state_root",
            "two tensors are called '" + roots[i].name + "'", "names give the order");
    tree.append(leaf_hash(std::as_bytes(std::span(roots[i].root))));
  }
  return tree.root();
}

}  // namespace ordo::digest
