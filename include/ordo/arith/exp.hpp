// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The exponential of the contract: a fixed sequence of the operations of value.hpp.

#include <ordo/arith/value.hpp>

namespace ordo::arith {

namespace detail {

/// exp(x) as fraction * 2^power, fraction in [0.7, 1.42].
struct exp_parts {
  float fraction;
  int power;
};

/// For x in [-125, 125]. Power is the integer nearest to x / ln 2 and r = x - power * ln 2, in two
/// steps of which the first is exact (the constant has 15 significant bits, the power 8);
/// exp(r) = 1 + (r + r^2 P(r)).
///
/// No flush is written here: a term that may be below 2^-126 is always added to a number more than
/// 2^40 times as large, which it cannot change in any mode of the processor.
ORDO_FORCE_FUNCTION exp_parts exp_split(float x) {
  const float shifted = add_rn(mul_rn(x, 0x1.715476p+0f), 0x1.8p23f); // rounds to an integer
  const int power = static_cast<int>(bits(shifted)) - 0x4b400000;
  const float k = add_rn(shifted, -0x1.8p23f);
  const float r = add_rn(add_rn(x, mul_rn(k, -0x1.62e4p-1f)), mul_rn(k, -0x1.7f7d1cp-20f));
  float p = 0x1.6ac36cp-10f;
  p = add_rn(mul_rn(p, r), 0x1.123da6p-7f);
  p = add_rn(mul_rn(p, r), 0x1.555858p-5f);
  p = add_rn(mul_rn(p, r), 0x1.55548cp-3f);
  p = add_rn(mul_rn(p, r), 0x1.fffffcp-2f);
  return {add_rn(1.0f, add_rn(r, mul_rn(mul_rn(r, r), p))), power};
}

/// exp(x) for x in [-86, 86], with the bits of exp(x): nothing there is clamped or flushed.
ORDO_FORCE_FUNCTION float exp_bounded(float x) {
  const exp_parts e = exp_split(x);
  return from_bits(bits(e.fraction) + (static_cast<std::uint32_t>(e.power) << 23));
}

} // namespace detail

/// e to the power x.
///
/// Bits: NaN gives the canonical NaN, +infinity itself, -infinity +0; overflow gives +infinity, a
/// result of at most 2^-126 gives +0.
/// Error: at most 0.99 ulp over all inputs (a result of zero counts as 2^-126).
ORDO_FORCE_FUNCTION float exp(float x) {
  float clamped = detail::select(x > -120.0f, x, -120.0f);
  clamped = detail::select(clamped < 120.0f, clamped, 120.0f);
  const detail::exp_parts e = detail::exp_split(clamped);
  const float y = scale_pow2(e.fraction, e.power);
  return detail::select(is_nan(x), from_bits(canonical_nan), y);
}

} // namespace ordo::arith
