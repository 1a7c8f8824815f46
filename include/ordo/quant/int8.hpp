// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Symmetric int8 quantizers: one step per tensor (activations) or per row (weights).

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/order/sum.hpp>
#include <ordo/quant/code.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/quantize.hpp>
#endif

namespace ordo::quant {

/// Codes of n entries under one inverse step.
ORDO_FORCE_FUNCTION void to_codes(const bf16* ORDO_RESTRICT x, float inverse,
                                  std::int8_t* ORDO_RESTRICT codes, std::int64_t n) {
  for (std::int64_t k = 0; k < n; ++k)
    codes[k] = to_code(arith::to_f32(x[k]), inverse);
}

/// Bits of the largest magnitude of n entries, as an integer maximum: order-free, and a NaN wins.
ORDO_FORCE_FUNCTION std::uint32_t largest_bits(const bf16* ORDO_RESTRICT x, std::int64_t n) {
  std::uint16_t top = 0;
  for (std::int64_t k = 0; k < n; ++k) {
    const std::uint16_t u = x[k].bits & 0x7fffu;
    top = u > top ? u : top;
  }
  return arith::bits(arith::to_f32(bf16{top})); // flushing the largest is flushing them all
}

/// The same of each row. Shape: x [rows, columns] bf16; largest [rows].
template <execution_space Space>
void row_largest_bits(const Space& space, matrix_view<const bf16, Space> x,
                      vector_view<std::uint32_t, Space> largest) {
  const std::int64_t columns = static_cast<std::int64_t>(x.extent(1));
  const bf16* const data = x.data();
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::row_largest_bits(space.cuda_stream(), data, static_cast<std::int64_t>(x.extent(0)),
                           columns, largest.data());
    return;
  }
#endif
  ordo::detail::for_blocks(
      space, "ordo::quant::row_largest_bits", static_cast<std::int64_t>(x.extent(0)), 16,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t m = begin; m < end; ++m) {
          largest[m] = largest_bits(data + m * columns, columns);
        }
      });
}

/// Quantizes a whole tensor with one step from its largest magnitude.
///
/// Shape: x [rows, columns] bf16; codes alike; step [1]; scratch [rows].
/// Order: none, the maximum is order-free.
/// Bits: depend on x alone.
/// Source: OPEN-1B, section 4.
template <execution_space Space>
void quantize_tensor(const Space& space, matrix_view<const bf16, Space> x,
                     matrix_view<std::int8_t, Space> codes, vector_view<float, Space> step,
                     vector_view<std::uint32_t, Space> scratch) {
  const std::int64_t rows = static_cast<std::int64_t>(x.extent(0));
  const std::int64_t columns = static_cast<std::int64_t>(x.extent(1));
  require(x.extent(0) == codes.extent(0) && x.extent(1) == codes.extent(1) &&
              scratch.extent(0) >= x.extent(0) && step.extent(0) >= 1,
          "ordo::quant::quantize_tensor",
          "x is " + shape(rows, columns) + " but codes are " +
              shape(codes.extent(0), codes.extent(1)) + " and scratch holds " +
              shape(scratch.extent(0)));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::quantize_tensor(space.cuda_stream(), x.data(), rows * columns, codes.data(), step.data(),
                          scratch.data());
    return;
  }
#endif
  row_largest_bits<Space>(space, x, scratch);
  ordo::detail::for_each(
      space, "ordo::quant::tensor_step", 1, KOKKOS_LAMBDA(std::int64_t) {
        std::uint32_t top = 0;
        for (std::int64_t m = 0; m < rows; ++m)
          top = scratch[m] > top ? scratch[m] : top;
        step[0] = step_of_largest(arith::from_bits(top));
      });
  const bf16* const in = x.data();
  std::int8_t* const out = codes.data();
  ordo::detail::for_blocks(
      space, "ordo::quant::quantize_tensor", rows * columns, 1 << 14,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        to_codes(in + begin, inverse_step(step[0]), out + begin, end - begin);
      });
}

/// Quantizes each row with its own step.
///
/// Shape: w [rows, columns] bf16; codes alike; steps [rows].
/// Order: the row sum of magnitudes (mean_magnitude) is by `Order`.
/// Bits: each row's depend on that row, the rule and the order.
/// Source: OPEN-1B, section 4.2.
template <execution_space Space, class Order>
void quantize_rows(const Space& space, Order order, step_rule rule,
                   matrix_view<const bf16, Space> w, matrix_view<std::int8_t, Space> codes,
                   vector_view<float, Space> steps) {
  const std::int64_t columns = static_cast<std::int64_t>(w.extent(1));
  require(w.extent(0) == codes.extent(0) && w.extent(1) == codes.extent(1) &&
              steps.extent(0) == w.extent(0),
          "ordo::quant::quantize_rows",
          "w is " + shape(w.extent(0), w.extent(1)) + " but codes are " +
              shape(codes.extent(0), codes.extent(1)) + " and steps " + shape(steps.extent(0)));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::quantize_rows(space.cuda_stream(), order, rule, w.data(),
                        static_cast<std::int64_t>(w.extent(0)), columns, codes.data(),
                        steps.data());
    return;
  }
#endif
  const bf16* const in = w.data();
  std::int8_t* const out = codes.data();
  ordo::detail::for_blocks(
      space, "ordo::quant::quantize_rows", static_cast<std::int64_t>(w.extent(0)), 8,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t n = begin; n < end; ++n) {
          const bf16* ORDO_RESTRICT row = in + n * columns;
          float step;
          if (rule == step_rule::mean_magnitude) {
            step = step_of_sum(
                order::sum(order, columns,
                           [=](std::int64_t k) { return arith::abs(arith::to_f32(row[k])); }),
                columns);
          } else {
            step = step_of_largest(arith::from_bits(largest_bits(row, columns)));
          }
          steps[n] = step;
          to_codes(row, inverse_step(step), out + n * columns, columns);
        }
      });
}

} // namespace ordo::quant
