// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// A named tensor as digests and files see it, and its digest from the root over its chunks.

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ordo/arith/value.hpp>
#include <ordo/core/error.hpp>
#include <ordo/digest/sha256.hpp>

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

/// Bytes whose chunks are hashed together: a tensor's, or a part of them that begins and ends with
/// a chunk.
struct chunk_range {
  dtype type = dtype::f32;
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

} // namespace ordo::digest
