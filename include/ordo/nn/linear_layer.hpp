// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// A linear layer whose arithmetic a run chooses: int8 quantization-aware, or binary32.

#include <cstdint>

#include <ordo/nn/linear.hpp>
#include <ordo/nn/linear_binary32.hpp>

namespace ordo::nn {

enum class linear_kind { int8, binary32 };

/// The order of binary32 products and of row sums inside the model. Part of the contract.
using product_order = order::Lanes<16>;
using row_order = order::Lanes<32>;

/// What a linear layer keeps of its input for the backward pass: codes and a step, or a copy.
template <execution_space Space>
struct linear_input {
  using memory = typename Space::memory_space;
  Kokkos::View<std::int8_t**, Kokkos::LayoutRight, memory> codes;
  Kokkos::View<float*, memory> step;
  Kokkos::View<bf16**, Kokkos::LayoutRight, memory> copy;

  linear_input() = default;
  linear_input(linear_kind kind, std::int64_t m, std::int64_t k) {
    const auto rows = static_cast<std::size_t>(m), columns = static_cast<std::size_t>(k);
    if (kind == linear_kind::int8) {
      codes = decltype(codes)("ordo::nn::linear_input::codes", rows, columns);
      step = decltype(step)("ordo::nn::linear_input::step", 1);
    } else {
      copy = decltype(copy)("ordo::nn::linear_input::copy", rows, columns);
    }
  }
};

/// Scratch shared by all layers of a model, forward and backward.
template <execution_space Space>
struct linear_scratch {
  using memory = typename Space::memory_space;
  Kokkos::View<std::uint32_t*, memory> row_largest;
  int8_gradient_scratch<Space> rotated;
  Kokkos::View<bf16*, memory> transposed_dy, transposed_x;

  linear_scratch() = default;
  linear_scratch(linear_kind kind, std::int64_t m, std::int64_t widest)
      : row_largest("ordo::nn::linear_scratch::row_largest", static_cast<std::size_t>(m)) {
    if (kind == linear_kind::int8) {
      rotated = int8_gradient_scratch<Space>(m, widest);
    } else {
      const auto size = static_cast<std::size_t>(m * widest);
      transposed_dy = decltype(transposed_dy)("ordo::nn::linear_scratch::transposed_dy", size);
      transposed_x = decltype(transposed_x)("ordo::nn::linear_scratch::transposed_x", size);
    }
  }
};

/// One layer [n, k]: its weights as the current step prepared them.
template <execution_space Space>
class linear_layer {
public:
  linear_layer() = default;
  linear_layer(linear_kind kind, quant::step_rule rule, std::int64_t n, std::int64_t k)
      : kind_(kind), rule_(rule) {
    if (kind == linear_kind::int8) {
      int8_ = int8_weights<Space>(n, k);
    } else {
      binary32_ = binary32_weights<Space>(n, k);
    }
  }

  /// Takes the step's weights [n, k], which must stay where they are until the next call.
  void prepare(const Space& space, matrix_view<const bf16, Space> w) {
    weights_ = w;
    if (kind_ == linear_kind::int8) {
      int8_.prepare(space, row_order{}, rule_, w);
    } else {
      binary32_.prepare(space, w);
    }
  }

  /// y = x W^T; keeps of x what the backward pass needs.
  void forward(const Space& space, matrix_view<const bf16, Space> x, linear_input<Space>& kept,
               matrix_view<bf16, Space> y, const linear_scratch<Space>& scratch) const {
    if (kind_ == linear_kind::int8) {
      quant::quantize_tensor(space, x, matrix_view<std::int8_t, Space>(kept.codes),
                             vector_view<float, Space>(kept.step),
                             vector_view<std::uint32_t, Space>(scratch.row_largest));
      linear_forward(space, order::Exact{}, int8_activations<Space>{kept.codes, kept.step}, int8_,
                     y);
    } else {
      Kokkos::deep_copy(space, kept.copy, x);
      linear_forward(space, product_order{}, x, binary32_, y);
    }
  }

  /// dx = dy W and dW = dy^T x, both overwritten. dx may share memory with nothing else.
  void backward(const Space& space, matrix_view<const bf16, Space> dy,
                const linear_input<Space>& kept, matrix_view<bf16, Space> dx,
                matrix_view<float, Space> dw, const linear_scratch<Space>& scratch) const {
    if (kind_ == linear_kind::int8) {
      linear_input_gradient(space, order::Exact{}, dy, int8_, dx, scratch.rotated);
      linear_weight_gradient(space, order::Exact{}, dy,
                             int8_activations<Space>{kept.codes, kept.step}, int8_, weights_, dw,
                             scratch.rotated);
    } else {
      linear_input_gradient(space, product_order{}, dy, binary32_, dx);
      const auto m = dy.extent(0);
      linear_weight_gradient(
          space, product_order{}, dy, matrix_view<const bf16, Space>(kept.copy), dw,
          matrix_view<bf16, Space>(scratch.transposed_dy.data(), dy.extent(1), m),
          matrix_view<bf16, Space>(scratch.transposed_x.data(), kept.copy.extent(1), m));
    }
  }

private:
  linear_kind kind_ = linear_kind::int8;
  quant::step_rule rule_ = quant::step_rule::mean_magnitude;
  int8_weights<Space> int8_;
  binary32_weights<Space> binary32_;
  matrix_view<const bf16, Space> weights_;
};

} // namespace ordo::nn
