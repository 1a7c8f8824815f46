// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Slicing of rows and columns, and the rounding of sliced products, with AVX-512. The scalar rules
/// are in linalg/sliced.hpp and linalg/gemm_sliced.hpp; these are the same bits, sixteen at a time.
///
/// They run inside an `arith::float_mode`: operands that are subnormal count as zero.

#include <algorithm>
#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cpu/int8_avx512.hpp>

#if defined(__x86_64__)
ORDO_INTRINSICS_BEGIN

namespace ordo::cpu::avx512 {

ORDO_AVX512_INLINE __m512 load_f32(const float* x, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, x);
}
ORDO_AVX512_INLINE __m512 load_f32(const bf16* x, __mmask16 mask) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x)), 16));
}

/// The lanes of `count` elements, at most sixteen.
ORDO_AVX512_INLINE __mmask16 first(std::int64_t count) {
  return count >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << count) - 1u);
}

/// Largest magnitude of n elements, as bits: a NaN or an infinity is above all others.
template <class T>
ORDO_AVX512 std::uint32_t largest_magnitude(const T* x, std::int64_t n) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                     _mm512_setzero_si512()};
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64)
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      most[v] = _mm512_max_epu32(
          most[v],
          _mm512_and_si512(_mm512_castps_si512(load_f32(x + i + 16 * v, 0xffff)), magnitude));
  for (; i < n; i += 16)
    most[0] = _mm512_max_epu32(
        most[0], _mm512_and_si512(_mm512_castps_si512(load_f32(x + i, first(n - i))), magnitude));
  return _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_max_epu32(most[0], most[1]), _mm512_max_epu32(most[2], most[3])));
}

/// 2^e as two factors, each of which is a normal number.
struct two_powers {
  float first, second;
};
inline two_powers powers_of(std::int32_t e) {
  return {arith::pow2(e / 2), arith::pow2(e - e / 2)};
}

/// Nearest even integers of x * first * second, clamped to +-limit. An intermediate product that is
/// flushed would have become 0 anyway.
ORDO_AVX512_INLINE __m512i aligned16(__m512 x, __m512 first, __m512 second, __m512 limit) {
  __m512 y = _mm512_mul_ps(_mm512_mul_ps(x, first), second);
  y = _mm512_min_ps(y, limit);
  y = _mm512_max_ps(y, _mm512_sub_ps(_mm512_setzero_ps(), limit));
  return _mm512_cvt_roundps_epi32(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/// Splits off the lowest digit of v.
ORDO_AVX512_INLINE __m512i lowest_digit(__m512i& v) {
  const __m512i half = _mm512_set1_epi32(64);
  const __m512i low =
      _mm512_sub_epi32(_mm512_and_si512(_mm512_add_epi32(v, half), _mm512_set1_epi32(127)), half);
  v = _mm512_srai_epi32(_mm512_sub_epi32(v, low), 7);
  return low;
}

/// Digits of one row of n entries aligned by `shift`, which is finite.
template <int S, class T>
ORDO_AVX512 void slice_row(const T* x, std::int64_t n, std::int32_t shift, std::int32_t limit,
                           std::int8_t* const (&digit)[S]) {
  const two_powers power = powers_of(shift);
  const __m512 first_power = _mm512_set1_ps(power.first), second = _mm512_set1_ps(power.second);
  const __m512 bound = _mm512_set1_ps(static_cast<float>(limit));
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first(n - i);
    __m512i v = aligned16(load_f32(x + i, mask), first_power, second, bound);
#pragma GCC unroll 3
    for (int s = 0; s < S; ++s) {
      const __m512i d = s + 1 < S ? lowest_digit(v) : v;
      _mm512_mask_cvtepi32_storeu_epi8(digit[s] + i, mask, d);
    }
  }
}

/// Largest magnitudes, as bits, of `columns` columns (at most sixteen) of `rows` rows and of `out`.
template <class T>
ORDO_AVX512 void largest_of_columns(const T* x, std::int64_t stride, std::int64_t rows, int columns,
                                    std::uint32_t (&out)[16]) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __mmask16 mask = first(columns);
  __m512i most = _mm512_loadu_si512(out);
  for (std::int64_t r = 0; r < rows; ++r)
    most = _mm512_max_epu32(
        most, _mm512_and_si512(_mm512_castps_si512(load_f32(x + r * stride, mask)), magnitude));
  _mm512_storeu_si512(out, most);
}

/// Transposes a 16 x 16 matrix of bytes, rows in registers.
ORDO_AVX512_INLINE void transpose16_bytes(__m128i (&r)[16]) {
  __m128i t[16];
#pragma GCC unroll 2
  for (int pass = 0; pass < 2; ++pass) {
    // Two perfect shuffles of the rows' bytes; four of them are a transposition.
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm_unpacklo_epi8(r[i], r[i + 8]);
      t[2 * i + 1] = _mm_unpackhi_epi8(r[i], r[i + 8]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      r[2 * i] = _mm_unpacklo_epi8(t[i], t[i + 8]);
      r[2 * i + 1] = _mm_unpackhi_epi8(t[i], t[i + 8]);
    }
  }
}

/// Digits of sixteen columns, transposed: column c of x becomes row c of each `digit`, whose rows
/// are `out_stride` apart. `factors` are the two powers of each column.
template <int S, class T>
ORDO_AVX512 void slice_column_block(const T* x, std::int64_t stride, std::int64_t rows, int columns,
                                    const float (&factors)[2][16], std::int32_t limit,
                                    std::int8_t* const (&digit)[S], std::int64_t out_stride) {
  const __mmask16 mask = first(columns);
  const __m512 first_power = _mm512_loadu_ps(factors[0]), second = _mm512_loadu_ps(factors[1]);
  const __m512 bound = _mm512_set1_ps(static_cast<float>(limit));
  // Columns of a row that is not finite have factors 0: infinities and NaN must not reach a digit.
  const __mmask16 finite = mask & _mm512_cmp_ps_mask(first_power, _mm512_setzero_ps(), _CMP_NEQ_OQ);
  for (std::int64_t r0 = 0; r0 < rows; r0 += 16) {
    const int count = static_cast<int>(std::min<std::int64_t>(16, rows - r0));
    __m128i block[S][16];
    for (int r = 0; r < 16; ++r) {
      __m512i v = _mm512_setzero_si512();
      if (r < count)
        v = aligned16(load_f32(x + (r0 + r) * stride, finite), first_power, second, bound);
#pragma GCC unroll 3
      for (int s = 0; s < S; ++s)
        block[s][r] = _mm512_cvtepi32_epi8(s + 1 < S ? lowest_digit(v) : v);
    }
    const auto rows_mask = static_cast<__mmask16>((1u << count) - 1u);
#pragma GCC unroll 3
    for (int s = 0; s < S; ++s) {
      transpose16_bytes(block[s]);
      for (int c = 0; c < columns; ++c)
        _mm_mask_storeu_epi8(digit[s] + c * out_stride + r0, rows_mask, block[s][c]);
    }
  }
}

/// Zero of the same sign where the magnitude is at most 2^-126.
ORDO_AVX512_INLINE __m512 flush_rounded16(__m512 x) {
  const __m512i sign = _mm512_set1_epi32(static_cast<std::int32_t>(0x80000000u));
  const __m512i u = _mm512_castps_si512(x);
  const __mmask16 tiny =
      _mm512_cmple_epu32_mask(_mm512_andnot_si512(sign, u), _mm512_set1_epi32(0x00800000));
  return _mm512_castsi512_ps(_mm512_mask_and_epi32(u, tiny, u, sign));
}

/// Sixteen values of `sliced_value`: sums by ascending weight, `plane` words apart.
template <int W>
ORDO_AVX512_INLINE __m512 rounded16(const std::int32_t* sums, std::int64_t plane, __m512i e) {
  __m256 half[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    __m512i v = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int w = W - 1; w >= 0; --w) {
      const __m512i sum = _mm512_cvtepi32_epi64(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + w * plane + 8 * h)));
      v = _mm512_add_epi64(_mm512_slli_epi64(v, 7), sum);
    }
    half[h] = _mm512_cvt_roundepi64_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  const __m512 x = _mm512_insertf32x8(_mm512_castps256_ps512(half[0]), half[1], 1);
  const __m512i bias = _mm512_set1_epi32(127), one = _mm512_srai_epi32(e, 1);
  const __m512 first_power =
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(one, bias), 23));
  const __m512 second =
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(e, one), bias), 23));
  // |x| >= 1 or 0, so the first product cannot be tiny unless the second one is.
  return flush_rounded16(_mm512_mul_ps(_mm512_mul_ps(x, first_power), second));
}

/// One piece of a row of a sliced product, rounded and scaled. `b_shift` are the columns' shifts;
/// `non_finite` marks a row or column of NaN.
template <int W>
ORDO_AVX512 void round_sums(const std::int32_t* sums, std::int64_t plane, int count,
                            std::int32_t a_shift, const std::int32_t* b_shift,
                            std::int32_t non_finite, float* c) {
  const __m512i marker = _mm512_set1_epi32(non_finite), a = _mm512_set1_epi32(a_shift);
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
  for (int j = 0; j < count; j += 16) {
    const __mmask16 mask = first(count - j);
    const __m512i b = _mm512_maskz_loadu_epi32(mask, b_shift + j);
    __mmask16 undefined = _mm512_cmpeq_epi32_mask(b, marker);
    if (a_shift == non_finite)
      undefined = 0xffff;
    __m512i e = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_add_epi32(a, b));
    e = _mm512_max_epi32(e, _mm512_set1_epi32(-252));
    const __m512 x = rounded16<W>(sums + j, plane, e);
    _mm512_mask_storeu_ps(c + j, mask, _mm512_mask_blend_ps(undefined, x, nan));
  }
}

} // namespace ordo::cpu::avx512
ORDO_INTRINSICS_END
#endif
