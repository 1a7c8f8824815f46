// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Linear layers whose products are binary32 in a stated order: the yardstick of the int8 ones.

#include <cstdint>

#include <ordo/linalg/gemm_f32.hpp>
#include <ordo/nn/transpose.hpp>

namespace ordo::nn {

/// Weights of one binary32 linear layer: bf16 [n, k] as the optimizer left them, and transposed.
template <execution_space Space>
struct binary32_weights {
  matrix_view<const bf16, Space> weights;
  Kokkos::View<bf16**, Kokkos::LayoutRight, typename Space::memory_space> transposed;

  binary32_weights() = default;
  binary32_weights(std::int64_t n, std::int64_t k)
      : transposed("ordo::nn::binary32_weights::transposed", static_cast<std::size_t>(k),
                   static_cast<std::size_t>(n)) {}

  void prepare(const Space& space, matrix_view<const bf16, Space> w) {
    weights = w;
    transpose<bf16>(space, w, transposed);
  }
};

namespace detail {

template <class T>
struct store_bf16 {
  bf16* out;
  std::int64_t stride;
  ORDO_FUNCTION void operator()(std::int64_t m, std::int64_t n0, int count, const T* c) const {
    for (int j = 0; j < count; ++j)
      out[m * stride + n0 + j] = arith::to_bf16(c[j]);
  }
};

} // namespace detail

/// y = x W^T, each entry one sum over k in the order of `Order`, rounded to bf16.
///
/// Shape: x [m, k], w [n, k], y [m, n] bf16.
/// Bits: depend on x, W and the order.
template <execution_space Space, class Order>
void linear_forward(const Space& space, Order order, matrix_view<const bf16, Space> x,
                    const binary32_weights<Space>& w, matrix_view<bf16, Space> y) {
  require(y.extent(0) == x.extent(0) && y.extent(1) == w.weights.extent(0),
          "ordo::nn::linear_forward",
          "y is " + shape(y.extent(0), y.extent(1)) + " but the product is " +
              shape(x.extent(0), w.weights.extent(0)));
  gemm_f32(space, order, x, w.weights,
           detail::store_bf16<float>{y.data(), static_cast<std::int64_t>(y.extent(1))});
}

/// dx = dy W, each entry one sum over n in the order of `Order`, rounded to bf16.
///
/// Shape: dy [m, n], dx [m, k] bf16.
template <execution_space Space, class Order>
void linear_input_gradient(const Space& space, Order order, matrix_view<const bf16, Space> dy,
                           const binary32_weights<Space>& w, matrix_view<bf16, Space> dx) {
  require(dx.extent(0) == dy.extent(0) && dx.extent(1) == w.transposed.extent(0),
          "ordo::nn::linear_input_gradient",
          "dx is " + shape(dx.extent(0), dx.extent(1)) + " but the product is " +
              shape(dy.extent(0), w.transposed.extent(0)));
  gemm_f32(space, order, dy, matrix_view<const bf16, Space>(w.transposed),
           detail::store_bf16<float>{dx.data(), static_cast<std::int64_t>(dx.extent(1))});
}

/// dW = dy^T x, each entry one sum over the tokens in the order of `Order`; overwritten.
///
/// Shape: dy [m, n], x [m, k] bf16, dw [n, k] binary32; scratch_y [n, m], scratch_x [k, m].
template <execution_space Space, class Order>
void linear_weight_gradient(const Space& space, Order order, matrix_view<const bf16, Space> dy,
                            matrix_view<const bf16, Space> x, matrix_view<float, Space> dw,
                            matrix_view<bf16, Space> scratch_y,
                            matrix_view<bf16, Space> scratch_x) {
  require(dw.extent(0) == dy.extent(1) && dw.extent(1) == x.extent(1),
          "ordo::nn::linear_weight_gradient",
          "dw is " + shape(dw.extent(0), dw.extent(1)) + " but the product is " +
              shape(dy.extent(1), x.extent(1)));
  transpose<bf16>(space, dy, scratch_y);
  transpose<bf16>(space, x, scratch_x);
  float* const out = dw.data();
  const std::int64_t width = static_cast<std::int64_t>(dw.extent(1));
  gemm_f32(
      space, order, matrix_view<const bf16, Space>(scratch_y),
      matrix_view<const bf16, Space>(scratch_x),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t k0, int count, const float* c) {
        for (int j = 0; j < count; ++j)
          out[i * width + k0 + j] = c[j];
      });
}

} // namespace ordo::nn
