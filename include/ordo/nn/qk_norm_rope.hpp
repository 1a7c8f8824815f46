// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// RMS normalisation of q and k per head without gain, rotation, and fixed point: one row, forward
/// and backward. Definition: reference/attention.hpp, reference/attention_backward.hpp.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/nn/attention_shape.hpp>
#include <ordo/order/sum.hpp>

namespace ordo::nn::detail {

/// Largest head dimension.
inline constexpr int most_dims = 256;

/// arith::add with the flush as a mask, so that compilers vectorize chains of it.
ORDO_FORCE_FUNCTION float masked_add(float a, float b) {
  const std::uint32_t u = arith::bits(arith::detail::add_rn(a, b));
  return arith::from_bits(u & ((0u - static_cast<std::uint32_t>((u & 0x7fffffffu) >= 0x00800000u)) |
                               0x80000000u));
}

/// Adjacent pairs of N lanes, N a power of two: order::join_lanes, out of place.
template <int N>
ORDO_FORCE_FUNCTION float join_pairs(const float* ORDO_RESTRICT lane) {
  if constexpr (N == 1) {
    return lane[0];
  } else {
    float half[N / 2];
    for (int j = 0; j < N / 2; ++j) half[j] = masked_add(lane[2 * j], lane[2 * j + 1]);
    return join_pairs<N / 2>(half);
  }
}

/// order::Lanes<32> of x[0] ... x[n-1], n a multiple of 16.
ORDO_FORCE_FUNCTION float sum_lanes32(const float* ORDO_RESTRICT x, int n) {
  float lane[32] = {};
  for (int d = 0; d < n; d += 16) {
    float* ORDO_RESTRICT half = lane + (d & 16);
    for (int j = 0; j < 16; ++j) half[j] = masked_add(half[j], x[d + j]);
  }
  return join_pairs<32>(lane);
}

/// y = x r, and whether the sum of squares is finite. Returns r = rsqrt(mean of squares + eps).
ORDO_FORCE_FUNCTION float normalise(const bf16* ORDO_RESTRICT x, int n, float inverse_dim, float eps,
                                    float* ORDO_RESTRICT y, bool& finite) {
  float square[most_dims];
  for (int d = 0; d < n; ++d) {
    y[d] = arith::to_f32(x[d]);
    square[d] = arith::mul_exact(y[d], y[d]);
  }
  const float sum = sum_lanes32(square, n);
  finite = arith::is_finite(sum);
  const float r = arith::rsqrt(arith::add(arith::mul(sum, inverse_dim), eps));
  for (int d = 0; d < n; ++d) y[d] = arith::mul(y[d], r);
  return r;
}

/// Fixed-point row of q or k: normalised, rotated, times scales.fixed. Zeros, and false, for a row
/// whose sum of squares is not finite.
ORDO_FORCE_FUNCTION bool fixed_row(const bf16* ORDO_RESTRICT x, int n,
                                   const attention_scales& scales, float eps,
                                   const float* ORDO_RESTRICT cosine,
                                   const float* ORDO_RESTRICT sine,
                                   std::int16_t* ORDO_RESTRICT out) {
  float y[most_dims];
  bool finite = false;
  normalise(x, n, scales.inverse_dim, eps, y, finite);
  for (int i = 0; i < n / 2; ++i) {
    const float a = y[2 * i], b = y[2 * i + 1], c = cosine[i], s = sine[i];
    const float first = arith::sub(arith::mul(a, c), arith::mul(b, s));
    const float second = arith::add(arith::mul(a, s), arith::mul(b, c));
    out[2 * i] = static_cast<std::int16_t>(
        arith::to_int(arith::mul(first, scales.fixed), attention_limit));
    out[2 * i + 1] = static_cast<std::int16_t>(
        arith::to_int(arith::mul(second, scales.fixed), attention_limit));
  }
  if (!finite) {
    for (int d = 0; d < n; ++d) out[d] = 0;
  }
  return finite;
}

/// dx of a row from its accumulator `a` (in units of 2^-unit): scaled, rotated back, and through the
/// normalisation: dx = r (dy - y mean(dy y)).
ORDO_FORCE_FUNCTION void unnormalise_row(const std::int64_t* ORDO_RESTRICT a, std::int32_t unit,
                                         const bf16* ORDO_RESTRICT x, int n,
                                         const attention_scales& scales, float eps,
                                         const float* ORDO_RESTRICT cosine,
                                         const float* ORDO_RESTRICT sine, bf16* ORDO_RESTRICT dx) {
  float y[most_dims], rotated[most_dims], dy[most_dims], product[most_dims];
  bool finite = false;
  const float r = normalise(x, n, scales.inverse_dim, eps, y, finite);
  for (int d = 0; d < n; ++d)
    rotated[d] = arith::mul(arith::scale_pow2(arith::from_int(a[d]), -unit), scales.gradient);
  for (int i = 0; i < n / 2; ++i) {
    const float g = rotated[2 * i], h = rotated[2 * i + 1], c = cosine[i], s = sine[i];
    dy[2 * i] = arith::add(arith::mul(g, c), arith::mul(h, s));
    dy[2 * i + 1] = arith::sub(arith::mul(h, c), arith::mul(g, s));
  }
  for (int d = 0; d < n; ++d) product[d] = arith::mul(dy[d], y[d]);
  const float mean = arith::mul(sum_lanes32(product, n), scales.inverse_dim);
  for (int d = 0; d < n; ++d)
    dx[d] = arith::to_bf16(arith::mul(r, arith::sub(dy[d], arith::mul(y[d], mean))));
}

}  // namespace ordo::nn::detail
