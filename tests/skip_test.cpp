// SPDX-License-Identifier: Apache-2.0
//
// What a skipped step does to Adam's step, the moments, the learning rate and the token count.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ordo/train/genesis.hpp>
#include <ordo/train/step.hpp>

namespace {

using space = Kokkos::DefaultHostExecutionSpace;
using namespace ordo::train;

constexpr std::uint64_t step_tokens = 2 * 16;

run_config tiny(const std::string& threshold, const std::string& master) {
  const std::vector<std::pair<std::string, std::string>> pairs = {{"model.layers", "1"},
                                                                  {"model.hidden", "32"},
                                                                  {"model.heads", "2"},
                                                                  {"model.kv_heads", "1"},
                                                                  {"model.head_dim", "16"},
                                                                  {"model.feed_forward", "32"},
                                                                  {"model.vocabulary", "50"},
                                                                  {"model.padded_vocabulary", "64"},
                                                                  {"model.window", "8"},
                                                                  {"data.sequence", "16"},
                                                                  {"mesh.micro_batch", "1"},
                                                                  {"mesh.replicas", "2"},
                                                                  {"mesh.accumulation", "1"},
                                                                  {"schedule.total_tokens", "1000"},
                                                                  {"schedule.warmup_tokens", "100"},
                                                                  {"schedule.peak_rate", "1e-2"},
                                                                  {"schedule.floor_rate", "1e-3"},
                                                                  {"optimizer.master", master},
                                                                  {"spike.threshold", threshold},
                                                                  {"spike.skipped", "2"}};
  return parse_config(pairs, "test");
}

std::vector<std::uint32_t> windows_of(std::uint64_t step) {
  std::vector<std::uint32_t> tokens(2 * 17);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::uint32_t>((i * i * 7 + 13 * i + 5 * step) % 50);
  return tokens;
}

template <class View>
View copy_of(const View& x) {
  View y("test::copy", x.extent(0));
  Kokkos::deep_copy(y, x);
  return y;
}

train_state<space> copy_of(const run_config& run, const train_state<space>& state) {
  train_state<space> copy(run);
  copy.parameters = copy_of(state.parameters);
  if (run.master)
    copy.master = copy_of(state.master);
  copy.first = copy_of(state.first);
  copy.second = copy_of(state.second);
  copy.at = state.at;
  return copy;
}

/// Roots of parameters, moments and master copy.
std::pair<std::string, std::string> roots(const train_state<space>& state) {
  const auto root = [](const std::vector<ordo::digest::tensor_ref>& tensors) {
    return ordo::digest::hex(
        ordo::digest::state_root(ordo::digest::tensor_roots<space>(space(), tensors)));
  };
  return {root(parameter_tensors(state)), root(optimizer_tensors(state))};
}

TEST_CASE("skipped steps leave no trace but tokens, windows and steps") {
  for (const std::string master : {"true", "false"}) {
    CAPTURE(master);
    // The first step is an event (any gradient exceeds the threshold), the second skipped with it.
    const run_config nervous = tiny("1e-6", master), calm = tiny("1e30", master);
    step_runner<space> first(space(), nervous), later(space(), calm);
    train_state<space> state(calm);
    initialise(space(), calm, state);
    const auto initial = roots(state);

    const step_result one = first.run(state, windows_of(1));
    CHECK(one.spike.event);
    CHECK(one.spike.skip);
    CHECK(one.norm > 1e-6f);
    CHECK(one.learning_rate == 0.0f); // the clock shows no token before the first step
    CHECK(state.at.step == 1);
    CHECK(state.at.tokens == step_tokens);
    CHECK(state.at.windows == 2);
    CHECK(state.at.adam_step == 0);
    CHECK(state.at.spikes.skips_left == 1);
    CHECK(roots(state) == initial);
    train_state<space> resumed = copy_of(calm, state);

    const step_result two = later.run(state, windows_of(2));
    CHECK(two.spike.skip);
    CHECK(!two.spike.event);
    CHECK(two.learning_rate == calm.schedule().at(step_tokens));
    CHECK(state.at.adam_step == 0);
    CHECK(roots(state) == initial);

    // A run that never had those steps, but whose counters say the same.
    train_state<space> fresh(calm);
    initialise(space(), calm, fresh);
    fresh.at = state.at;
    const step_result three = later.run(state, windows_of(3));
    CHECK(!three.spike.skip);
    CHECK(state.at.step == 3);
    CHECK(state.at.tokens == 3 * step_tokens);
    CHECK(state.at.adam_step == 1); // the first update: its bias correction is that of t = 1
    CHECK(three.learning_rate == calm.schedule().at(2 * step_tokens));
    CHECK(three.learning_rate > 0.0f);
    CHECK(roots(state).first != initial.first);
    CHECK(roots(state).second != initial.second);
    later.run(fresh, windows_of(3));
    CHECK(roots(fresh) == roots(state));

    // Resumed in the middle of the skipping, by another runner.
    step_runner<space> other(space(), calm);
    CHECK(other.run(resumed, windows_of(2)).spike.skip);
    other.run(resumed, windows_of(3));
    CHECK(resumed.at == state.at);
    CHECK(roots(resumed) == roots(state));
  }
}

TEST_CASE("a non-finite state is an event, whatever the threshold and the step") {
  const run_config run = tiny("1e30", "false");
  step_runner<space> runner(space(), run);
  train_state<space> state(run);
  initialise(space(), run, state);
  state.parameters(7) = ordo::bf16{0x7f80}; // infinity in the embedding of word 0
  const auto before = roots(state);
  const step_result r = runner.run(state, windows_of(0));
  CHECK(r.spike.event);
  CHECK(r.spike.skip);
  CHECK(state.at.adam_step == 0);
  CHECK(roots(state) == before);
  CHECK_THROWS_AS(runner.run(state, {}), ordo::error);
}

} // namespace
