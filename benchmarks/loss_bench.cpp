// SPDX-License-Identifier: Apache-2.0
// The fused head and loss beside the three matrix products it contains, in unordered binary32.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <cblas.h>

#include <Kokkos_Core.hpp>

#include <ordo/digest/sha256.hpp>
#include <ordo/loss/cross_entropy.hpp>
#include <ordo/loss/head.hpp>

#include "yardstick.hpp"

namespace {

namespace loss = ordo::loss;
using ordo::bf16;
using space_type = Kokkos::DefaultHostExecutionSpace;

/// Values in [-scale, scale), the same everywhere.
float uniform(std::int64_t i, float scale) {
  const auto hash = static_cast<std::uint32_t>(i) * 2654435761u;
  return (static_cast<float>((hash ^ hash >> 15) * 2246822519u >> 8) * 0x1p-23f - 1.0f) * scale;
}

struct problem {
  Kokkos::View<bf16**, Kokkos::LayoutRight, space_type> h, w, d_h;
  Kokkos::View<float**, Kokkos::LayoutRight, space_type> d_w;
  Kokkos::View<std::uint32_t*, space_type> labels;

  problem(std::int64_t tokens, std::int64_t width, std::int64_t words)
      : h("h", tokens, width), w("w", words, width), d_h("d_h", tokens, width),
        d_w("d_w", words, width), labels("labels", tokens) {
    for (std::int64_t i = 0; i < tokens * width; ++i) {
      h.data()[i] = ordo::arith::to_bf16(uniform(i, 1.73f));
    }
    for (std::int64_t i = 0; i < words * width; ++i) {
      w.data()[i] = ordo::arith::to_bf16(uniform(i + 12345, 0.1f));
    }
    for (std::int64_t i = 0; i < tokens; ++i) {
      labels(i) = static_cast<std::uint32_t>(i * 7919 % words);
    }
  }
};

std::string digest(const problem& p) {
  const auto bytes = [](const auto& view) {
    return std::as_bytes(std::span(view.data(), view.size()));
  };
  const auto hash = ordo::digest::sha256().update(bytes(p.d_h)).update(bytes(p.d_w)).finish();
  return ordo::digest::hex(hash).substr(0, 16);
}

template <class Policy>
void head_and_loss(benchmark::State& state) {
  const auto tokens = state.range(0), width = state.range(1), words = state.range(2);
  const space_type space;
  const problem p(tokens, width, words);
  loss::head_weights<Policy, space_type> head(words, width);
  loss::loss_scratch<Policy, space_type> scratch(tokens, words, width);
  loss::options options;
  options.token_scale = 1.0f / static_cast<float>(tokens);
  for (auto _ : state) {
    head.prepare(space, p.w);
    const auto sum = loss::cross_entropy_forward_backward(space, Policy{}, p.h, head, p.labels,
                                                          p.d_h, p.d_w, scratch, options);
    benchmark::DoNotOptimize(sum);
  }
  state.SetLabel("digest " + digest(p));
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens),
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

/// Logits and both gradients from operands that are there already; no softmax.
void three_sgemm(benchmark::State& state) {
  const auto m = static_cast<int>(state.range(0)), d = static_cast<int>(state.range(1));
  const auto v = static_cast<int>(state.range(2));
  const auto size = [](int rows, int columns) { return static_cast<std::size_t>(rows) * columns; };
  std::vector<float> h(size(m, d)), w(size(v, d)), logits(size(m, v)), d_h(h), d_w(w);
  for (std::size_t i = 0; i < h.size(); ++i) {
    h[i] = uniform(static_cast<std::int64_t>(i), 1.73f);
  }
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = uniform(static_cast<std::int64_t>(i) + 12345, 0.1f);
  }
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, v, d, 1.0f, h.data(), d, w.data(), d,
                0.0f, logits.data(), v);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, d, v, 1.0f, logits.data(), v,
                w.data(), d, 0.0f, d_h.data(), d);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, v, d, m, 1.0f, logits.data(), v, h.data(),
                d, 0.0f, d_w.data(), d);
    benchmark::DoNotOptimize(d_w.data());
    benchmark::ClobberMemory();
  }
  state.counters["tokens/s"] = benchmark::Counter(m, benchmark::Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({2048, 256, 512})->Args({2048, 256, 8192})->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK(head_and_loss<ordo::Sliced<2, 2>>)->Apply(shapes);
// The yardstick: the same head in binary32 with a stated order.
BENCHMARK(head_and_loss<ordo::order::Lanes<16>>)
    ->Args({2048, 256, 512})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(three_sgemm)->Apply(shapes);

} // namespace

int main(int argc, char** argv) {
  return ordo::benchmarks::run(argc, argv);
}
