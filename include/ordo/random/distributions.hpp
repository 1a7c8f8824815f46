// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Random values of distributions as functions of one word.

#include <cstdint>

#include <ordo/arith/log.hpp>
#include <ordo/arith/value.hpp>

namespace ordo::random {

/// The upper 23 bits of a word as the midpoint of one of 2^23 equal parts of (0, 1).
///
/// Bits: exactly (2 floor(word / 512) + 1) / 2^24; never 0, never 1, symmetric about 1/2.
ORDO_FORCE_FUNCTION float uniform(std::uint32_t word) {
  const std::int32_t odd = static_cast<std::int32_t>(word >> 9) * 2 + 1;
  return arith::mul(arith::from_int(odd), 0x1p-24f);
}

/// The same for (-1, 1): exactly (2 floor(word / 512) + 1 - 2^23) / 2^23; never 0.
ORDO_FORCE_FUNCTION float uniform_signed(std::uint32_t word) {
  const std::int32_t odd = static_cast<std::int32_t>(word >> 9) * 2 + 1 - (1 << 23);
  return arith::mul(arith::from_int(odd), 0x1p-23f);
}

/// A standard normal value given that its magnitude is below 2: the inverse of its distribution
/// function at `uniform_signed(word)`.
///
/// v = u erf(sqrt 2); x = sqrt 2 erfinv(v) = v P(-log((1 - v)(1 + v))), P of degree 6.
///
/// Bits: of the word only; words whose upper 23 bits are complements give values of opposite sign.
/// Error: at most 3.3e-7 relative over all words (an exact midpoint taken as the argument).
ORDO_FORCE_FUNCTION float truncated_normal(std::uint32_t word) {
  using arith::detail::add_rn;
  using arith::detail::mul_rn;
  const float v = mul_rn(uniform_signed(word), 0x1.e8b43p-1f);
  const float w = -arith::detail::log_positive(mul_rn(add_rn(1.0f, -v), add_rn(1.0f, v)));
  float p = -0x1.a66c24p-18f; // nothing is tiny: |v| > 2^-25, and w is zero or above 2^-25
  p = add_rn(mul_rn(p, w), 0x1.7a3a1ep-14f);
  p = add_rn(mul_rn(p, w), -0x1.c10f1p-13f);
  p = add_rn(mul_rn(p, w), -0x1.adca4ep-9f);
  p = add_rn(mul_rn(p, w), 0x1.0b7aa2p-6f);
  p = add_rn(mul_rn(p, w), 0x1.4ffe16p-2f);
  p = add_rn(mul_rn(p, w), 0x1.40d932p+0f);
  return mul_rn(v, p);
}

} // namespace ordo::random
