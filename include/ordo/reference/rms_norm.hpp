// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::nn::rms_norm` and `rms_norm_backward`.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/reference/sum.hpp>

namespace ordo::reference {

/// One row: y = (x r) g with r = 1 / sqrt(sum(x^2) (1/d) + eps), which is returned. NaN where the
/// mean of squares is not finite.
template <class Order>
float rms_norm(Order order, std::span<const bf16> x, std::span<const bf16> gain, float eps,
               std::span<bf16> y) {
  std::vector<float> squares;
  for (const bf16 entry : x)
    squares.push_back(arith::mul_exact(arith::to_f32(entry), arith::to_f32(entry)));
  const float reciprocal = arith::div(1.0f, static_cast<float>(x.size()));
  const float mean =
      arith::add(arith::mul(sum(order, std::span<const float>(squares)), reciprocal), eps);
  const float r = arith::is_finite(mean) ? arith::rsqrt(mean) : arith::from_bits(0x7fc00000u);
  for (std::size_t j = 0; j < x.size(); ++j)
    y[j] = arith::to_bf16(arith::mul(arith::mul(arith::to_f32(x[j]), r), arith::to_f32(gain[j])));
  return r;
}

/// One row of the input gradient: r (dy g) - x ((r^3 (1/d)) s) with s = sum((dy g) x); the
/// residual's gradient, if there is one, plus that.
template <class Order>
void rms_norm_input_gradient(Order order, std::span<const bf16> dy, std::span<const bf16> x,
                             std::span<const bf16> gain, float r, std::span<const bf16> residual,
                             std::span<bf16> dx) {
  const std::size_t d = x.size();
  std::vector<float> scaled, terms;
  for (std::size_t j = 0; j < d; ++j) {
    scaled.push_back(arith::mul_exact(arith::to_f32(dy[j]), arith::to_f32(gain[j])));
    terms.push_back(arith::mul(scaled[j], arith::to_f32(x[j])));
  }
  const float s = sum(order, std::span<const float>(terms));
  const float reciprocal = arith::div(1.0f, static_cast<float>(d));
  const float factor = arith::mul(arith::mul(arith::mul(arith::mul(r, r), r), reciprocal), s);
  for (std::size_t j = 0; j < d; ++j) {
    float value = arith::sub(arith::mul(r, scaled[j]), arith::mul(arith::to_f32(x[j]), factor));
    if (!residual.empty())
      value = arith::add(arith::to_f32(residual[j]), value);
    dx[j] = arith::to_bf16(value);
  }
}

/// The gain's gradient, sum over rows of dy (x r): each block of 256 rows from +0 in order, the
/// blocks by order::Tree.
inline void rms_norm_gain_gradient(std::size_t m, std::size_t d, std::span<const bf16> dy,
                                   std::span<const bf16> x, std::span<const float> inverse_rms,
                                   std::span<float> dgain) {
  for (std::size_t j = 0; j < d; ++j) {
    std::vector<float> blocks;
    for (std::size_t first = 0; first < m; first += 256) {
      std::vector<float> terms;
      for (std::size_t i = first; i < std::min(m, first + 256); ++i)
        terms.push_back(arith::mul(arith::to_f32(dy[i * d + j]),
                                   arith::mul(arith::to_f32(x[i * d + j]), inverse_rms[i])));
      blocks.push_back(sum(order::Sequential(), std::span<const float>(terms)));
    }
    dgain[j] = sum(order::Tree(), std::span<const float>(blocks));
  }
}

} // namespace ordo::reference
