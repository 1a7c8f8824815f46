// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Two bf16 in one register: how kernels read and write rows.

#include <cstdint>

#include <ordo/arith/bf16.hpp>

namespace ordo::cuda {

/// The two values of a pair; `low` lies first in memory.
__device__ __forceinline__ float low(std::uint32_t pair) {
  return arith::to_f32(bf16{static_cast<std::uint16_t>(pair & 0xffffu)});
}
__device__ __forceinline__ float high(std::uint32_t pair) {
  return arith::to_f32(bf16{static_cast<std::uint16_t>(pair >> 16)});
}

namespace detail {

/// Zero of the same sign where arith::to_bf16 gives that: up to 0x00808000, which is halfway
/// between 2^-126 and its neighbour in bf16 and goes to the even one, 2^-126.
__device__ __forceinline__ float flush_for_bf16(float x) {
  return fabsf(x) <= arith::from_bits(0x00808000u) ? arith::from_bits(arith::bits(x) & 0x80000000u)
                                                   : x;
}

} // namespace detail

/// Two numbers rounded to bf16 with the bits of arith::to_bf16, but for NaN: that may become 7fff
/// and then sets `nan`, and `canonical_pair` makes 7fc0 of it. So a row tests its pairs once.
__device__ __forceinline__ std::uint32_t round_pair(float first, float second, bool& nan) {
#if __CUDA_ARCH__ >= 800
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
      : "=r"(pair)
      : "f"(detail::flush_for_bf16(second)), "f"(detail::flush_for_bf16(first)));
  nan = nan || first != first || second != second;
  return pair;
#else
  return arith::to_bf16(first).bits | static_cast<std::uint32_t>(arith::to_bf16(second).bits) << 16;
#endif
}

/// The pair with NaN as arith::to_bf16 writes it.
__device__ __forceinline__ std::uint32_t canonical_pair(std::uint32_t pair) {
  pair = (pair & 0x00007fffu) > 0x00007f80u ? (pair & 0xffff0000u) | 0x00007fc0u : pair;
  return (pair & 0x7fffffffu) > 0x7f80ffffu ? (pair & 0x0000ffffu) | 0x7fc00000u : pair;
}

/// Two numbers rounded as arith::to_bf16 does.
__device__ __forceinline__ std::uint32_t to_pair(float first, float second) {
  bool nan = false;
  const std::uint32_t pair = round_pair(first, second, nan);
  return nan ? canonical_pair(pair) : pair;
}

/// Whether `pointer` is a multiple of `bytes`.
inline bool aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

} // namespace ordo::cuda
