// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Conformance: one digest for each operation and policy. Whatever machine, backend, thread count
/// and compiler flags compute them, the lines are the same; it is the first thing an auditor runs.

#include <cstdint>
#include <string>
#include <vector>

#include <ordo/audit/conformance_line.hpp>
#include <ordo/digest/sha256.hpp>
#include <ordo/linalg/gemm_sliced.hpp>
#include <ordo/model/open1b.hpp>
#include <ordo/optim/adamw.hpp>
#include <ordo/random/initializers.hpp>
#include <ordo/reduce/sum.hpp>

namespace ordo::audit {

namespace detail {

/// Inputs and outputs of the report: every value comes from a named random stream.
template <execution_space Space>
class conformance_run {
public:
  using memory = typename Space::memory_space;
  template <class T>
  using vector = Kokkos::View<T*, memory>;
  template <class T>
  using matrix = Kokkos::View<T**, Kokkos::LayoutRight, memory>;

  explicit conformance_run(const Space& s) : space(s) {}

  /// Uniform in (-scale, scale), every 97th value 64 times as large.
  vector<float> values(const std::string& name, std::int64_t n, float scale = 1.0f) const {
    const random::stream source(2026, "ordo.conformance." + name);
    Kokkos::View<float*, Kokkos::HostSpace> host("ordo::audit::values",
                                                 static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const float x =
          arith::mul(random::uniform_signed(source.word(static_cast<std::uint64_t>(i))), scale);
      host(static_cast<std::size_t>(i)) = i % 97 == 0 ? arith::mul(64.0f, x) : x;
    }
    return Kokkos::create_mirror_view_and_copy(memory(), host);
  }
  matrix<bf16> bf16_values(const std::string& name, std::int64_t rows, std::int64_t columns,
                           float scale = 1.0f) const {
    const auto from = values(name, rows * columns, scale);
    matrix<bf16> to("ordo::audit::bf16_values", static_cast<std::size_t>(rows),
                    static_cast<std::size_t>(columns));
    bf16* const out = to.data();
    ordo::detail::for_each(
        space, "ordo::audit::narrow", rows * columns,
        KOKKOS_LAMBDA(std::int64_t i) { out[i] = arith::to_bf16(from[i]); });
    return to;
  }
  matrix<std::int8_t> codes(const std::string& name, std::int64_t rows,
                            std::int64_t columns) const {
    const auto from = values(name, rows * columns, 100.0f);
    matrix<std::int8_t> to("ordo::audit::codes", static_cast<std::size_t>(rows),
                           static_cast<std::size_t>(columns));
    std::int8_t* const out = to.data();
    ordo::detail::for_each(
        space, "ordo::audit::codes", rows * columns, KOKKOS_LAMBDA(std::int64_t i) {
          out[i] = static_cast<std::int8_t>(arith::to_int(from[i], 127));
        });
    return to;
  }

  /// Adds the digest of what lies in the given views, one after the other.
  template <class... Views>
  void line(const std::string& name, const std::string& sizes, const Views&... views) {
    digest::sha256 hash;
    const auto add = [&](const auto& view) {
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
      hash.update(std::as_bytes(std::span(host.data(), host.size())));
    };
    (add(views), ...);
    lines.push_back({name, sizes, hash.finish()});
  }
  void number(const std::string& name, const std::string& sizes, float x) {
    const std::uint32_t u = arith::bits(arith::canonical(x));
    lines.push_back({name, sizes, digest::sha256_of(std::as_bytes(std::span(&u, 1)))});
  }

  Space space;
  std::vector<conformance_line> lines;
};

/// `Function` on 2^18 inputs spread over all of binary32.
template <float (*Function)(float), execution_space Space>
void tabulate(conformance_run<Space>& run, const char* name) {
  constexpr std::int64_t n = std::int64_t{1} << 18;
  Kokkos::View<float*, typename Space::memory_space> table("ordo::audit::function", n);
  float* const out = table.data();
  ordo::detail::for_blocks(
      run.space, "ordo::audit::function", n, 1 << 12,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const auto u = static_cast<std::uint32_t>(i) * 16411u;
          out[i] = arith::canonical(Function(arith::flush(arith::from_bits(u))));
        }
      });
  run.line(std::string("function ") + name, std::to_string(n), table);
}

template <execution_space Space>
void conform_functions(conformance_run<Space>& run) {
  tabulate<arith::exp>(run, "exp");
  tabulate<arith::log>(run, "log");
  tabulate<arith::sin>(run, "sin");
  tabulate<arith::cos>(run, "cos");
  tabulate<arith::sigmoid>(run, "sigmoid");
  tabulate<arith::silu>(run, "silu");
  tabulate<arith::rsqrt>(run, "rsqrt");
}

template <execution_space Space>
void conform_sums(conformance_run<Space>& run) {
  constexpr std::int64_t n = 10007;
  const auto x = run.values("sum", n, 1000.0f);
  const vector_view<const float, Space> view = x;
  const auto sum = [&](const char* name, auto policy) {
    run.number(std::string("sum ") + name, std::to_string(n), reduce::sum(run.space, policy, view));
  };
  sum("Sequential", order::Sequential{});
  sum("Lanes<16>", order::Lanes<16>{});
  sum("Lanes<32>", order::Lanes<32>{});
  sum("Tree", order::Tree{});
  sum("Exact", order::Exact{});
  Kokkos::View<float*, typename Space::memory_space> normal("ordo::audit::normal", n);
  random::truncated_normal<Space>(run.space, 7, "conformance", normal, 0.02f);
  run.line("truncated_normal", std::to_string(n), normal);
}

template <execution_space Space>
void conform_contractions(conformance_run<Space>& run) {
  constexpr std::int64_t m = 65, n = 131, k = 517;
  const std::string sizes = shape(m, n, k);
  const auto a8 = run.codes("a8", m, k), b8 = run.codes("b8", n, k);
  typename conformance_run<Space>::template matrix<std::int32_t> c32("ordo::audit::c32", m, n);
  gemm_int8(run.space, order::Exact{}, matrix_view<const std::int8_t, Space>(a8),
            matrix_view<const std::int8_t, Space>(b8), matrix_view<std::int32_t, Space>(c32));
  run.line("gemm_int8 Exact", sizes, c32);

  const auto a = run.bf16_values("a", m, k), b = run.bf16_values("b", n, k);
  const matrix_view<const bf16, Space> a_view = a, b_view = b;
  typename conformance_run<Space>::template matrix<float> c("ordo::audit::c", m, n);
  const matrix_view<float, Space> c_view = c;
  sliced_matrix<2, Space> a_sliced, b_sliced;
  slice_rows(run.space, a_view, a_sliced);
  slice_rows(run.space, b_view, b_sliced);
  gemm_sliced(run.space, Sliced<2, 2>{}, a_sliced, b_sliced, c_view);
  run.line("gemm_sliced Sliced<2,2>", sizes, c);
  gemm_f32(run.space, order::Sequential{}, a_view, b_view, c_view);
  run.line("gemm_f32 Sequential", sizes, c);
  gemm_f32(run.space, order::Lanes<16>{}, a_view, b_view, c_view);
  run.line("gemm_f32 Lanes<16>", sizes, c);
}

template <execution_space Space>
void conform_layers(conformance_run<Space>& run) {
  constexpr std::int64_t m = 300, n = 272, k = 129;
  const std::string sizes = shape(m, n, k);
  const auto x = run.bf16_values("x", m, k), dy = run.bf16_values("dy", m, n, 1e-4f);
  const auto w = run.bf16_values("w", n, k, 0.02f);
  typename conformance_run<Space>::template matrix<bf16> y("ordo::audit::y", m, n),
      dx("ordo::audit::dx", m, k);
  typename conformance_run<Space>::template matrix<float> dw("ordo::audit::dw", n, k);
  for (const auto kind : {nn::linear_kind::int8, nn::linear_kind::binary32}) {
    for (const auto rule :
         {quant::step_rule::mean_magnitude, quant::step_rule::largest_magnitude}) {
      if (kind == nn::linear_kind::binary32 && rule == quant::step_rule::largest_magnitude)
        continue;
      nn::linear_layer<Space> layer(kind, rule, n, k);
      nn::linear_input<Space> kept(kind, m, k);
      const nn::linear_scratch<Space> scratch(kind, m, n);
      layer.prepare(run.space, w);
      layer.forward(run.space, x, kept, y, scratch);
      layer.backward(run.space, dy, kept, dx, dw, scratch);
      run.line(kind == nn::linear_kind::binary32          ? "linear binary32"
               : rule == quant::step_rule::mean_magnitude ? "linear int8 mean"
                                                          : "linear int8 largest",
               sizes, y, dx, dw);
    }
  }
  const auto gain = run.bf16_values("gain", 1, k);
  const vector_view<const bf16, Space> gains(gain.data(), k);
  typename conformance_run<Space>::template vector<float> rms("ordo::audit::rms", m),
      dgain("ordo::audit::dgain", k);
  typename conformance_run<Space>::template matrix<float> partial("ordo::audit::partial", 2, k);
  typename conformance_run<Space>::template matrix<bf16> normal("ordo::audit::normal", m, k);
  const auto d_normal = run.bf16_values("d_normal", m, k, 1e-4f);
  nn::rms_norm(run.space, nn::row_order{}, x, gains, 1e-5f, normal, rms);
  nn::rms_norm_backward(run.space, nn::row_order{}, d_normal, x, gains, rms, x, dx, dgain, partial);
  run.line("rms_norm Lanes<32>", shape(m, k), normal, rms, dx, dgain);
  typename conformance_run<Space>::template matrix<bf16> swiglu("ordo::audit::swiglu", m, n / 2),
      d_gate_up("ordo::audit::d_gate_up", m, n);
  const auto d_swiglu = run.bf16_values("d_swiglu", m, n / 2, 1e-4f);
  nn::swiglu<Space>(run.space, dy, swiglu);
  nn::swiglu_backward<Space>(run.space, d_swiglu, dy, d_gate_up);
  run.line("swiglu", shape(m, n / 2), swiglu, d_gate_up);
}

template <execution_space Space>
void conform_update(conformance_run<Space>& run) {
  constexpr std::int64_t n = 5000;
  const auto gradient = run.values("gradient", n, 1e-3f);
  const auto first = run.values("first", n, 1e-3f);
  const auto parameter = run.bf16_values("parameter", 1, n, 0.02f);
  typename conformance_run<Space>::template vector<float> second("ordo::audit::second", n), none;
  const vector_view<bf16, Space> p(parameter.data(), n);
  const optim::adamw_scalars scalars{1e-3f, 0.9f, 0.1f,  0.95f, 0.05f,
                                     1e-8f, 0.1f, 10.0f, 20.0f, 0.75f};
  optim::adamw(run.space, scalars, vector_view<const float, Space>(gradient), p,
               vector_view<float, Space>(none), vector_view<float, Space>(first),
               vector_view<float, Space>(second));
  run.line("adamw bf16", std::to_string(n), parameter, first, second);
  const auto master = run.values("master", n, 0.02f);
  optim::adamw(run.space, scalars, vector_view<const float, Space>(gradient), p,
               vector_view<float, Space>(master), vector_view<float, Space>(first),
               vector_view<float, Space>(second));
  run.line("adamw master", std::to_string(n), parameter, master, first, second);
}

/// One micro-batch of a small model, forward and backward, sliding-window and full layers: the
/// embedding, attention and loss in the company in which a run has them.
template <execution_space Space>
void conform_model(conformance_run<Space>& run) {
  model::config c;
  c.layers = 2;
  c.hidden = 64;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 32;
  c.feed_forward = 96;
  c.vocabulary = 300;
  c.padded_vocabulary = 304;
  c.window = 48;
  constexpr std::int64_t batch = 2, length = 150;
  for (const auto kind : {nn::linear_kind::int8, nn::linear_kind::binary32}) {
    model::numerics numerics;
    numerics.linear = kind;
    const std::int64_t count = model::parameter_count(c);
    const auto parameters = run.bf16_values("parameters", 1, count, 0.05f);
    model::prepared_weights<Space> weights(c, numerics);
    weights.prepare(run.space, vector_view<const bf16, Space>(parameters.data(), count));
    std::vector<std::uint32_t> ids, labels;
    const random::stream source(2026, "ordo.conformance.ids");
    for (std::uint64_t i = 0; i < batch * length; ++i) {
      ids.push_back(source.word(2 * i) % 300);
      labels.push_back(source.word(2 * i + 1) % 300);
    }
    typename conformance_run<Space>::template vector<float> gradients("ordo::audit::gradients",
                                                                      count);
    model::workspace<Space> work(c, numerics, batch, length);
    model::whole_gradients<Space> sink(c, gradients);
    const loss::loss_sum sum =
        work.forward_backward(run.space, weights, ids, labels, 0x1p-8f, sink);
    const std::string name = kind == nn::linear_kind::int8 ? "model int8" : "model binary32";
    run.number(name + " loss", shape(batch, length), sum.mean());
    run.line(name + " gradients", std::to_string(count), gradients);
  }
}

} // namespace detail

/// Computes the report on `space`.
template <execution_space Space>
std::vector<conformance_line> conformance(const Space& space) {
  const arith::float_mode mode; // for the scalars between kernels
  detail::conformance_run<Space> run(space);
  detail::conform_functions(run);
  detail::conform_sums(run);
  detail::conform_contractions(run);
  detail::conform_layers(run);
  detail::conform_update(run);
  detail::conform_model(run);
  return run.lines;
}

} // namespace ordo::audit
