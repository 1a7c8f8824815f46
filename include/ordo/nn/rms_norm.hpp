// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// RMSNorm with gain, forward and backward.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/order/sum.hpp>

namespace ordo::nn {

/// y_ij = (x_ij * r_i) * g_j with r_i = rsqrt(mean_j x_ij^2 + eps), rounded once to bf16.
///
/// Shape: x, y [m, d] bf16; gain [d] bf16; inverse_rms [m] binary32, kept for the backward pass.
/// Order: the row sum of squares by `Order`; the mean multiplies by the rounded 1/d.
/// Bits: each row's depend on that row, the gain, eps and the order. A row whose squares overflow
/// is NaN, not zero: what goes wrong must reach the loss.
template <execution_space Space, class Order>
void rms_norm(const Space& space, Order order, matrix_view<const bf16, Space> x,
              vector_view<const bf16, Space> gain, float eps, matrix_view<bf16, Space> y,
              vector_view<float, Space> inverse_rms) {
  const std::int64_t d = static_cast<std::int64_t>(x.extent(1));
  require(x.extent(0) == y.extent(0) && x.extent(1) == y.extent(1) &&
              gain.extent(0) == x.extent(1) && inverse_rms.extent(0) == x.extent(0),
          "ordo::nn::rms_norm",
          "x is " + shape(x.extent(0), d) + ", y " + shape(y.extent(0), y.extent(1)) + ", gain " +
              shape(gain.extent(0)) + ", inverse_rms " + shape(inverse_rms.extent(0)));
  const bf16* const in = x.data();
  bf16* const out = y.data();
  const float reciprocal = arith::div(1.0f, arith::from_int(d));
  ordo::detail::for_blocks(
      space, "ordo::nn::rms_norm", static_cast<std::int64_t>(x.extent(0)), 8,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const bf16* ORDO_RESTRICT row = in + i * d;
          bf16* ORDO_RESTRICT target = out + i * d;
          const float sum = order::sum(order, d, [=](std::int64_t j) {
            const float v = arith::to_f32(row[j]);
            return arith::mul_exact(v, v);
          });
          const float mean = arith::add(arith::mul(sum, reciprocal), eps);
          const float r =
              arith::is_finite(mean) ? arith::rsqrt(mean) : arith::from_bits(arith::canonical_nan);
          inverse_rms[i] = r;
          for (std::int64_t j = 0; j < d; ++j) {
            target[j] = arith::to_bf16(
                arith::mul(arith::mul(arith::to_f32(row[j]), r), arith::to_f32(gain[j])));
          }
        }
      });
}

/// Rows of one partial sum of the gain's gradient. Part of the contract.
inline constexpr std::int64_t gain_block = 256;

/// Backward of `rms_norm`, with the residual stream's gradient added in.
///
/// dx_ij = r_i (dy_ij g_j) - x_ij (r_i^3 / d) s_i,  s_i = sum_j dy_ij g_j x_ij, then
/// dx = to_bf16(residual + dx) where `residual` is not empty (it may be dx itself).
/// dgain_j = sum_i dy_ij (x_ij r_i).
///
/// Shape: dy, x, dx, residual [m, d] bf16; gain [d] bf16; dgain [d] binary32, overwritten; partial
/// [ceil(m / 256), d] scratch.
/// Order: s_i by `Order`; dgain sequentially within blocks of 256 rows, whose sums are joined by
/// order::Tree.
/// Bits: depend on the inputs, the order and nothing else.
template <execution_space Space, class Order>
void rms_norm_backward(const Space& space, Order order, matrix_view<const bf16, Space> dy,
                       matrix_view<const bf16, Space> x, vector_view<const bf16, Space> gain,
                       vector_view<const float, Space> inverse_rms,
                       matrix_view<const bf16, Space> residual, matrix_view<bf16, Space> dx,
                       vector_view<float, Space> dgain, matrix_view<float, Space> partial) {
  const std::int64_t m = static_cast<std::int64_t>(x.extent(0));
  const std::int64_t d = static_cast<std::int64_t>(x.extent(1));
  const std::int64_t blocks = (m + gain_block - 1) / gain_block;
  require(static_cast<std::int64_t>(partial.extent(0)) >= blocks &&
              partial.extent(1) == x.extent(1) && dgain.extent(0) == x.extent(1),
          "ordo::nn::rms_norm_backward",
          "partial is " + shape(partial.extent(0), partial.extent(1)) + " for x " + shape(m, d),
          "partial needs ceil(m / 256) rows of d");
  require(dy.extent(0) == x.extent(0) && dy.extent(1) == x.extent(1) &&
              dx.extent(0) == x.extent(0) && dx.extent(1) == x.extent(1) &&
              gain.extent(0) == x.extent(1) && inverse_rms.extent(0) == x.extent(0) &&
              (residual.extent(0) == 0 || residual.size() == x.size()),
          "ordo::nn::rms_norm_backward",
          "x is " + shape(m, d) + ", dy " + shape(dy.extent(0), dy.extent(1)) + ", dx " +
              shape(dx.extent(0), dx.extent(1)) + ", residual " +
              shape(residual.extent(0), residual.extent(1)));
  const bf16* const in = x.data();
  const bf16* const grad = dy.data();
  const bf16* const added = residual.extent(0) > 0 ? residual.data() : nullptr;
  bf16* const out = dx.data();
  float* const sums = partial.data();
  const float reciprocal = arith::div(1.0f, arith::from_int(d));
  // Gain first: dx may overwrite dy.
  ordo::detail::for_each(
      space, "ordo::nn::rms_norm_backward::gain", blocks, KOKKOS_LAMBDA(std::int64_t block) {
        float* ORDO_RESTRICT line = sums + block * d;
        for (std::int64_t j = 0; j < d; ++j)
          line[j] = 0.0f;
        const std::int64_t first = block * gain_block;
        const std::int64_t last = first + gain_block < m ? first + gain_block : m;
        for (std::int64_t i = first; i < last; ++i) {
          const bf16* ORDO_RESTRICT row = in + i * d;
          const bf16* ORDO_RESTRICT g = grad + i * d;
          const float r = inverse_rms[i];
          for (std::int64_t j = 0; j < d; ++j) {
            const float normal = arith::mul(arith::to_f32(row[j]), r);
            line[j] = arith::add(line[j], arith::mul(arith::to_f32(g[j]), normal));
          }
        }
      });
  ordo::detail::for_blocks(
      space, "ordo::nn::rms_norm_backward::join", d, 64,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t j = begin; j < end; ++j) {
          dgain[j] =
              order::sum(order::Tree{}, blocks, [=](std::int64_t b) { return sums[b * d + j]; });
        }
      });
  ordo::detail::for_blocks(
      space, "ordo::nn::rms_norm_backward::input", m, 8,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const bf16* row = in + i * d;
          const bf16* g = grad + i * d;
          const float r = inverse_rms[i];
          const float s = order::sum(order, d, [=](std::int64_t j) {
            return arith::mul(arith::mul_exact(arith::to_f32(g[j]), arith::to_f32(gain[j])),
                              arith::to_f32(row[j]));
          });
          const float cube = arith::mul(arith::mul(r, r), r);
          const float t = arith::mul(arith::mul(cube, reciprocal), s);
          for (std::int64_t j = 0; j < d; ++j) {
            const float dyg = arith::mul_exact(arith::to_f32(g[j]), arith::to_f32(gain[j]));
            float v = arith::sub(arith::mul(r, dyg), arith::mul(arith::to_f32(row[j]), t));
            if (added != nullptr)
              v = arith::add(arith::to_f32(added[i * d + j]), v);
            out[i * d + j] = arith::to_bf16(v);
          }
        }
      });
}

} // namespace ordo::nn
