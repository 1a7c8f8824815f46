// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Linear layers y = x W^T without bias: int8 quantization-aware, and in binary32 as the yardstick.
///
/// Both have the same three entry points (forward, input gradient, weight gradient) and a prepared
/// form of their weights, made once a step from the bf16 weights. Source: OPEN-1B, section 4.

#include <cstdint>

#include <ordo/linalg/gemm_f32.hpp>
#include <ordo/linalg/gemm_int8.hpp>
#include <ordo/linalg/scaled_store.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/quant/int8.hpp>
#include <ordo/quant/rotated.hpp>

namespace ordo::nn {

/// Int8 weights of one linear layer [n, k] for forward (codes, one step a row) and for the input
/// gradient (codes rotated along n, transposed, one scale a column).
template <execution_space Space>
struct int8_weights {
  Kokkos::View<std::int8_t**, Kokkos::LayoutRight, typename Space::memory_space> codes, rotated;
  Kokkos::View<float*, typename Space::memory_space> step, rotated_scale;

  int8_weights() = default;
  int8_weights(std::int64_t n, std::int64_t k)
      : codes("ordo::nn::int8_weights::codes", static_cast<std::size_t>(n),
              static_cast<std::size_t>(k)),
        rotated("ordo::nn::int8_weights::rotated", static_cast<std::size_t>(k),
                static_cast<std::size_t>(quant::rotated_length(n))),
        step("ordo::nn::int8_weights::step", static_cast<std::size_t>(n)),
        rotated_scale("ordo::nn::int8_weights::rotated_scale", static_cast<std::size_t>(k)) {}

  /// Recomputes steps and codes. Order: `Order` for the row sums of magnitudes.
  template <class Order>
  void prepare(const Space& space, Order order, quant::step_rule rule,
               matrix_view<const bf16, Space> w) {
    quant::quantize_rows(space, order, rule, w, matrix_view<std::int8_t, Space>(codes),
                         vector_view<float, Space>(step));
    quant::rotate_columns<std::int8_t>(space, codes, {}, rotated, rotated_scale);
  }
};

/// Activations as a linear layer keeps them for its backward pass: codes [m, k] and one step.
template <execution_space Space>
struct int8_activations {
  matrix_view<const std::int8_t, Space> codes;
  vector_view<const float, Space> step;
};

/// y = dequantized(x) dequantized(W)^T, rounded once to bf16.
///
/// Shape: x [m, k], w [n, k], y [m, n] bf16.
/// Order: Exact; each entry is from_int(sum) * (step_x * step_w[n]), two roundings, then bf16.
/// Bits: depend on codes and steps alone. Error: throws for k > 133,144.
template <execution_space Space>
void linear_forward(const Space& space, order::Exact exact, int8_activations<Space> x,
                    const int8_weights<Space>& w, matrix_view<bf16, Space> y) {
  require(y.extent(0) == x.codes.extent(0) && y.extent(1) == w.codes.extent(0),
          "ordo::nn::linear_forward",
          "y is " + shape(y.extent(0), y.extent(1)) + " but the product is " +
              shape(x.codes.extent(0), w.codes.extent(0)));
  gemm_int8(space, exact, x.codes, matrix_view<const std::int8_t, Space>(w.codes),
            scaled_store<bf16, row_factor::common>{y.data(), ordo::detail::extent(y, 1),
                                                   x.step.data(), w.step.data()});
}

/// Scratch of the backward passes, large enough for every layer that shares it.
template <execution_space Space>
struct int8_gradient_scratch {
  Kokkos::View<std::int8_t*, typename Space::memory_space> a, b;
  Kokkos::View<float*, typename Space::memory_space> scale_a, scale_b;

  int8_gradient_scratch() = default;
  /// For m rows and layers whose n and k are at most `widest`.
  int8_gradient_scratch(std::int64_t m, std::int64_t widest) {
    const std::int64_t rows = quant::rotated_length(m), wide = quant::rotated_length(widest);
    const auto size = static_cast<std::size_t>(rows * wide);
    const auto scales = static_cast<std::size_t>(rows > wide ? rows : wide);
    a = decltype(a)("ordo::nn::gradient_scratch::a", size);
    b = decltype(b)("ordo::nn::gradient_scratch::b", size);
    scale_a = decltype(scale_a)("ordo::nn::gradient_scratch::scale_a", scales);
    scale_b = decltype(scale_b)("ordo::nn::gradient_scratch::scale_b", scales);
  }
};

/// dx = dy W: int8 after a rotation along n; the steps of W are folded into dy before it.
///
/// Shape: dy [m, n] bf16, dx [m, k] bf16.
/// Order: Exact. The activation step is the tensor's largest magnitude / 127, which clips nothing,
/// so the straight-through mask of the input is all ones.
/// Bits: depend on dy and the prepared weights alone.
template <execution_space Space>
void linear_input_gradient(const Space& space, order::Exact exact,
                           matrix_view<const bf16, Space> dy, const int8_weights<Space>& w,
                           matrix_view<bf16, Space> dx,
                           const int8_gradient_scratch<Space>& scratch) {
  const auto m = dy.extent(0), padded = w.rotated.extent(1);
  require(dx.extent(0) == m && dx.extent(1) == w.codes.extent(1) &&
              scratch.a.extent(0) >= m * padded,
          "ordo::nn::linear_input_gradient",
          "dx is " + shape(dx.extent(0), dx.extent(1)) + " but the product is " +
              shape(m, w.codes.extent(1)) + ", with scratch for " + shape(scratch.a.extent(0)));
  const matrix_view<std::int8_t, Space> codes(scratch.a.data(), m, padded);
  const vector_view<float, Space> scale(scratch.scale_a.data(), m);
  quant::rotate_rows(space, dy, vector_view<const float, Space>(w.step), codes, scale);
  gemm_int8(space, exact, matrix_view<const std::int8_t, Space>(codes),
            matrix_view<const std::int8_t, Space>(w.rotated),
            scaled_store<bf16, row_factor::each>{dx.data(), ordo::detail::extent(dx, 1),
                                                 scale.data(), w.rotated_scale.data()});
}

/// dW = dy^T x: int8 after a rotation along the tokens, masked (straight-through) where the clamp
/// changed the weight's code, that is where the nearest integer of |w| / step exceeds 127.
///
/// Shape: dy [m, n] bf16, x [m, k] codes, w [n, k] bf16, dw [n, k] binary32, overwritten.
/// Order: Exact.
/// Bits: depend on dy, x, w and the steps alone.
template <execution_space Space>
void linear_weight_gradient(const Space& space, order::Exact exact,
                            matrix_view<const bf16, Space> dy, int8_activations<Space> x,
                            const int8_weights<Space>& w, matrix_view<const bf16, Space> weights,
                            matrix_view<float, Space> dw,
                            const int8_gradient_scratch<Space>& scratch) {
  const auto m =
      static_cast<std::size_t>(quant::rotated_length(static_cast<std::int64_t>(dy.extent(0))));
  const auto n = dy.extent(1), k = x.codes.extent(1);
  require(x.codes.extent(0) == dy.extent(0) && dw.extent(0) == n && dw.extent(1) == k &&
              weights.extent(0) == n && weights.extent(1) == k && w.step.extent(0) == n &&
              scratch.a.extent(0) >= n * m && scratch.b.extent(0) >= k * m,
          "ordo::nn::linear_weight_gradient",
          "dw is " + shape(dw.extent(0), dw.extent(1)) + " and w " +
              shape(weights.extent(0), weights.extent(1)) + ", for dy " + shape(dy.extent(0), n) +
              " and x " + shape(x.codes.extent(0), k) + " with scratch for " +
              shape(scratch.a.extent(0)));
  const matrix_view<std::int8_t, Space> a(scratch.a.data(), n, m), b(scratch.b.data(), k, m);
  const vector_view<float, Space> scale_a(scratch.scale_a.data(), n),
      scale_b(scratch.scale_b.data(), k);
  quant::rotate_columns<bf16>(space, dy, {}, a, scale_a);
  quant::rotate_columns<std::int8_t>(space, x.codes, x.step, b, scale_b);
  gemm_int8(space, exact, matrix_view<const std::int8_t, Space>(a),
            matrix_view<const std::int8_t, Space>(b),
            scaled_store<float, row_factor::each, true>{dw.data(), ordo::detail::extent(dw, 1),
                                                        scale_a.data(), scale_b.data(),
                                                        weights.data(), w.step.data()});
}

} // namespace ordo::nn
