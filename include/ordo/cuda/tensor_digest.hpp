// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Merkle roots over the 16 KiB chunks of tensors in device memory (digest/state.hpp).
///
/// One thread hashes one chunk: 257 compressions one after the other, some 21 integer operations a
/// round, which is what bounds the speed; memory is read once, 64 bytes a thread at a time. Trees
/// are then joined 256 hashes at a time.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <ordo/cuda/sha256.hpp>

namespace ordo::cuda {

/// Bytes of one leaf; digest::tensor_chunk_bytes.
inline constexpr std::int64_t digest_chunk = 16384;

/// What NaN is in a tensor: hashed as 7fc00000 or 7fc0, whatever its bits.
enum class digest_element : std::int32_t { any, f32, bf16 };

/// A tensor whose chunks are leaves [first_leaf, first_leaf + pieces(bytes, digest_chunk)).
struct digest_source {
  const unsigned char* data;
  std::int64_t bytes;
  std::int64_t first_leaf;
  digest_element element;
};

/// Hashes joined into one: [first, first + count) of the level below.
struct digest_join {
  std::int64_t first;
  std::int32_t count; ///< at most digest_joined
};

/// Hashes that one block of threads joins. A power of two, so that the root over the roots of
/// pieces is the root over all.
inline constexpr std::int64_t digest_joined = 256;

/// What is hashed and joined for several tensors, level after level, in their order: `add` each of
/// at least one byte, then `join`.
struct digest_plan {
  std::vector<digest_source> sources;
  std::vector<digest_join> joins;
  std::vector<std::int64_t> levels; ///< joins of each; the last has one for each source
  std::int64_t leaves = 0, joined = 0;

  void add(const void* data, std::int64_t bytes, digest_element element) {
    sources.push_back({static_cast<const unsigned char*>(data), bytes, leaves, element});
    leaves += pieces(bytes, digest_chunk);
  }

  void join() {
    std::vector<std::int64_t> sizes; // hashes of each source on the level
    for (const digest_source& source : sources)
      sizes.push_back(pieces(source.bytes, digest_chunk));
    bool whole = sizes.empty();
    while (!whole) {
      whole = true;
      std::int64_t first = 0, level = 0;
      for (std::int64_t& size : sizes) {
        for (std::int64_t i = 0; i < size; i += digest_joined) {
          const std::int64_t count = std::min(digest_joined, size - i);
          joins.push_back({first + i, static_cast<std::int32_t>(count)});
        }
        first += size;
        size = pieces(size, digest_joined);
        level += size;
        whole = whole && size == 1;
      }
      levels.push_back(level);
      joined += level;
    }
  }

  /// Hashes that `digest_roots` needs memory for.
  std::int64_t hashes() const { return leaves + joined; }
};

#if defined(__CUDACC__)
namespace detail {

inline constexpr int digest_threads = 64;

/// A word of data with its NaN as the contract hashes them.
__device__ __forceinline__ std::uint32_t canonical_word(digest_element element,
                                                        std::uint32_t word) {
  if (element == digest_element::f32)
    return (word & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : word;
  if (element == digest_element::bf16) {
    word = (word & 0x7fffu) > 0x7f80u ? (word & 0xffff0000u) | 0x7fc0u : word;
    word = (word & 0x7fff0000u) > 0x7f800000u ? (word & 0xffffu) | 0x7fc00000u : word;
  }
  return word;
}

/// Whether one of 16 words may hold a NaN: products with 0 are added on the pipes that SHA-256
/// leaves idle. Infinity is taken for one too.
template <digest_element Element>
__device__ __forceinline__ bool may_hold_nan(const std::uint32_t (&x)[16]) {
  if constexpr (Element == digest_element::f32) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      sum = __fmaf_rn(__uint_as_float(x[i]), 0.0f, sum);
    return sum != 0.0f;
  } else if constexpr (Element == digest_element::bf16) {
#if __CUDA_ARCH__ >= 800
    std::uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x[i]), "r"(0u));
    return (sum & 0x7fff7fffu) != 0;
#else
    return true;
#endif
  }
  return false;
}

/// 64 bytes of data from `p` on.
template <bool Aligned>
__device__ __forceinline__ void load_words(const unsigned char* p, std::uint32_t (&x)[16]) {
  if constexpr (Aligned) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = __ldg(reinterpret_cast<const uint4*>(p) + i);
      x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      x[i] = p[4 * i] | std::uint32_t{p[4 * i + 1]} << 8 | std::uint32_t{p[4 * i + 2]} << 16 |
             std::uint32_t{p[4 * i + 3]} << 24;
    }
  }
}

/// Ends the message of a leaf of `bytes` bytes whose last `bytes % 64` are still to come; `carry`
/// is the last word of data taken.
__device__ inline void finish_leaf(sha256_words& state, digest_element element,
                                   const unsigned char* rest, std::int64_t bytes,
                                   std::uint32_t carry, std::uint32_t one) {
  const int left = static_cast<int>(bytes % 64);
  unsigned char tail[128] = {};
  tail[0] = static_cast<unsigned char>(carry >> 24);
  const int size = element == digest_element::f32 ? 4 : element == digest_element::bf16 ? 2 : 1;
  for (int i = 0; i < left; i += size) {
    std::uint32_t word = 0;
    for (int j = 0; j < size; ++j)
      word |= std::uint32_t{rest[i + j]} << (8 * j);
    word = canonical_word(element, word);
    for (int j = 0; j < size; ++j)
      tail[1 + i + j] = static_cast<unsigned char>(word >> (8 * j));
  }
  tail[1 + left] = 0x80;
  const int blocks = left + 10 <= 64 ? 1 : 2;
  const std::uint32_t bits = static_cast<std::uint32_t>(8 * (bytes + 1));
  for (int i = 0; i < 4; ++i)
    tail[64 * blocks - 4 + i] = static_cast<unsigned char>(bits >> (24 - 8 * i));
  for (int b = 0; b < blocks; ++b) {
    std::uint32_t w[16];
    for (int i = 0; i < 16; ++i) {
      const unsigned char* const p = tail + 64 * b + 4 * i;
      w[i] =
          std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
    }
    sha256_block(state, w, one);
  }
}

/// SHA-256(0x00 || chunk). Byte i of the message is byte i - 1 of the data.
template <digest_element Element, bool Aligned>
__device__ __forceinline__ sha256_words leaf_of(const unsigned char* data, std::int64_t bytes,
                                                std::uint32_t one) {
  sha256_words state = sha256_start();
  const int full = static_cast<int>(bytes / 64);
  std::uint32_t carry = 0; // the leaf's prefix in its upper byte
  std::uint32_t x[16];
  if (full > 0)
    load_words<Aligned>(data, x);
#pragma unroll 1
  for (int block = 0; block < full; ++block) {
    if (may_hold_nan<Element>(x)) {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        x[i] = canonical_word(Element, x[i]);
    }
    std::uint32_t w[16];
#pragma unroll
    for (int i = 0; i < 16; ++i)
      w[i] = __byte_perm(i == 0 ? carry : x[i - 1], x[i], 0x3456);
    carry = x[15];
    if (block + 1 < full)
      load_words<Aligned>(data + 64 * (block + 1), x);
    sha256_block(state, w, one);
  }
  if (bytes == digest_chunk) {
    std::uint32_t last[16] = {};
    last[0] = (carry & 0xff000000u) | 0x00800000u;
    last[15] = 8 * (digest_chunk + 1);
    sha256_block(state, last, one);
  } else {
    finish_leaf(state, Element, data + 64 * full, bytes, carry, one);
  }
  return state;
}

template <digest_element Element>
__device__ __forceinline__ sha256_words leaf_of(const unsigned char* data, std::int64_t bytes,
                                                std::uint32_t one) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0
             ? leaf_of<Element, true>(data, bytes, one)
             : leaf_of<Element, false>(data, bytes, one);
}

/// A thread a leaf; `sources` in ascending order of first_leaf.
template <int Threads>
__global__ void __launch_bounds__(Threads, 12)
    digest_leaves(const digest_source* sources, int count, std::int64_t leaves,
                  sha256_words* hashes, std::uint32_t one) {
  const std::int64_t leaf = std::int64_t{blockIdx.x} * Threads + threadIdx.x;
  if (leaf >= leaves)
    return;
  int low = 0, high = count; // the last source that begins at or before the leaf
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (sources[middle].first_leaf <= leaf)
      low = middle;
    else
      high = middle;
  }
  const digest_source source = sources[low];
  const std::int64_t begin = (leaf - source.first_leaf) * digest_chunk;
  const std::int64_t left = source.bytes - begin;
  const std::int64_t bytes = left < digest_chunk ? left : digest_chunk;
  const unsigned char* const data = source.data + begin;
  switch (source.element) {
  case digest_element::f32:
    hashes[leaf] = leaf_of<digest_element::f32>(data, bytes, one);
    break;
  case digest_element::bf16:
    hashes[leaf] = leaf_of<digest_element::bf16>(data, bytes, one);
    break;
  default:
    hashes[leaf] = leaf_of<digest_element::any>(data, bytes, one);
  }
}

/// A block of threads a join: neighbours level by level, an odd last one is handed on.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    digest_joins(const digest_join* joins, const sha256_words* from, sha256_words* to,
                 std::uint32_t one) {
  __shared__ sha256_words hashes[digest_joined];
  const digest_join join = joins[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < join.count; i += Threads)
    hashes[i] = from[join.first + i];
  __syncthreads();
  for (int n = join.count; n > 1; n = (n + 1) / 2) {
    sha256_words node;
    if (thread < n / 2)
      node = sha256_node(hashes[2 * thread], hashes[2 * thread + 1], one);
    else if (2 * thread < n)
      node = hashes[2 * thread];
    __syncthreads();
    if (2 * thread < n)
      hashes[thread] = node;
    __syncthreads();
  }
  if (thread == 0)
    to[blockIdx.x] = hashes[0];
}

} // namespace detail

/// Leaf hashes of all sources. Shape: sources [count] and hashes [leaves] on the device.
inline void digest_leaves(cudaStream_t stream, const digest_source* sources, int count,
                          std::int64_t leaves, sha256_words* hashes) {
  launch("ordo::cuda::digest_leaves", detail::digest_leaves<detail::digest_threads>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(leaves, detail::digest_threads))),
         dim3(detail::digest_threads), 0, stream, sources, count, leaves, hashes, std::uint32_t{1});
}

/// to[i] = the root over what joins[i] names of `from`; everything on the device.
inline void digest_joins(cudaStream_t stream, const digest_join* joins, std::int64_t count,
                         const sha256_words* from, sha256_words* to) {
  launch("ordo::cuda::digest_joins", detail::digest_joins<digest_joined / 2>,
         dim3(static_cast<unsigned>(count)), dim3(digest_joined / 2), 0, stream, joins, from, to,
         std::uint32_t{1});
}

/// The roots of all sources of a plan, one after the other; returns where. Shape: sources and joins
/// as the plan has them, hashes [plan.hashes()], all on the device.
inline const sha256_words* digest_roots(cudaStream_t stream, const digest_plan& plan,
                                        const digest_source* sources, const digest_join* joins,
                                        sha256_words* hashes) {
  digest_leaves(stream, sources, static_cast<int>(plan.sources.size()), plan.leaves, hashes);
  std::int64_t below = plan.leaves;
  for (const std::int64_t level : plan.levels) {
    digest_joins(stream, joins, level, hashes, hashes + below);
    hashes += below;
    joins += level;
    below = level;
  }
  return hashes;
}

#endif // __CUDACC__

} // namespace ordo::cuda
