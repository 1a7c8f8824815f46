// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// RMSNorm entry by entry: what every backend's loops and kernels call (contract, section 7).

#include <cstdint>

#include <ordo/arith/functions.hpp>
#include <ordo/arith/value.hpp>

namespace ordo::nn {

/// Rows of one partial sum of the gain's gradient. Part of the contract.
inline constexpr std::int64_t gain_block = 256;

/// The r of a row from the sum of its squares (arith::mul_exact(x, x)) and 1/d. NaN where the mean
/// of squares is not finite.
ORDO_FORCE_FUNCTION float inverse_rms_of(float sum, float reciprocal, float eps) {
  const float mean = arith::add(arith::mul(sum, reciprocal), eps);
  return arith::is_finite(mean) ? arith::rsqrt(mean) : arith::from_bits(arith::canonical_nan);
}

/// An entry of the result, still to be rounded to bf16.
ORDO_FORCE_FUNCTION float rms_norm_entry(float x, float r, float gain) {
  return arith::mul(arith::mul(x, r), gain);
}

/// A term of the gain's gradient.
ORDO_FORCE_FUNCTION float gain_term(float dy, float x, float r) {
  return arith::mul(dy, arith::mul(x, r));
}

/// A term of s, the row sum of the input gradient.
ORDO_FORCE_FUNCTION float input_term(float dy, float gain, float x) {
  return arith::mul(arith::mul_exact(dy, gain), x);
}

/// The factor of x in the input gradient: (r^3 / d) s.
ORDO_FORCE_FUNCTION float input_factor(float r, float reciprocal, float s) {
  const float cube = arith::mul(arith::mul(r, r), r);
  return arith::mul(arith::mul(cube, reciprocal), s);
}

/// An entry of the input gradient, to be rounded to bf16 after the residual's is added.
ORDO_FORCE_FUNCTION float input_gradient(float dy, float gain, float x, float r, float factor) {
  return arith::sub(arith::mul(r, arith::mul_exact(dy, gain)), arith::mul(x, factor));
}

} // namespace ordo::nn
