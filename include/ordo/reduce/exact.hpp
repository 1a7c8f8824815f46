// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Exact sums of binary32: a fixed-point integer that is wide enough for all of them.

#include <cstdint>

#include <ordo/arith/value.hpp>

namespace ordo::reduce {

/// The exact sum of up to 2^31 - 1 values, as an integer in units of 2^-149.
///
/// Ten words hold 32 bits each, with room above them for the carries of 2^31 additions, so that
/// adding is two integer additions and joining two accumulators is ten. All of it is integer
/// arithmetic: any order and any grouping give the same state.
///
/// Bits: of the multiset of values only. A NaN, or infinities of both signs, give the canonical
/// NaN; infinities of one sign that infinity. Otherwise the exact sum is rounded to nearest even,
/// once; what is too large becomes infinity, what is subnormal zero of its sign. A sum of exactly
/// zero is +0, also that of negative zeros and that of nothing.
class exact_sum {
public:
  static constexpr int limbs = 10;
  static constexpr int words = limbs + 3; ///< limbs, then counts: +infinity, -infinity, NaN

  /// Adds one value; a subnormal counts as zero.
  ORDO_FUNCTION void add(float x) {
    const std::uint32_t u = arith::bits(x);
    const std::uint32_t exponent = (u >> 23) & 0xffu;
    if (exponent == 0)
      return;
    if (exponent == 255) {
      word_[arith::is_nan(x) ? limbs + 2 : (u >> 31) != 0 ? limbs + 1 : limbs] += 1;
      return;
    }
    const std::uint64_t significand = (u & 0x007fffffu) | 0x00800000u;
    const std::uint64_t shifted = significand << ((exponent - 1) & 31u);
    const std::uint32_t limb = (exponent - 1) >> 5;
    const std::int64_t low = static_cast<std::int64_t>(shifted & 0xffffffffu);
    const std::int64_t high = static_cast<std::int64_t>(shifted >> 32);
    const bool negative = (u >> 31) != 0;
    word_[limb] += negative ? -low : low;
    word_[limb + 1] += negative ? -high : high;
  }

  /// Adds the sum of another accumulator.
  ORDO_FUNCTION void add(const exact_sum& other) {
    for (int i = 0; i < words; ++i)
      word_[i] += other.word_[i];
  }

  ORDO_FUNCTION std::int64_t word(int i) const { return word_[i]; }
  ORDO_FUNCTION std::int64_t& word(int i) { return word_[i]; }

  /// The sum, rounded.
  ORDO_FUNCTION float result() const {
    const bool plus = word_[limbs] != 0, minus = word_[limbs + 1] != 0;
    if (word_[limbs + 2] != 0 || (plus && minus))
      return arith::from_bits(arith::canonical_nan);
    if (plus || minus)
      return arith::from_bits(plus ? 0x7f800000u : 0xff800000u);
    std::uint32_t magnitude[limbs];
    const std::uint32_t sign = to_magnitude(magnitude) ? 0x80000000u : 0u;
    int top = limbs - 1;
    while (top >= 0 && magnitude[top] == 0)
      --top;
    if (top < 0)
      return 0.0f;
    int bit = 31;
    while ((magnitude[top] >> bit) == 0)
      --bit;
    const int leading = 32 * top + bit; // the sum is in [2^leading, 2^(leading+1)) units
    if (leading < 23)
      return arith::from_bits(sign);
    return arith::from_bits(sign | round(magnitude, leading));
  }

private:
  /// Carries everything into 32-bit digits of |sum|; true if the sum is negative.
  ORDO_FUNCTION bool to_magnitude(std::uint32_t (&digit)[limbs]) const {
    std::int64_t carry = 0;
    for (int i = 0; i < limbs; ++i) {
      carry += word_[i];
      digit[i] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    const bool negative = carry < 0; // the digits are the sum modulo 2^320
    std::uint64_t borrow = 1;
    for (int i = 0; negative && i < limbs; ++i) {
      borrow += static_cast<std::uint32_t>(~digit[i]);
      digit[i] = static_cast<std::uint32_t>(borrow);
      borrow >>= 32;
    }
    return negative;
  }

  /// The bits of a magnitude whose leading bit is `leading` >= 23, rounded to nearest even.
  ORDO_FUNCTION static std::uint32_t round(const std::uint32_t (&digit)[limbs], int leading) {
    const int cut = leading - 23; // bits below this one are rounded away
    std::uint64_t pair = digit[cut / 32];
    if (cut / 32 + 1 < limbs)
      pair |= std::uint64_t{digit[cut / 32 + 1]} << 32;
    std::uint32_t rounded = static_cast<std::uint32_t>(pair >> (cut % 32)) & 0x00ffffffu;
    if (cut > 0) {
      const int half = cut - 1;
      const bool at_least_half = (digit[half / 32] >> (half % 32) & 1u) != 0;
      bool more = (digit[half / 32] & ((std::uint32_t{1} << (half % 32)) - 1)) != 0;
      for (int i = 0; i < half / 32; ++i)
        more = more || digit[i] != 0;
      if (at_least_half && (more || (rounded & 1u) != 0))
        ++rounded;
    }
    // A carry out of the significand moves into the exponent, as it should.
    return cut > 253 ? 0x7f800000u : (static_cast<std::uint32_t>(cut) << 23) + rounded;
  }

  std::int64_t word_[words] = {};
};

} // namespace ordo::reduce
