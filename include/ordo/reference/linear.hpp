// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of the int8 linear layer (`ordo::nn::linear_forward` and its gradients). The binary32
/// layer is `reference::gemm_f32` on transposed operands, rounded to bf16.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ordo/arith/bf16.hpp>
#include <ordo/reference/gemm_int8.hpp>
#include <ordo/reference/hadamard.hpp>

namespace ordo::reference {

/// Sizes of a layer y = x W^T: x [m, k], w [n, k], y [m, n].
struct linear_shape {
  std::size_t m, n, k;
};

/// Exact products of a [rows, length] and b [columns, length].
inline std::vector<std::int32_t> products(std::size_t rows, std::size_t columns, std::size_t length,
                                          std::span<const std::int8_t> a,
                                          std::span<const std::int8_t> b) {
  std::vector<std::int32_t> c(rows * columns);
  gemm_int8(static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns),
            static_cast<std::int64_t>(length), a, b, c);
  return c;
}

/// y = bf16(sum * (step_x * step_w)).
inline void linear_forward(linear_shape s, std::span<const std::int8_t> x, float step_x,
                           std::span<const std::int8_t> w, std::span<const float> step_w,
                           std::span<bf16> y) {
  const auto c = products(s.m, s.n, s.k, x, w);
  for (std::size_t i = 0; i < s.m; ++i)
    for (std::size_t j = 0; j < s.n; ++j)
      y[i * s.n + j] = arith::to_bf16(
          arith::mul(static_cast<float>(c[i * s.n + j]), arith::mul(step_x, step_w[j])));
}

/// A matrix of rotated rows: codes [rows, length] and a scale a row.
struct rotated_rows {
  std::size_t length;
  std::vector<std::int8_t> codes;
  std::vector<float> scale;

  rotated_rows(std::size_t rows, std::size_t unpadded)
      : length((unpadded + 255) / 256 * 256), codes(rows * length), scale(rows) {}
  std::span<std::int8_t> row(std::size_t i) { return std::span(codes).subspan(i * length, length); }
};

/// Rows of dy [m, n], entry j times step[j], rotated along n.
inline rotated_rows rotate_scaled_rows(std::size_t m, std::size_t n, std::span<const bf16> dy,
                                       std::span<const float> step) {
  rotated_rows out(m, n);
  for (std::size_t i = 0; i < m; ++i) {
    std::vector<float> row;
    for (std::size_t j = 0; j < n; ++j)
      row.push_back(arith::mul(arith::to_f32(dy[i * n + j]), step[j]));
    out.scale[i] = rotate_values(row, out.row(i));
  }
  return out;
}

/// Columns of x [m, columns] bf16, rotated along m.
inline rotated_rows rotate_value_columns(std::size_t m, std::size_t columns,
                                         std::span<const bf16> x) {
  rotated_rows out(columns, m);
  for (std::size_t j = 0; j < columns; ++j) {
    std::vector<float> column;
    for (std::size_t i = 0; i < m; ++i)
      column.push_back(arith::to_f32(x[i * columns + j]));
    out.scale[j] = rotate_values(column, out.row(j));
  }
  return out;
}

/// Columns of x [m, columns] int8, rotated along m; each scale times `common`.
inline rotated_rows rotate_code_columns(std::size_t m, std::size_t columns,
                                        std::span<const std::int8_t> x, float common) {
  rotated_rows out(columns, m);
  for (std::size_t j = 0; j < columns; ++j) {
    std::vector<std::int8_t> column;
    for (std::size_t i = 0; i < m; ++i)
      column.push_back(x[i * columns + j]);
    out.scale[j] = arith::mul(rotate_codes(column, out.row(j)), common);
  }
  return out;
}

/// dx = dy W: rows of dy with the steps of W folded in, against the columns of W's codes, both
/// rotated along n.
inline void linear_input_gradient(linear_shape s, std::span<const bf16> dy,
                                  std::span<const std::int8_t> w, std::span<const float> step_w,
                                  std::span<bf16> dx) {
  const rotated_rows a = rotate_scaled_rows(s.m, s.n, dy, step_w);
  const rotated_rows b = rotate_code_columns(s.n, s.k, w, 1.0f);
  const auto c = products(s.m, s.k, a.length, a.codes, b.codes);
  for (std::size_t i = 0; i < s.m; ++i)
    for (std::size_t j = 0; j < s.k; ++j)
      dx[i * s.k + j] = arith::to_bf16(
          arith::mul(static_cast<float>(c[i * s.k + j]), arith::mul(a.scale[i], b.scale[j])));
}

/// dW = dy^T x: columns of dy against columns of x's codes, both rotated along the tokens; zero
/// where |w| times the reciprocal of the row's step is 127.5 or more.
inline void linear_weight_gradient(linear_shape s, std::span<const bf16> dy,
                                   std::span<const std::int8_t> x, float step_x,
                                   std::span<const bf16> w, std::span<const float> step_w,
                                   std::span<float> dw) {
  const rotated_rows a = rotate_value_columns(s.m, s.n, dy);
  const rotated_rows b = rotate_code_columns(s.m, s.k, x, step_x);
  const auto c = products(s.n, s.k, a.length, a.codes, b.codes);
  for (std::size_t i = 0; i < s.n; ++i) {
    const float inverse = step_w[i] == 0.0f ? 0.0f : arith::div(1.0f, step_w[i]);
    for (std::size_t j = 0; j < s.k; ++j) {
      const float code = arith::mul(arith::to_f32(w[i * s.k + j]), inverse);
      const bool clipped = arith::abs(code) >= 127.5f;
      const float product =
          arith::mul(static_cast<float>(c[i * s.k + j]), arith::mul(a.scale[i], b.scale[j]));
      dw[i * s.k + j] = clipped ? 0.0f : product;
    }
  }
}

} // namespace ordo::reference
