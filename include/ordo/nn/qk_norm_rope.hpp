// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// RMS normalisation of q and k per head without gain, rotation, and fixed point: blocks of rows,
/// forward and backward. Definition: reference/attention.hpp, reference/attention_backward.hpp.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/nn/attention_shape.hpp>
#include <ordo/order/sum.hpp>

namespace ordo::nn::detail {

/// Largest head dimension.
inline constexpr int most_dims = 256;

/// arith::mul and arith::add with the flush as a mask: compilers make branches of the other form
/// where several follow each other, and then vectorize nothing.
ORDO_FORCE_FUNCTION float masked_mul(float a, float b) {
  const std::uint32_t u = arith::bits(arith::detail::mul_rn(a, b));
  return arith::from_bits(
      u & ((0u - static_cast<std::uint32_t>((u & 0x7fffffffu) > 0x00800000u)) | 0x80000000u));
}
ORDO_FORCE_FUNCTION float masked_add(float a, float b) {
  const std::uint32_t u = arith::bits(arith::detail::add_rn(a, b));
  return arith::from_bits(
      u & ((0u - static_cast<std::uint32_t>((u & 0x7fffffffu) >= 0x00800000u)) | 0x80000000u));
}

/// order::Lanes<32> sums of up to Rows rows at once: joining pairs of lanes is the same loop for
/// all rows, since pairs never cross a row.
template <int Rows>
struct row_sums {
  alignas(64) float lane[Rows * 32];
  alignas(64) float half[Rows * 16];

  /// Row i is x[0] ... x[n-1], n a multiple of 16.
  ORDO_FORCE_FUNCTION void set(int i, const float* ORDO_RESTRICT x, int n) {
    float* ORDO_RESTRICT out = lane + i * 32;
    for (int j = 0; j < 16; ++j)
      out[j] = masked_add(0.0f, x[j]);
    if (n == 16) {
      for (int j = 16; j < 32; ++j)
        out[j] = 0.0f;
    } else {
      for (int j = 16; j < 32; ++j)
        out[j] = masked_add(0.0f, x[j]);
    }
    for (int d = 32; d < n; d += 16) {
      float* ORDO_RESTRICT part = out + (d & 16);
      for (int j = 0; j < 16; ++j)
        part[j] = masked_add(part[j], x[d + j]);
    }
  }
  /// The sums of rows 0 ... count-1.
  ORDO_FORCE_FUNCTION const float* join(int count) {
    pairs(lane, half, count * 16);
    pairs(half, lane, count * 8);
    pairs(lane, half, count * 4);
    pairs(half, lane, count * 2);
    pairs(lane, half, count);
    return half;
  }

private:
  ORDO_FORCE_FUNCTION static void pairs(const float* ORDO_RESTRICT in, float* ORDO_RESTRICT out,
                                        int count) {
    for (int e = 0; e < count; ++e)
      out[e] = masked_add(in[2 * e], in[2 * e + 1]);
  }
};

/// r_i = rsqrt(mean of squares of row i + eps) for `count` rows, `stride` apart, and whether the
/// sum of squares is finite.
template <int Rows>
ORDO_FORCE_FUNCTION void inverse_rms(const bf16* x, std::int64_t stride, int count, int n,
                                     const attention_scales& scales, float eps,
                                     float* ORDO_RESTRICT r, bool* ORDO_RESTRICT finite) {
  row_sums<Rows> sums;
  float square[most_dims];
  for (int i = 0; i < count; ++i) {
    const bf16* ORDO_RESTRICT row = x + i * stride;
    for (int d = 0; d < n; ++d) {
      const float v = arith::to_f32(row[d]);
      square[d] = arith::mul_exact(v, v);
    }
    sums.set(i, square, n);
  }
  const float* sum = sums.join(count);
  for (int i = 0; i < count; ++i) {
    finite[i] = arith::is_finite(sum[i]);
    r[i] = arith::rsqrt(arith::add(arith::mul(sum[i], scales.inverse_dim), eps));
  }
}

/// Fixed-point row of q or k: x r rotated, times scales.fixed. Zeros for a row that is not finite.
ORDO_FORCE_FUNCTION void fixed_row(const bf16* ORDO_RESTRICT x, int n, float r, bool finite,
                                   const attention_scales& scales,
                                   const float* ORDO_RESTRICT cosine,
                                   const float* ORDO_RESTRICT sine,
                                   std::int16_t* ORDO_RESTRICT out) {
  if (!finite) {
    for (int d = 0; d < n; ++d)
      out[d] = 0;
    return;
  }
  for (int i = 0; i < n / 2; ++i) {
    const float a = masked_mul(arith::to_f32(x[2 * i]), r);
    const float b = masked_mul(arith::to_f32(x[2 * i + 1]), r);
    const float c = cosine[i], s = sine[i];
    const float first = masked_add(masked_mul(a, c), -masked_mul(b, s));
    const float second = masked_add(masked_mul(a, s), masked_mul(b, c));
    out[2 * i] =
        static_cast<std::int16_t>(arith::to_int(masked_mul(first, scales.fixed), attention_limit));
    out[2 * i + 1] =
        static_cast<std::int16_t>(arith::to_int(masked_mul(second, scales.fixed), attention_limit));
  }
}

/// Where a block of gradient rows comes from and goes to: accumulators [count, n] in units of
/// 2^-unit, rows of x and dx `stride` apart, rows of the tables n / 2 apart.
struct gradient_rows {
  const std::int64_t* accumulator;
  std::int32_t unit;
  const bf16* x;
  bf16* dx;
  std::int64_t stride;
  const float *cosine, *sine;
};

/// dx of a block of rows: scaled, rotated back, and through the normalisation,
/// dx = r (dy - y mean(dy y)).
template <int Rows>
ORDO_FORCE_FUNCTION void unnormalise_rows(const gradient_rows& g, int count, int n,
                                          const attention_scales& scales, float eps) {
  float r[Rows], rotated[most_dims], product[most_dims];
  bool finite[Rows];
  alignas(64) float gradient[Rows * most_dims];
  row_sums<Rows> sums;
  inverse_rms<Rows>(g.x, g.stride, count, n, scales, eps, r, finite);
  for (int i = 0; i < count; ++i) {
    const std::int64_t* ORDO_RESTRICT a = g.accumulator + i * n;
    const bf16* ORDO_RESTRICT x = g.x + i * g.stride;
    const float* ORDO_RESTRICT cosine = g.cosine + i * (n / 2);
    const float* ORDO_RESTRICT sine = g.sine + i * (n / 2);
    float* ORDO_RESTRICT dy = gradient + i * n;
    for (int d = 0; d < n; ++d) {
      rotated[d] = masked_mul(arith::scale_pow2(arith::from_int(a[d]), -g.unit), scales.gradient);
    }
    for (int p = 0; p < n / 2; ++p) {
      const float u = rotated[2 * p], v = rotated[2 * p + 1], c = cosine[p], s = sine[p];
      dy[2 * p] = masked_add(masked_mul(u, c), masked_mul(v, s));
      dy[2 * p + 1] = masked_add(masked_mul(v, c), -masked_mul(u, s));
    }
    const float scale = r[i];
    for (int d = 0; d < n; ++d)
      product[d] = masked_mul(dy[d], masked_mul(arith::to_f32(x[d]), scale));
    sums.set(i, product, n);
  }
  const float* sum = sums.join(count);
  for (int i = 0; i < count; ++i) {
    const bf16* ORDO_RESTRICT x = g.x + i * g.stride;
    const float* ORDO_RESTRICT dy = gradient + i * n;
    bf16* ORDO_RESTRICT dx = g.dx + i * g.stride;
    const float scale = r[i], mean = arith::mul(sum[i], scales.inverse_dim);
    for (int d = 0; d < n; ++d) {
      const float y = masked_mul(arith::to_f32(x[d]), scale);
      dx[d] = arith::to_bf16(masked_mul(scale, masked_add(dy[d], -masked_mul(y, mean))));
    }
  }
}

} // namespace ordo::nn::detail
