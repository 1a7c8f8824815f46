// SPDX-License-Identifier: Apache-2.0
// ctest: THREADS 1 2 3 7
//
// RMSNorm, SwiGLU, residual, embedding, AdamW and the fold over ranks against their definitions.

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "layer_data.hpp"
#include <ordo/comm/mesh_fold.hpp>
#include <ordo/nn/embedding.hpp>
#include <ordo/nn/rms_norm.hpp>
#include <ordo/nn/swiglu.hpp>
#include <ordo/nn/transpose.hpp>
#include <ordo/optim/adamw.hpp>
#include <ordo/reference/adamw.hpp>
#include <ordo/reference/embedding.hpp>
#include <ordo/reference/rms_norm.hpp>
#include <ordo/reference/swiglu.hpp>
#include <ordo/reference/tree_fold.hpp>

namespace {

using namespace ordo::test;
using ordo::bf16;
using lanes = ordo::order::Lanes<32>;
namespace arith = ordo::arith;
namespace reference = ordo::reference;

using host = Kokkos::DefaultHostExecutionSpace;
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float eps = 1e-5f;

double wide(bf16 x) {
  return double{arith::to_f32(x)};
}

// RMSNorm

struct norm_results {
  matrix<bf16> y, dx;
  matrix<float> inverse_rms, dgain;
};

struct norm_case {
  matrix<bf16> x, gain, dy, residual; ///< residual may have no rows
  norm_case(std::size_t m, std::size_t d, std::uint64_t seed, bool with_residual = true)
      : x(normal_bf16(m, d, seed)), gain(normal_bf16(d, 1, seed + 1)),
        dy(normal_bf16(m, d, seed + 2, 0.01f)),
        residual(normal_bf16(with_residual ? m : 0, d, seed + 3, 0.01f)) {}
};

template <class Space, class Order>
norm_results run_norm(Order order, const norm_case& c) {
  const std::size_t m = c.x.rows, d = c.x.columns;
  norm_results r{matrix<bf16>(m, d), matrix<bf16>(m, d), matrix<float>(m), matrix<float>(d)};
  matrix<float> partial((m + 255) / 256, d);
  ordo::nn::rms_norm(Space(), order, read<Space>(c.x), read_line<Space>(c.gain), eps,
                     r.y.in<Space>(), r.inverse_rms.line<Space>());
  ordo::nn::rms_norm_backward(Space(), order, read<Space>(c.dy), read<Space>(c.x),
                              read_line<Space>(c.gain), read_line<Space>(r.inverse_rms),
                              read<Space>(c.residual), r.dx.in<Space>(), r.dgain.line<Space>(),
                              partial.in<Space>());
  return r;
}

template <class Order>
norm_results norm_definition(Order order, const norm_case& c) {
  const std::size_t m = c.x.rows, d = c.x.columns;
  norm_results r{matrix<bf16>(m, d), matrix<bf16>(m, d), matrix<float>(m), matrix<float>(d)};
  for (std::size_t i = 0; i < m; ++i) {
    const auto row = [&](const matrix<bf16>& x) { return x.span().subspan(i * d, d); };
    r.inverse_rms(i) =
        reference::rms_norm(order, row(c.x), c.gain.span(), eps, r.y.span().subspan(i * d, d));
    reference::rms_norm_input_gradient(order, row(c.dy), row(c.x), c.gain.span(), r.inverse_rms(i),
                                       c.residual.rows > 0 ? row(c.residual)
                                                           : std::span<const bf16>(),
                                       r.dx.span().subspan(i * d, d));
  }
  reference::rms_norm_gain_gradient(m, d, c.dy.span(), c.x.span(), r.inverse_rms.span(),
                                    r.dgain.span());
  return r;
}

void compare(const norm_results& found, const norm_results& expected) {
  CHECK(same(found.y, expected.y));
  CHECK(same(found.dx, expected.dx));
  CHECK(same(found.inverse_rms, expected.inverse_rms));
  CHECK(same(found.dgain, expected.dgain));
}

TEST_CASE_TEMPLATE("rms_norm equals its definition", Space, ORDO_TEST_SPACES) {
  const auto all = [](const norm_case& c) {
    INFO("shape " << c.x.rows << " x " << c.x.columns);
    compare(run_norm<Space>(lanes(), c), norm_definition(lanes(), c));
    const ordo::order::Sequential sequential;
    compare(run_norm<Space>(sequential, c), norm_definition(sequential, c));
  };
  for (const std::size_t d : {1u, 31u, 32u, 33u, 63u, 64u, 65u})
    for (const std::size_t m : {0u, 1u, 7u, 8u, 9u})
      all(norm_case(m, d, 100 * d + m, m != 8));
  for (const std::size_t m : {255u, 256u, 257u, 511u, 513u, 769u})
    all(norm_case(m, 5, m));
  norm_case odd(12, 40, 1);
  odd.x = wide_bf16(12, 40, 2, -126, 127); // squares overflow and vanish
  for (std::size_t j = 0; j < 40; ++j)
    odd.x(3, j) = bf16{0};
  odd.x(4, 4) = brain(nan);
  odd.x(5, 5) = brain(infinity);
  all(odd);
}

TEST_CASE_TEMPLATE("rms_norm in place", Space, ORDO_TEST_SPACES) {
  // The residual may be dx itself, and dx may overwrite dy.
  const norm_case c(300, 33, 9);
  const norm_results expected = run_norm<Space>(lanes(), c);
  const norm_case bare(300, 33, 9, false);
  const norm_results without = run_norm<Space>(lanes(), bare);
  matrix<float> partial(2, 33), dgain(33);
  matrix<bf16> stream = c.residual, over = c.dy;
  const auto backward = [&](const matrix<bf16>& dy, const matrix<bf16>& residual,
                            matrix<bf16>& dx) {
    ordo::nn::rms_norm_backward(Space(), lanes(), read<Space>(dy), read<Space>(c.x),
                                read_line<Space>(c.gain), read_line<Space>(expected.inverse_rms),
                                read<Space>(residual), dx.in<Space>(), dgain.line<Space>(),
                                partial.in<Space>());
  };
  backward(c.dy, stream, stream);
  CHECK(same(stream, expected.dx));
  CHECK(same(dgain, expected.dgain));
  backward(over, bare.residual, over);
  CHECK(same(over, without.dx));
  CHECK(same(dgain, expected.dgain));
}

TEST_CASE("rms_norm, worked by hand") {
  // mean(3^2, 4^2) = 12.5: r = 0.28284, and y = 3 r, 4 r * 2.
  norm_case c(4, 2, 1, false);
  c.x(0, 0) = brain(3.0f), c.x(0, 1) = brain(4.0f);
  c.x(1, 0) = c.x(1, 1) = brain(0.0f);
  c.x(2, 0) = brain(1e20f), c.x(2, 1) = brain(1.0f);
  c.x(3, 0) = c.x(3, 1) = brain(-1.0f);
  c.gain(0) = brain(1.0f), c.gain(1) = brain(2.0f);
  const norm_results r = run_norm<host>(lanes(), c);
  CHECK(r.inverse_rms(0) == doctest::Approx(0.2828427).epsilon(1e-6));
  CHECK(r.y(0, 0) == brain(0.848528f));
  CHECK(r.y(0, 1) == brain(2.262741f));
  CHECK(r.y(1, 0).bits == 0);
  CHECK(r.inverse_rms(1) == doctest::Approx(316.2278).epsilon(1e-6));
  // Squares that overflow are not silently zero.
  CHECK(arith::is_nan(arith::to_f32(r.y(2, 0))));
  CHECK(arith::is_nan(arith::to_f32(r.y(2, 1))));
  CHECK(arith::is_nan(arith::to_f32(r.dx(2, 0))));
  CHECK(arith::is_nan(r.dgain(0)));
  CHECK(r.y(3, 1) == brain(-1.99999f));
}

TEST_CASE("the gradients of rms_norm against binary64") {
  const norm_case c(20, 50, 4, false);
  const norm_results r = run_norm<host>(lanes(), c);
  std::vector<double> dgain(50, 0.0);
  for (std::size_t i = 0; i < 20; ++i) {
    double squares = 0, dot = 0;
    for (std::size_t j = 0; j < 50; ++j) {
      squares += wide(c.x(i, j)) * wide(c.x(i, j));
      dot += wide(c.dy(i, j)) * wide(c.gain(j)) * wide(c.x(i, j));
    }
    const double inverse = 1 / std::sqrt(squares / 50 + double{eps});
    for (std::size_t j = 0; j < 50; ++j) {
      const double dx = inverse * wide(c.dy(i, j)) * wide(c.gain(j)) -
                        wide(c.x(i, j)) * inverse * inverse * inverse / 50 * dot;
      REQUIRE(std::abs(wide(r.dx(i, j)) - dx) <= std::abs(dx) * 0x1p-8 + 1e-8);
      dgain[j] += wide(c.dy(i, j)) * wide(c.x(i, j)) * inverse;
    }
  }
  for (std::size_t j = 0; j < 50; ++j)
    CHECK(std::abs(double{r.dgain(j)} - dgain[j]) < 1e-7);
}

TEST_CASE("rms_norm: another order gives other bits") {
  const norm_case c(600, 70, 6);
  const norm_results a = run_norm<host>(lanes(), c);
  const norm_results b = run_norm<host>(ordo::order::Sequential(), c);
  CHECK(!same(a.inverse_rms, b.inverse_rms));
  // The gain's gradient without its blocks of 256 rows.
  matrix<float> whole(70);
  for (std::size_t i = 0; i < 600; ++i)
    for (std::size_t j = 0; j < 70; ++j)
      whole(j) =
          arith::add(whole(j), arith::mul(arith::to_f32(c.dy(i, j)),
                                          arith::mul(arith::to_f32(c.x(i, j)), a.inverse_rms(i))));
  CHECK(!same(a.dgain, whole));
}

// SwiGLU and the residual stream

TEST_CASE_TEMPLATE("swiglu equals its definition", Space, ORDO_TEST_SPACES) {
  const auto all = [](const matrix<bf16>& gate_up, const matrix<bf16>& dy) {
    const std::size_t m = dy.rows, f = dy.columns;
    INFO("shape " << m << " x " << f);
    matrix<bf16> y(m, f), d(m, 2 * f), expected_y(m, f), expected_d(m, 2 * f);
    ordo::nn::swiglu(Space(), read<Space>(gate_up), y.in<Space>());
    ordo::nn::swiglu_backward(Space(), read<Space>(dy), read<Space>(gate_up), d.in<Space>());
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < f; ++j) {
        const bf16 gate = gate_up(i, j), up = gate_up(i, f + j);
        expected_y(i, j) = reference::swiglu(gate, up);
        expected_d(i, j) = reference::swiglu_gate_gradient(dy(i, j), gate, up);
        expected_d(i, f + j) = reference::swiglu_up_gradient(dy(i, j), gate);
      }
    }
    CHECK(same(y, expected_y));
    CHECK(same(d, expected_d));
  };
  for (const std::size_t f : {1u, 15u, 16u, 17u, 65u})
    for (const std::size_t m : {0u, 1u, 3u, 4u, 5u})
      all(normal_bf16(m, 2 * f, f + m, 3.0f), normal_bf16(m, f, f + m + 1));
  all(wide_bf16(50, 80, 1, -126, 127), wide_bf16(50, 40, 2, -126, 127));
  matrix<bf16> every(256, 512); // each bf16 as a gate, NaN and infinities included
  for (std::size_t u = 0; u < 0x10000; ++u) {
    every(u / 256, u % 256) = bf16{static_cast<std::uint16_t>(u)};
    every(u / 256, 256 + u % 256) = brain(u % 2 == 0 ? 1.0f : -0.37f);
  }
  all(every, normal_bf16(256, 256, 3));
}

TEST_CASE("swiglu against binary64, and by hand") {
  const matrix<bf16> x = normal_bf16(40, 40, 5, 4.0f), dy = normal_bf16(40, 20, 6);
  matrix<bf16> y(40, 20), d(40, 40);
  ordo::nn::swiglu(host(), read<host>(x), y.in<host>());
  ordo::nn::swiglu_backward(host(), read<host>(dy), read<host>(x), d.in<host>());
  for (std::size_t i = 0; i < 40; ++i) {
    for (std::size_t j = 0; j < 20; ++j) {
      const double g = wide(x(i, j)), up = wide(x(i, 20 + j)), s = 1 / (1 + std::exp(-g));
      const double gate = wide(dy(i, j)) * up * s * (1 + g * (1 - s));
      REQUIRE(std::abs(wide(y(i, j)) - g * s * up) <= std::abs(g * s * up) * 0x1.01p-8);
      REQUIRE(std::abs(wide(d(i, j)) - gate) <= std::abs(gate) * 0x1.01p-8 + 1e-6);
      REQUIRE(std::abs(wide(d(i, 20 + j)) - wide(dy(i, j)) * g * s) <=
              std::abs(wide(dy(i, j)) * g * s) * 0x1.01p-8);
    }
  }
  CHECK(reference::swiglu(brain(0.0f), brain(5.0f)).bits == 0);
  CHECK(reference::swiglu(brain(40.0f), brain(0.5f)) == brain(20.0f));
  CHECK(reference::swiglu_gate_gradient(brain(1.0f), brain(0.0f), brain(3.0f)) == brain(1.5f));
  CHECK(reference::swiglu_up_gradient(brain(2.0f), brain(40.0f)) == brain(80.0f));
}

TEST_CASE_TEMPLATE("residual_add and transpose", Space, ORDO_TEST_SPACES) {
  for (const std::size_t n : {0u, 1u, 31u, 32u, 33u, 16383u, 16384u, 16385u}) {
    const matrix<bf16> a = normal_bf16(1, n, n), b = normal_bf16(1, n, n + 1);
    matrix<bf16> y(1, n), expected(1, n), in_place = a;
    for (std::size_t i = 0; i < n; ++i)
      expected(0, i) = brain(arith::to_f32(a(0, i)) + arith::to_f32(b(0, i)));
    ordo::nn::residual_add(Space(), read<Space>(a), read<Space>(b), y.in<Space>());
    CHECK(same(y, expected));
    ordo::nn::residual_add(Space(), read<Space>(in_place), read<Space>(b), in_place.in<Space>());
    CHECK(same(in_place, expected));
  }
  for (const std::size_t rows : {0u, 1u, 31u, 32u, 33u})
    for (const std::size_t columns : {0u, 1u, 31u, 32u, 33u, 65u}) {
      const matrix<bf16> x = normal_bf16(rows, columns, rows);
      matrix<bf16> y(columns, rows);
      ordo::nn::transpose<bf16>(Space(), read<Space>(x), y.in<Space>());
      bool right = true;
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j)
          right = right && x(i, j) == y(j, i);
      CHECK(right);
    }
}

// Embedding

template <class Space>
matrix<float> embedding_gradient(const std::vector<std::uint32_t>& ids, const matrix<bf16>& dy,
                                 std::size_t v) {
  ordo::nn::embedding_positions<Space> positions(static_cast<std::int64_t>(ids.size()),
                                                 static_cast<std::int64_t>(v));
  matrix<float> dtable(v, dy.columns);
  for (float& x : dtable.data)
    x = 7.0f; // overwritten
  positions.assign(ids);
  positions.assign(ids); // a second micro-batch in the same memory
  ordo::nn::embedding_backward(Space(), ordo::order::Sequential(), read<Space>(dy), positions,
                               dtable.in<Space>());
  return dtable;
}

TEST_CASE_TEMPLATE("embedding and its gradient", Space, ORDO_TEST_SPACES) {
  const auto check = [](const std::vector<std::uint32_t>& ids, std::size_t v, std::size_t d) {
    INFO(ids.size() << " ids of " << v << " words of width " << d);
    const matrix<bf16> dy = normal_bf16(ids.size(), d, ids.size() + d);
    const matrix<bf16> table = normal_bf16(v, d, 3);
    matrix<float> expected(v, d);
    reference::embedding_backward(d, ids, dy.span(), expected.span());
    CHECK(same(embedding_gradient<Space>(ids, dy, v), expected));
    matrix<bf16> y(ids.size(), d);
    matrix<std::uint32_t> id_line(ids.size());
    id_line.data = ids;
    ordo::nn::embedding(Space(), read_line<Space>(id_line), read<Space>(table), y.in<Space>());
    bool right = true;
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::size_t j = 0; j < d; ++j)
        right = right && y(i, j) == table(ids[i], j);
    CHECK(right);
  };
  numbers next{1};
  for (const std::size_t d : {1u, 63u, 64u, 65u, 128u, 129u}) {
    for (const std::size_t m : {0u, 1u, 31u, 32u, 33u, 200u}) {
      std::vector<std::uint32_t> ids(m);
      for (auto& id : ids)
        id = next() % 11;
      check(ids, 11, d);
    }
  }
  check(std::vector<std::uint32_t>(4096, 2), 4, 65); // all 4,096 ids the same
  check({65536, 128255, 0, 65536, 128255, 128255}, 128256, 2);
  const std::vector<std::uint32_t> outside = {0, 1, 4, 2};
  CHECK_THROWS_WITH_AS(embedding_gradient<Space>(outside, matrix<bf16>(4, 2), 4),
                       doctest::Contains("token 2 has id 4 in a vocabulary of 4"), ordo::error);
  ordo::nn::embedding_positions<Space> small(3, 4);
  CHECK_THROWS_AS(small.assign(std::vector<std::uint32_t>{0, 1, 2, 3}), ordo::error);
}

TEST_CASE("the embedding's gradient depends on the order of positions") {
  matrix<bf16> dy(4, 1);
  const float values[] = {1e8f, 1.0f, -1e8f, 1.0f};
  for (std::size_t i = 0; i < 4; ++i)
    dy(i) = brain(values[i]);
  CHECK(embedding_gradient<host>({1, 1, 1, 1}, dy, 2)(1) == 1.0f);
  CHECK(embedding_gradient<host>({1, 1, 1, 1}, dy, 2)(0) == 0.0f);
  std::swap(dy.data[1], dy.data[2]);
  CHECK(embedding_gradient<host>({1, 1, 1, 1}, dy, 2)(1) == 2.0f);
}

// AdamW

ordo::optim::adamw_scalars scalars_of_update(int t) {
  const double b1 = 0.9, b2 = 0.95;
  return {4e-4f,
          0.9f,
          static_cast<float>(1 - b1),
          0.95f,
          static_cast<float>(1 - b2),
          1e-8f,
          0.1f,
          static_cast<float>(1 / (1 - std::pow(b1, t))),
          static_cast<float>(1 / (1 - std::pow(b2, t))),
          0.75f};
}

struct adamw_state {
  matrix<bf16> parameter;
  matrix<float> master, first, second;
};

template <class Space>
void update(const ordo::optim::adamw_scalars& s, const matrix<float>& grad, adamw_state& state) {
  ordo::optim::adamw(Space(), s, read_line<Space>(grad), state.parameter.line<Space>(),
                     state.master.line<Space>(), state.first.line<Space>(),
                     state.second.line<Space>());
}

TEST_CASE_TEMPLATE("adamw equals its definition", Space, ORDO_TEST_SPACES) {
  for (const bool mastered : {false, true}) {
    for (const std::size_t n : {0u, 1u, 15u, 16u, 17u, 8191u, 8192u, 8193u}) {
      INFO("n " << n << ", master " << mastered);
      adamw_state state{normal_bf16(n, 1, n, 0.02f), matrix<float>(mastered ? n : 0),
                        matrix<float>(n), matrix<float>(n)};
      numbers next{n + 1};
      for (std::size_t i = 0; i < n && mastered; ++i)
        state.master(i) = arith::to_f32(state.parameter(i)) * 1.001f;
      adamw_state expected = state;
      for (int t = 1; t <= 3; ++t) {
        const auto s = scalars_of_update(t);
        matrix<float> grad(n);
        for (float& g : grad.data)
          g = next.normal() * 1e-3f;
        if (n > 15) {
          grad(3) = 0.0f, grad(5) = 1e20f, grad(7) = 1e-38f, grad(9) = -0.0f;
          if (t == 3)
            grad(11) = infinity, grad(13) = nan;
        }
        update<Space>(s, grad, state);
        for (std::size_t i = 0; i < n; ++i) {
          const float p = mastered ? expected.master(i) : arith::to_f32(expected.parameter(i));
          const auto e = reference::adamw(s, {p, expected.first(i), expected.second(i)}, grad(i));
          if (mastered)
            expected.master(i) = e.parameter;
          expected.parameter(i) = brain(e.parameter);
          expected.first(i) = e.first;
          expected.second(i) = e.second;
        }
      }
      CHECK(same(state.parameter, expected.parameter));
      CHECK(same(state.master, expected.master));
      CHECK(same(state.first, expected.first));
      CHECK(same(state.second, expected.second));
    }
  }
}

TEST_CASE("adamw, worked by hand") {
  // g = 0.5 clipped to 0.375: m = 0.0375, v = 0.05 * 0.140625; both bias-corrected give 0.375 and
  // its root, so the direction is 1 (less 1e-8); p = 1 - 4e-4 * (1 + 0.1).
  for (const bool decays : {true, false}) {
    adamw_state state{matrix<bf16>(1), matrix<float>(1), matrix<float>(1), matrix<float>(1)};
    state.parameter(0) = brain(1.0f);
    state.master(0) = 1.0f;
    matrix<float> grad(1);
    grad(0) = 0.5f;
    auto s = scalars_of_update(1);
    if (!decays)
      s.weight_decay = 0.0f;
    update<host>(s, grad, state);
    CHECK(state.master(0) == doctest::Approx(decays ? 0.99956 : 0.9996).epsilon(1e-7));
    CHECK(state.first(0) == doctest::Approx(0.0375).epsilon(1e-6));
    CHECK(state.second(0) == doctest::Approx(0.00703125).epsilon(1e-6));
    CHECK(state.parameter(0) ==
          brain(1.0f)); // 4e-4 is less than half a bf16 step: the master keeps it
  }
  // Without gradient and moments only the decay remains; without the decay nothing.
  adamw_state still{matrix<bf16>(1), matrix<float>(0), matrix<float>(1), matrix<float>(1)};
  still.parameter(0) = brain(-3.0f);
  auto s = scalars_of_update(7);
  s.weight_decay = 0.0f;
  update<host>(s, matrix<float>(1), still);
  CHECK(still.parameter(0) == brain(-3.0f));
  s.weight_decay = 100.0f;
  update<host>(s, matrix<float>(1), still);
  CHECK(still.parameter(0) == brain(-3.0f * (1.0f - 0.04f)));
}

TEST_CASE("adamw against binary64") {
  // p' to within half an ulp of p and 8 * 2^-24 of the update.
  numbers next{3};
  for (int i = 0; i < 2000; ++i) {
    const auto s = scalars_of_update(1 + i % 50);
    const float p = next.normal() * 0.02f, m = next.normal() * 1e-3f;
    const float v = m * m * (1.0f + 3.0f * std::abs(next.uniform())), g = next.normal() * 1e-3f;
    const auto e = reference::adamw(s, {p, m, v}, g);
    const double clipped = double{g} * s.clip;
    const double first = double{s.beta1} * m + double{s.one_minus_beta1} * clipped;
    const double second = double{s.beta2} * v + double{s.one_minus_beta2} * clipped * clipped;
    const double direction =
        first * s.inverse_bias1 / (std::sqrt(second * s.inverse_bias2) + double{s.epsilon});
    const double step = s.learning_rate * (direction + double{s.weight_decay} * p);
    // The moments may cancel: the error of m is relative to its two addends.
    const double scale = std::abs(double{s.beta1} * m / first) + 1;
    REQUIRE(std::abs(double{e.parameter} - (p - step)) <=
            std::abs(p - step) * 0x1p-24 +
                0x1p-21 * s.learning_rate * (scale * std::abs(direction) + 0.1 * std::abs(p)));
  }
}

// The fold over ranks

template <class Space>
ordo::comm::gradient_vector<Space> on(const std::vector<float>& values) {
  ordo::comm::gradient_vector<Space> view("test::rank", values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    view(i) = values[i];
  return view;
}

template <class Space>
std::vector<float> fold(const std::vector<std::vector<float>>& ranks, std::size_t* held = nullptr) {
  ordo::comm::mesh_fold<Space> tree(ranks.size(), 1, ordo::comm::fold_result::sum);
  ordo::comm::vector_pool<Space> pool;
  std::size_t pushed = 0, most = 0;
  const auto n = static_cast<std::int64_t>(ranks.front().size());
  for (const auto& rank : ranks) {
    ++pushed;
    tree.push(Space(), on<Space>(rank), pool);
    most = std::max(most, pushed - pool.size());
  }
  const auto sum = tree.finish(Space(), pool);
  CHECK(pool.size() + 1 == (n == 0 ? 1 : pushed));
  if (held != nullptr)
    *held = n == 0 ? 0 : most;
  return {sum.data(), sum.data() + sum.size()};
}

TEST_CASE_TEMPLATE("mesh_fold of n x 1 equals order::Tree over ranks", Space, ORDO_TEST_SPACES) {
  const auto ranks_of = [](std::size_t count, std::size_t n) {
    std::vector<std::vector<float>> ranks(count, std::vector<float>(n));
    numbers next{count * 1000 + n};
    for (auto& rank : ranks)
      for (float& x : rank)
        x = next.normal();
    return ranks;
  };
  for (const std::size_t count : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 16u, 48u})
    for (const std::size_t n : {0u, 1u, 2u, 33u, 1000u}) {
      const auto ranks = ranks_of(count, n);
      std::size_t held = 0;
      CHECK(first_difference(fold<Space>(ranks, &held), reference::tree_fold(ranks)) == -1);
      CHECK(held <= static_cast<std::size_t>(std::bit_width(count)));
    }
  for (const std::size_t n : {16383u, 16384u, 16385u, (1u << 20) + 1}) {
    const auto ranks = ranks_of(3, n);
    CHECK(first_difference(fold<Space>(ranks), reference::tree_fold(ranks)) == -1);
  }
  // One buffer or two: an entry does not see its neighbours.
  const auto fused = ranks_of(6, 40);
  std::vector<std::vector<float>> head = fused, tail = fused;
  for (std::size_t i = 0; i < 6; ++i) {
    head[i].resize(17);
    tail[i].erase(tail[i].begin(), tail[i].begin() + 17);
  }
  std::vector<float> joined = fold<Space>(head);
  const std::vector<float> rest = fold<Space>(tail);
  joined.insert(joined.end(), rest.begin(), rest.end());
  CHECK(first_difference(joined, fold<Space>(fused)) == -1);
  ordo::comm::mesh_fold<Space> empty(2, 2, ordo::comm::fold_result::sum);
  ordo::comm::vector_pool<Space> pool;
  CHECK_THROWS_AS(empty.finish(Space(), pool), ordo::error); // four ranks are missing
}

TEST_CASE("mesh_fold, worked by hand") {
  const auto add = [](float a, float b) { return arith::add(a, b); };
  const float x[] = {1e8f, 1.0f, -1e8f, 1.0f, 0x1p-20f, -3.0f, 1e7f};
  const auto folded = [&](std::size_t count) {
    std::vector<std::vector<float>> ranks;
    for (std::size_t i = 0; i < count; ++i)
      ranks.push_back({x[i]});
    return fold<host>(ranks)[0];
  };
  const float four = add(add(x[0], x[1]), add(x[2], x[3]));
  CHECK(four == 0.0f); // not 1 (in turn) and not 2 (exactly)
  CHECK(folded(1) == x[0]);
  CHECK(folded(2) == add(x[0], x[1]));
  CHECK(folded(3) == add(add(x[0], x[1]), x[2]));
  CHECK(folded(4) == four);
  CHECK(folded(5) == add(four, x[4]));
  CHECK(folded(6) == add(four, add(x[4], x[5])));
  CHECK(folded(7) == add(add(four, add(x[4], x[5])), x[6]));
  CHECK(bits_of(fold<host>({{-0.0f}})[0]) == 0x80000000u); // no initial +0
  // The mean of five sixths: times the reciprocal, not divided.
  auto sum = on<host>({5.0f});
  ordo::comm::scale<host>(host(), sum, arith::div(1.0f, 6.0f));
  CHECK(bits_of(sum(0)) == 0x3f555556u);
  CHECK(bits_of(5.0f / 6.0f) == 0x3f555555u);
}

} // namespace
