// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// RMSNorm with gain, forward and backward.

#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/nn/rms_norm_entry.hpp>
#include <ordo/nn/swiglu.hpp>
#include <ordo/order/sum.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/rms_norm.hpp>
#include <ordo/cuda/rms_norm_backward.hpp>
#endif

namespace ordo::nn {

namespace detail {

/// Whether the kernels of ordo/cuda/ sum rows in this order on this space.
template <class Space, class Order>
inline constexpr bool rows_on_cuda =
    ordo::detail::on_cuda<Space>&& std::is_same_v<Order, order::Lanes<32>>;

} // namespace detail

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
#if defined(ORDO_CUDA)
  if constexpr (detail::rows_on_cuda<Space, Order>) {
    cuda::rms_norm(space.cuda_stream(), x.data(), gain.data(), eps, y.data(), inverse_rms.data(),
                   static_cast<std::int64_t>(x.extent(0)), d);
    return;
  }
#endif
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
          const float r = inverse_rms_of(sum, reciprocal, eps);
          inverse_rms[i] = r;
          for (std::int64_t j = 0; j < d; ++j) {
            target[j] =
                arith::to_bf16(rms_norm_entry(arith::to_f32(row[j]), r, arith::to_f32(gain[j])));
          }
        }
      });
}

/// total = a + b, the residual stream, and its RMSNorm y: `residual_add` and `rms_norm` after it.
///
/// Shape: a, b, total, y [m, d] bf16; gain [d] bf16; inverse_rms [m] binary32. total may be a or b.
/// Order, Bits: as the two. Cost: on CUDA one pass over all of them.
template <execution_space Space, class Order>
void residual_rms_norm(const Space& space, Order order, matrix_view<const bf16, Space> a,
                       matrix_view<const bf16, Space> b, vector_view<const bf16, Space> gain,
                       float eps, matrix_view<bf16, Space> total, matrix_view<bf16, Space> y,
                       vector_view<float, Space> inverse_rms) {
#if defined(ORDO_CUDA)
  if constexpr (detail::rows_on_cuda<Space, Order>) {
    const auto m = static_cast<std::int64_t>(total.extent(0));
    const auto d = static_cast<std::int64_t>(total.extent(1));
    require(a.size() == total.size() && b.size() == total.size() &&
                y.extent(0) == total.extent(0) && y.extent(1) == total.extent(1) &&
                gain.extent(0) == total.extent(1) && inverse_rms.extent(0) == total.extent(0),
            "ordo::nn::residual_rms_norm",
            "total is " + shape(m, d) + ", a " + shape(a.extent(0), a.extent(1)) + ", b " +
                shape(b.extent(0), b.extent(1)) + ", y " + shape(y.extent(0), y.extent(1)) +
                ", gain " + shape(gain.extent(0)) + ", inverse_rms " +
                shape(inverse_rms.extent(0)));
    cuda::residual_rms_norm(space.cuda_stream(), a.data(), b.data(), gain.data(), eps, total.data(),
                            y.data(), inverse_rms.data(), m, d);
    return;
  }
#endif
  residual_add<Space>(space, a, b, total);
  rms_norm(space, order, matrix_view<const bf16, Space>(total), gain, eps, y, inverse_rms);
}

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
#if defined(ORDO_CUDA)
  if constexpr (detail::rows_on_cuda<Space, Order>) {
    cuda::rms_norm_backward(space.cuda_stream(), dy.data(), x.data(), gain.data(),
                            inverse_rms.data(), residual.extent(0) > 0 ? residual.data() : nullptr,
                            dx.data(), dgain.data(), partial.data(), m, d);
    return;
  }
#endif
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
            line[j] = arith::add(line[j], gain_term(arith::to_f32(g[j]), arith::to_f32(row[j]), r));
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
            return input_term(arith::to_f32(g[j]), arith::to_f32(gain[j]), arith::to_f32(row[j]));
          });
          const float factor = input_factor(r, reciprocal, s);
          for (std::int64_t j = 0; j < d; ++j) {
            float v = input_gradient(arith::to_f32(g[j]), arith::to_f32(gain[j]),
                                     arith::to_f32(row[j]), r, factor);
            if (added != nullptr)
              v = arith::add(arith::to_f32(added[i * d + j]), v);
            out[i * d + j] = arith::to_bf16(v);
          }
        }
      });
}

} // namespace ordo::nn
