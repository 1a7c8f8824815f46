// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm, SwiGLU, residual, embedding, AdamW, norm and sums of the CUDA kernels against their
// definitions, by bits; a NaN of binary32 counts as the canonical one.

#include "device_fixture.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include <ordo/cuda/adamw.hpp>
#include <ordo/cuda/elementwise.hpp>
#include <ordo/cuda/embedding.hpp>
#include <ordo/cuda/rms_norm.hpp>
#include <ordo/cuda/rms_norm_backward.hpp>
#include <ordo/cuda/sum_squares.hpp>
#include <ordo/cuda/swiglu.hpp>
#include <ordo/reference/embedding.hpp>
#include <ordo/reference/norm.hpp>
#include <ordo/reference/rms_norm.hpp>
#include <ordo/reference/swiglu.hpp>

namespace {

using namespace ordo::test;
using ordo::bf16;
namespace arith = ordo::arith;
namespace cuda = ordo::cuda;
namespace reference = ordo::reference;
using lanes = ordo::order::Lanes<32>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float eps = 1e-5f;

/// Any bf16 value, all exponents alike, with a few NaN and infinities if `damaged`.
std::vector<bf16> wide_bf16(std::size_t n, std::uint64_t seed, bool damaged = false) {
  std::mt19937_64 engine(seed);
  std::vector<bf16> x(n);
  for (auto& v : x) {
    v = arith::to_bf16(arith::to_f32(bf16{static_cast<std::uint16_t>(engine())}));
    if (!damaged && !arith::is_finite(arith::to_f32(v)))
      v = bf16{0x3f80};
  }
  return x;
}

/// A vector at an address that is `shift` elements behind a 256-byte boundary.
template <class T>
struct shifted {
  device_vector<T> memory;
  std::size_t n, shift;
  shifted(const std::vector<T>& from, std::size_t by)
      : memory(from.size() + by), n(from.size()), shift(by) {
    if (n > 0)
      cuda::check(cudaMemcpy(data(), from.data(), n * sizeof(T), cudaMemcpyHostToDevice),
                  "shifted");
  }
  shifted(std::size_t size, std::size_t by) : memory(size + by), n(size), shift(by) {}
  T* data() const { return memory.data() + shift; }
  std::vector<T> host() const {
    const std::vector<T> all = memory.host();
    return {all.begin() + static_cast<std::ptrdiff_t>(shift), all.end()};
  }
};

template <class T>
std::span<const T> row_of(const std::vector<T>& x, std::size_t i, std::size_t d) {
  return std::span<const T>(x).subspan(i * d, d);
}

// RMSNorm

struct norm_case {
  std::size_t m, d;
  std::vector<bf16> x, gain, dy, residual;
  norm_case(std::size_t rows, std::size_t columns, std::uint64_t seed)
      : m(rows), d(columns), x(random_bf16(m * d, seed)), gain(random_bf16(d, seed + 1)),
        dy(random_bf16(m * d, seed + 2, 0.01f)), residual(random_bf16(m * d, seed + 3, 0.01f)) {}
};

/// Compares the forward passes of every `stride`-th row; returns inverse_rms.
std::vector<float> check_forward(const norm_case& c, std::size_t shift, std::size_t stride) {
  const auto m = static_cast<std::int64_t>(c.m), d = static_cast<std::int64_t>(c.d);
  const shifted<bf16> x(c.x, shift), gain(c.gain, shift), b(c.residual, shift);
  const shifted<bf16> y(c.x.size(), shift), total(c.x.size(), shift), fused(c.x.size(), shift);
  const shifted<float> rms(c.m, 0), fused_rms(c.m, 0);
  cuda::rms_norm(nullptr, x.data(), gain.data(), eps, y.data(), rms.data(), m, d);
  cuda::residual_rms_norm(nullptr, x.data(), b.data(), gain.data(), eps, total.data(), fused.data(),
                          fused_rms.data(), m, d);
  const auto y_host = y.host(), total_host = total.host(), fused_host = fused.host();
  const auto rms_host = rms.host(), fused_rms_host = fused_rms.host();
  std::vector<bf16> expected(c.d), sum(c.d);
  bool same = true;
  for (std::size_t i = 0; i < c.m && same; i += stride) {
    const auto row = [&](const std::vector<bf16>& v) { return row_of(v, i, c.d); };
    const float r = reference::rms_norm(lanes{}, row(c.x), std::span<const bf16>(c.gain), eps,
                                        std::span<bf16>(expected));
    same = same && arith::bits(r) == arith::bits(rms_host[i]) &&
           std::ranges::equal(row(y_host), expected);
    for (std::size_t j = 0; j < c.d; ++j)
      sum[j] =
          arith::to_bf16(arith::add(arith::to_f32(row(c.x)[j]), arith::to_f32(row(c.residual)[j])));
    same = same && std::ranges::equal(row(total_host), sum);
    const float s =
        reference::rms_norm(lanes{}, std::span<const bf16>(sum), std::span<const bf16>(c.gain), eps,
                            std::span<bf16>(expected));
    same = same && arith::bits(s) == arith::bits(fused_rms_host[i]) &&
           std::ranges::equal(row(fused_host), expected);
  }
  CHECK(same);
  return rms_host;
}

void check_backward(const norm_case& c, const std::vector<float>& inverse_rms, std::size_t shift,
                    std::size_t stride, bool with_residual, bool in_place) {
  const auto m = static_cast<std::int64_t>(c.m), d = static_cast<std::int64_t>(c.d);
  const shifted<bf16> x(c.x, shift), gain(c.gain, shift), b(c.residual, shift), dy(c.dy, shift);
  const shifted<bf16> fresh(c.x.size(), shift);
  const shifted<bf16>& dx = !in_place ? fresh : with_residual ? b : dy;
  const device_vector<float> rms(inverse_rms), dgain(c.d), partial((c.m + 255) / 256 * c.d);
  cuda::rms_norm_backward(nullptr, dy.data(), x.data(), gain.data(), rms.data(),
                          with_residual ? b.data() : nullptr, dx.data(), dgain.data(),
                          partial.data(), m, d);
  const auto dx_host = dx.host();
  std::vector<bf16> expected(c.d);
  bool same = true;
  for (std::size_t i = 0; i < c.m && same; i += stride) {
    const auto row = [&](const std::vector<bf16>& v) { return row_of(v, i, c.d); };
    reference::rms_norm_input_gradient(
        lanes{}, row(c.dy), row(c.x), std::span<const bf16>(c.gain), inverse_rms[i],
        with_residual ? row(c.residual) : std::span<const bf16>(), std::span<bf16>(expected));
    same = same && std::ranges::equal(row(dx_host), expected);
  }
  CHECK(same);
  std::vector<float> gain_gradient(c.d);
  reference::rms_norm_gain_gradient(c.m, c.d, c.dy, c.x, inverse_rms, gain_gradient);
  CHECK(same_bits(canonical(dgain.host()), canonical(gain_gradient)));
}

void check_norm(const norm_case& c, std::size_t shift = 0, std::size_t stride = 1) {
  INFO("shape " << c.m << " x " << c.d << ", shift " << shift);
  const std::vector<float> rms = check_forward(c, shift, stride);
  check_backward(c, rms, shift, stride, true, false);
  check_backward(c, rms, shift, stride, false, false);
  check_backward(c, rms, shift, stride, true, true);
  check_backward(c, rms, shift, stride, false, true);
}

TEST_CASE("rms_norm equals its definition") {
  for (const std::size_t d : {1u, 2u, 31u, 32u, 33u, 63u, 64u, 65u, 1024u, 2048u, 4096u})
    for (const std::size_t m : {0u, 1u, 7u, 8u, 9u})
      check_norm(norm_case(m, d, 100 * d + m));
  for (const std::size_t m : {255u, 256u, 257u, 511u, 513u, 769u})
    check_norm(norm_case(m, 6, m));
  check_norm(norm_case(7, 2048, 1), 1);
  check_norm(norm_case(7, 2048, 2), 2);
  check_norm(norm_case(300, 7, 3), 1);
  check_norm(norm_case(17000, 64, 4));
}

TEST_CASE("rms_norm with everything that can go wrong") {
  for (const std::size_t d : {40u, 1024u, 2048u, 4096u}) {
    for (const bool damaged : {false, true}) {
      norm_case c(24, d, d);
      c.x = wide_bf16(24 * d, d + 1, damaged);
      c.residual = wide_bf16(24 * d, d + 2, damaged);
      c.dy = wide_bf16(24 * d, d + 3, damaged);
      if (damaged)
        c.gain = wide_bf16(d, d + 4, true);
      for (std::size_t j = 0; j < d; ++j) {
        c.x[3 * d + j] = bf16{0};
        c.x[4 * d + j] = bf16{0x0080}; // 2^-126
        c.x[5 * d + j] = arith::to_bf16(0x1.02p-63f);
        c.x[6 * d + j] = arith::to_bf16(1.0f + 0.25f * static_cast<float>(j % 3));
        c.dy[6 * d + j] = arith::to_bf16(0x1.04p-126f);
        c.x[7 * d + j] = arith::to_bf16(-1.5f);
        c.dy[7 * d + j] = arith::to_bf16(j % 2 == 0 ? 0x1p-125f : 0.0f);
      }
      c.x[8 * d + d / 2] = arith::to_bf16(nan_value);
      c.x[9 * d + d / 3] = arith::to_bf16(infinity);
      check_norm(c);
    }
  }
}

TEST_CASE("rms_norm, the shape of the model") {
  check_norm(norm_case(4300, 2048, 5), 0, 29);
}

// SwiGLU and the residual stream

void check_swiglu(const std::vector<bf16>& gate_up, const std::vector<bf16>& dy, std::size_t m,
                  std::size_t f, std::size_t shift = 0, std::size_t stride = 1) {
  INFO("shape " << m << " x " << f << ", shift " << shift);
  const auto rows = static_cast<std::int64_t>(m), columns = static_cast<std::int64_t>(f);
  const shifted<bf16> in(gate_up, shift), grad(dy, shift), y(m * f, shift), d(2 * m * f, shift);
  cuda::swiglu(nullptr, in.data(), y.data(), rows, columns);
  cuda::swiglu_backward(nullptr, grad.data(), in.data(), d.data(), rows, columns);
  const auto y_host = y.host(), d_host = d.host();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < m; i += stride) {
    for (std::size_t j = 0; j < f; ++j) {
      const bf16 gate = gate_up[2 * i * f + j], up = gate_up[2 * i * f + f + j], g = dy[i * f + j];
      wrong += !(y_host[i * f + j] == reference::swiglu(gate, up));
      wrong += !(d_host[2 * i * f + j] == reference::swiglu_gate_gradient(g, gate, up));
      wrong += !(d_host[2 * i * f + f + j] == reference::swiglu_up_gradient(g, gate));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("swiglu equals its definition") {
  for (const std::size_t f : {1u, 7u, 8u, 9u, 64u, 65u})
    for (const std::size_t m : {0u, 1u, 3u, 33u})
      check_swiglu(random_bf16(2 * m * f, f + m, 3.0f), random_bf16(m * f, f + m + 1), m, f);
  check_swiglu(wide_bf16(8000, 1, true), wide_bf16(4000, 2, true), 50, 80);
  // Large enough for the table: rows of one octet, and every bf16 as a gate.
  const std::size_t m = 1 << 17;
  check_swiglu(random_bf16(16 * m, 3, 3.0f), random_bf16(8 * m, 4), m, 8, 0, 13);
  check_swiglu(random_bf16(16 * m, 3, 3.0f), random_bf16(8 * m, 4), m, 8, 1, 1001);
  std::vector<bf16> every = wide_bf16(2u << 20, 5, true), dy = wide_bf16(1u << 20, 6, true);
  for (std::size_t u = 0; u < 0x40000; ++u) {
    const std::size_t row = u / 0x8000, place = row * 2 * 0x8000 + u % 0x8000;
    every[place] = bf16{static_cast<std::uint16_t>(u)};
    every[place + 0x8000] = arith::to_bf16(u % 2 == 0 ? 1.0f : -0.37f);
    dy[u] = arith::to_bf16(u % 3 == 0 ? -2.5f : 0.77f);
  }
  check_swiglu(every, dy, 32, 0x8000);
}

TEST_CASE("swiglu, the shape of the model") {
  const std::size_t m = 2048, f = 5632;
  check_swiglu(random_bf16(2 * m * f, 1), random_bf16(m * f, 2, 0.01f), m, f, 0, 37);
}

TEST_CASE("residual_add, add_into, scale and transpose") {
  for (const std::size_t n : {0u, 1u, 7u, 8u, 9u, 31u, 2047u, 2048u, 2049u, 100003u})
    for (const std::size_t shift : {0u, 1u, 3u, 5u}) {
      INFO("n " << n << ", shift " << shift);
      const std::vector<bf16> a = wide_bf16(n, n, true), b = wide_bf16(n, n + 1, true);
      std::vector<bf16> expected(n);
      for (std::size_t i = 0; i < n; ++i)
        expected[i] = arith::to_bf16(arith::add(arith::to_f32(a[i]), arith::to_f32(b[i])));
      const shifted<bf16> x(a, shift), w(b, shift), y(n, shift), odd(n, shift + 2);
      cuda::residual_add(nullptr, x.data(), w.data(), y.data(), static_cast<std::int64_t>(n));
      cuda::residual_add(nullptr, x.data(), w.data(), odd.data(), static_cast<std::int64_t>(n));
      cuda::residual_add(nullptr, x.data(), w.data(), x.data(), static_cast<std::int64_t>(n));
      CHECK(same_bits(y.host(), expected));
      CHECK(same_bits(odd.host(), expected));
      CHECK(same_bits(x.host(), expected));
      std::vector<float> c(n), e(n), sum(n), scaled(n);
      for (std::size_t i = 0; i < n; ++i) {
        c[i] = arith::to_f32(a[i]), e[i] = arith::mul(arith::to_f32(b[i]), 0.7f);
        sum[i] = arith::add(c[i], e[i]), scaled[i] = arith::mul(e[i], 1.0f / 3.0f);
      }
      const shifted<float> s(c, shift), t(e, shift);
      cuda::add_into(nullptr, s.data(), t.data(), static_cast<std::int64_t>(n));
      cuda::scale(nullptr, t.data(), 1.0f / 3.0f, static_cast<std::int64_t>(n));
      CHECK(same_bits(canonical(s.host()), canonical(sum)));
      CHECK(same_bits(canonical(t.host()), canonical(scaled)));
    }
  for (const std::size_t rows : {0u, 1u, 63u, 64u, 65u, 200u})
    for (const std::size_t columns : {0u, 1u, 63u, 64u, 65u, 131u}) {
      const std::vector<bf16> x = random_bf16(rows * columns, rows);
      std::vector<bf16> expected(x.size());
      for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j)
          expected[j * rows + i] = x[i * columns + j];
      const device_vector<bf16> from(x), to(x.size());
      cuda::transpose(nullptr, from.data(), to.data(), static_cast<std::int64_t>(rows),
                      static_cast<std::int64_t>(columns));
      CHECK(same_bits(to.host(), expected));
    }
}

// Embedding

void check_embedding(const std::vector<std::uint32_t>& ids, std::size_t v, std::size_t d,
                     std::size_t shift = 0) {
  INFO(ids.size() << " ids of " << v << " words of width " << d << ", shift " << shift);
  const auto m = static_cast<std::int64_t>(ids.size()), words = static_cast<std::int64_t>(v);
  const auto width = static_cast<std::int64_t>(d);
  const std::vector<bf16> dy = random_bf16(ids.size() * d, ids.size() + d);
  const device_vector<std::uint32_t> device_ids(ids), start(v + 1), position(ids.size());
  const device_vector<std::uint32_t> scratch(static_cast<std::size_t>(cuda::group_scratch(words)));
  cuda::group_positions(nullptr, device_ids.data(), m, words, start.data(), position.data(),
                        scratch.data());
  std::vector<std::uint32_t> expected_start(v + 1), expected_position(ids.size());
  for (const auto id : ids)
    ++expected_start[id + 1];
  for (std::size_t w = 0; w < v; ++w)
    expected_start[w + 1] += expected_start[w];
  auto cursor = expected_start;
  for (std::size_t i = 0; i < ids.size(); ++i)
    expected_position[cursor[ids[i]]++] = static_cast<std::uint32_t>(i);
  CHECK(same_bits(start.host(), expected_start));
  CHECK(same_bits(position.host(), expected_position));
  const shifted<bf16> grad(dy, shift);
  const device_vector<float> dtable(v * d);
  cuda::embedding_backward(nullptr, grad.data(), position.data(), start.data(), dtable.data(),
                           words, width);
  std::vector<float> expected(v * d);
  reference::embedding_backward(d, ids, dy, expected);
  CHECK(same_bits(dtable.host(), expected));
  const std::vector<bf16> table = random_bf16(v * d, 3);
  const shifted<bf16> from(table, shift), y(ids.size() * d, shift);
  cuda::embedding(nullptr, device_ids.data(), from.data(), y.data(), m, width);
  std::vector<bf16> copied;
  for (const auto id : ids)
    copied.insert(copied.end(), &table[id * d], &table[id * d] + d);
  CHECK(same_bits(y.host(), copied));
}

/// Ids of which a few words make up most, as in text.
std::vector<std::uint32_t> text_ids(std::size_t m, std::uint32_t v, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::uint32_t> ids(m);
  for (auto& id : ids) {
    const std::uint64_t word = engine(), range = engine() % 17;
    id = static_cast<std::uint32_t>(word % std::min<std::uint64_t>(v, std::uint64_t{2} << range));
  }
  return ids;
}

TEST_CASE("embedding and its gradient") {
  std::mt19937_64 engine(1);
  for (const std::size_t d : {1u, 7u, 8u, 64u, 65u})
    for (const std::size_t m : {0u, 1u, 31u, 32u, 33u, 255u, 257u, 1000u}) {
      std::vector<std::uint32_t> ids(m);
      for (auto& id : ids)
        id = static_cast<std::uint32_t>(engine() % 11);
      check_embedding(ids, 11, d);
    }
  for (const std::size_t v : {2046u, 2047u, 2048u, 5000u, 300000u})
    check_embedding(text_ids(3000, static_cast<std::uint32_t>(v), v), v, 8, 1);
  check_embedding(std::vector<std::uint32_t>(4096, 2), 4, 65);
  check_embedding(text_ids(16384, 128256, 9), 128256, 8);
  check_embedding(text_ids(1000, 300, 9), 300, 2048);
}

// AdamW

ordo::optim::adamw_scalars scalars_of_update() {
  return {4e-4f, 0.9f, 0.1f, 0.95f, 0.05f, 1e-8f, 0.1f, 10.0f / 3.0f, 7.1f, 0.75f};
}

void check_adamw(std::size_t n, bool mastered, std::size_t shift,
                 const std::vector<ordo::optim::index_range>& undecayed) {
  INFO("n " << n << ", master " << mastered << ", shift " << shift);
  const auto s = scalars_of_update();
  auto p = random_bf16(n, n, 0.02f);
  auto master = random_f32(mastered ? n : 0, n + 1, 0.02f), first = random_f32(n, n + 2, 1e-3f);
  auto second = random_f32(n, n + 3, 1e-3f), grad = random_f32(n, n + 4, 1e-3f);
  for (std::size_t i = 0; i < n; ++i) {
    second[i] = arith::mul(second[i], second[i]);
    const std::size_t kind = i % 64;
    grad[i] = kind == 3   ? 0.0f
              : kind == 5 ? 1e20f
              : kind == 7 ? 2e-38f
              : kind == 9 ? -0.0f
                          : grad[i];
    if (kind == 11 || kind == 3)
      first[i] = second[i] = 0.0f;
    if (i % 1000 == 13)
      grad[i] = i % 2000 == 13 ? infinity : nan_value;
  }
  const shifted<bf16> p_io(p, shift);
  const shifted<float> g_in(grad, shift), w_io(master, shift), m_io(first, shift),
      v_io(second, shift);
  cuda::adamw(nullptr, s, g_in.data(), p_io.data(), mastered ? w_io.data() : nullptr, m_io.data(),
              v_io.data(), static_cast<std::int64_t>(n), undecayed.data(),
              static_cast<std::int64_t>(undecayed.size()));
  std::vector<bool> decays(n, true);
  for (const auto& r : undecayed)
    for (std::int64_t i = r.begin; i < r.end; ++i)
      decays[static_cast<std::size_t>(i)] = false;
  using arith::add, arith::mul; // the definition: contract, section 11, point 7
  for (std::size_t i = 0; i < n; ++i) {
    const float w = mastered ? master[i] : arith::to_f32(p[i]), g = mul(grad[i], s.clip);
    first[i] = add(mul(s.beta1, first[i]), mul(s.one_minus_beta1, g));
    second[i] = add(mul(s.beta2, second[i]), mul(s.one_minus_beta2, mul(g, g)));
    const float root = arith::sqrt(mul(second[i], s.inverse_bias2));
    const float direction = arith::div(mul(first[i], s.inverse_bias1), add(root, s.epsilon));
    const float decay = mul(decays[i] ? s.weight_decay : 0.0f, w);
    const float next = arith::sub(w, mul(s.learning_rate, add(direction, decay)));
    p[i] = arith::to_bf16(next);
    if (mastered)
      master[i] = next;
  }
  CHECK(same_bits(p_io.host(), p));
  CHECK(same_bits(canonical(w_io.host()), canonical(master)));
  CHECK(same_bits(canonical(m_io.host()), canonical(first)));
  CHECK(same_bits(canonical(v_io.host()), canonical(second)));
}

TEST_CASE("adamw equals its definition") {
  for (const bool mastered : {false, true})
    for (const std::size_t n : {0u, 1u, 7u, 8u, 9u, 2047u, 2048u, 2049u, 100001u})
      for (const std::size_t shift : {0u, 1u, 4u})
        check_adamw(n, mastered, shift, {});
  check_adamw(100000, true, 0,
              {{0, 1}, {2047, 2049}, {4096, 6144}, {50001, 50007}, {99999, 100000}});
  check_adamw(100000, false, 3, {{5, 4000}, {99992, 99999}});
  std::vector<ordo::optim::index_range> many;
  for (std::int64_t i = 0; i < 1000; ++i)
    many.push_back({97 * i, 97 * i + 31});
  check_adamw(100000, true, 0, many);
}

// Norm and sums

float device_norm(const std::vector<std::vector<float>>& tensors, std::size_t shift, float* sum) {
  std::vector<shifted<float>*> memory;
  std::vector<cuda::norm_tensor> list;
  for (const auto& x : tensors) {
    memory.push_back(new shifted<float>(x, shift));
    list.push_back({memory.back()->data(), static_cast<std::int64_t>(x.size())});
  }
  const auto count = static_cast<std::int64_t>(list.size());
  const device_vector<float> result(2);
  const device_vector<float> scratch(
      static_cast<std::size_t>(cuda::norm_scratch(list.data(), count)));
  cuda::global_norm(nullptr, list.data(), count, scratch.data(), result.data());
  const auto host = result.host();
  for (const auto* x : memory)
    delete x;
  if (sum != nullptr)
    *sum = host[1];
  return host[0];
}

void check_global_norm(const std::vector<std::size_t>& sizes, std::size_t shift = 0) {
  std::map<std::string, std::vector<float>> named;
  std::vector<std::vector<float>> tensors;
  for (const std::size_t n : sizes) {
    tensors.push_back(random_f32(n, n + tensors.size()));
    named[std::to_string(1000 + tensors.size())] = tensors.back();
  }
  CHECK(arith::bits(device_norm(tensors, shift, nullptr)) ==
        arith::bits(reference::global_norm(named)));
}

TEST_CASE("the global norm equals its definition") {
  check_global_norm({});
  check_global_norm({0});
  for (const std::size_t n : {1u, 31u, 33u, 4095u, 4096u, 4097u, 8193u, 1000003u})
    for (const std::size_t shift : {0u, 1u})
      check_global_norm({n}, shift);
  check_global_norm({0, 5, 0, 70000, 4096, 0, 0, 12289, 0});
  std::vector<std::size_t> many(300);
  for (std::size_t i = 0; i < many.size(); ++i)
    many[i] = i * 37 % 9000;
  check_global_norm(many);
  check_global_norm({10000000});
  float sum = 0;
  CHECK(device_norm({{3.0f}, {4.0f}}, 0, &sum) == 5.0f);
  CHECK(sum == 25.0f);
  CHECK(device_norm({std::vector<float>(10, 1e20f)}, 0, nullptr) == infinity);
  CHECK(arith::bits(device_norm({{1.0f, nan_value}}, 0, nullptr)) == arith::canonical_nan);
}

TEST_CASE("order::Tree equals its definition") {
  for (const std::size_t n : {0u, 1u, 2u, 6u, 7u, 31u, 33u, 1024u, 2047u, 2048u, 2049u, 4095u,
                              6144u, 100000u, 4194303u, 4194304u, 4196353u}) {
    INFO("n " << n);
    const std::vector<float> x = random_f32(n, n + 1);
    const device_vector<float> in(x), result(2);
    const device_vector<float> scratch(
        static_cast<std::size_t>(cuda::tree_scratch(static_cast<std::int64_t>(n))));
    cuda::tree_sum(nullptr, in.data(), static_cast<std::int64_t>(n), cuda::detail::addend{},
                   scratch.data(), result.data());
    CHECK(arith::bits(result.host()[1]) ==
          arith::bits(reference::sum(ordo::order::Tree{}, std::span<const float>(x))));
  }
}

// Speed

/// Values of magnitude below 2 * scale, of all kinds of last bits.
template <class T>
__global__ void fill_kernel(T* to, std::int64_t n, std::uint32_t seed, float scale, bool positive) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    std::uint32_t h = static_cast<std::uint32_t>(i) * 0x9e3779b1u + seed;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    h ^= h >> 16;
    float v = arith::mul(arith::from_int(static_cast<std::int32_t>(h)), 0x1p-30f * scale);
    v = positive ? arith::abs(v) : v;
    if constexpr (std::is_same_v<T, bf16>) {
      to[i] = arith::to_bf16(v);
    } else {
      to[i] = v;
    }
  }
}

template <class T>
struct random_memory : device_vector<T> {
  random_memory(std::int64_t n, std::uint32_t seed, float scale = 1.0f, bool positive = false)
      : device_vector<T>(static_cast<std::size_t>(n)) {
    cuda::launch("fill", fill_kernel<T>, dim3(2048), dim3(256), 0, nullptr, this->data(), n, seed,
                 scale, positive);
  }
};

float copy_rate = 0;

/// Prints median time, rate and the time that the copy's rate gives for `bytes`.
template <class F>
float report(const char* name, double bytes, const F& f) {
  const float ms = median_ms(f, 11);
  cuda::check(cudaDeviceSynchronize(), name);
  const double rate = bytes / ms * 1e-6;
  if (copy_rate == 0)
    copy_rate = static_cast<float>(rate);
  std::printf("  %-34s %8.4f ms %7.0f GB/s, floor %8.4f ms, %3.0f%%\n", name, ms, rate,
              bytes / copy_rate * 1e-6, 100 * rate / copy_rate);
  return ms;
}

TEST_CASE("speed of rows") {
  constexpr std::int64_t m = 16384, d = 2048, f = 5632, n = m * d;
  {
    const random_memory<float> from(1 << 28, 1), to(1 << 28, 2);
    report("copy of 1 GiB", 8.0 * (1 << 28), [&] {
      cudaMemcpyAsync(to.data(), from.data(), std::size_t{4} << 28, cudaMemcpyDeviceToDevice);
    });
  }
  {
    const random_memory<bf16> x(n, 1), dy(n, 2, 0.01f), b(n, 3), gain(d, 4), y(n, 5), z(n, 6);
    const device_vector<float> rms(m), dgain(d), partial(m / 256 * d);
    report("rms_norm 16384 x 2048", 4.0 * n, [&] {
      cuda::rms_norm(nullptr, x.data(), gain.data(), eps, y.data(), rms.data(), m, d);
    });
    report("rms_norm 16384 x 2046", 4.0 * m * 2046, [&] {
      cuda::rms_norm(nullptr, x.data(), gain.data(), eps, y.data(), rms.data(), m, 2046);
    });
    report("residual_add", 6.0 * n,
           [&] { cuda::residual_add(nullptr, x.data(), b.data(), z.data(), n); });
    report("residual_rms_norm", 8.0 * n, [&] {
      cuda::residual_rms_norm(nullptr, x.data(), b.data(), gain.data(), eps, z.data(), y.data(),
                              rms.data(), m, d);
    });
    const cuda::detail::norm_gradient_operands at{
        dy.data(),    x.data(),       gain.data(), b.data(), rms.data(), y.data(),
        dgain.data(), partial.data(), m,           d,        1.0f / 2048};
    report("  gain gradient alone", 4.0 * n, [&] { cuda::detail::gain_gradient(nullptr, at); });
    report("  input gradient alone", 8.0 * n,
           [&] { cuda::detail::input_gradient<true>(nullptr, at); });
    report("rms_norm_backward, residual", 8.0 * n, [&] {
      cuda::rms_norm_backward(nullptr, dy.data(), x.data(), gain.data(), rms.data(), b.data(),
                              y.data(), dgain.data(), partial.data(), m, d);
    });
    report("rms_norm_backward", 6.0 * n, [&] {
      cuda::rms_norm_backward(nullptr, dy.data(), x.data(), gain.data(), rms.data(), nullptr,
                              y.data(), dgain.data(), partial.data(), m, d);
    });
    report("transpose", 4.0 * n, [&] { cuda::transpose(nullptr, x.data(), y.data(), m, d); });
  }
  {
    const random_memory<bf16> x(2 * m * f, 1, 1.5f), dy(m * f, 2, 0.01f), y(m * f, 3),
        g(2 * m * f, 4);
    report("swiglu 16384 x 5632", 6.0 * m * f,
           [&] { cuda::swiglu(nullptr, x.data(), y.data(), m, f); });
    report("swiglu_backward", 10.0 * m * f,
           [&] { cuda::swiglu_backward(nullptr, dy.data(), x.data(), g.data(), m, f); });
  }
}

TEST_CASE("speed of flat vectors and the embedding") {
  constexpr std::int64_t m = 16384, d = 2048, v = 128256, n = 1 << 28;
  {
    const random_memory<float> grad(n, 1, 1e-3f), first(n, 2, 1e-3f), second(n, 3, 1e-6f, true);
    const random_memory<float> master(n, 4, 0.02f);
    const random_memory<bf16> p(n, 5, 0.02f);
    const device_vector<float> result(2);
    report("copy of 1 GiB", 8.0 * n, [&] {
      cudaMemcpyAsync(first.data(), grad.data(), std::size_t{4} * n, cudaMemcpyDeviceToDevice);
    });
    auto s = scalars_of_update();
    std::vector<ordo::optim::index_range> gains;
    for (std::int64_t i = 0; i < 50; ++i)
      gains.push_back({i * 5000000, i * 5000000 + 2048});
    report("adamw 2^28", 24.0 * n, [&] {
      cuda::adamw(nullptr, s, grad.data(), p.data(), nullptr, first.data(), second.data(), n,
                  gains.data(), 50);
    });
    report("adamw 2^28, master", 34.0 * n - 4.0 * n, [&] {
      cuda::adamw(nullptr, s, grad.data(), p.data(), master.data(), first.data(), second.data(), n);
    });
    report("adamw of 2048", 24.0 * 2048, [&] {
      cuda::adamw(nullptr, s, grad.data(), p.data(), nullptr, first.data(), second.data(), 2048);
    });
    const cuda::norm_tensor all[] = {{grad.data(), n}};
    const device_vector<float> scratch(static_cast<std::size_t>(cuda::norm_scratch(all, 1)));
    report("global_norm 2^28", 4.0 * n,
           [&] { cuda::global_norm(nullptr, all, 1, scratch.data(), result.data()); });
    report("  tree of its 2^16 chunk sums", 4.0 * n / 4096, [&] {
      cuda::tree_sum(nullptr, scratch.data(), n / 4096, cuda::detail::addend{},
                     scratch.data() + n / 4096, result.data());
    });
    report("add_into 2^28", 12.0 * n,
           [&] { cuda::add_into(nullptr, first.data(), grad.data(), n); });
    report("scale 2^28", 8.0 * n, [&] { cuda::scale(nullptr, first.data(), 0.9999f, n); });
  }
  {
    const device_vector<std::uint32_t> ids(text_ids(m, v, 1)), start(v + 1), position(m);
    const device_vector<std::uint32_t> same(std::vector<std::uint32_t>(m, 7));
    const device_vector<std::uint32_t> scratch(static_cast<std::size_t>(cuda::group_scratch(v)));
    const random_memory<bf16> table(v * d, 1), dy(m * d, 2), y(m * d, 3);
    const device_vector<float> dtable(v * d);
    report("embedding of 16384", 4.0 * m * d,
           [&] { cuda::embedding(nullptr, ids.data(), table.data(), y.data(), m, d); });
    const auto group = [&](const auto& of) {
      cuda::group_positions(nullptr, of.data(), m, v, start.data(), position.data(),
                            scratch.data());
    };
    report("group_positions, one word", 4.0 * v, [&] { group(same); });
    report("group_positions, text", 4.0 * v, [&] { group(ids); });
    report("embedding_backward", 4.0 * v * d + 2.0 * m * d, [&] {
      cuda::embedding_backward(nullptr, dy.data(), position.data(), start.data(), dtable.data(), v,
                               d);
    });
    report("cudaMemset of the same", 4.0 * v * d,
           [&] { cudaMemsetAsync(dtable.data(), 1, std::size_t{4} * v * d); });
  }
}

} // namespace
