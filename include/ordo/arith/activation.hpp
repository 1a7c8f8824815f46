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

/// What sigmoid and SiLU are made of: with e = exp(-|x|), sigmoid(x) = numerator / (1 + e) * 2^power,
/// where numerator * 2^power is 1 for x >= 0 and e below. The power is kept apart because x * e may
/// be a normal number where e is none.
struct sigmoid_parts {
  float x;  ///< the argument, not below -110 (where every result is zero); NaN stays
  float numerator;
  float e;
  int power;
};

ORDO_FORCE_FUNCTION sigmoid_parts sigmoid_split(float x) {
  const float magnitude = min(abs(x), 110.0f);
  const exp_parts p = exp_split(-magnitude);
  const bool negative = x < 0.0f;
  return {max(-110.0f, x), negative ? p.fraction : 1.0f, scale_pow2(p.fraction, p.power),
          negative ? p.power : 0};
}

}  // namespace detail

/// 1 / (1 + exp(-x)).
///
/// Bits: NaN gives the canonical NaN, -infinity +0, +infinity 1.
/// Error: at most ERR4 ulp over all inputs (a result of zero counts as 2^-126).
ORDO_FORCE_FUNCTION float sigmoid(float x) {
  const detail::sigmoid_parts s = detail::sigmoid_split(x);
  const float y = scale_pow2(detail::div_rn(s.numerator, detail::add_rn(1.0f, s.e)), s.power);
  return x == x ? y : from_bits(canonical_nan);
}

/// x * sigmoid(x).
///
/// Bits: NaN gives the canonical NaN, -infinity -0, +infinity itself.
/// Error: at most ERR5 ulp over all inputs (a result of zero counts as 2^-126).
ORDO_FORCE_FUNCTION float silu(float x) {
  const detail::sigmoid_parts s = detail::sigmoid_split(x);
  const float numerator = detail::mul_rn(s.x, s.numerator);
  const float y = scale_pow2(detail::div_rn(numerator, detail::add_rn(1.0f, s.e)), s.power);
  return x == x ? y : from_bits(canonical_nan);
}

/// The derivative of silu: sigmoid(x) * (1 + x * sigmoid(-x)).
///
/// Bits: NaN gives the canonical NaN, -infinity -0, +infinity 1.
/// Error: at most ERR6 ulp of the larger of the result and sigmoid(x), over all inputs (the result is
/// zero near -1.278; a result of zero counts as 2^-126).
ORDO_FORCE_FUNCTION float silu_grad(float x) {
  const detail::sigmoid_parts s = detail::sigmoid_split(x);
  const float denominator = detail::add_rn(1.0f, s.e);
  const float other = x < 0.0f ? 1.0f : s.e;  // sigmoid(-x) = other / (1 + e)
  const float bounded = min(s.x, 110.0f);     // beyond, e is zero and 0 * infinity must not be met
  const float slope =
      detail::add_rn(1.0f, detail::div_rn(mul(bounded, other), denominator));
  const float y =
      scale_pow2(detail::mul_rn(detail::div_rn(s.numerator, denominator), slope), s.power);
  return x == x ? y : from_bits(canonical_nan);
}

}  // namespace ordo::arith
