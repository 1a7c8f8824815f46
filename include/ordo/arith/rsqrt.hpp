// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The reciprocal square root of the contract.

#include <ordo/arith/value.hpp>

namespace ordo::arith {

namespace detail {

/// 1 / sqrt(m) for m in [1, 4). s = sqrt(m) and y = 1 / s carry a rounding error each; both
/// remainders, m - s^2 and 1 - y s, are formed from halves of 12 bits whose products are exact, and
/// one Newton step takes them out. No value here is tiny without being exact.
ORDO_FORCE_FUNCTION float rsqrt_normalized(float m) {
  const float s = sqrt_rn(m);
  const float y = div_rn(1.0f, s);
  const float sh = from_bits(bits(s) & 0xfffff000u), sl = add_rn(s, -sh);
  const float yh = from_bits(bits(y) & 0xfffff000u), yl = add_rn(y, -yh);
  const float cross = mul_rn(sh, sl);
  float ds = add_rn(m, -mul_rn(sh, sh));
  ds = add_rn(ds, -add_rn(cross, cross));
  ds = add_rn(ds, -mul_rn(sl, sl));
  float dy = add_rn(1.0f, -mul_rn(yh, sh));
  dy = add_rn(dy, -mul_rn(yh, sl));
  dy = add_rn(dy, -mul_rn(yl, sh));
  dy = add_rn(dy, -mul_rn(yl, sl));
  const float relative = add_rn(dy, -mul_rn(mul_rn(0.5f, ds), mul_rn(y, y)));
  return add_rn(y, mul_rn(y, relative));
}

} // namespace detail

/// 1 / sqrt(x).
///
/// x = 4^k m with m in [1, 4); the result is 2^-k / sqrt(m).
///
/// Bits: +0 gives +infinity, -0 -infinity, +infinity +0; negative values and NaN the canonical NaN.
/// Error: at most 0.51 ulp over all inputs.
ORDO_FORCE_FUNCTION float rsqrt(float x) {
  const std::uint32_t u = bits(x);
  const std::uint32_t k = (((u >> 23) & 0xffu) + 1) / 2 - 64; // modulo 2^32
  const float m = from_bits((u & 0x7fffffffu) - (k << 24));
  float y = from_bits(bits(detail::rsqrt_normalized(m)) - (k << 23));
  y = detail::select(u == 0x7f800000u, 0.0f, y);
  y = detail::select((u & 0x7fffffffu) == 0, from_bits(u | 0x7f800000u), y);
  return detail::select(x >= 0.0f, y, from_bits(canonical_nan));
}

} // namespace ordo::arith
