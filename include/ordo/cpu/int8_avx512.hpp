// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Tiles of int8 products with AVX-512 VNNI.
///
/// `vpdpbusd` multiplies unsigned by signed bytes and adds four products to an int32, without
/// saturation. B is packed with 128 added, which makes its entries unsigned; each sum is then too
/// large by 128 times the sum of A's row, which is where the accumulator starts, negated. All of it
/// is exact modulo 2^32, so the result is exact where the true sum fits.

#include <cstdint>
#include <cstring>

#include <ordo/cpu/isa.hpp>

#if defined(__x86_64__)
ORDO_INTRINSICS_BEGIN
namespace ordo::cpu::avx512 {

/// Shape of the register tile: `rows` x 16 * `vectors` outputs for SA x SB slices. Products of
/// equal weight share an accumulator.
template <int SA, int SB>
struct int8_tile {
  static constexpr int weights = SA + SB - 1;
  static constexpr int vectors = SA * SB == 1 ? 4 : SA * SB == 4 ? 2 : 1;
  static constexpr int rows = SA * SB == 1 ? 6 : SA * SB == 4 ? 4 : SA * SB == 6 ? 6 : 5;
  static constexpr int columns = 16 * vectors;
  static constexpr int group_bytes = SB * columns * 4; // of packed B, for four k
};

/// Transposes a 16 x 16 matrix of 32-bit words held in registers.
ORDO_AVX512_INLINE void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

/// Packs sixteen rows of B, of k entries: word g of `out`, in steps of `step` words, is entries
/// 4g .. 4g + 3 of each row, plus 128. Missing rows repeat the last one.
ORDO_AVX512 inline void pack_int8(const std::int8_t* b, std::int64_t stride, std::int64_t rows,
                                  std::int64_t k, std::uint32_t* out, std::int64_t step) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(-128));
  for (std::int64_t k0 = 0; k0 < k; k0 += 64) {
    const __mmask64 mask = k - k0 >= 64 ? ~__mmask64{0} : (__mmask64{1} << (k - k0)) - 1;
    __m512i word[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const std::int8_t* row = b + (i < rows ? i : rows - 1) * stride;
      word[i] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, row + k0), offset);
    }
    transpose16(word);
    const std::int64_t groups = k - k0 >= 64 ? 16 : (k - k0 + 3) / 4;
    std::uint32_t* to = out + k0 / 4 * step;
    if (groups == 16) {
#pragma GCC unroll 16
      for (int g = 0; g < 16; ++g)
        _mm512_store_si512(to + g * step, word[g]);
    } else {
      for (int g = 0; g < groups; ++g)
        _mm512_store_si512(to + g * step, word[g]);
    }
  }
}

/// Sum of k entries, times -128, modulo 2^32.
ORDO_AVX512 inline std::uint32_t start_of_row(const std::int8_t* a, std::int64_t k) {
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sum = _mm512_setzero_si512();
  for (std::int64_t k0 = 0; k0 < k; k0 += 64) {
    const __mmask64 mask = k - k0 >= 64 ? ~__mmask64{0} : (__mmask64{1} << (k - k0)) - 1;
    sum = _mm512_dpbusd_epi32(sum, ones, _mm512_maskz_loadu_epi8(mask, a + k0));
  }
  return 0u - 128u * static_cast<std::uint32_t>(_mm512_reduce_add_epi32(sum));
}

template <class T>
using int8_sums = __m512i[T::weights][T::rows][T::vectors];

/// Adds the products of k .. k + 3 to the tile.
template <int SA, int SB, class T = int8_tile<SA, SB>>
ORDO_AVX512_INLINE void int8_group(int8_sums<T>& sum, const std::int8_t* const (&row)[SA][T::rows],
                                   std::int64_t k, const std::uint8_t* b) {
  __m512i y[SB][T::vectors];
#pragma GCC unroll 4
  for (int j = 0; j < SB; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < T::vectors; ++v)
      y[j][v] = _mm512_load_si512(b + (j * T::vectors + v) * 64);
#pragma GCC unroll 8
  for (int r = 0; r < T::rows; ++r)
#pragma GCC unroll 4
    for (int i = 0; i < SA; ++i) {
      std::int32_t word;
      std::memcpy(&word, row[i][r] + k, 4);
      const __m512i x = _mm512_set1_epi32(word);
#pragma GCC unroll 4
      for (int j = 0; j < SB; ++j)
#pragma GCC unroll 4
        for (int v = 0; v < T::vectors; ++v)
          sum[i + j][r][v] = _mm512_dpbusd_epi32(sum[i + j][r][v], y[j][v], x);
    }
}

/// Adds `groups` groups of four k to the tile `c` of planes (weights) of `plane` words; row r
/// starts at word r * T::columns.
template <int SA, int SB, class T = int8_tile<SA, SB>>
ORDO_AVX512 void int8_kernel(std::int64_t groups, const std::int8_t* const (&row)[SA][T::rows],
                             const std::uint8_t* b, std::int32_t* c, std::int64_t plane) {
  int8_sums<T> sum;
#pragma GCC unroll 8
  for (int w = 0; w < T::weights; ++w)
#pragma GCC unroll 8
    for (int r = 0; r < T::rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < T::vectors; ++v)
        sum[w][r][v] = _mm512_load_si512(c + w * plane + r * T::columns + v * 16);
  for (std::int64_t g = 0; g < groups; ++g)
    int8_group<SA, SB>(sum, row, 4 * g, b + g * T::group_bytes);
#pragma GCC unroll 8
  for (int w = 0; w < T::weights; ++w)
#pragma GCC unroll 8
    for (int r = 0; r < T::rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < T::vectors; ++v)
        _mm512_store_si512(c + w * plane + r * T::columns + v * 16, sum[w][r][v]);
}

} // namespace ordo::cpu::avx512
ORDO_INTRINSICS_END
#endif
