// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// XXH3-128 (seed 0) of the chunks of a message in device memory: the leaves of
/// digest::fingerprint_tree. Source: the xxHash specification, version 0.2, "XXH3 for large
/// inputs".

#include <cstdint>

#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda {

/// The two halves of an XXH3-128.
struct xxh3_words {
  std::uint64_t low, high;
};

/// Bytes of a leaf; digest::fingerprint_chunk.
inline constexpr std::int64_t xxh3_chunk = 16384;
/// Messages up to here have another form, which the host computes.
inline constexpr std::int64_t xxh3_shortest = 241;

#if defined(__CUDACC__)
namespace detail {

__device__ constexpr std::uint32_t xxh3_prime32[3] = {0x9E3779B1u, 0x85EBCA77u, 0xC2B2AE3Du};
__device__ constexpr std::uint64_t xxh3_prime64[5] = {0x9E3779B185EBCA87u, 0xC2B2AE3D27D4EB4Fu,
                                                      0x165667B19E3779F9u, 0x85EBCA77C2B2AE63u,
                                                      0x27D4EB2F165667C5u};

/// The specification's default secret, 192 bytes in little-endian words.
__device__ constexpr std::uint64_t xxh3_secret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

/// 8 bytes of the secret from byte `at` on.
__device__ __forceinline__ std::uint64_t secret_at(int at) {
  const std::uint64_t low = xxh3_secret[at / 8];
  const int bits = at % 8 * 8;
  return bits == 0 ? low : low >> bits | xxh3_secret[at / 8 + 1] << (64 - bits);
}

__device__ __forceinline__ std::uint64_t load_word(const unsigned char* p, bool aligned) {
  if (aligned)
    return *reinterpret_cast<const std::uint64_t*>(p);
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i)
    word |= std::uint64_t{p[i]} << (8 * i);
  return word;
}

/// One word of a stripe: the word itself goes to the neighbouring accumulator, its product to the
/// thread's own.
__device__ __forceinline__ void accumulate(std::uint64_t& sum, std::uint64_t word,
                                           std::uint64_t secret) {
  const std::uint64_t mixed = word ^ secret;
  sum += __shfl_xor_sync(0xffffffffu, word, 1);
  sum += (mixed & 0xffffffffu) * (mixed >> 32);
}

/// The eight accumulators of a chunk as one number; every thread of the eight gets it.
__device__ __forceinline__ std::uint64_t merge(std::uint64_t sum, int lane, int secret,
                                               std::uint64_t start) {
  const std::uint64_t mine = sum ^ secret_at(secret + 8 * lane);
  const std::uint64_t other = __shfl_xor_sync(0xffffffffu, mine, 1);
  std::uint64_t folded = (mine * other) ^ __umul64hi(mine, other);
  folded += __shfl_xor_sync(0xffffffffu, folded, 2);
  folded += __shfl_xor_sync(0xffffffffu, folded, 4);
  std::uint64_t h = start + folded;
  h ^= h >> 37;
  h *= 0x165667919E3779F9u;
  return h ^ h >> 32;
}

inline constexpr int xxh3_threads = 128;

/// Eight threads a chunk, each with an eighth of every stripe of 64 bytes. All threads of a warp
/// stay to the end, as neighbours exchange words; those without a chunk of their own repeat the
/// last.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    xxh3_leaves(const unsigned char* data, std::int64_t bytes, std::int64_t leaves,
                xxh3_words* out) {
  constexpr int stripes_of_block = 16, last_secret = 192 - 64;
  const int lane = static_cast<int>(threadIdx.x % 8);
  const std::int64_t place = (std::int64_t{blockIdx.x} * Threads + threadIdx.x) / 8;
  const std::int64_t leaf = place < leaves ? place : leaves - 1;
  const unsigned char* const chunk = data + leaf * xxh3_chunk;
  const std::int64_t left = bytes - leaf * xxh3_chunk;
  const int length = static_cast<int>(left < xxh3_chunk ? left : xxh3_chunk);
  const bool aligned = reinterpret_cast<std::uintptr_t>(chunk) % 8 == 0;
  const std::uint64_t start[8] = {xxh3_prime32[2], xxh3_prime64[0], xxh3_prime64[1],
                                  xxh3_prime64[2], xxh3_prime64[3], xxh3_prime32[1],
                                  xxh3_prime64[4], xxh3_prime32[0]};
  std::uint64_t sum = start[lane];
  const int stripes = (length - 1) / 64; // the last one is counted from the end
  const int most = static_cast<int>((bytes < xxh3_chunk ? bytes : xxh3_chunk) - 1) / 64;
  for (int s = 0; s < most; ++s) { // as often as any neighbour, for the exchange
    std::uint64_t after = sum;
    const std::uint64_t word =
        s < stripes ? load_word(chunk + 64 * s + 8 * lane, aligned) : std::uint64_t{0};
    accumulate(after, word, xxh3_secret[s % stripes_of_block + lane]);
    if (s % stripes_of_block == stripes_of_block - 1) {
      after ^= after >> 47;
      after ^= xxh3_secret[last_secret / 8 + lane];
      after *= xxh3_prime32[0];
    }
    sum = s < stripes ? after : sum;
  }
  const unsigned char* const last = chunk + length - 64 + 8 * lane;
  accumulate(sum, load_word(last, reinterpret_cast<std::uintptr_t>(last) % 8 == 0),
             secret_at(last_secret - 7 + 8 * lane));
  const auto size = static_cast<std::uint64_t>(length);
  const std::uint64_t low = merge(sum, lane, 11, size * xxh3_prime64[0]);
  const std::uint64_t high = merge(sum, lane, 192 - 64 - 11, ~(size * xxh3_prime64[1]));
  if (lane == 0 && place < leaves)
    out[leaf] = {low, high};
}

} // namespace detail

/// XXH3-128 of each chunk of 16 KiB of data [bytes]; the last may be shorter, but of at least
/// `xxh3_shortest` bytes. Shape: out [pieces(bytes, xxh3_chunk)].
/// Bits: of the bytes alone. Throws: a last chunk that is too short.
inline void xxh3_leaves(cudaStream_t stream, const void* data, std::int64_t bytes,
                        xxh3_words* out) {
  const char* const where = "ordo::cuda::xxh3_leaves";
  const std::int64_t leaves = pieces(bytes, xxh3_chunk);
  require(bytes == 0 || bytes - (leaves - 1) * xxh3_chunk >= xxh3_shortest, where,
          "the last chunk has " + std::to_string(bytes - (leaves - 1) * xxh3_chunk) + " bytes",
          "hash a chunk below " + std::to_string(xxh3_shortest) + " bytes on the host");
  launch(where, detail::xxh3_leaves<detail::xxh3_threads>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(8 * leaves, detail::xxh3_threads))),
         dim3(detail::xxh3_threads), 0, stream, static_cast<const unsigned char*>(data), bytes,
         leaves, out);
}

#endif // __CUDACC__

} // namespace ordo::cuda
