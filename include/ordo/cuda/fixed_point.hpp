// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Fixed point on the device in few instructions: entries to digits, integer sums to binary32. Each
/// function states the range in which it has the bits of the rule in linalg/digits.hpp, and callers
/// use that rule outside of it.

#include <cstdint>

#include <ordo/arith/value.hpp>
#include <ordo/linalg/digits.hpp>

namespace ordo::cuda::sliced {

/// a - b of two values, flushed by the hardware: a subnormal sum is exact, so that flushing it in
/// the adder or after it (arith::sub) is the same.
__device__ __forceinline__ float sub_values(float a, float b) {
  float r;
  asm("sub.rn.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

/// add(c, a * b) for a product that is exact and a value. One rounding, as the sum alone has; what
/// is subnormal is an exact sum and becomes zero of its sign, as in arith::add.
__device__ __forceinline__ float add_exact_product(float a, float b, float c) {
  float r;
  asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
  return r;
}

/// 1.5 * 2^23. A float v + magic with an integer |v| <= 2^22 has the bits magic_bits + v.
inline constexpr float magic = 0x1.8p23f;
inline constexpr std::int32_t magic_bits = 0x4b400000;

// ---------------------------------------------------------------- entries to digits

/// Whether `digit_code` may be used with rows or columns of this shift: 2^shift is a value, and the
/// alignment was not cut off at sliced_min_shift, so that no entry needs the clamp.
__device__ __forceinline__ bool plain_shift(std::int32_t shift) {
  return shift > sliced_min_shift && shift <= 126;
}

/// Bits whose lowest 15 are v + 64, v the aligned integer of two slices; `power` is 2^shift of a
/// plain shift. x * power is not rounded on its own, and the sum rounds it to the nearest even
/// integer, as arith::to_int(arith::scale_pow2(x, shift)) does: where scale_pow2 flushes, both give
/// 0. The 64 is even and changes no tie.
__device__ __forceinline__ std::uint32_t digit_code(float x, float power) {
  return arith::bits(__fmaf_rn(x, power, magic + 64.0f));
}

/// The digits of four entries, the first in the lowest byte.
struct digit_bytes {
  std::uint32_t low, high;
};

/// high = (v + 64) >> 7 and low = ((v + 64) & 127) - 64 in each byte.
__device__ __forceinline__ digit_bytes pack_digits(std::uint32_t c0, std::uint32_t c1,
                                                   std::uint32_t c2, std::uint32_t c3) {
  const std::uint32_t c01 = __byte_perm(c0, c1, 0x5410), c23 = __byte_perm(c2, c3, 0x5410);
  const std::uint32_t seven = __byte_perm(c01, c23, 0x6420);
  // y - 64 of y in [0, 127]: bit 6 is turned over and then is the sign.
  const std::uint32_t turned = (seven & 0x7f7f7f7fu) ^ 0x40404040u;
  return {turned | ((turned << 1) & 0x80808080u), __byte_perm(c01 >> 7, c23 >> 7, 0x6420)};
}

/// The digits of four entries under any shifts.
template <int Slices>
__device__ __forceinline__ void pack_digits_by_rule(const float (&x)[4],
                                                    const std::int32_t (&shift)[4],
                                                    std::uint32_t (&bytes)[Slices]) {
#pragma unroll
  for (int i = 0; i < Slices; ++i)
    bytes[i] = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    std::int8_t digit[Slices];
    ordo::detail::digits<Slices>(x[e], shift[e], digit);
#pragma unroll
    for (int i = 0; i < Slices; ++i)
      bytes[i] |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(digit[i])) << (8 * e);
  }
}

// ---------------------------------------------------------------- sums to values

/// Shifts for which 2^-shift times any integer that occurs, and the sum of two such, needs neither
/// flush nor clamp: results are zero or at least 2^-125, and below 2^124.
inline constexpr std::int32_t least_plain = -40, most_plain = 110, most_plain_sum = 125;

__device__ __forceinline__ bool plain_row(std::int32_t shift) {
  return shift >= least_plain && shift <= most_plain;
}

/// 2^-shift of a plain row.
__device__ __forceinline__ float unit_of(std::int32_t shift) {
  return arith::from_bits(static_cast<std::uint32_t>(127 - shift) << 23);
}

/// What turns integers cut in two into values of a row: each part becomes a float by its position
/// in the significand, and one multiply-add, exact, takes the offset away and scales.
template <int Cut>
struct row_unit {
  float high, high_offset, low, low_offset;

  __device__ __forceinline__ explicit row_unit(std::int32_t shift) {
    low = unit_of(shift);
    high = __fmul_rn(low, static_cast<float>(1 << Cut));
    high_offset = -__fmul_rn(high, magic);
    low_offset = -__fmul_rn(low, 0x1p23f);
  }

  /// from_int(top * 2^Cut + rest) * 2^-shift, |top| <= 2^22, 0 <= rest < 2^Cut: both parts are
  /// exact, their sum is rounded once.
  __device__ __forceinline__ float value(std::int32_t top, std::int32_t rest) const {
    static_assert(Cut <= 23);
    const float h = arith::from_bits(static_cast<std::uint32_t>(top + magic_bits));
    const float l = arith::from_bits(static_cast<std::uint32_t>(rest) | 0x4b000000u);
    return __fadd_rn(__fmaf_rn(h, high, high_offset), __fmaf_rn(l, low, low_offset));
  }
};

/// Longest contraction for which `long_value` may be used: the sums of digit products and what is
/// carried into them stay below 2^31, the integer below 2^45.
inline constexpr std::int64_t long_value_max_k = 65536;

/// from_int(hh * 2^14 + mid * 2^7 + ll) * 2^-shift.
__device__ __forceinline__ float long_value(const row_unit<23>& unit, std::int32_t hh,
                                            std::int32_t mid, std::int32_t ll) {
  const std::int32_t top = hh + ((mid + (ll >> 7)) >> 7); // the integer, divided by 2^14
  const std::uint32_t low = (static_cast<std::uint32_t>(hh) << 14) +
                            (static_cast<std::uint32_t>(mid) << 7) + static_cast<std::uint32_t>(ll);
  return unit.value(top >> 9, static_cast<std::int32_t>(low & 0x7fffffu));
}

/// Longest contraction for which `block_value` may be used: hh, and the rest divided by 2^14, stay
/// within 2^22 together.
inline constexpr std::int64_t block_value_max_k = 256;

/// from_int(hh * 2^14 + rest) * 2^-shift, rest = mid * 2^7 + ll.
__device__ __forceinline__ float block_value(const row_unit<14>& unit, std::int32_t hh,
                                             std::int32_t rest) {
  return unit.value(hh + (rest >> 14), rest & 0x3fff);
}

/// The value of two slices on each side by the rule, for any shifts.
__device__ __forceinline__ float value_by_rule(std::int32_t hh, std::int32_t mid, std::int32_t ll,
                                               std::int32_t a_shift, std::int32_t b_shift) {
  const std::int64_t v = (std::int64_t{hh} * 128 + mid) * 128 + ll;
  return ordo::detail::sliced_value(v, a_shift, b_shift);
}

} // namespace ordo::cuda::sliced
