// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Products of int8 rows with AVX2: bytes widened to 16 bits, pairs of products added to int32.
///
/// A pair is at most 2 * 128^2, so `vpmaddwd` is exact. (The instruction for bytes, `vpmaddubsw`,
/// saturates.)

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ordo/core/execution.hpp>
#include <ordo/cpu/int8_slices.hpp>
#include <ordo/cpu/isa.hpp>

#if defined(__x86_64__)
namespace ordo::cpu::avx2 {

/// Sixteen entries as 16-bit integers.
ORDO_AVX2 __attribute__((always_inline)) inline __m256i widened(const std::int8_t* x) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}

ORDO_AVX2 inline std::int32_t sum_of(__m256i x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

/// Shape of the register tile for SA x SB slices.
template <int SA, int SB>
struct int8_tile {
  static constexpr int weights = SA + SB - 1;
  static constexpr int rows = SA * SB == 1 ? 2 : 1, columns = SA * SB <= 4 ? 4 : 2;
};

template <class T>
using int8_sums = __m256i[T::weights][T::rows][T::columns];

/// Adds the products of k .. k + 15.
template <int SA, int SB, class T = int8_tile<SA, SB>>
ORDO_AVX2 __attribute__((always_inline)) inline void
int8_step(int8_sums<T>& sum, const std::int8_t* const (&a)[SA][T::rows],
          const std::int8_t* const (&b)[SB][T::columns], std::int64_t k) {
#pragma GCC unroll 3
  for (int j = 0; j < SB; ++j)
#pragma GCC unroll 4
    for (int n = 0; n < T::columns; ++n) {
      const __m256i y = widened(b[j][n] + k);
#pragma GCC unroll 3
      for (int i = 0; i < SA; ++i)
#pragma GCC unroll 2
        for (int r = 0; r < T::rows; ++r)
          sum[i + j][r][n] =
              _mm256_add_epi32(sum[i + j][r][n], _mm256_madd_epi16(widened(a[i][r] + k), y));
    }
}

/// The `count` entries of rows from k on, padded with zeros to sixteen.
template <int S, int Rows>
struct last_entries {
  std::int8_t padded[S][Rows][16] = {};
  const std::int8_t* row[S][Rows];

  last_entries(const std::int8_t* const (&from)[S][Rows], std::int64_t k, std::int64_t count) {
    for (int i = 0; i < S; ++i)
      for (int r = 0; r < Rows; ++r) {
        std::memcpy(padded[i][r], from[i][r] + k, static_cast<std::size_t>(count));
        row[i][r] = padded[i][r];
      }
  }
};

/// Products of `rows` rows of A by `columns` rows of B, for each weight: `c[w * plane + r * step +
/// n]`.
template <int SA, int SB, class T = int8_tile<SA, SB>>
ORDO_AVX2 void int8_kernel(std::int64_t k, const std::int8_t* const (&a)[SA][T::rows],
                           const std::int8_t* const (&b)[SB][T::columns], std::int32_t* c,
                           std::int64_t plane, std::int64_t step) {
  int8_sums<T> sum;
#pragma GCC unroll 8
  for (int w = 0; w < T::weights; ++w)
#pragma GCC unroll 2
    for (int r = 0; r < T::rows; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < T::columns; ++n)
        sum[w][r][n] = _mm256_setzero_si256();
  std::int64_t k0 = 0;
  for (; k0 + 16 <= k; k0 += 16)
    int8_step<SA, SB>(sum, a, b, k0);
  if (k0 < k) {
    const last_entries<SA, T::rows> last_a(a, k0, k - k0);
    const last_entries<SB, T::columns> last_b(b, k0, k - k0);
    int8_step<SA, SB>(sum, last_a.row, last_b.row, 0);
  }
#pragma GCC unroll 8
  for (int w = 0; w < T::weights; ++w)
#pragma GCC unroll 2
    for (int r = 0; r < T::rows; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < T::columns; ++n)
        c[w * plane + r * step + n] = sum_of(sum[w][r][n]);
}

/// One product of A by B: work items are blocks of `block_rows` x `block_columns` of C.
template <int SA, int SB, execution_space Space, class Finish>
void multiply_slices(const Space& space, const int8_slices<SA>& a, const int8_slices<SB>& b,
                     const Finish& finish) {
  using tile = int8_tile<SA, SB>;
  constexpr int block_rows = 16, block_columns = 32, plane = block_rows * block_columns;
  const std::int64_t across = (b.rows + block_columns - 1) / block_columns;
  const std::int64_t down = (a.rows + block_rows - 1) / block_rows;
  ordo::detail::for_each(space, "ordo::gemm_slices::blocks", across * down, [&](std::int64_t item) {
    const std::int64_t m0 = item / across * block_rows, n0 = item % across * block_columns;
    const std::int64_t rows = std::min<std::int64_t>(block_rows, a.rows - m0);
    const std::int64_t columns = std::min<std::int64_t>(block_columns, b.rows - n0);
    std::int32_t c[tile::weights * plane];
    for (std::int64_t n = 0; n < columns; n += tile::columns) {
      const std::int8_t* y[SB][tile::columns];
      for (int j = 0; j < SB; ++j)
        for (int t = 0; t < tile::columns; ++t)
          y[j][t] = b.slice[j] + (n0 + std::min(n + t, columns - 1)) * b.stride;
      for (std::int64_t m = 0; m < rows; m += tile::rows) {
        const std::int8_t* x[SA][tile::rows];
        for (int i = 0; i < SA; ++i)
          for (int t = 0; t < tile::rows; ++t)
            x[i][t] = a.slice[i] + (m0 + std::min(m + t, rows - 1)) * a.stride;
        int8_kernel<SA, SB>(a.columns, x, y, c + m * block_columns + n, plane, block_columns);
      }
    }
    for (std::int64_t m = 0; m < rows; ++m)
      finish(m0 + m, n0, static_cast<int>(columns),
             static_cast<const std::int32_t*>(c + m * block_columns), plane);
  });
}

} // namespace ordo::cpu::avx2
#endif
