// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The natural logarithm of the contract: a fixed sequence of the operations of value.hpp.

#include <ordo/arith/value.hpp>

namespace ordo::arith {

namespace detail {

/// log(x) of a positive finite value. x = 2^k (1 + f) with 1 + f in [2/3, 4/3);
/// log(1 + f) = f + (f^3 P(f) - f^2 / 2). What k ln 2 + f loses is put back with the small terms.
/// Nothing here can be tiny: f is zero or at least 2^-24.
ORDO_FORCE_FUNCTION float log_positive(float x) {
  constexpr std::uint32_t two_thirds = 0x3f2aaaabu;
  const std::uint32_t u = bits(x) - two_thirds;
  const float k = from_int(static_cast<std::int32_t>(u) >> 23);
  const float f = add_rn(from_bits((u & 0x007fffffu) + two_thirds), -1.0f);
  float p = -0x1.0e2a66p-3f;
  p = add_rn(mul_rn(p, f), 0x1.1df336p-3f);
  p = add_rn(mul_rn(p, f), -0x1.f03c42p-4f);
  p = add_rn(mul_rn(p, f), 0x1.1ef19ep-3f);
  p = add_rn(mul_rn(p, f), -0x1.55b7e6p-3f);
  p = add_rn(mul_rn(p, f), 0x1.99ce42p-3f);
  p = add_rn(mul_rn(p, f), -0x1.fffe5ep-3f);
  p = add_rn(mul_rn(p, f), 0x1.55550cp-2f);
  const float square = mul_rn(f, f);
  const float small = add_rn(mul_rn(mul_rn(square, f), p), mul_rn(-0.5f, square));
  const float high = mul_rn(k, 0x1.62e4p-1f); // exact: 15 significant bits times 8
  const float head = add_rn(high, f);
  const float lost = add_rn(f, add_rn(high, -head));
  return add_rn(head, add_rn(lost, add_rn(small, mul_rn(k, 0x1.7f7d1cp-20f))));
}

} // namespace detail

/// The natural logarithm.
///
/// Bits: zeros give -infinity, +infinity itself, negative values and NaN the canonical NaN.
/// Error: at most 0.87 ulp over all inputs.
ORDO_FORCE_FUNCTION float log(float x) {
  float y = detail::log_positive(x);
  y = detail::select((bits(x) & 0x7fffffffu) == 0, from_bits(0xff800000u), y);
  y = detail::select(bits(x) == 0x7f800000u, x, y);
  return detail::select(x >= 0.0f, y, from_bits(canonical_nan));
}

} // namespace ordo::arith
