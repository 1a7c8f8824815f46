// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The scalar rules of rotated.hpp: alignment, codes and scales.

#include <cstdint>

#include <ordo/arith/alignment.hpp>
#include <ordo/arith/value.hpp>

namespace ordo::quant {

/// Largest magnitude of the aligned integers.
inline constexpr std::int32_t rotation_limit = 32767;

/// The alignment shift of a row whose largest magnitude has the bits `largest`, within [-100, 150];
/// 0 for an all-zero or non-finite row.
ORDO_FORCE_FUNCTION int alignment_shift(std::uint32_t largest, std::int32_t limit) {
  if (largest == 0 || !arith::is_finite(arith::from_bits(largest)))
    return 0;
  const int shift = arith::alignment_shift(largest, limit);
  return shift < -100 ? -100 : shift > 150 ? 150 : shift;
}

/// The part of the scale that the codes' maximum and the shift decide.
ORDO_FORCE_FUNCTION float rotated_scale(std::uint32_t largest, std::int32_t top, int shift) {
  if (!arith::is_finite(arith::from_bits(largest)))
    return arith::from_bits(arith::canonical_nan);
  return arith::scale_pow2(arith::div(arith::from_int(top), 127.0f), -shift - 4);
}

/// A column's scale times what all columns share; a NaN is the canonical one.
ORDO_FORCE_FUNCTION float column_scale(float scale, float common) {
  return arith::canonical(arith::mul(scale, common));
}

/// 127 / A, or 0 where A is 0.
ORDO_FORCE_FUNCTION float rotated_inverse(std::int32_t top) {
  return top == 0 ? 0.0f : arith::div(127.0f, arith::from_int(top));
}

ORDO_FORCE_FUNCTION std::int32_t magnitude(std::int32_t x) {
  return x < 0 ? -x : x;
}

namespace detail {

/// Added to a value within [-2^22, 2^22], it leaves the nearest even integer in the low bits.
inline constexpr float rounder = 0x1.8p23f;

/// The nearest even integer of a value known to lie within [-2^22, 2^22]: `arith::to_int` less its
/// clamps.
ORDO_FORCE_FUNCTION std::int32_t nearest(float x) {
  return static_cast<std::int32_t>(arith::bits(arith::detail::add_rn(x, rounder))) - 0x4b400000;
}

/// Code of a rotated integer, |r| <= A < 2^24: r * (127 / A) needs neither flush nor clamp.
ORDO_FORCE_FUNCTION std::int8_t rotated_code(std::int32_t r, float inverse) {
  return static_cast<std::int8_t>(nearest(arith::detail::mul_rn(arith::from_int(r), inverse)));
}

/// The factor 2^s of an alignment, and whether `x * 2^s` may be rounded without clamps and flushes:
/// it lies within the limit, and what would be flushed beforehand rounds to 0 anyway.
struct alignment {
  int shift;
  float low, high; ///< their product is 2^shift
  bool plain;

  ORDO_FORCE_FUNCTION explicit alignment(std::uint32_t largest)
      : alignment(alignment_shift(largest, rotation_limit),
                  arith::is_finite(arith::from_bits(largest))) {}
  /// The same from its shift and from whether the row is finite.
  ORDO_FORCE_FUNCTION alignment(int by, bool finite)
      : shift(by), low(arith::pow2(by / 2)), high(arith::pow2(by - by / 2)),
        plain(finite && by > -100 && by <= 100) {}
  ORDO_FORCE_FUNCTION std::int32_t operator()(float x) const {
    return arith::to_int(arith::mul(arith::mul(x, low), high), rotation_limit);
  }
};

} // namespace detail
} // namespace ordo::quant
