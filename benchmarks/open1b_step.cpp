// SPDX-License-Identifier: Apache-2.0

// The training step of the published 1.61B configuration on one device: 4 x 4096 tokens a
// micro-batch, 4 accumulated, random tokens. Prints a JSON object: seconds of every step, tokens a
// second by their median, memory, and the digests of what was computed. Beside it runs
// benchmarks/torch_open1b.py, in the same call on the same machine.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <ordo/core/device_check.hpp>
#include <ordo/random/philox.hpp>
#include <ordo/train/step.hpp>

namespace {

using namespace ordo;

#if defined(ORDO_CUDA)
using space_type = Kokkos::Cuda;
#else
using space_type = Kokkos::DefaultHostExecutionSpace;
#endif

/// trainer/configs/open-1b.ini on one rank.
train::run_config open_1b(std::int64_t layers, bool master) {
  train::run_config run;
  run.model.layers = layers;
  run.model.hidden = 2048;
  run.model.heads = 16;
  run.model.kv_heads = 4;
  run.model.head_dim = 128;
  run.model.feed_forward = 5632;
  run.model.vocabulary = 128256;
  run.model.padded_vocabulary = 128256;
  run.model.window = 512;
  run.seed = 42;
  run.sequence = 4096;
  run.micro_batch = 4;
  run.ramp = {{UINT64_MAX, 4}};
  run.total_tokens = 400'000'000'000;
  run.peak_rate = train::decimal("1e-4");
  run.master = master;
  run.check();
  return run;
}

/// Bytes of the device in use by everybody; 0 where nobody knows.
std::size_t device_bytes() {
#if defined(ORDO_CUDA)
  std::size_t unused = 0, all = 0;
  ordo::cuda::check(cudaMemGetInfo(&unused, &all), "open1b_step");
  return all - unused;
#else
  return 0;
#endif
}

nlohmann::ordered_json measure(const train::run_config& run, int steps) {
  const space_type space;
  require_working(space);
  const std::size_t before = device_bytes();
  train::train_state<space_type> state(run);
  train::initialise(space, run, state);
  train::step_runner<space_type> runner(space, run);
  const random::stream draws(1, "ordo.open1b_step");
  std::vector<std::uint32_t> windows(run.windows_at(0) * (run.sequence + 1));
  std::vector<double> seconds;
  nlohmann::ordered_json roots = nlohmann::ordered_json::array();
  float loss = 0;
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < windows.size(); ++i) {
      windows[i] = draws.word(static_cast<std::uint64_t>(step) * windows.size() + i) %
                   static_cast<std::uint32_t>(run.model.vocabulary);
    }
    const auto begin = std::chrono::steady_clock::now();
    const train::step_result result = runner.run(state, windows);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    loss = result.loss;
    roots.push_back({{"gradients", digest::hex(digest::state_root(result.gradients))},
                     {"parameters", digest::hex(digest::state_root(result.parameters))},
                     {"optimizer", digest::hex(digest::state_root(result.optimizer))}});
  }
  std::vector<double> warm(seconds.begin() + (steps > 2 ? 2 : 0), seconds.end());
  std::sort(warm.begin(), warm.end());
  const double median = warm[warm.size() / 2];
  const auto tokens = static_cast<double>(run.windows_at(0) * run.sequence);
  return {{"program", "open1b_step"},
          {"version", ORDO_BENCH_VERSION},
          {"space", space_type::name()},
          {"layers", run.model.layers},
          {"parameters", model::parameter_count(run.model)},
          {"master", run.master},
          {"tokens_per_step", tokens},
          {"seconds", seconds},
          {"median_seconds", median},
          {"tokens_per_second", tokens / median},
          {"device_gigabytes", static_cast<double>(device_bytes()) / 1e9},
          {"device_gigabytes_before", static_cast<double>(before) / 1e9},
          {"last_loss", loss},
          {"roots", roots}};
}

} // namespace

int main(int argc, char** argv) {
  if (argc > 4) {
    std::cerr << "usage: open1b_step [STEPS [LAYERS [master]]]\n";
    return 2;
  }
  const Kokkos::ScopeGuard kokkos;
  try {
    const int steps = argc > 1 ? std::stoi(argv[1]) : 7;
    const std::int64_t layers = argc > 2 ? std::stoll(argv[2]) : 24;
    require(steps > 0, "open1b_step", "nothing to do", "give a number of steps");
    std::cout << measure(open_1b(layers, argc > 3), steps).dump(2) << "\n";
  } catch (const std::exception& failure) {
    std::cerr << "open1b_step: " << failure.what() << "\n";
    return 2;
  }
}
