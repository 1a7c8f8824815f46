// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Sigmoid and SiLU of the contract.
///
/// No flush is written between the steps: what may be tiny there is either scaled by a power of two
/// and flushed at the end, or added to a number that it cannot change.

#include <ordo/arith/exp.hpp>
#include <ordo/arith/value.hpp>

namespace ordo::arith {

namespace detail {

/// What sigmoid and SiLU are made of. With exp(-x) = e 2^n, n > 0: sigmoid(x) is 1/(2^-n + e) times
/// 2^-n; with n <= 0 (which is taken into e): 1/(1 + e). The power is kept apart because x * 2^-n/e
/// may be a normal number where exp(-x) is none.
struct sigmoid_parts {
  float x; ///< the argument within [-110, 110]; beyond, results do not change any more
  float e;
  float denominator;
  int power; ///< -n or 0
};

ORDO_FORCE_FUNCTION sigmoid_parts sigmoid_split(float x) {
  float clamped = select(x > -110.0f, x, -110.0f);
  clamped = select(clamped < 110.0f, clamped, 110.0f);
  const exp_parts p = exp_split(-clamped);
  const int up = p.power > 0 ? p.power : 0;
  const float e = scale_pow2(p.fraction, p.power - up);
  const float one = pow2(up < 100 ? -up : -100); // below 2^-30 it adds nothing
  return {clamped, e, add_rn(one, e), -up};
}

} // namespace detail

/// 1 / (1 + exp(-x)).
///
/// Bits: NaN gives the canonical NaN, -infinity +0, +infinity 1.
/// Error: at most 2.49 ulp over all inputs (a result of zero counts as 2^-126).
ORDO_FORCE_FUNCTION float sigmoid(float x) {
  const detail::sigmoid_parts s = detail::sigmoid_split(x);
  const float y = scale_pow2(detail::div_rn(1.0f, s.denominator), s.power);
  return detail::select(is_nan(x), from_bits(canonical_nan), y);
}

/// x * sigmoid(x).
///
/// Bits: NaN gives the canonical NaN, -infinity -0, +infinity itself.
/// Error: at most 2.45 ulp over all inputs (a result of zero counts as 2^-126).
ORDO_FORCE_FUNCTION float silu(float x) {
  const detail::sigmoid_parts s = detail::sigmoid_split(x);
  const float numerator = detail::select(x < -110.0f, -110.0f, x);
  const float y = scale_pow2(detail::div_rn(numerator, s.denominator), s.power);
  return detail::select(is_nan(x), from_bits(canonical_nan), y);
}

/// The derivative of silu: sigmoid(x) * (1 + x * sigmoid(-x)).
///
/// Bits: NaN gives the canonical NaN, -infinity -0, +infinity 1.
/// Error: at most 5.33 ulp of the larger of the result and sigmoid(x), over all inputs (the result
/// is zero near -1.278; a result of zero counts as 2^-126).
ORDO_FORCE_FUNCTION float silu_grad(float x) {
  const detail::sigmoid_parts s = detail::sigmoid_split(x);
  const float product = mul(s.x, s.e);
  const float slope = detail::add_rn(1.0f, detail::div_rn(product, s.denominator));
  const float y = scale_pow2(detail::div_rn(slope, s.denominator), s.power);
  return detail::select(is_nan(x), from_bits(canonical_nan), y);
}

} // namespace ordo::arith
