// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// SHA-256 (FIPS 180-4) in device code: one thread a message.

#include <array>
#include <cstddef>
#include <cstdint>

#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda {

/// A digest as eight numbers, H0 to H7; in bytes each is big-endian.
struct sha256_words {
  std::uint32_t h[8];

  std::array<std::uint8_t, 32> bytes() const {
    std::array<std::uint8_t, 32> out;
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::uint8_t>(h[i / 4] >> (24 - 8 * (i % 4)));
    return out;
  }
};

#if defined(__CUDACC__)
namespace detail {

/// The round constants, so that unrolled rounds have them as immediates.
__device__ constexpr std::uint32_t sha256_round[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

template <int N>
__device__ __forceinline__ std::uint32_t rotated_right(std::uint32_t x) {
  return __funnelshift_r(x, x, N);
}

/// a + b through a product with `one`, which is 1 and which the compiler does not know: multipliers
/// are idle while rotations and logical operations fill the integer units.
__device__ __forceinline__ std::uint32_t sum(std::uint32_t a, std::uint32_t b, std::uint32_t one) {
  std::uint32_t c;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(one), "r"(b));
  return c;
}

} // namespace detail

/// The digest of nothing yet.
__device__ __forceinline__ sha256_words sha256_start() {
  return {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
           0x5be0cd19}};
}

/// Takes one block of 16 big-endian words into `state`; `w` is used up. `one` is 1 (detail::sum).
__device__ __forceinline__ void sha256_block(sha256_words& state, std::uint32_t (&w)[16],
                                             std::uint32_t one) {
  using detail::rotated_right;
  using detail::sum;
  std::uint32_t a = state.h[0], b = state.h[1], c = state.h[2], d = state.h[3];
  std::uint32_t e = state.h[4], f = state.h[5], g = state.h[6], h = state.h[7];
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    if (i >= 16) {
      const std::uint32_t x = w[(i + 1) % 16], y = w[(i + 14) % 16];
      const std::uint32_t s0 = rotated_right<7>(x) ^ rotated_right<18>(x) ^ (x >> 3);
      const std::uint32_t s1 = rotated_right<17>(y) ^ rotated_right<19>(y) ^ (y >> 10);
      w[i % 16] = sum(s1, sum(s0, sum(w[(i + 9) % 16], w[i % 16], one), one), one);
    }
    const std::uint32_t sum1 = rotated_right<6>(e) ^ rotated_right<11>(e) ^ rotated_right<25>(e);
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t early = sum(h, sum(w[i % 16], detail::sha256_round[i], one), one);
    const std::uint32_t t1 = sum(choice, sum(sum1, early, one), one);
    const std::uint32_t sum0 = rotated_right<2>(a) ^ rotated_right<13>(a) ^ rotated_right<22>(a);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g, g = f, f = e, e = sum(d, t1, one), d = c, c = b, b = a;
    a = sum(majority, sum(sum0, t1, one), one);
  }
  state.h[0] += a, state.h[1] += b, state.h[2] += c, state.h[3] += d;
  state.h[4] += e, state.h[5] += f, state.h[6] += g, state.h[7] += h;
}

/// SHA-256(0x01 || left || right), the inner node of a Merkle tree (RFC 9162, section 2.1).
__device__ inline sha256_words sha256_node(const sha256_words& left, const sha256_words& right,
                                           std::uint32_t one) {
  std::uint32_t w[16], last[16] = {};
  std::uint32_t before = 1;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t word = i < 8 ? left.h[i] : right.h[i - 8];
    w[i] = __funnelshift_r(word, before, 8);
    before = word;
  }
  last[0] = before << 24 | 0x00800000u;
  last[15] = 65 * 8;
  sha256_words state = sha256_start();
  sha256_block(state, w, one);
  sha256_block(state, last, one);
  return state;
}

#endif // __CUDACC__

} // namespace ordo::cuda
