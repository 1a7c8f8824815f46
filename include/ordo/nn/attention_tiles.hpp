// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What the attention kernels do to one tile of queries and keys. `Engine` multiplies integers; it
/// is tuning.

#include <cstdint>
#include <cstring>

#include <ordo/arith/functions.hpp>
#include <ordo/nn/attention_shape.hpp>
#include <ordo/nn/qk_norm_rope.hpp>

namespace ordo::nn::detail {

/// Integer products in plain loops. Every engine has these two functions.
struct portable_engine {
  /// c[i][j] = sum over k of a[i][k] b[k/2][j][k%2], exact in int32. k is even, n a multiple of 16.
  ORDO_FORCE_FUNCTION static void dot16(int m, int n, int k, const std::int16_t* ORDO_RESTRICT a,
                                        const std::int16_t* ORDO_RESTRICT b,
                                        std::int32_t* ORDO_RESTRICT c) {
    for (int i = 0; i < m; ++i) {
      std::int32_t* ORDO_RESTRICT row = c + i * n;
      for (int j = 0; j < n; ++j)
        row[j] = 0;
      for (int p = 0; p < k / 2; ++p) {
        const std::int32_t first = a[i * k + 2 * p], second = a[i * k + 2 * p + 1];
        const std::int16_t* ORDO_RESTRICT pair = b + p * n * 2;
        for (int j = 0; j < n; ++j)
          row[j] += first * pair[2 * j] + second * pair[2 * j + 1];
      }
    }
  }
  /// c[i][j] = sum over k of a[i][k] b[k/4][j][k%4]. k is a multiple of 4.
  ORDO_FORCE_FUNCTION static void dot8(int m, int n, int k, const std::uint8_t* ORDO_RESTRICT a,
                                       const std::int8_t* ORDO_RESTRICT b,
                                       std::int32_t* ORDO_RESTRICT c) {
    for (int i = 0; i < m; ++i) {
      std::int32_t* ORDO_RESTRICT row = c + i * n;
      for (int j = 0; j < n; ++j)
        row[j] = 0;
      for (int p = 0; p < k; ++p) {
        const std::int32_t x = a[i * k + p];
        const std::int8_t* ORDO_RESTRICT column = b + (p / 4) * n * 4 + p % 4;
        for (int j = 0; j < n; ++j)
          row[j] += x * column[4 * j];
      }
    }
  }
};

/// Nearest even integer of x, |x| <= 2^22. The bits of arith::to_int there.
ORDO_FORCE_FUNCTION std::int32_t nearest(float x) {
  return static_cast<std::int32_t>(arith::bits(arith::detail::add_rn(x, 0x1.8p23f)) - 0x4b400000u);
}

/// A logit; its magnitude is 0 or above 2^-27, so nothing is flushed.
ORDO_FORCE_FUNCTION float logit(std::int32_t dot, float scale) {
  return arith::detail::mul_rn(arith::from_int(dot), scale);
}

/// Softmax numerators of one query row within one key block, of which [begin, end) are visible:
/// writes p (0 for keys that are not visible), the largest logit and S.
template <int Keys>
ORDO_FORCE_FUNCTION void softmax_row(const std::int32_t* ORDO_RESTRICT dots, float scale, int begin,
                                     int end, std::uint8_t* ORDO_RESTRICT p, float& largest_logit,
                                     std::int32_t& sum) {
  // The largest logit is the logit of the largest dot product: both roundings are monotone.
  std::int32_t largest = -0x7fffffff;
  for (int j = 0; j < Keys; ++j) {
    const std::int32_t d = ((j >= begin) & (j < end)) ? dots[j] : -0x7fffffff;
    largest = d > largest ? d : largest;
  }
  const float m = logit(largest, scale);
  std::int32_t total = 0;
  for (int j = 0; j < Keys; ++j) {
    const float u = arith::detail::exp_bounded(arith::detail::add_rn(logit(dots[j], scale), -m));
    const std::int32_t seen = ((j >= begin) & (j < end)) ? -1 : 0;
    p[j] = static_cast<std::uint8_t>(nearest(arith::detail::mul_rn(u, 127.0f)) & seen);
    total += nearest(arith::detail::mul_rn(u, 0x1p22f)) & seen;
  }
  largest_logit = m;
  sum = total;
}

/// P and dS of one query row within one key block, and their largest magnitudes.
template <int Keys>
ORDO_FORCE_FUNCTION std::uint32_t
gradient_row(const std::int32_t* ORDO_RESTRICT dots, const std::int32_t* ORDO_RESTRICT d_dots,
             float scale, float lse, float delta, float row_scale,
             const float* ORDO_RESTRICT column_scale, int begin, int end, float* ORDO_RESTRICT p,
             float* ORDO_RESTRICT ds, std::uint32_t* ORDO_RESTRICT largest_p,
             std::uint32_t* ORDO_RESTRICT largest_ds) {
  std::uint32_t largest = 0;
  for (int j = 0; j < Keys; ++j) {
    const float e = arith::detail::exp_bounded(arith::detail::add_rn(logit(dots[j], scale), -lse));
    const std::uint32_t seen = ((j >= begin) & (j < end)) ? ~0u : 0u;
    const float pj = arith::from_bits(arith::bits(e) & seen);
    const float dp = masked_mul(masked_mul(arith::from_int(d_dots[j]), row_scale), column_scale[j]);
    const float dsj = masked_mul(pj, masked_add(dp, -delta));
    const std::uint32_t p_bits = arith::bits(pj), ds_bits = arith::bits(dsj) & 0x7fffffffu;
    p[j] = pj;
    ds[j] = dsj;
    largest_p[j] = p_bits > largest_p[j] ? p_bits : largest_p[j];
    largest_ds[j] = ds_bits > largest_ds[j] ? ds_bits : largest_ds[j];
    largest = ds_bits > largest ? ds_bits : largest;
  }
  return largest;
}

/// out[j] = x[j] as an integer, x[j] * scale within 16319.
template <int Keys>
ORDO_FORCE_FUNCTION void align_row(const float* ORDO_RESTRICT x, float scale,
                                   std::int16_t* ORDO_RESTRICT out) {
  for (int j = 0; j < Keys; ++j)
    out[j] = static_cast<std::int16_t>(nearest(arith::detail::mul_rn(x[j], scale)));
}

/// Two rows as pairs: out[2j] is x0[j] and out[2j+1] is x1[j], each times scale[j].
template <int Keys>
ORDO_FORCE_FUNCTION void align_pairs(const float* ORDO_RESTRICT x0, const float* ORDO_RESTRICT x1,
                                     const float* ORDO_RESTRICT scale,
                                     std::int16_t* ORDO_RESTRICT out) {
  for (int j = 0; j < Keys; ++j) {
    const std::int32_t lower = nearest(arith::detail::mul_rn(x0[j], scale[j]));
    const std::int32_t upper = nearest(arith::detail::mul_rn(x1[j], scale[j]));
    const std::uint32_t pair =
        (static_cast<std::uint32_t>(lower) & 0xffffu) | (static_cast<std::uint32_t>(upper) << 16);
    std::memcpy(out + 2 * j, &pair, 4); // the lower half first: every target is little-endian
  }
}

/// a[j] += (high[j] * 128 + low[j]) * 2^shift.
ORDO_FORCE_FUNCTION void accumulate_row(int n, const std::int32_t* ORDO_RESTRICT low,
                                        const std::int32_t* ORDO_RESTRICT high, std::int32_t shift,
                                        std::int64_t* ORDO_RESTRICT a) {
  for (int j = 0; j < n; ++j) {
    const std::int64_t i = std::int64_t{high[j]} * 128 + std::int64_t{low[j]};
    a[j] += static_cast<std::int64_t>(static_cast<std::uint64_t>(i) << shift);
  }
}

/// The same with one shift a column; `shift` holds 64-bit integers within [0, 62].
template <int Keys>
ORDO_FORCE_FUNCTION void
accumulate_columns(const std::int32_t* ORDO_RESTRICT low, const std::int32_t* ORDO_RESTRICT high,
                   const std::int64_t* ORDO_RESTRICT shift, std::int64_t* ORDO_RESTRICT a) {
  for (int j = 0; j < Keys; ++j) {
    const std::int64_t i = std::int64_t{high[j]} * 128 + std::int64_t{low[j]};
    a[j] += static_cast<std::int64_t>(static_cast<std::uint64_t>(i) << shift[j]);
  }
}

} // namespace ordo::nn::detail
