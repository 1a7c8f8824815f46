// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Runs a stage of attention with the instructions of this processor. Every choice gives the same
/// bits: only integer products differ, and they are exact.

#include <cstdint>
#include <cstring>

#include <ordo/cpu/isa.hpp>
#include <ordo/nn/attention_tiles.hpp>

#if defined(ORDO_CPU_X86)
#include <immintrin.h>
#endif

namespace ordo::cpu {

#if defined(ORDO_CPU_X86)

#define ORDO_TARGET_AVX2 __attribute__((target("avx2")))
#if defined(__clang__)
#define ORDO_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#else
#define ORDO_TARGET_AVX512                                                                         \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")))
#endif

namespace detail {

/// One instruction of four bytes an entry: pairs of int16, or four u8 with four s8.
template <bool Bytes>
ORDO_TARGET_AVX512 inline __m512i multiply_add(__m512i sum, __m512i a, __m512i b) {
  if constexpr (Bytes) {
    return _mm512_dpbusd_epi32(sum, a, b);
  } else {
    return _mm512_dpwssd_epi32(sum, a, b);
  }
}

/// Rows x (16 Vectors) entries of c. `a_row` and `c_row` are strides in bytes and entries; k is the
/// number of four-byte groups; b advances by `b_row` entries of four bytes a group.
template <bool Bytes, int Rows, int Vectors>
ORDO_TARGET_AVX512 inline void dot_panel(std::int64_t k, const char* a, std::int64_t a_row,
                                         const char* b, std::int64_t b_row, std::int32_t* c,
                                         std::int64_t c_row) {
  __m512i sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v)
      sum[i][v] = _mm512_setzero_si512();
  }
  for (std::int64_t p = 0; p < k; ++p) {
    __m512i column[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v)
      column[v] = _mm512_loadu_si512(b + p * b_row * 4 + v * 64);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      std::int32_t group;
      std::memcpy(&group, a + i * a_row + p * 4, 4);
      const __m512i x = _mm512_set1_epi32(group);
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v)
        sum[i][v] = multiply_add<Bytes>(sum[i][v], x, column[v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v)
      _mm512_storeu_si512(c + i * c_row + v * 16, sum[i][v]);
  }
}

template <bool Bytes, int Rows, int Vectors>
ORDO_TARGET_AVX512 inline void dot_columns(std::int64_t m, std::int64_t n, std::int64_t k,
                                           const char* a, const char* b, std::int32_t* c) {
  const std::int64_t whole = m - m % Rows;
  for (std::int64_t i = 0; i < whole; i += Rows)
    dot_panel<Bytes, Rows, Vectors>(k, a + i * k * 4, k * 4, b, n, c + i * n, n);
  for (std::int64_t i = whole; i < m; ++i)
    dot_panel<Bytes, 1, Vectors>(k, a + i * k * 4, k * 4, b, n, c + i * n, n);
}

/// c [m, n] from a [m][k] groups and b [k][n] groups of four bytes.
template <bool Bytes>
ORDO_TARGET_AVX512 inline void dot(std::int64_t m, std::int64_t n, std::int64_t k, const char* a,
                                   const char* b, std::int32_t* c) {
  std::int64_t j = 0;
  for (; j + 64 <= n; j += 64) {
    // Four full vectors: columns j ... j+63 of a matrix of n columns.
    dot_columns<Bytes, 4, 4>(m, n, k, a, b + j * 4, c + j);
  }
  if (n - j == 48)
    dot_columns<Bytes, 6, 3>(m, n, k, a, b + j * 4, c + j);
  if (n - j == 32)
    dot_columns<Bytes, 8, 2>(m, n, k, a, b + j * 4, c + j);
  if (n - j == 16)
    dot_columns<Bytes, 8, 1>(m, n, k, a, b + j * 4, c + j);
}

} // namespace detail

/// Integer products with AVX-512 VNNI.
struct avx512_engine {
  ORDO_TARGET_AVX512 static void dot16(int m, int n, int k, const std::int16_t* a,
                                       const std::int16_t* b, std::int32_t* c) {
    detail::dot<false>(m, n, k / 2, reinterpret_cast<const char*>(a),
                       reinterpret_cast<const char*>(b), c);
  }
  ORDO_TARGET_AVX512 static void dot8(int m, int n, int k, const std::uint8_t* a,
                                      const std::int8_t* b, std::int32_t* c) {
    detail::dot<true>(m, n, k / 4, reinterpret_cast<const char*>(a),
                      reinterpret_cast<const char*>(b), c);
  }
};

namespace detail {

/// As multiply_add. For bytes: u8 of at most 127 times s8, so that a pair stays within int16.
template <bool Bytes>
ORDO_TARGET_AVX2 inline __m256i multiply_add_256(__m256i sum, __m256i a, __m256i b) {
  if constexpr (Bytes) {
    const __m256i pairs = _mm256_maddubs_epi16(a, b);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  } else {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
  }
}

/// Rows x 16 entries of c; arguments as dot_panel.
template <bool Bytes, int Rows>
ORDO_TARGET_AVX2 inline void dot_panel_256(std::int64_t k, const char* a, std::int64_t a_row,
                                           const char* b, std::int64_t b_row, std::int32_t* c,
                                           std::int64_t c_row) {
  __m256i sum[Rows][2];
#pragma GCC unroll 4
  for (int i = 0; i < Rows; ++i)
    sum[i][0] = sum[i][1] = _mm256_setzero_si256();
  for (std::int64_t p = 0; p < k; ++p) {
    const __m256i* column = reinterpret_cast<const __m256i*>(b + p * b_row * 4);
    const __m256i left = _mm256_loadu_si256(column), right = _mm256_loadu_si256(column + 1);
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i) {
      std::int32_t group;
      std::memcpy(&group, a + i * a_row + p * 4, 4);
      const __m256i x = _mm256_set1_epi32(group);
      sum[i][0] = multiply_add_256<Bytes>(sum[i][0], x, left);
      sum[i][1] = multiply_add_256<Bytes>(sum[i][1], x, right);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Rows; ++i) {
    __m256i* out = reinterpret_cast<__m256i*>(c + i * c_row);
    _mm256_storeu_si256(out, sum[i][0]);
    _mm256_storeu_si256(out + 1, sum[i][1]);
  }
}

template <bool Bytes>
ORDO_TARGET_AVX2 inline void dot_256(std::int64_t m, std::int64_t n, std::int64_t k, const char* a,
                                     const char* b, std::int32_t* c) {
  const std::int64_t whole = m - m % 4;
  for (std::int64_t j = 0; j < n; j += 16) {
    for (std::int64_t i = 0; i < whole; i += 4)
      dot_panel_256<Bytes, 4>(k, a + i * k * 4, k * 4, b + j * 4, n, c + i * n + j, n);
    for (std::int64_t i = whole; i < m; ++i)
      dot_panel_256<Bytes, 1>(k, a + i * k * 4, k * 4, b + j * 4, n, c + i * n + j, n);
  }
}

} // namespace detail

/// Integer products with AVX2.
struct avx2_engine {
  ORDO_TARGET_AVX2 static void dot16(int m, int n, int k, const std::int16_t* a,
                                     const std::int16_t* b, std::int32_t* c) {
    detail::dot_256<false>(m, n, k / 2, reinterpret_cast<const char*>(a),
                           reinterpret_cast<const char*>(b), c);
  }
  ORDO_TARGET_AVX2 static void dot8(int m, int n, int k, const std::uint8_t* a,
                                    const std::int8_t* b, std::int32_t* c) {
    detail::dot_256<true>(m, n, k / 4, reinterpret_cast<const char*>(a),
                          reinterpret_cast<const char*>(b), c);
  }
};

template <class Stage>
ORDO_TARGET_AVX512 void run_avx512(const Stage& stage, std::int64_t item) {
  stage.template run<avx512_engine>(item);
}
template <class Stage>
ORDO_TARGET_AVX2 void run_avx2(const Stage& stage, std::int64_t item) {
  stage.template run<avx2_engine>(item);
}

#endif

/// Runs one item of a stage (nn/attention_forward.hpp).
template <class Stage>
void run_attention(const Stage& stage, isa level, std::int64_t item) {
#if defined(ORDO_CPU_X86)
  if (level == isa::avx512)
    return run_avx512(stage, item);
  if (level == isa::avx2)
    return run_avx2(stage, item);
#endif
  stage.template run<nn::detail::portable_engine>(item);
}

} // namespace ordo::cpu
