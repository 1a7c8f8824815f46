// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Sine and cosine of the contract, over all of binary32: the argument is reduced in integers.

#include <ordo/arith/value.hpp>

namespace ordo::arith {

namespace detail {

/// x = quadrant * pi/2 + high + low (modulo 2 pi), |high + low| at most pi/4 (a little more).
struct reduced_angle {
  float high;
  float low;
  std::uint32_t quadrant;
};

/// Word i of the bits of 2/pi, most significant first; word 0 holds the 32 zeros before the point.
ORDO_FORCE_FUNCTION std::uint64_t two_over_pi_word(std::uint32_t i) {
  constexpr std::uint32_t words[8] = {0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                      0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  return words[i & 7u];
}

/// For finite x. From 1/2 on: the 24-bit significand times 96 bits of 2/pi chosen by the exponent
/// gives x / (pi/2) modulo 4 in units of 2^-62, with an error of at most 2 units; no binary32 is
/// closer than 2^-30 to a multiple of pi/2 other than 0. Below 1/2 there is nothing to reduce.
ORDO_FUNCTION reduced_angle reduce_angle(float x) {
  const std::uint32_t u = bits(x) & 0x7fffffffu;
  if (u < 0x3f000000u)
    return {x, 0.0f, 0u};
  const std::uint32_t position = (u >> 23) - 120u; // in [6, 135]
  const std::uint32_t i = position >> 5, s = position & 31u;
  const std::uint64_t t0 = two_over_pi_word(i), t1 = two_over_pi_word(i + 1),
                      t2 = two_over_pi_word(i + 2), t3 = two_over_pi_word(i + 3);
  const std::uint64_t w0 = ((t0 << 32 | t1) << s) >> 32, w1 = ((t1 << 32 | t2) << s) >> 32,
                      w2 = ((t2 << 32 | t3) << s) >> 32;
  const std::uint64_t m = (u & 0x007fffffu) | 0x00800000u;
  const std::uint64_t turn = ((m * w0) << 32) + m * w1 + (m * w2 >> 32); // modulo 2^64
  const std::uint64_t n = (turn + (std::uint64_t{1} << 61)) >> 62;
  // The signed remainder times pi/2 * 2^30, in units of 2^-62 again: high and low halves.
  const std::int64_t rest = static_cast<std::int64_t>(turn - (n << 62));
  const std::int64_t upper = rest >> 32;
  const std::int64_t lower = static_cast<std::int64_t>(rest & 0xffffffff);
  constexpr std::int64_t half_pi = 0x6487ed51;      // floor(pi/2 * 2^30)
  constexpr std::int64_t half_pi_rest = 0x042d1846; // the next 30 bits
  const std::int64_t angle =
      upper * (half_pi << 2) + (upper * half_pi_rest >> 28) + (lower * half_pi >> 30);
  const float angle_high = from_int(angle);
  const float angle_low = from_int(angle - static_cast<std::int64_t>(angle_high));
  const std::uint32_t sign = bits(x) & 0x80000000u;
  const float high = from_bits(bits(mul_rn(angle_high, 0x1p-62f)) ^ sign);
  const float low = from_bits(bits(mul_rn(angle_low, 0x1p-62f)) ^ sign);
  const std::uint32_t quadrant = static_cast<std::uint32_t>(n);
  return {high, low, (sign != 0 ? 0u - quadrant : quadrant) & 3u};
}

/// sin(a + b) for |a + b| <= pi/4, b a rounding error of a: a + (b (1 - a^2/2) + a^3 P(a^2)).
/// A term that may be below 2^-126 is added to a number that it cannot change.
ORDO_FORCE_FUNCTION float sin_kernel(float a, float b) {
  const float z = mul_rn(a, a);
  float p = 0x1.7cd83ep-19f;
  p = add_rn(mul_rn(p, z), -0x1.a05bbap-13f);
  p = add_rn(mul_rn(p, z), 0x1.111176p-7f);
  p = add_rn(mul_rn(p, z), -0x1.555556p-3f);
  const float correction = mul_rn(b, add_rn(1.0f, mul_rn(-0.5f, z)));
  return add_rn(a, add_rn(correction, mul_rn(mul_rn(z, a), p)));
}

/// cos(a + b): 1 - a^2/2, with its rounding error, and a^4 P(a^2) - a b.
ORDO_FORCE_FUNCTION float cos_kernel(float a, float b) {
  const float z = mul_rn(a, a);
  float p = -0x1.372438p-22f;
  p = add_rn(mul_rn(p, z), 0x1.a075e8p-16f);
  p = add_rn(mul_rn(p, z), -0x1.6c1762p-10f);
  p = add_rn(mul_rn(p, z), 0x1.555556p-5f);
  const float half = mul_rn(0.5f, z);
  const float head = add_rn(1.0f, -half);
  const float lost = add_rn(add_rn(1.0f, -head), -half);
  return add_rn(head, add_rn(lost, add_rn(mul_rn(mul_rn(z, z), p), -mul_rn(a, b))));
}

/// sin(x) for turn = 0, cos(x) for turn = 1.
ORDO_FORCE_FUNCTION float sin_quarter(float x, std::uint32_t turn) {
  const reduced_angle r = reduce_angle(x);
  const std::uint32_t quadrant = r.quadrant + turn;
  const float y =
      select((quadrant & 1u) != 0, cos_kernel(r.high, r.low), sin_kernel(r.high, r.low));
  const float signed_y = from_bits(bits(y) ^ (quadrant & 2u) << 30);
  return select(is_finite(x), signed_y, from_bits(canonical_nan));
}

} // namespace detail

/// Sine of an angle in radians.
///
/// Bits: infinities and NaN give the canonical NaN; zeros themselves.
/// Error: at most 0.79 ulp over all inputs.
ORDO_FUNCTION float sin(float x) {
  const float y = detail::sin_quarter(x, 0);
  return detail::select((bits(x) & 0x7fffffffu) == 0, x, y);
}

/// Cosine of an angle in radians.
///
/// Bits: infinities and NaN give the canonical NaN.
/// Error: at most 0.79 ulp over all inputs.
ORDO_FUNCTION float cos(float x) {
  return detail::sin_quarter(x, 1);
}

} // namespace ordo::arith
