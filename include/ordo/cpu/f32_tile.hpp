// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Register tiles of the fixed-order binary32 product, with AVX-512 and with AVX2.
///
/// Operands are packed lane after lane: first the k of lane 0 in ascending order, then those of
/// lane 1, and so on. So a tile adds up one lane at a time, in registers, and hands its sums to a
/// stack that joins neighbouring lanes as a binary counter carries. Vectors run over the columns of
/// C.
///
/// Kernels run inside an `arith::float_mode`, whose hardware flushing is the rule for sums, and for
/// products that are exact. For rounded products there are two kernels. One compares each with
/// 2^-126. The other does not and is for tiles in which no product can be tiny: if every non-zero
/// entry of A is at least 2^p and of B at least 2^q with p + q >= -125, an exact product is zero or
/// at least 2^-125, so its rounding, which is monotone, is as well, and the compare would never
/// fire. (Products of zeros are zeros of the same sign either way.)

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cpu/isa.hpp>
#include <ordo/cpu/sliced_avx512.hpp>

namespace ordo::cpu {

/// The k of `lanes` lanes, lane after lane.
struct lane_order {
  std::int64_t k;
  int lanes;

  /// Number of products of lane j.
  std::int64_t length(int j) const { return k / lanes + (j < k % lanes ? 1 : 0); }
  /// Where product i stands.
  std::int64_t position(std::int64_t i) const {
    const std::int64_t j = i % lanes, longer = k % lanes;
    return j * (k / lanes) + (j < longer ? j : longer) + i / lanes;
  }
};

/// log2 of the largest number of lanes, plus one.
inline constexpr int lane_levels = 8;

/// Smallest magnitude of the non-zero entries, as bits less one; all ones if there is none.
inline constexpr std::uint32_t no_magnitude = 0xffffffffu;

/// Whether no product of entries of at least these magnitudes can be tiny.
inline bool products_are_normal(std::uint32_t a, std::uint32_t b) {
  if (a == no_magnitude || b == no_magnitude)
    return true;
  const int p = static_cast<int>((a + 1) >> 23) - 127, q = static_cast<int>((b + 1) >> 23) - 127;
  return p > -127 && q > -127 && p + q >= -125;
}

/// Packs up to `Width` rows of x in lane order: entry i of row r becomes out[position(i) * Width +
/// r]. Returns the smallest magnitude.
template <int Width, class T>
std::uint32_t pack_f32(const T* x, std::int64_t stride, std::int64_t rows, const lane_order& order,
                       float* out) {
  std::uint32_t least = no_magnitude;
  for (std::int64_t i = 0; i < order.k; ++i) {
    float* to = out + order.position(i) * Width;
    for (int r = 0; r < Width; ++r) {
      to[r] = r < rows ? arith::to_f32(x[r * stride + i]) : 0.0f;
      const std::uint32_t u = (arith::bits(to[r]) & 0x7fffffffu) - 1;
      least = u < least ? u : least;
    }
  }
  return least;
}

namespace portable {

/// Loops of constant length, of which the compiler makes vectors.
struct f32_tile {
  static constexpr int rows = 4, columns = 8;

  template <int Width, class T>
  static std::uint32_t pack(const T* x, std::int64_t stride, std::int64_t rows_of_x,
                            const lane_order& order, float* out) {
    return pack_f32<Width>(x, stride, rows_of_x, order, out);
  }

  /// C of `rows` x `columns`, contiguous, from packed operands.
  template <bool Compare>
  static void run(const lane_order& order, const float* a, const float* b, float* c) {
    float level[lane_levels][rows * columns];
    float* top = level[0];
    for (int j = 0; j < order.lanes; ++j) {
      float sum[rows][columns] = {};
      for (std::int64_t i = order.length(j); i > 0; --i, a += rows, b += columns)
        for (int r = 0; r < rows; ++r)
          for (int n = 0; n < columns; ++n) {
            const float p = Compare ? arith::mul(a[r], b[n]) : arith::detail::mul_rn(a[r], b[n]);
            sum[r][n] = arith::detail::add_rn(sum[r][n], p);
          }
      top = level[0];
      for (int carry = j; (carry & 1) != 0; carry >>= 1, top += rows * columns)
        for (int r = 0; r < rows; ++r)
          for (int n = 0; n < columns; ++n)
            sum[r][n] = arith::detail::add_rn(top[r * columns + n], sum[r][n]);
      for (int r = 0; r < rows; ++r)
        for (int n = 0; n < columns; ++n)
          top[r * columns + n] = sum[r][n];
    }
    for (int i = 0; i < rows * columns; ++i)
      c[i] = arith::canonical(top[i]);
  }
};

} // namespace portable

#if defined(__x86_64__)
ORDO_INTRINSICS_BEGIN
namespace avx512 {

struct f32_tile {
  static constexpr int rows = 12, vectors = 2, columns = 16 * vectors;

  template <int Width, class T>
  ORDO_AVX512 static std::uint32_t pack(const T* x, std::int64_t stride, std::int64_t rows_of_x,
                                        const lane_order& order, float* out) {
    static_assert(Width <= 16 || Width % 16 == 0);
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff), one = _mm512_set1_epi32(1);
    __m512i least = _mm512_set1_epi32(-1);
    constexpr int step = Width < 16 ? Width : 16;
    for (int r0 = 0; r0 < Width; r0 += step)
      for (std::int64_t i0 = 0; i0 < order.k; i0 += 16) {
        const __mmask16 mask = first(order.k - i0);
        __m512i word[16];
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) {
          word[r] = _mm512_setzero_si512();
          if (r < step && r0 + r < rows_of_x)
            word[r] = _mm512_castps_si512(load_f32(x + (r0 + r) * stride + i0, mask));
          const __m512i u = _mm512_sub_epi32(_mm512_and_si512(word[r], magnitude), one);
          least = _mm512_min_epu32(least, u);
        }
        transpose16(word);
        alignas(64) float column[16][16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i)
          _mm512_store_si512(column[i], word[i]);
        const int count = order.k - i0 < 16 ? static_cast<int>(order.k - i0) : 16;
        for (int i = 0; i < count; ++i)
          _mm512_mask_storeu_ps(out + order.position(i0 + i) * Width + r0, first(step),
                                _mm512_load_ps(column[i]));
      }
    return _mm512_reduce_min_epu32(least);
  }

  /// C of `rows` x `columns`, contiguous, from packed operands.
  template <bool Compare>
  ORDO_AVX512 static void run(const lane_order& order, const float* a, const float* b, float* c) {
    alignas(64) float level[lane_levels][rows * columns];
    const __m512i sign = _mm512_set1_epi32(static_cast<std::int32_t>(0x80000000u));
    const __m512i tiny = _mm512_set1_epi32(0x00800000);
    float* top = level[0];
    for (int j = 0; j < order.lanes; ++j) {
      __m512 sum[rows][vectors];
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v)
          sum[r][v] = _mm512_setzero_ps();
      for (std::int64_t i = order.length(j); i > 0; --i, a += rows, b += columns) {
        const __m512 y[vectors] = {_mm512_load_ps(b), _mm512_load_ps(b + 16)};
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
          const __m512 x = _mm512_set1_ps(a[r]);
#pragma GCC unroll 2
          for (int v = 0; v < vectors; ++v) {
            // The form with a rounding mode, which no compiler fuses with the sum.
            __m512 p = _mm512_mul_round_ps(x, y[v], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            if constexpr (Compare) {
              const __m512i u = _mm512_castps_si512(p);
              const __mmask16 m = _mm512_cmple_epu32_mask(_mm512_andnot_si512(sign, u), tiny);
              p = _mm512_castsi512_ps(_mm512_mask_and_epi32(u, m, u, sign));
            }
            sum[r][v] = _mm512_add_ps(sum[r][v], p);
          }
        }
      }
      top = level[0];
      for (int carry = j; (carry & 1) != 0; carry >>= 1, top += rows * columns)
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
          for (int v = 0; v < vectors; ++v)
            sum[r][v] = _mm512_add_ps(_mm512_load_ps(top + r * columns + 16 * v), sum[r][v]);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v)
          _mm512_store_ps(top + r * columns + 16 * v, sum[r][v]);
    }
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    for (int i = 0; i < rows * columns; i += 16) {
      const __m512 x = _mm512_load_ps(top + i);
      _mm512_storeu_ps(c + i, _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x, nan));
    }
  }
};

} // namespace avx512

namespace avx2 {

struct f32_tile {
  static constexpr int rows = 6, vectors = 2, columns = 8 * vectors;

  template <int Width, class T>
  static std::uint32_t pack(const T* x, std::int64_t stride, std::int64_t rows_of_x,
                            const lane_order& order, float* out) {
    return pack_f32<Width>(x, stride, rows_of_x, order, out);
  }

  /// C of `rows` x `columns`, contiguous, from packed operands.
  template <bool Compare>
  ORDO_AVX2 static void run(const lane_order& order, const float* a, const float* b, float* c) {
    alignas(32) float level[lane_levels][rows * columns];
    const __m256 sign = _mm256_set1_ps(-0.0f), tiny = _mm256_set1_ps(0x1p-126f);
    float* top = level[0];
    for (int j = 0; j < order.lanes; ++j) {
      __m256 sum[rows][vectors];
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v)
          sum[r][v] = _mm256_setzero_ps();
      for (std::int64_t i = order.length(j); i > 0; --i, a += rows, b += columns) {
        const __m256 y[vectors] = {_mm256_load_ps(b), _mm256_load_ps(b + 8)};
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
          const __m256 x = _mm256_set1_ps(a[r]);
#pragma GCC unroll 2
          for (int v = 0; v < vectors; ++v) {
            __m256 p = _mm256_mul_ps(x, y[v]);
            if constexpr (Compare) {
              const __m256 m = _mm256_cmp_ps(_mm256_andnot_ps(sign, p), tiny, _CMP_LE_OQ);
              p = _mm256_andnot_ps(_mm256_andnot_ps(sign, m), p);
            }
            sum[r][v] = _mm256_add_ps(sum[r][v], p);
          }
        }
      }
      top = level[0];
      for (int carry = j; (carry & 1) != 0; carry >>= 1, top += rows * columns)
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
          for (int v = 0; v < vectors; ++v)
            sum[r][v] = _mm256_add_ps(_mm256_load_ps(top + r * columns + 8 * v), sum[r][v]);
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v)
          _mm256_store_ps(top + r * columns + 8 * v, sum[r][v]);
    }
    for (int i = 0; i < rows * columns; ++i)
      c[i] = arith::canonical(top[i]);
  }
};

} // namespace avx2
ORDO_INTRINSICS_END
#endif

} // namespace ordo::cpu
