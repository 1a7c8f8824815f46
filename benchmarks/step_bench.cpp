// SPDX-License-Identifier: Apache-2.0

// A whole training step beside its matrix products alone, in unordered binary32 by OpenBLAS: the
// linear layers and the head, forward and both gradients. The products of attention are left out of
// the yardstick, which makes it faster.

#include <cstdint>
#include <string>
#include <vector>

#include <ordo/random/philox.hpp>
#include <ordo/train/step.hpp>

#include "yardstick.hpp"

namespace {

using namespace ordo;
using space_type = Kokkos::DefaultHostExecutionSpace;

/// trainer/configs/small.ini with one micro-batch a step: about ten million parameters.
train::run_config ten_million() {
  train::run_config run;
  run.model.layers = 4;
  run.model.hidden = 512;
  run.model.heads = 8;
  run.model.kv_heads = 2;
  run.model.head_dim = 64;
  run.model.feed_forward = 1280;
  run.model.vocabulary = 257;
  run.model.padded_vocabulary = 272;
  run.model.window = 128;
  run.sequence = 256;
  run.micro_batch = 4;
  run.ramp = {{UINT64_MAX, 1}};
  run.total_tokens = 1 << 30;
  run.peak_rate = train::decimal("1e-3");
  run.master = true;
  run.check();
  return run;
}

/// Steps from the initial state on random tokens; digests of everything included, as in training.
void training_step(benchmark::State& state, nn::linear_kind kind) {
  train::run_config run = ten_million();
  run.linear = kind;
  const space_type space;
  train::train_state<space_type> at(run);
  train::initialise(space, run, at);
  train::step_runner<space_type> runner(space, run);
  const random::stream draws(1, "ordo.step_bench");
  std::vector<std::uint32_t> windows(run.windows_at(0) * (run.sequence + 1));
  for (std::size_t i = 0; i < windows.size(); ++i)
    windows[i] = draws.word(i) % 257;
  train::step_result result = runner.run(at, windows);
  const std::string first = digest::hex(digest::state_root(result.parameters)).substr(0, 16);
  for (auto _ : state)
    result = runner.run(at, windows);
  state.SetLabel("parameters after step 1: " + first);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(windows.size() / (run.sequence + 1) * run.sequence),
                         benchmark::Counter::kIsIterationInvariantRate);
}

void matrix_products_sgemm(benchmark::State& state) {
  const train::run_config run = ten_million();
  const model::config& c = run.model;
  const int m = static_cast<int>(run.sequence * run.micro_batch);
  std::vector<std::pair<int, int>> layers; // rows n and columns k of every weight
  for (std::int64_t i = 0; i < c.layers; ++i) {
    layers.emplace_back(c.qkv_rows(), c.hidden);
    layers.emplace_back(c.hidden, c.heads * c.head_dim);
    layers.emplace_back(2 * c.feed_forward, c.hidden);
    layers.emplace_back(c.hidden, c.feed_forward);
  }
  layers.emplace_back(c.vocabulary, c.hidden);
  std::vector<float> x(static_cast<std::size_t>(m) * 2560, 0.5f), y(x), w(2560 * 2560, 0.25f),
      dw(w);
  for (auto _ : state) {
    for (const auto& [n, k] : layers) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1, x.data(), k, w.data(), k, 0,
                  y.data(), n);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1, y.data(), n, w.data(), k,
                  0, x.data(), k);
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1, y.data(), n, x.data(), k, 0,
                  dw.data(), k);
      std::fill(x.begin(), x.end(), 0.5f); // keeps the values finite; not worth a percent
    }
    benchmark::ClobberMemory();
  }
  state.counters["tokens/s"] = benchmark::Counter(m, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(matrix_products_sgemm)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(training_step, int8, nn::linear_kind::int8)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(training_step, binary32, nn::linear_kind::binary32)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

} // namespace

int main(int argc, char** argv) {
  return benchmarks::run(argc, argv);
}
