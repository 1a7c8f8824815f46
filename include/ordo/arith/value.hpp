// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The scalar operations of the numeric contract, section "Values". Every backend uses these.
///
/// A *value* is a binary32 that is not subnormal. Results of the operations below are values;
/// their operands must be values (read foreign memory through `flush`). Under that invariant the
/// bits do not depend on the thread's flush-to-zero mode: hardware flushing followed by the compare
/// in `detail::flush_rounded`, and gradual underflow followed by the same compare, agree.
/// Rounding must be to nearest even, which kernels ensure for their threads (float_mode.hpp).

#include <bit>
#include <cmath>
#include <cstdint>

#include <ordo/core/macros.hpp>

namespace ordo::arith {

inline constexpr float smallest_normal = 0x1p-126f;
inline constexpr std::uint32_t canonical_nan = 0x7fc00000u;

ORDO_FORCE_FUNCTION std::uint32_t bits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
ORDO_FORCE_FUNCTION float from_bits(std::uint32_t u) {
  return std::bit_cast<float>(u);
}

namespace detail {

// One rounding each, never fused with a neighbour. On the host this rests on -ffp-contract=off,
// which travels with the CMake target and is checked at run time (core/execution.hpp).
#if defined(__CUDA_ARCH__)
ORDO_FORCE_FUNCTION float add_rn(float a, float b) {
  return __fadd_rn(a, b);
}
ORDO_FORCE_FUNCTION float mul_rn(float a, float b) {
  return __fmul_rn(a, b);
}
ORDO_FORCE_FUNCTION float div_rn(float a, float b) {
  return __fdiv_rn(a, b);
}
ORDO_FORCE_FUNCTION float sqrt_rn(float a) {
  return __fsqrt_rn(a);
}
ORDO_FORCE_FUNCTION float fma_rn(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
#else
ORDO_FORCE_FUNCTION float add_rn(float a, float b) {
  return a + b;
}
ORDO_FORCE_FUNCTION float mul_rn(float a, float b) {
  return a * b;
}
ORDO_FORCE_FUNCTION float div_rn(float a, float b) {
  return a / b;
}
ORDO_FORCE_FUNCTION float sqrt_rn(float a) {
  return __builtin_sqrtf(a);
}
ORDO_FORCE_FUNCTION float fma_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
#endif

/// Zero of the same sign when the magnitude is at most 2^-126: the rule for rounded results.
ORDO_FORCE_FUNCTION float flush_rounded(float x) {
  const std::uint32_t u = bits(x);
  return from_bits((u & 0x7fffffffu) <= 0x00800000u ? u & 0x80000000u : u);
}

/// `condition ? a : b` on bits: no branch, whatever the compiler thinks of traps, so that loops
/// over functions with special cases are vectorized.
ORDO_FORCE_FUNCTION float select(bool condition, float a, float b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return from_bits((bits(a) & mask) | (bits(b) & ~mask));
}

} // namespace detail

/// Zero of the same sign when `x` is subnormal: how foreign binary32 becomes a value.
ORDO_FORCE_FUNCTION float flush(float x) {
  const std::uint32_t u = bits(x);
  return from_bits((u & 0x7fffffffu) < 0x00800000u ? u & 0x80000000u : u);
}

/// Sum, rounded to nearest even; subnormal sums (which are exact) become zero of their sign.
ORDO_FORCE_FUNCTION float add(float a, float b) {
  return flush(detail::add_rn(a, b));
}

/// Difference, as `add(a, -b)`.
ORDO_FORCE_FUNCTION float sub(float a, float b) {
  return flush(detail::add_rn(a, -b));
}

/// Product, rounded to nearest even; a rounded magnitude of at most 2^-126 becomes zero of its
/// sign.
ORDO_FORCE_FUNCTION float mul(float a, float b) {
  return detail::flush_rounded(detail::mul_rn(a, b));
}

/// Product of operands of at most 11 significant bits (bf16, fp16, int8): exact, so flushed only
/// below 2^-126. Not interchangeable with `mul`: 2^-63 * 2^-63 is 2^-126 here and 0 there.
ORDO_FORCE_FUNCTION float mul_exact(float a, float b) {
  return flush(detail::mul_rn(a, b));
}

/// Quotient; rule of `mul`.
ORDO_FORCE_FUNCTION float div(float a, float b) {
  return detail::flush_rounded(detail::div_rn(a, b));
}

/// a * b + c with a single rounding; rule of `mul`. Slow where the chip has no fused operation.
ORDO_FORCE_FUNCTION float fma(float a, float b, float c) {
  return detail::flush_rounded(detail::fma_rn(a, b, c));
}

/// Square root, rounded to nearest even. Of a negative value: NaN.
ORDO_FORCE_FUNCTION float sqrt(float a) {
  return detail::sqrt_rn(a);
}

/// `a > b ? a : b`: of two zeros the second, and the second operand if either is NaN.
ORDO_FORCE_FUNCTION float max(float a, float b) {
  return a > b ? a : b;
}

/// `a < b ? a : b`: of two zeros the second, and the second operand if either is NaN.
ORDO_FORCE_FUNCTION float min(float a, float b) {
  return a < b ? a : b;
}

/// Magnitude; clears the sign bit, of NaN too.
ORDO_FORCE_FUNCTION float abs(float x) {
  return from_bits(bits(x) & 0x7fffffffu);
}

ORDO_FORCE_FUNCTION bool is_nan(float x) {
  return (bits(x) & 0x7fffffffu) > 0x7f800000u;
}
ORDO_FORCE_FUNCTION bool is_finite(float x) {
  return (bits(x) & 0x7f800000u) != 0x7f800000u;
}

/// What is stored or hashed in place of `x`: every NaN becomes 7fc00000.
ORDO_FORCE_FUNCTION float canonical(float x) {
  return is_nan(x) ? from_bits(canonical_nan) : x;
}

/// 2^e for e in [-126, 127].
ORDO_FORCE_FUNCTION float pow2(int e) {
  return from_bits(static_cast<std::uint32_t>(e + 127) << 23);
}

/// floor(log2 |x|) of a finite non-zero value.
ORDO_FORCE_FUNCTION int exponent(float x) {
  return static_cast<int>((bits(x) >> 23) & 0xffu) - 127;
}

/// x * 2^e for any e in [-252, 254], rounded once; a result of magnitude at most 2^-126 becomes
/// zero of its sign, overflow infinity. The product in between lies between x and the result: where
/// it is not exact, the result is zero.
ORDO_FORCE_FUNCTION float scale_pow2(float x, int e) {
  const int half = e >> 1;
  return detail::flush_rounded(detail::mul_rn(detail::mul_rn(x, pow2(half)), pow2(e - half)));
}

/// Nearest even integer of `x`, clamped to [-limit, limit], 0 < limit <= 2^22. NaN gives 0,
/// infinities give the limits.
ORDO_FORCE_FUNCTION std::int32_t to_int(float x, std::int32_t limit) {
  const float bound = static_cast<float>(limit);
  x = detail::select(x == x, x, 0.0f);
  x = detail::select(x < bound, x, bound);
  x = detail::select(x > -bound, x, -bound);
  // 1.5 * 2^23: the integer appears in the low bits of the sum's significand.
  return static_cast<std::int32_t>(bits(detail::add_rn(x, 0x1.8p23f))) - 0x4b400000;
}

/// Nearest even integer of `x`, clamped to [-2^62, 2^62]. NaN gives 0, infinities give the limits.
ORDO_FORCE_FUNCTION std::int64_t to_int64(float x) {
  constexpr float bound = 0x1p62f;
  x = detail::select(x == x, x, 0.0f);
  x = detail::select(x < bound, x, bound);
  x = detail::select(x > -bound, x, -bound);
  // Below 2^23, adding 2^23 of the same sign rounds to an integer; from there on x is one already.
  const float shift = from_bits(0x4b000000u | (bits(x) & 0x80000000u));
  const float rounded = detail::add_rn(detail::add_rn(x, shift), -shift);
  return static_cast<std::int64_t>(abs(x) < 0x1p23f ? rounded : x);
}

/// Nearest even binary32 of an integer.
ORDO_FORCE_FUNCTION float from_int(std::int32_t i) {
#if defined(__CUDA_ARCH__)
  return __int2float_rn(i);
#else
  return static_cast<float>(i);
#endif
}
ORDO_FORCE_FUNCTION float from_int(std::int64_t i) {
#if defined(__CUDA_ARCH__)
  return __ll2float_rn(i);
#else
  return static_cast<float>(i);
#endif
}

} // namespace ordo::arith
