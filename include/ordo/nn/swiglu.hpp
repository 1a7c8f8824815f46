// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// SwiGLU on the fused gate/up product, forward and backward.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/nn/swiglu_entry.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/elementwise.hpp>
#include <ordo/cuda/swiglu.hpp>
#endif

namespace ordo::nn {

/// y = silu(gate) * up, rounded once to bf16.
///
/// Shape: gate_up [m, 2f] bf16 (gate in the first f columns); y [m, f] bf16.
/// Bits: entry by entry.
template <execution_space Space>
void swiglu(const Space& space, matrix_view<const bf16, Space> gate_up,
            matrix_view<bf16, Space> y) {
  const std::int64_t f = static_cast<std::int64_t>(y.extent(1));
  require(gate_up.extent(0) == y.extent(0) && static_cast<std::int64_t>(gate_up.extent(1)) == 2 * f,
          "ordo::nn::swiglu",
          "gate_up is " + shape(gate_up.extent(0), gate_up.extent(1)) + " but y is " +
              shape(y.extent(0), f),
          "gate_up needs twice the columns of y");
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::swiglu(space.cuda_stream(), gate_up.data(), y.data(),
                 static_cast<std::int64_t>(y.extent(0)), f);
    return;
  }
#endif
  const bf16* const in = gate_up.data();
  bf16* const out = y.data();
  ordo::detail::for_blocks(
      space, "ordo::nn::swiglu", static_cast<std::int64_t>(y.extent(0)), 4,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const bf16* ORDO_RESTRICT gate = in + i * 2 * f;
          const bf16* ORDO_RESTRICT up = gate + f;
          bf16* ORDO_RESTRICT target = out + i * f;
          for (std::int64_t j = 0; j < f; ++j) {
            target[j] = arith::to_bf16(
                swiglu_entry(arith::silu(arith::to_f32(gate[j])), arith::to_f32(up[j])));
          }
        }
      });
}

/// d_gate = (dy * up) * (s + (g s) (1 - s)), d_up = dy * (g s), with s = sigmoid(g), every
/// operation rounded to binary32, then once to bf16.
///
/// Shape: gate_up, d_gate_up [m, 2f] bf16; dy [m, f] bf16.
/// Bits: entry by entry.
template <execution_space Space>
void swiglu_backward(const Space& space, matrix_view<const bf16, Space> dy,
                     matrix_view<const bf16, Space> gate_up, matrix_view<bf16, Space> d_gate_up) {
  const std::int64_t f = static_cast<std::int64_t>(dy.extent(1));
  require(gate_up.extent(0) == dy.extent(0) &&
              static_cast<std::int64_t>(gate_up.extent(1)) == 2 * f &&
              gate_up.extent(0) == d_gate_up.extent(0) && gate_up.extent(1) == d_gate_up.extent(1),
          "ordo::nn::swiglu_backward",
          "gate_up is " + shape(gate_up.extent(0), gate_up.extent(1)) + ", dy " +
              shape(dy.extent(0), f) + ", d_gate_up " +
              shape(d_gate_up.extent(0), d_gate_up.extent(1)));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::swiglu_backward(space.cuda_stream(), dy.data(), gate_up.data(), d_gate_up.data(),
                          static_cast<std::int64_t>(dy.extent(0)), f);
    return;
  }
#endif
  const bf16* const in = gate_up.data();
  const bf16* const grad = dy.data();
  bf16* const out = d_gate_up.data();
  ordo::detail::for_blocks(
      space, "ordo::nn::swiglu_backward", static_cast<std::int64_t>(dy.extent(0)), 4,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const bf16* ORDO_RESTRICT gate = in + i * 2 * f;
          const bf16* ORDO_RESTRICT up = gate + f;
          const bf16* ORDO_RESTRICT d = grad + i * f;
          bf16* ORDO_RESTRICT d_gate = out + i * 2 * f;
          bf16* ORDO_RESTRICT d_up = d_gate + f;
          for (std::int64_t j = 0; j < f; ++j) {
            const float dy_j = arith::to_f32(d[j]);
            const gate_slopes slopes = gate_slopes_of(arith::to_f32(gate[j]));
            d_gate[j] = arith::to_bf16(gate_gradient(dy_j, arith::to_f32(up[j]), slopes));
            d_up[j] = arith::to_bf16(up_gradient(dy_j, slopes));
          }
        }
      });
}

/// y = a + b entry by entry, rounded to bf16: the residual stream. y may be a or b.
template <execution_space Space>
void residual_add(const Space& space, matrix_view<const bf16, Space> a,
                  matrix_view<const bf16, Space> b, matrix_view<bf16, Space> y) {
  require(a.size() == b.size() && a.size() == y.size(), "ordo::nn::residual_add",
          "a is " + shape(a.extent(0), a.extent(1)) + ", b " + shape(b.extent(0), b.extent(1)) +
              ", y " + shape(y.extent(0), y.extent(1)));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::residual_add(space.cuda_stream(), a.data(), b.data(), y.data(),
                       static_cast<std::int64_t>(y.size()));
    return;
  }
#endif
  const bf16* const left = a.data();
  const bf16* const right = b.data();
  bf16* const out = y.data();
  ordo::detail::for_blocks(
      space, "ordo::nn::residual_add", static_cast<std::int64_t>(y.size()), 1 << 14,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          out[i] = residual_entry(left[i], right[i]);
        }
      });
}

} // namespace ordo::nn
