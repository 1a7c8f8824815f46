// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Epilogues of the integer products on CUDA devices: the store of plain sums, and when the flushes
/// of a scaled store cannot act.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/linalg/scaled_store.hpp>

namespace ordo::cuda {

/// The epilogue that stores the sums.
struct store_sums {
  std::int32_t* out;
  std::int64_t stride;

  __host__ __device__ void operator()(std::int64_t m, std::int64_t n0, int count,
                                      const std::int32_t* c) const {
    for (int j = 0; j < count; ++j)
      out[m * stride + n0 + j] = c[j];
  }
};

template <class Epilogue>
inline constexpr bool is_scaled_store = false;
template <class Out, row_factor Rows, bool Masked>
inline constexpr bool is_scaled_store<scaled_store<Out, Rows, Masked>> = true;

namespace scaling {

/// Whether x is a zero, or low <= |x| < high for powers of two: exponents as in 2^low.
template <int Low, int High>
__device__ __forceinline__ bool zero_or_within(float x) {
  constexpr std::uint32_t low = static_cast<std::uint32_t>(Low + 127) << 23;
  constexpr std::uint32_t high = static_cast<std::uint32_t>(High + 127) << 23;
  const std::uint32_t magnitude = arith::bits(x) & 0x7fffffffu;
  return magnitude == 0u || magnitude - low < high - low;
}

// Where no rule of `mul` and `to_bf16` acts but rounding. Let f = mul(row, column).
// - If f is a zero or 2^-125 <= |f| < 2^95: a sum c is 0 or 1 <= |c| <= 2^31, so that the rounded
//   product with f is a zero (with the sign that the hardware gives as well) or lies within
//   [2^-125, 2^126]: not flushed, finite. Its nearest bf16 lies within the same interval, since
//   both ends are bf16: not flushed, finite, no NaN.
// - If row is a zero or 2^-80 <= |row| < 2^40, and column is a zero or 2^-44 <= |column| < 2^54:
//   the rounded product is a zero or lies within [2^-124, 2^94]: not flushed, so that the plain
//   product is f, and f satisfies the condition above.
// NaN and infinity satisfy neither.
__device__ __forceinline__ bool plain_factor(float f) {
  return zero_or_within<-125, 95>(f);
}
__device__ __forceinline__ bool plain_row(float row) {
  return zero_or_within<-80, 40>(row);
}
__device__ __forceinline__ bool plain_column(float column) {
  return zero_or_within<-44, 54>(column);
}

/// `mul`; without its flush where `Plain` says that it cannot act.
template <bool Plain>
__device__ __forceinline__ float product(float a, float b) {
  if constexpr (Plain)
    return __fmul_rn(a, b);
  else
    return arith::mul(a, b);
}

/// Two results as they lie in memory, `low` first.
template <bool Plain>
__device__ __forceinline__ std::uint32_t bf16_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (Plain) {
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
#endif
  return std::uint32_t{arith::to_bf16(low).bits} | std::uint32_t{arith::to_bf16(high).bits} << 16;
}

} // namespace scaling
} // namespace ordo::cuda
