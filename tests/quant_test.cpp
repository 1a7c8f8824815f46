// SPDX-License-Identifier: Apache-2.0
// ctest: THREADS 1 2 3 7
//
// Quantizers, rotated operands and linear layers against their definitions, by bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "layer_data.hpp"
#include <ordo/nn/linear_layer.hpp>
#include <ordo/quant/hadamard.hpp>
#include <ordo/quant/int8.hpp>
#include <ordo/quant/rotated.hpp>
#include <ordo/reference/gemm_f32.hpp>
#include <ordo/reference/linear.hpp>

namespace {

using namespace ordo::test;
using ordo::bf16;
using ordo::matrix_view;
using ordo::vector_view;
using ordo::quant::step_rule;
namespace arith = ordo::arith;
namespace reference = ordo::reference;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

matrix<bf16> row_of(std::initializer_list<float> entries) {
  matrix<bf16> out(1, entries.size());
  std::size_t i = 0;
  for (const float x : entries)
    out.data[i++] = brain(x);
  return out;
}

struct quantized {
  matrix<std::int8_t> codes;
  matrix<float> steps;
};

template <class Space>
quantized tensor_codes(const matrix<bf16>& x) {
  quantized q{matrix<std::int8_t>(x.rows, x.columns), matrix<float>(1)};
  matrix<std::uint32_t> scratch(x.rows);
  ordo::quant::quantize_tensor(Space(), read<Space>(x), q.codes.in<Space>(), q.steps.line<Space>(),
                               scratch.line<Space>());
  return q;
}

template <class Space, class Order>
quantized row_codes(Order order, step_rule rule, const matrix<bf16>& w) {
  quantized q{matrix<std::int8_t>(w.rows, w.columns), matrix<float>(w.rows)};
  ordo::quant::quantize_rows(Space(), order, rule, read<Space>(w), q.codes.in<Space>(),
                             q.steps.line<Space>());
  return q;
}

template <class Space>
void compare_quantizers(const matrix<bf16>& x) {
  INFO("shape " << x.rows << " x " << x.columns);
  quantized expected{matrix<std::int8_t>(x.rows, x.columns), matrix<float>(1)};
  expected.steps(0) = reference::quantize_tensor(x.span(), expected.codes.span());
  const quantized found = tensor_codes<Space>(x);
  CHECK(same(found.codes, expected.codes));
  CHECK(same(found.steps, expected.steps));
  const auto rows = [&](auto order, step_rule rule) {
    quantized by_row{matrix<std::int8_t>(x.rows, x.columns), matrix<float>(x.rows)};
    reference::quantize_rows(order, rule, x.rows, x.columns, x.span(), by_row.codes.span(),
                             by_row.steps.span());
    const quantized q = row_codes<Space>(order, rule, x);
    CHECK(same(q.codes, by_row.codes));
    CHECK(same(q.steps, by_row.steps));
    CHECK(std::count(q.codes.data.begin(), q.codes.data.end(), -128) == 0);
  };
  rows(ordo::order::Lanes<32>(), step_rule::mean_magnitude);
  rows(ordo::order::Sequential(), step_rule::mean_magnitude);
  rows(ordo::order::Tree(), step_rule::mean_magnitude);
  rows(ordo::order::Lanes<32>(), step_rule::largest_magnitude);
}

TEST_CASE_TEMPLATE("quantizers equal their definition", Space, ORDO_TEST_SPACES) {
  for (const std::size_t columns : {0u, 1u, 2u, 31u, 32u, 33u, 63u, 65u, 255u, 256u, 257u})
    for (const std::size_t rows : {0u, 1u, 7u, 8u, 9u, 17u})
      compare_quantizers<Space>(normal_bf16(rows, columns, 7 * rows + columns + 1));
  compare_quantizers<Space>(normal_bf16(3, 16385, 1)); // beyond one block of the tensor pass
  compare_quantizers<Space>(wide_bf16(40, 130, 2, -126, 127));
  compare_quantizers<Space>(wide_bf16(40, 130, 3, -126, -90));
}

TEST_CASE_TEMPLATE("quantized numbers, worked by hand", Space, ORDO_TEST_SPACES) {
  const step_rule largest = step_rule::largest_magnitude;
  const ordo::order::Lanes<32> order;
  // A largest magnitude of 127 makes the step 1: ties go to even codes.
  const quantized ties = tensor_codes<Space>(
      row_of({127.0f, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, -127.0f, 126.5f, 0.0f, -0.0f}));
  CHECK(ties.steps(0) == 1.0f);
  CHECK(ties.codes.data == std::vector<std::int8_t>{127, 0, 0, 2, -2, 2, -2, -127, 126, 0, 0});
  // The mean of these four magnitudes is sqrt(127)/2 * 0.1774... = 1 within an ulp or two.
  CHECK(ordo::quant::step_of_sum(4.0f, 4) == static_cast<float>(2 / std::sqrt(127.0)));
  // A step by the mean clips: nothing wraps.
  matrix<bf16> spread(1, 256);
  spread(0, 0) = brain(1000.0f);
  spread(0, 1) = brain(-1000.0f);
  spread(0, 2) = brain(1.0f);
  const quantized clipped = row_codes<Space>(order, step_rule::mean_magnitude, spread);
  CHECK(clipped.codes(0, 0) == 127);
  CHECK(clipped.codes(0, 1) == -127);
  CHECK(clipped.codes(0, 2) == 1); // step 0.1775 * 2001/256 = 1.387
  CHECK(std::abs(clipped.steps(0) - 1.38719f) < 1e-4f);
  // Zero rows, one zero row among others, rows below the floor.
  matrix<bf16> rows(4, 3);
  rows(1, 0) = brain(2.0f);
  rows(1, 2) = brain(-1.0f);
  for (std::size_t j = 0; j < 3; ++j)
    rows(2, j) = bf16{0x0001}; // subnormal: flushed
  for (std::size_t j = 0; j < 3; ++j)
    rows(3, j) = brain(0x1p-110f);
  for (const step_rule rule : {largest, step_rule::mean_magnitude}) {
    const quantized q = row_codes<Space>(order, rule, rows);
    for (const std::size_t row : {0u, 2u, 3u}) {
      CHECK(bits_of(q.steps(row)) == 0);
      for (std::size_t j = 0; j < 3; ++j)
        CHECK(q.codes(row, j) == 0);
    }
    CHECK(q.steps(1) > 0.0f);
    CHECK(q.codes(1, 0) > 0);
  }
  const quantized two = row_codes<Space>(order, largest, rows);
  CHECK(two.codes(1, 0) == 127);
  CHECK(two.codes(1, 2) == -64); // 63.5 or a hair above, away from the even 64 never
  // The floor itself: 127 * 2^-100 has step 2^-100, its predecessor none.
  CHECK(ordo::quant::step_of_largest(127.0f * 0x1p-100f) == 0x1p-100f);
  CHECK(ordo::quant::step_of_largest(126.5f * 0x1p-100f) == 0.0f);
}

TEST_CASE("single codes") {
  using ordo::quant::to_code;
  CHECK(to_code(127.6f, 1.0f) == 127);
  CHECK(to_code(-127.6f, 1.0f) == -127);
  CHECK(to_code(-128.0f, 1.0f) == -127);
  CHECK(to_code(300.0f, 1.0f) == 127);
  CHECK(to_code(-300.0f, 1.0f) == -127);
  CHECK(to_code(infinity, 1.0f) == 127);
  CHECK(to_code(-infinity, 1.0f) == -127);
  CHECK(to_code(nan, 1.0f) == 0);
  CHECK(to_code(0.5f, 1.0f) == 0);
  CHECK(to_code(-0.5f, 1.0f) == 0);
  CHECK(to_code(1.5f, 1.0f) == 2);
  CHECK(to_code(-1.5f, 1.0f) == -2);
  CHECK(to_code(2.5f, 1.0f) == 2);
  CHECK(to_code(-2.5f, 1.0f) == -2);
  // Every bf16 under several factors: within the limits, as the definition says.
  int wrong = 0;
  for (std::uint32_t u = 0; u < 0x10000u; ++u) {
    const float x = arith::to_f32(bf16{static_cast<std::uint16_t>(u)});
    for (const float inverse : {1.0f, 0.37f, 0x1p100f, 0x1p-30f}) {
      const int code = to_code(x, inverse);
      const int expected = reference::nearest_even(double{arith::mul(x, inverse)}, 127);
      wrong += code < -127 || code > 127 || code != expected;
    }
  }
  CHECK(wrong == 0);
}

std::size_t padded(std::size_t n) {
  return (n + 255) / 256 * 256;
}

/// rotate_rows of x, beside the definition.
template <class Space>
void compare_rows(const matrix<bf16>& x) {
  INFO("shape " << x.rows << " x " << x.columns);
  matrix<float> factor(x.columns);
  numbers next{x.columns + 3};
  for (float& f : factor.data)
    f = next.normal() * 0.01f;
  matrix<std::int8_t> found(x.rows, padded(x.columns));
  matrix<float> scale(x.rows);
  ordo::quant::rotate_rows(Space(), read<Space>(x), read_line<Space>(factor), found.in<Space>(),
                           scale.line<Space>());
  const auto expected = reference::rotate_scaled_rows(x.rows, x.columns, x.span(), factor.span());
  CHECK(first_difference(found.data, expected.codes) == -1);
  CHECK(first_difference(scale.data, expected.scale) == -1);
}

/// rotate_columns of x, and of as many codes, beside the definition.
template <class Space>
void compare_columns(const matrix<bf16>& x) {
  INFO("shape " << x.rows << " x " << x.columns);
  matrix<std::int8_t> found(x.columns, padded(x.rows));
  matrix<float> scale(x.columns);
  ordo::quant::rotate_columns<bf16>(Space(), read<Space>(x), {}, found.in<Space>(),
                                    scale.line<Space>());
  const auto expected = reference::rotate_value_columns(x.rows, x.columns, x.span());
  CHECK(first_difference(found.data, expected.codes) == -1);
  CHECK(first_difference(scale.data, expected.scale) == -1);

  const matrix<std::int8_t> integers = codes(x.rows, x.columns, x.rows + 1);
  matrix<float> step(1);
  step(0) = 0.037f;
  ordo::quant::rotate_columns<std::int8_t>(Space(), read<Space>(integers), read_line<Space>(step),
                                           found.in<Space>(), scale.line<Space>());
  const auto rotated = reference::rotate_code_columns(x.rows, x.columns, integers.span(), step(0));
  CHECK(first_difference(found.data, rotated.codes) == -1);
  CHECK(first_difference(scale.data, rotated.scale) == -1);
}

TEST_CASE_TEMPLATE("rotated operands equal their definition", Space, ORDO_TEST_SPACES) {
  for (const std::size_t n : {0u, 1u, 255u, 256u, 257u, 511u, 512u, 513u}) {
    compare_rows<Space>(normal_bf16(5, n, n + 1));
    compare_columns<Space>(normal_bf16(n, 3, n + 2));
  }
  for (const std::size_t columns : {31u, 32u, 33u, 63u, 64u, 65u, 97u})
    compare_columns<Space>(normal_bf16(40, columns, columns));
  compare_rows<Space>(wide_bf16(9, 300, 1, -126, -100));
  compare_columns<Space>(wide_bf16(300, 9, 2, -126, 127));
  compare_columns<Space>(wide_bf16(300, 9, 3, -20, 20));
  for (const std::size_t n : {4095u, 4096u, 4097u}) // around the longest row kept whole
    compare_rows<Space>(normal_bf16(1, n, n));
  compare_columns<Space>(normal_bf16(4097, 1, 6));
  // Magnitudes around those whose alignment needs flushes or clamps.
  for (const int edge : {-86, 119})
    for (int e = edge - 8; e <= edge + 8; ++e) {
      compare_rows<Space>(wide_bf16(3, 40, 1, e - 30, e));
      compare_columns<Space>(wide_bf16(40, 3, 2, e - 30, e));
    }
}

TEST_CASE_TEMPLATE("non-finite entries mark their row or column", Space, ORDO_TEST_SPACES) {
  matrix<bf16> x = normal_bf16(40, 40, 1);
  x(3, 5) = brain(infinity);
  x(20, 30) = brain(-infinity);
  x(21, 31) = brain(nan);
  x(22, 32) = brain(nan), x(22, 33) = brain(infinity);
  compare_rows<Space>(x);
  compare_columns<Space>(x);
  compare_quantizers<Space>(x);
  matrix<bf16> infinite = normal_bf16(4, 40, 2);
  infinite(1, 7) = brain(infinity);
  compare_quantizers<Space>(infinite);
  CHECK(tensor_codes<Space>(infinite).steps(0) == infinity);
}

TEST_CASE("H H is 256 I, exactly") {
  numbers next{5};
  std::vector<std::int32_t> x(256), in(256), once(256), back(256);
  for (auto& entry : x)
    entry = static_cast<std::int32_t>(next() % 65535) - 32767;
  // Two rotations: undo the transposed order in between, and at the end.
  const auto rotate = [](std::vector<std::int32_t> from, std::vector<std::int32_t>& to) {
    std::vector<std::int32_t> transposed(256);
    ordo::quant::hadamard_row(from.data(), transposed.data());
    for (int i = 0; i < 256; ++i)
      to[static_cast<std::size_t>(i)] =
          transposed[static_cast<std::size_t>(ordo::quant::rotated_place(i))];
  };
  rotate(x, once);
  rotate(once, back);
  for (std::size_t i = 0; i < 256; ++i)
    CHECK(back[i] == 256 * x[i]);
  const auto defined = reference::hadamard(x);
  for (std::size_t i = 0; i < 256; ++i)
    CHECK(once[i] == defined[i]);
  // The extremes: one entry of H x takes all of them.
  std::fill(in.begin(), in.end(), -32767);
  rotate(in, once);
  CHECK(once[0] == -256 * 32767);
  CHECK(once[255] == 0);
  // Columns, natural order.
  std::vector<std::int32_t> tile(256 * 4);
  for (std::size_t i = 0; i < 256; ++i)
    for (std::size_t j = 0; j < 4; ++j)
      tile[4 * i + j] = x[(i + j) % 256];
  ordo::quant::hadamard_columns<4>(tile.data());
  for (std::size_t i = 0; i < 256; ++i)
    CHECK(tile[4 * i] == defined[i]);
}

/// What a linear layer makes of one set of inputs.
struct layer_results {
  matrix<bf16> y, dx;
  matrix<float> dw;
};

struct layer_case {
  matrix<bf16> x, w, dy;
  layer_case(std::size_t m, std::size_t n, std::size_t k, std::uint64_t seed)
      : x(normal_bf16(m, k, seed)), w(normal_bf16(n, k, seed + 1, 0.02f)),
        dy(normal_bf16(m, n, seed + 2, 1e-4f)) {}
};

template <class Space>
layer_results run_layer(ordo::nn::linear_kind kind, step_rule rule, const layer_case& c) {
  const std::size_t m = c.x.rows, n = c.w.rows, k = c.w.columns;
  const auto signed_of = [](std::size_t s) { return static_cast<std::int64_t>(s); };
  ordo::nn::linear_layer<Space> layer(kind, rule, signed_of(n), signed_of(k));
  ordo::nn::linear_input<Space> kept(kind, signed_of(m), signed_of(k));
  const ordo::nn::linear_scratch<Space> scratch(kind, signed_of(m), signed_of(std::max(n, k)));
  layer_results r{matrix<bf16>(m, n), matrix<bf16>(m, k), matrix<float>(n, k)};
  layer.prepare(Space(), read<Space>(c.w));
  layer.forward(Space(), read<Space>(c.x), kept, r.y.in<Space>(), scratch);
  layer.backward(Space(), read<Space>(c.dy), kept, r.dx.in<Space>(), r.dw.in<Space>(), scratch);
  return r;
}

layer_results int8_definition(step_rule rule, const layer_case& c) {
  const reference::linear_shape s{c.x.rows, c.w.rows, c.w.columns};
  layer_results r{matrix<bf16>(s.m, s.n), matrix<bf16>(s.m, s.k), matrix<float>(s.n, s.k)};
  matrix<std::int8_t> x(s.m, s.k), w(s.n, s.k);
  matrix<float> steps(s.n);
  const float step = reference::quantize_tensor(c.x.span(), x.span());
  reference::quantize_rows(ordo::order::Lanes<32>(), rule, s.n, s.k, c.w.span(), w.span(),
                           steps.span());
  reference::linear_forward(s, x.span(), step, w.span(), steps.span(), r.y.span());
  reference::linear_input_gradient(s, c.dy.span(), w.span(), steps.span(), r.dx.span());
  reference::linear_weight_gradient(s, c.dy.span(), x.span(), step, c.w.span(), steps.span(),
                                    r.dw.span());
  return r;
}

matrix<bf16> transposed(const matrix<bf16>& x) {
  matrix<bf16> y(x.columns, x.rows);
  for (std::size_t i = 0; i < x.rows; ++i)
    for (std::size_t j = 0; j < x.columns; ++j)
      y(j, i) = x(i, j);
  return y;
}

/// a b^T, every entry one sum in Lanes<16>.
matrix<float> binary32_product(const matrix<bf16>& a, const matrix<bf16>& b) {
  matrix<float> c(a.rows, b.rows);
  reference::gemm_f32<bf16, bf16>(
      16, static_cast<std::int64_t>(a.rows), static_cast<std::int64_t>(b.rows),
      static_cast<std::int64_t>(a.columns), a.span(), b.span(), c.span());
  return c;
}

matrix<bf16> rounded(const matrix<float>& x) {
  matrix<bf16> y(x.rows, x.columns);
  for (std::size_t i = 0; i < x.data.size(); ++i)
    y.data[i] = brain(x.data[i]);
  return y;
}

layer_results binary32_definition(const layer_case& c) {
  return {rounded(binary32_product(c.x, c.w)), rounded(binary32_product(c.dy, transposed(c.w))),
          binary32_product(transposed(c.dy), transposed(c.x))};
}

void compare(const layer_results& found, const layer_results& expected) {
  CHECK(same(found.y, expected.y));
  CHECK(same(found.dx, expected.dx));
  CHECK(same(found.dw, expected.dw));
}

TEST_CASE_TEMPLATE("linear layers equal their definition", Space, ORDO_TEST_SPACES) {
  const auto all = [](const layer_case& c) {
    INFO("m " << c.x.rows << ", n " << c.w.rows << ", k " << c.w.columns);
    for (const step_rule rule : {step_rule::mean_magnitude, step_rule::largest_magnitude})
      compare(run_layer<Space>(ordo::nn::linear_kind::int8, rule, c), int8_definition(rule, c));
    compare(run_layer<Space>(ordo::nn::linear_kind::binary32, step_rule::mean_magnitude, c),
            binary32_definition(c));
  };
  for (const std::size_t size : {1u, 31u, 32u, 33u}) {
    all(layer_case(size, 5, 7, size));
    all(layer_case(5, size, 7, size + 10));
    all(layer_case(3, 5, size, size + 20));
  }
  for (const std::size_t size : {255u, 256u, 257u}) {
    all(layer_case(size, 3, 5, size));
    all(layer_case(4, size, 5, size));
  }
  all(layer_case(0, 3, 5, 1));
  all(layer_case(3, 0, 5, 1));
  all(layer_case(3, 5, 0, 1));
  layer_case zeros(4, 3, 5, 1);
  for (bf16& x : zeros.x.data)
    x = brain(0.0f);
  for (std::size_t j = 0; j < 5; ++j)
    zeros.w(1, j) = brain(0.0f);
  all(zeros);
  layer_case outliers(40, 9, 70, 2);
  for (std::size_t i = 0; i < 9; ++i)
    outliers.w(i, 3 * i) = brain(1.0f);
  all(outliers);
}

TEST_CASE_TEMPLATE("damage shows in every product", Space, ORDO_TEST_SPACES) {
  const auto int8 = ordo::nn::linear_kind::int8;
  const auto all_nan = [](const auto& values) {
    for (const auto& v : values) {
      if (bits_of(v) != (sizeof(v) == 2 ? 0x7fc0u : arith::canonical_nan))
        return false;
    }
    return true;
  };
  for (const float damage : {infinity, -infinity, nan}) {
    CAPTURE(damage);
    layer_case c(9, 6, 40, 3);
    c.x(4, 7) = brain(damage);
    layer_results r = run_layer<Space>(int8, step_rule::mean_magnitude, c);
    compare(r, int8_definition(step_rule::mean_magnitude, c));
    CHECK(all_nan(r.y.data));
    CHECK(all_nan(r.dw.data));
    CHECK(!all_nan(r.dx.data));
    for (const step_rule rule : {step_rule::mean_magnitude, step_rule::largest_magnitude}) {
      c = layer_case(9, 6, 40, 4);
      c.w(2, 7) = brain(damage);
      r = run_layer<Space>(int8, rule, c);
      compare(r, int8_definition(rule, c));
      for (std::size_t i = 0; i < 9; ++i)
        CHECK(bits_of(r.y(i, 2)) == 0x7fc0u);
      CHECK(bits_of(r.y(0, 1)) != 0x7fc0u);
      CHECK(all_nan(r.dx.data));
    }
    c = layer_case(9, 6, 40, 5);
    c.dy(4, 3) = brain(damage);
    r = run_layer<Space>(int8, step_rule::mean_magnitude, c);
    compare(r, int8_definition(step_rule::mean_magnitude, c));
    for (std::size_t j = 0; j < 40; ++j) {
      CHECK(bits_of(r.dx(4, j)) == 0x7fc0u);
      CHECK(bits_of(r.dw(3, j)) == arith::canonical_nan);
    }
    CHECK(arith::is_finite(arith::to_f32(r.dx(3, 0))));
    CHECK(arith::is_finite(r.dw(2, 0)));
  }
}

TEST_CASE_TEMPLATE("rotation cancels where the codes are exact", Space, ORDO_TEST_SPACES) {
  // dy is one token's unit vector: its rotated column is +-2^14 everywhere, codes +-127 exactly,
  // and the products sum 256 * 127 * code(x): the code of x comes back to within the coding of H x.
  layer_case c(256, 2, 3, 1);
  for (bf16& v : c.dy.data)
    v = brain(0.0f);
  for (bf16& v : c.x.data)
    v = brain(0.0f);
  for (bf16& v : c.w.data)
    v = brain(0.01f);
  c.dy(17, 0) = brain(1.0f);
  c.dy(200, 1) = brain(-0.5f);
  c.x(17, 0) = brain(127.0f); // x's column 0 is a unit vector too: everything is exact
  c.x(200, 1) = brain(127.0f);
  c.x(5, 2) = brain(127.0f); // orthogonal to both
  const layer_results r =
      run_layer<Space>(ordo::nn::linear_kind::int8, step_rule::largest_magnitude, c);
  const float expected[] = {127.0f, 0.0f, 0.0f, 0.0f, -63.5f, 0.0f};
  for (std::size_t i = 0; i < 6; ++i)
    CHECK(std::abs(r.dw.data[i] - expected[i]) <= 2e-5f);
  CHECK(r.dw(0, 1) == 0.0f);
  CHECK(r.dw(0, 2) == 0.0f);
  CHECK(r.dw(1, 0) == 0.0f);
}

TEST_CASE_TEMPLATE("the straight-through mask", Space, ORDO_TEST_SPACES) {
  layer_case c(64, 3, 128, 8);
  c.w(0, 5) = brain(4.0f);
  c.w(2, 9) = brain(-4.0f);
  const auto int8 = ordo::nn::linear_kind::int8;
  const layer_results mean = run_layer<Space>(int8, step_rule::mean_magnitude, c);
  const layer_results most = run_layer<Space>(int8, step_rule::largest_magnitude, c);
  std::size_t masked = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto row = std::span<const bf16>(c.w.data).subspan(i * 128, 128);
    const float step = reference::step_by_mean(ordo::order::Lanes<32>(), row);
    for (std::size_t j = 0; j < 128; ++j) {
      const bool clipped = std::abs(double{arith::to_f32(row[j])}) / double{step} >= 127.5;
      masked += clipped;
      if (clipped) {
        CHECK(mean.dw(i, j) == 0.0f);
      } else {
        // The mask is the only place where the rule of the weight step enters dw.
        CHECK(bits_of(mean.dw(i, j)) == bits_of(most.dw(i, j)));
      }
    }
  }
  CHECK(masked == 2);
  CHECK(most.dw(0, 5) != 0.0f);
  CHECK(most.dw(2, 9) != 0.0f);
  // Largest magnitude: |w| / step is at most 127 and a rounding, never masked.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const layer_case other(16, 4, 40, 100 + seed);
    const layer_results r = run_layer<Space>(int8, step_rule::largest_magnitude, other);
    for (std::size_t i = 0; i < 4; ++i) {
      for (std::size_t j = 0; j < 40; ++j) {
        const auto row = std::span<const bf16>(other.w.data).subspan(i * 40, 40);
        const float inverse = arith::div(1.0f, reference::step_by_largest(row));
        REQUIRE(arith::abs(arith::mul(arith::to_f32(row[j]), inverse)) < 127.5f);
      }
    }
    REQUIRE(std::count(r.dw.data.begin(), r.dw.data.end(), 0.0f) < 8);
  }
}

TEST_CASE_TEMPLATE("the mask begins at 127.5 steps exactly", Space, ORDO_TEST_SPACES) {
  // A step of 2^-7 and weights of 127, 127.5 and 128 steps, both signs.
  layer_case c(4, 1, 6, 2);
  const float steps_of[] = {127.0f, 127.5f, 128.0f, -127.0f, -127.5f, -128.0f};
  for (std::size_t j = 0; j < 6; ++j)
    c.w(0, j) = brain(steps_of[j] * 0x1p-7f);
  ordo::nn::int8_weights<Space> weights(1, 6);
  weights.step(0) = 0x1p-7f;
  const ordo::nn::int8_gradient_scratch<Space> scratch(4, 6);
  const matrix<std::int8_t> x = codes(4, 6, 3);
  matrix<float> step(1), dw(1, 6);
  step(0) = 0.25f;
  ordo::nn::linear_weight_gradient(
      Space(), ordo::order::Exact(), read<Space>(c.dy),
      ordo::nn::int8_activations<Space>{read<Space>(x), read_line<Space>(step)}, weights,
      read<Space>(c.w), dw.in<Space>(), scratch);
  for (std::size_t j = 0; j < 6; ++j)
    CHECK((dw(0, j) == 0.0f) == (std::abs(steps_of[j]) >= 127.5f));
}

/// Relative error, in the Frobenius norm, against dy^T x in binary64; x as it is or, with a step,
/// as its codes have it.
double weight_gradient_error(const layer_case& c, const matrix<float>& dw, float step = 0.0f) {
  double difference = 0, total = 0;
  for (std::size_t i = 0; i < dw.rows; ++i) {
    for (std::size_t j = 0; j < dw.columns; ++j) {
      double exact = 0;
      for (std::size_t t = 0; t < c.x.rows; ++t) {
        double x = arith::to_f32(c.x(t, j));
        if (step != 0.0f)
          x = step * std::nearbyint(x / step);
        exact += double{arith::to_f32(c.dy(t, i))} * x;
      }
      difference += (dw(i, j) - exact) * (dw(i, j) - exact);
      total += exact * exact;
    }
  }
  return std::sqrt(difference / total);
}

/// dW by int8 products without a rotation: one step for each column of dy, one for x.
matrix<float> unrotated_gradient(const layer_case& c) {
  const matrix<bf16> dy = transposed(c.dy), x = transposed(c.x);
  matrix<std::int8_t> a(dy.rows, dy.columns), b(x.rows, x.columns);
  matrix<float> steps(dy.rows), steps_x(x.rows), dw(dy.rows, x.rows);
  reference::quantize_rows(ordo::order::Sequential(), step_rule::largest_magnitude, dy.rows,
                           dy.columns, dy.span(), a.span(), steps.span());
  reference::quantize_rows(ordo::order::Sequential(), step_rule::largest_magnitude, x.rows,
                           x.columns, x.span(), b.span(), steps_x.span());
  const auto products = reference::products(a.rows, b.rows, a.columns, a.span(), b.span());
  for (std::size_t i = 0; i < dw.data.size(); ++i)
    dw.data[i] = static_cast<float>(products[i]) * (steps(i / b.rows) * steps_x(i % b.rows));
  return dw;
}

TEST_CASE("the rotation brings the weight gradient's error from 5% to about 1%") {
  using space = Kokkos::DefaultHostExecutionSpace;
  const auto gradient = [](const layer_case& c) {
    return run_layer<space>(ordo::nn::linear_kind::int8, step_rule::largest_magnitude, c).dw;
  };
  // Of Gaussian numbers the two rotated operands lose 1.1%, the activation codes another 0.9%.
  const layer_case gaussian(1024, 48, 48, 11);
  const matrix<float> dw = gradient(gaussian);
  const double of_codes =
      weight_gradient_error(gaussian, dw, reference::step_by_largest(gaussian.x.span()));
  const double even = weight_gradient_error(gaussian, dw);
  CHECK(of_codes > 0.009);
  CHECK(of_codes < 0.012);
  CHECK(even > 0.012);
  CHECK(even < 0.016);
  const double even_plain = weight_gradient_error(gaussian, unrotated_gradient(gaussian));
  CHECK(even_plain > 0.009);
  CHECK(even_plain < 0.013);
  // In each column of dy one token in 1,024 at thirty deviations.
  layer_case outliers(1024, 48, 48, 12);
  for (std::size_t i = 0; i < 48; ++i)
    outliers.dy(37 * i % 1024, i) = brain(3e-3f);
  const double rotated = weight_gradient_error(outliers, gradient(outliers));
  const double plain = weight_gradient_error(outliers, unrotated_gradient(outliers));
  INFO("Gaussian " << of_codes << " and " << even << "; outliers " << rotated << ", unrotated "
                   << plain);
  CHECK(rotated < 0.016);
  CHECK(plain > 0.04);
}

TEST_CASE("a different order or rotation changes bits") {
  using space = Kokkos::DefaultHostExecutionSpace;
  const matrix<bf16> w = normal_bf16(64, 1000, 4);
  const auto lanes = row_codes<space>(ordo::order::Lanes<32>(), step_rule::mean_magnitude, w).steps;
  CHECK(!same(lanes,
              row_codes<space>(ordo::order::Sequential(), step_rule::mean_magnitude, w).steps));
  CHECK(
      !same(lanes, row_codes<space>(ordo::order::Lanes<16>(), step_rule::mean_magnitude, w).steps));
  // Tokens moved by one place are rotated differently: the exact product would not change.
  layer_case c(256, 4, 8, 5);
  const matrix<float> dw =
      run_layer<space>(ordo::nn::linear_kind::int8, step_rule::mean_magnitude, c).dw;
  std::rotate(c.x.data.begin(), c.x.data.begin() + 8, c.x.data.end());
  std::rotate(c.dy.data.begin(), c.dy.data.begin() + 4, c.dy.data.end());
  const matrix<float> moved =
      run_layer<space>(ordo::nn::linear_kind::int8, step_rule::mean_magnitude, c).dw;
  CHECK(!same(dw, moved));
}

TEST_CASE("shapes that disagree are refused") {
  using space = Kokkos::DefaultHostExecutionSpace;
  const matrix<bf16> x(4, 300);
  matrix<std::int8_t> narrow(4, 300);
  matrix<float> scale(4), factor(300);
  CHECK_THROWS_WITH_AS(ordo::quant::rotate_rows(space(), read<space>(x), read_line<space>(factor),
                                                narrow.in<space>(), scale.line<space>()),
                       doctest::Contains("rotated_length(n)"), ordo::error);
  CHECK_THROWS_AS(ordo::quant::rotate_columns<bf16>(space(), read<space>(x), {}, narrow.in<space>(),
                                                    scale.line<space>()),
                  ordo::error);
  const layer_case c(4, 6, 8, 1);
  ordo::nn::linear_layer<space> layer(ordo::nn::linear_kind::int8, step_rule::mean_magnitude, 6, 8);
  ordo::nn::linear_input<space> kept(ordo::nn::linear_kind::int8, 4, 8);
  const ordo::nn::linear_scratch<space> scratch(ordo::nn::linear_kind::int8, 4, 8);
  layer.prepare(space(), read<space>(c.w));
  matrix<bf16> y(4, 5), dx(4, 7);
  matrix<float> dw(5, 8);
  CHECK_THROWS_AS(layer.forward(space(), read<space>(c.x), kept, y.in<space>(), scratch),
                  ordo::error);
  CHECK_THROWS_AS(
      layer.backward(space(), read<space>(c.dy), kept, dx.in<space>(), dw.in<space>(), scratch),
      ordo::error);
  matrix<bf16> right(4, 8);
  CHECK_THROWS_AS(
      layer.backward(space(), read<space>(c.dy), kept, right.in<space>(), dw.in<space>(), scratch),
      ordo::error);
}

} // namespace
