// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::quant::quantize_tensor` and `quantize_rows`.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ordo/arith/bf16.hpp>
#include <ordo/quant/code.hpp>
#include <ordo/reference/sum.hpp>

namespace ordo::reference {

/// Nearest even integer of a finite x, clamped to [-limit, limit]; NaN gives 0.
inline std::int32_t nearest_even(double x, std::int32_t limit) {
  if (x != x)
    return 0;
  if (x >= limit)
    return limit;
  if (x <= -limit)
    return -limit;
  const double below = std::floor(x), rest = x - below;
  const auto integer = static_cast<std::int32_t>(below);
  const bool up = rest > 0.5 || (rest == 0.5 && integer % 2 != 0);
  return up ? integer + 1 : integer;
}

/// The codes of x under one step: x times the rounded reciprocal of the step, to the nearest even
/// integer within [-127, 127]. A step of 0 makes every code 0.
inline void codes_of(std::span<const bf16> x, float step, std::span<std::int8_t> codes) {
  const float inverse = step == 0.0f ? 0.0f : arith::div(1.0f, step);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float scaled = arith::mul(arith::to_f32(x[i]), inverse);
    codes[i] = static_cast<std::int8_t>(nearest_even(scaled, 127));
  }
}

/// max|x| / 127, and 0 below 2^-100. NaN anywhere gives NaN, otherwise infinity gives infinity.
inline float step_by_largest(std::span<const bf16> x) {
  float largest = 0.0f;
  for (const bf16 entry : x) {
    const float value = arith::abs(arith::to_f32(entry));
    if (arith::is_nan(value))
      return arith::from_bits(arith::canonical_nan);
    if (value > largest)
      largest = value;
  }
  const float step = arith::div(largest, 127.0f);
  return step < 0x1p-100f ? 0.0f : step;
}

/// (sum|x| * (1/n)) * (2 / sqrt(127)), each step rounded, the sum by `order`; 0 below 2^-100.
template <class Order>
float step_by_mean(Order order, std::span<const bf16> x) {
  if (x.empty())
    return 0.0f;
  std::vector<float> magnitudes;
  for (const bf16 entry : x)
    magnitudes.push_back(arith::abs(arith::to_f32(entry)));
  const float reciprocal = arith::div(1.0f, static_cast<float>(x.size()));
  const float mean = arith::mul(sum(order, std::span<const float>(magnitudes)), reciprocal);
  const float step = arith::mul(mean, static_cast<float>(2.0 / std::sqrt(127.0)));
  return step < 0x1p-100f ? 0.0f : step;
}

/// One step for the whole tensor, from its largest magnitude.
inline float quantize_tensor(std::span<const bf16> x, std::span<std::int8_t> codes) {
  const float step = step_by_largest(x);
  codes_of(x, step, codes);
  return step;
}

/// One step for each row of w [rows, columns].
template <class Order>
void quantize_rows(Order order, quant::step_rule rule, std::size_t rows, std::size_t columns,
                   std::span<const bf16> w, std::span<std::int8_t> codes, std::span<float> steps) {
  for (std::size_t n = 0; n < rows; ++n) {
    const auto row = w.subspan(n * columns, columns);
    steps[n] =
        rule == quant::step_rule::mean_magnitude ? step_by_mean(order, row) : step_by_largest(row);
    codes_of(row, steps[n], codes.subspan(n * columns, columns));
  }
}

} // namespace ordo::reference
