// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The scalar rules of sliced contractions: alignment, digits, and what a sum of products becomes.

#include <algorithm>
#include <cstdint>
#include <limits>

#include <ordo/arith/alignment.hpp>
#include <ordo/arith/value.hpp>

namespace ordo {

/// The shift of a row that holds a NaN or an infinity: whatever uses the row is NaN.
inline constexpr std::int32_t sliced_non_finite = std::numeric_limits<std::int32_t>::max();

/// Largest magnitude of an aligned entry: the top digit at most 127, the others at most 63.
template <int Slices>
inline constexpr std::int32_t sliced_limit = sliced_limit<Slices - 1> * 128 + 63;
template <>
inline constexpr std::int32_t sliced_limit<1> = 127;

/// The shifts that rows may have.
inline constexpr std::int32_t sliced_min_shift = -100, sliced_max_shift = 150;

namespace detail {

/// The largest shift s within bounds such that amax * 2^s <= limit; 0 for amax = 0.
template <int Slices>
ORDO_FUNCTION std::int32_t alignment(float amax) {
  if (!arith::is_finite(amax))
    return sliced_non_finite;
  if (amax == 0.0f)
    return 0;
  const std::int32_t s = arith::alignment_shift(arith::bits(amax), sliced_limit<Slices>);
  return s < sliced_min_shift ? sliced_min_shift : s > sliced_max_shift ? sliced_max_shift : s;
}

/// The larger magnitude; a NaN or infinity stays the largest of all.
ORDO_FORCE_FUNCTION std::uint32_t larger_magnitude(std::uint32_t so_far, float x) {
  const std::uint32_t u = arith::bits(x) & 0x7fffffffu;
  return u > so_far ? u : so_far;
}

/// Balanced digits, base 128, of the entry x aligned by `shift`; zeros in a non-finite row.
template <int Slices>
ORDO_FORCE_FUNCTION void digits(float x, std::int32_t shift, std::int8_t (&digit)[Slices]) {
  std::int32_t v = shift == sliced_non_finite
                       ? 0
                       : arith::to_int(arith::scale_pow2(x, shift), sliced_limit<Slices>);
  for (int i = 0; i < Slices; ++i) {
    const std::int32_t low = i + 1 < Slices ? ((v + 64) & 127) - 64 : v;
    digit[i] = static_cast<std::int8_t>(low);
    v = (v - low) / 128;
  }
}

/// Largest magnitude, per k, of what meets in the int32 sum of weight 128^w: the products of digits
/// i and j with i + j = w. The top digit of each side is at most 127, the others at most 64.
template <int A, int B>
constexpr std::int64_t sliced_weight_bound(int w) {
  std::int64_t bound = 0;
  for (int i = 0; i < A; ++i) {
    const int j = w - i;
    if (j >= 0 && j < B)
      bound += (i + 1 < A ? 64 : 127) * (j + 1 < B ? 64 : 127);
  }
  return bound;
}

template <int A, int B>
constexpr std::int64_t sliced_max_k() {
  std::int64_t bound = 1;
  for (int w = 0; w < A + B - 1; ++w)
    bound = std::max(bound, sliced_weight_bound<A, B>(w));
  return 0x7fffffff / bound;
}

/// One rounding, then the exact scaling; `flush` rule of a product.
ORDO_FORCE_FUNCTION float sliced_value(std::int64_t v, std::int32_t a_shift, std::int32_t b_shift) {
  if (a_shift == sliced_non_finite || b_shift == sliced_non_finite)
    return arith::from_bits(arith::canonical_nan);
  // |v| < 2^60, so that everything from 2^-252 down is zero as well.
  const std::int32_t e = -(a_shift + b_shift);
  return arith::scale_pow2(arith::from_int(v), e < -252 ? -252 : e);
}

} // namespace detail
} // namespace ordo
