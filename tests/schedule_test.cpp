// SPDX-License-Identifier: Apache-2.0
//
// Batch ramp, learning rate, spike protocol, configuration, and a skipped step.

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ordo/model/config.hpp>
#include <ordo/train/genesis.hpp>
#include <ordo/train/run_config.hpp>
#include <ordo/train/schedule.hpp>
#include <ordo/train/spike.hpp>
#include <ordo/train/step.hpp>

namespace {

using namespace ordo::train;
namespace arith = ordo::arith;

using pairs = std::vector<std::pair<std::string, std::string>>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// The published run.
pairs published_pairs() {
  return {{"model.layers", "24"},
          {"model.hidden", "2048"},
          {"model.heads", "16"},
          {"model.kv_heads", "4"},
          {"model.head_dim", "128"},
          {"model.feed_forward", "5632"},
          {"model.vocabulary", "128256"},
          {"model.padded_vocabulary", "128256"},
          {"model.window", "512"},
          {"model.full_every", "5"},
          {"model.rope_theta", "500000"},
          {"data.seed", "42"},
          {"data.sequence", "4096"},
          {"mesh.micro_batch", "4"},
          {"mesh.replicas", "6"},
          {"mesh.shards", "8"},
          {"mesh.accumulation", "4@4000000000,6@360000000000,12"},
          {"schedule.total_tokens", "400000000000"},
          {"schedule.warmup_tokens", "4000000000"},
          {"schedule.peak_rate", "4e-4"},
          {"schedule.floor_rate", "4e-5"},
          {"schedule.clock", "before"},
          {"optimizer.master", "true"},
          {"spike.threshold", "10"},
          {"spike.from_step", "2000"},
          {"spike.skipped", "5"},
          {"spike.halt_events", "3"},
          {"spike.halt_window", "1000"},
          {"run.checkpoint_every", "1000"}};
}

run_config published() {
  return parse_config(published_pairs(), "published");
}

/// The published run with one key changed or added.
run_config with(const std::string& key, const std::string& text) {
  pairs all = published_pairs();
  std::erase_if(all, [&](const auto& pair) { return pair.first == key; });
  all.emplace_back(key, text);
  return parse_config(all, "test");
}

/// "[section]" and "key = value" lines.
pairs read_ini(const std::string& path) {
  std::ifstream in(path);
  REQUIRE(in.good());
  pairs all;
  std::string line, section;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#')
      continue;
    if (line[0] == '[') {
      section = line.substr(1, line.find(']') - 1) + ".";
      continue;
    }
    const std::size_t sign = line.find(" = ");
    REQUIRE(sign != std::string::npos);
    all.emplace_back(section + line.substr(0, sign), line.substr(sign + 3));
  }
  return all;
}

std::map<std::string, std::string> texts(const run_config& run) {
  std::map<std::string, std::string> all;
  for_each_key(run, [&](const char* key, const auto& field, const char*) {
    CHECK(all.emplace(key, detail::to_text(field)).second);
  });
  return all;
}

TEST_CASE("the published batch schedule") {
  const run_config run = published();
  const std::uint64_t billion = 1000000000;
  const std::map<std::uint64_t, std::uint64_t> published_steps = {
      {10, 2544},   {50, 11021},  {100, 21617}, {150, 32214},
      {200, 42810}, {250, 53406}, {300, 64003}, {350, 74599}};
  std::map<std::uint64_t, std::uint64_t> reached, by_size;
  std::uint64_t tokens = 0, steps = 0, third_phase = 0;
  while (tokens < run.total_tokens) {
    const std::uint64_t size = run.windows_at(tokens) * run.sequence;
    if (size == 9437184 && third_phase == 0)
      third_phase = steps;
    ++by_size[size];
    tokens += size;
    ++steps;
    for (const auto& [mark, step] : published_steps)
      if (tokens >= mark * billion)
        reached.emplace(mark, steps);
  }
  CHECK(steps == 80957);
  CHECK(tokens == 400004481024);
  CHECK(by_size.size() == 3);
  CHECK(by_size[3145728] == 1272);
  CHECK(by_size[4718592] == 76718 - 1272);
  CHECK(by_size[9437184] == 80957 - 76718);
  CHECK(third_phase == 76718);
  CHECK(reached == published_steps);
}

TEST_CASE("the shipped configuration is the published one") {
  const std::string folder = std::string(ORDO_SOURCE_DIR) + "/trainer/configs/";
  CHECK(texts(parse_config(read_ini(folder + "open-1b.ini"), "file")) == texts(published()));
  CHECK_NOTHROW(parse_config(read_ini(folder + "demo.ini"), "file"));
  CHECK_NOTHROW(parse_config(read_ini(folder + "small.ini"), "file"));
}

TEST_CASE("the published model has 1.61 billion parameters") {
  const std::int64_t layer = 2 * 2048               // two gains
                             + 2 * 2048 * 2048      // queries, output
                             + 2 * (4 * 128) * 2048 // keys, values
                             + 3 * std::int64_t{5632} * 2048;
  CHECK(layer == 45092864);
  const std::int64_t total = 24 * layer + 2 * std::int64_t{128256} * 2048 + 2 * 2048;
  CHECK(total == 1607569408);
  const ordo::model::config model = published().model;
  CHECK(ordo::model::parameter_count(model) == total);
  std::set<std::string> names;
  std::int64_t offset = 0;
  for (const auto& t : ordo::model::tensors(model)) {
    CHECK(names.insert(t.name).second);
    CHECK(t.offset == offset);
    CHECK(t.decays == (t.name.find("norm") == std::string::npos));
    offset += t.size();
  }
  CHECK(offset == total);
  CHECK(names.size() == 4 + 24 * 9);
  std::vector<std::int64_t> full;
  for (std::int64_t layer_index = 0; layer_index < 24; ++layer_index)
    if (model.full_attention(layer_index))
      full.push_back(layer_index);
  CHECK(full == std::vector<std::int64_t>{4, 9, 14, 19, 23});
}

TEST_CASE("accumulation changes with the first step at or past the end of a phase") {
  const std::vector<batch_phase> ramp = {{100, 1}, {200, 3}, {300, 7}};
  CHECK(accumulation_at(ramp, 0) == 1);
  CHECK(accumulation_at(ramp, 99) == 1);
  CHECK(accumulation_at(ramp, 100) == 3);
  CHECK(accumulation_at(ramp, 199) == 3);
  CHECK(accumulation_at(ramp, 200) == 7);
  CHECK(accumulation_at(ramp, 300) == 7);
  CHECK(accumulation_at(ramp, UINT64_MAX) == 7);
  CHECK_THROWS_AS(accumulation_at({}, 0), ordo::error);
}

TEST_CASE("learning rate, bits computed with 400 bits of precision") {
  const learning_rate_schedule rate = published().schedule();
  const std::pair<std::uint64_t, std::uint32_t> expected[] = {
      {0, 0x00000000},
      {1, 0x29e12e13},
      {3145728, 0x34a8e28e},
      {3995074560, 0x39d174fc}, // step 1,271: two before the warm-up ends
      {3998220288, 0x39d19f34}, // step 1,272
      {3999999999, 0x39d1b717},
      {4000000000, 0x39d1b717}, // the peak
      {4000000001, 0x39d1b717},
      {4001366016, 0x39d1b717}, // step 1,273: the second phase
      {4006084608, 0x39d1b717},
      {202000000000, 0x3966afcd}, // half way: (peak + floor) / 2
      {359990820864, 0x384d7bff},
      {359995539456, 0x384d79bd}, // step 76,718, the last of the second phase
      {360000258048, 0x384d777b}, // step 76,719, the first of the third
      {360009695232, 0x384d72f7},
      {399985606656, 0x3827c5ad},
      {399995043840, 0x3827c5ac}, // step 80,957, the last
      {399999999999, 0x3827c5ac},
      {400000000000, 0x3827c5ac}, // the floor
      {400000000001, 0x3827c5ac},
      {400004481024, 0x3827c5ac},
      {UINT64_MAX, 0x3827c5ac}};
  for (const auto& at : expected) {
    CAPTURE(at.first);
    CHECK(arith::bits(rate.at(at.first)) == at.second);
  }
  CHECK(arith::bits(static_cast<float>(4e-4)) == 0x39d1b717u);
  learning_rate_schedule no_warmup{1.0, 0.5, 0, 10};
  CHECK(no_warmup.at(0) == 1.0f);
  CHECK(no_warmup.at(5) == 0.75f);
  CHECK(no_warmup.at(10) == 0.5f);
  // Rates too small for a normal number are zero in every floating-point mode.
  learning_rate_schedule tiny{0x1.8p-126, 0x1p-126, 10, 20};
  CHECK(arith::bits(tiny.at(5)) == 0u);
  CHECK(tiny.at(10) == 0x1.8p-126f);
  CHECK(arith::bits(tiny.at(20)) == 0u);
}

TEST_CASE("the cosine never rises and stays within peak and floor") {
  const learning_rate_schedule rate{3e-4, 3e-5, 1000, 1000000};
  float last = rate.at(1000);
  CHECK(last == static_cast<float>(3e-4));
  for (std::uint64_t tokens = 1000; tokens <= 1000000; tokens += 37) {
    const float now = rate.at(tokens);
    REQUIRE(now <= last);
    REQUIRE(now >= static_cast<float>(3e-5));
    last = now;
  }
}

// The spike protocol

const spike_rule rule{1.5f, 10, 5, 3, 100};

TEST_CASE("a spike is strictly above the threshold, and only from its step on") {
  const auto event = [](std::uint64_t step, float norm, float loss = 1.0f) {
    spike_state state;
    return decide_spike(rule, state, step, norm, loss).event;
  };
  CHECK(!event(10, 1.5f));
  CHECK(event(10, std::nextafter(1.5f, 2.0f)));
  CHECK(!event(9, 100.0f));
  CHECK(event(10, 100.0f));
  CHECK(!event(11, 1.0f, 1e30f)); // a large loss is none
  for (const float broken : {nan, -nan, infinity, -infinity}) {
    CHECK(event(1, broken));
    CHECK(event(1, 1.0f, broken));
    CHECK(event(20, broken, broken));
  }
}

TEST_CASE("an event skips five updates, its own included, and is not extended") {
  spike_state state;
  std::string skipped, events;
  for (std::uint64_t step = 1; step <= 30; ++step) {
    const bool high = step == 12 || step == 13 || step == 16 || step == 17 || step == 25;
    const spike_decision d = decide_spike(rule, state, step, high ? 2.0f : 1.0f, 1.0f);
    skipped += d.skip ? 'x' : '.';
    events += d.event ? 'e' : '.';
    CHECK(d.halt == (step == 25)); // the third event
    CHECK((!d.event || d.skip));
  }
  //                 123456789012345678901234567890
  CHECK(skipped == "...........xxxxxxxxxx...xxxxx.");
  CHECK(events == "...........e....e.......e.....");
}

TEST_CASE("non-finite values while steps are being skipped") {
  spike_state state;
  CHECK(decide_spike(rule, state, 50, 2.0f, 1.0f).event);
  for (std::uint64_t step = 51; step < 55; ++step) {
    const spike_decision d = decide_spike(rule, state, step, nan, infinity);
    CHECK(d.skip);
    CHECK(!d.event);
  }
  CHECK(decide_spike(rule, state, 55, nan, 1.0f).event); // still broken: a new event
}

TEST_CASE("a run halts by events within its window") {
  const auto halts = [](const spike_rule& r, std::vector<std::uint64_t> steps) {
    spike_state state;
    bool halt = false;
    for (std::uint64_t step = 1; step <= steps.back(); ++step) {
      const bool high = std::find(steps.begin(), steps.end(), step) != steps.end();
      halt = decide_spike(r, state, step, high ? 2.0f : 1.0f, 1.0f).halt;
    }
    return halt;
  };
  CHECK(halts(rule, {20, 60, 119})); // 20 ... 119: a hundred steps
  CHECK(!halts(rule, {20, 60, 120}));
  CHECK(!halts(rule, {20, 22, 24})); // spikes while skipping are no events
  spike_rule never = rule;
  never.halt_events = 0;
  CHECK(!halts(never, {20, 30, 40, 50, 60}));
  spike_rule always = rule;
  always.halt_window = UINT64_MAX; // the whole run
  CHECK(halts(always, {20, 3000, 90000}));
  spike_rule first = rule;
  first.halt_events = 1;
  spike_state state;
  const spike_decision d = decide_spike(first, state, 1, nan, 1.0f);
  CHECK(d.halt);
  CHECK(d.skip);
}

TEST_CASE("the protocol resumes from its state") {
  for (std::uint64_t cut = 1; cut < 60; ++cut) {
    spike_state whole, resumed;
    for (std::uint64_t step = 1; step <= 60; ++step) {
      if (step == cut)
        resumed = whole;
      const float norm = step % 13 == 0 ? 3.0f : 1.0f;
      const spike_decision d = decide_spike(rule, whole, step, norm, 1.0f);
      if (step < cut)
        continue;
      const spike_decision e = decide_spike(rule, resumed, step, norm, 1.0f);
      REQUIRE(d.skip == e.skip);
      REQUIRE(d.event == e.event);
      REQUIRE(d.halt == e.halt);
    }
    REQUIRE(whole == resumed);
  }
}

// Scalars of an update

TEST_CASE("bias corrections, bits computed with 400 bits of precision") {
  const run_config run = published();
  const std::pair<std::uint64_t, std::pair<std::uint32_t, std::uint32_t>> expected[] = {
      {1, {0x41200000, 0x41a00000}},    {2, {0x40a86bca, 0x41241a42}},
      {3, {0x406c2991, 0x40e05d56}},    {10, {0x3fc48605, 0x401f7f12}},
      {100, {0x3f8000df, 0x3f80c329}},  {1000, {0x3f800000, 0x3f800000}},
      {80957, {0x3f800000, 0x3f800000}}};
  for (const auto& update : expected) {
    CAPTURE(update.first);
    const auto s = adamw_scalars_of(run, update.first, 0.25f, 0.5f);
    CHECK(arith::bits(s.inverse_bias1) == update.second.first);
    CHECK(arith::bits(s.inverse_bias2) == update.second.second);
    CHECK(s.learning_rate == 0.25f);
    CHECK(s.clip == 0.5f);
    CHECK(arith::bits(s.one_minus_beta1) == 0x3dcccccdu);
    CHECK(arith::bits(s.one_minus_beta2) == 0x3d4ccccdu);
    CHECK(s.beta1 == 0.9f);
    CHECK(s.epsilon == 1e-8f);
    CHECK(s.weight_decay == 0.1f);
  }
}

// The configuration

/// A text for each key that differs from its default.
const std::map<std::string, std::string>& other_texts() {
  static const std::map<std::string, std::string> all = {{"model.layers", "3"},
                                                         {"model.hidden", "96"},
                                                         {"model.heads", "6"},
                                                         {"model.kv_heads", "2"},
                                                         {"model.head_dim", "48"},
                                                         {"model.feed_forward", "80"},
                                                         {"model.vocabulary", "300"},
                                                         {"model.padded_vocabulary", "304"},
                                                         {"model.window", "7"},
                                                         {"model.full_every", "2"},
                                                         {"model.rope_theta", "10000"},
                                                         {"model.norm_epsilon", "1e-6"},
                                                         {"model.initial_std", "0.01"},
                                                         {"model.linear", "binary32"},
                                                         {"model.weight_steps", "largest"},
                                                         {"data.seed", "18446744073709551615"},
                                                         {"data.sequence", "64"},
                                                         {"mesh.micro_batch", "3"},
                                                         {"mesh.replicas", "2"},
                                                         {"mesh.shards", "5"},
                                                         {"mesh.accumulation", "2@100,4@200,8"},
                                                         {"schedule.total_tokens", "1000"},
                                                         {"schedule.warmup_tokens", "10"},
                                                         {"schedule.peak_rate", "1e-3"},
                                                         {"schedule.floor_rate", "1e-5"},
                                                         {"schedule.clock", "after"},
                                                         {"optimizer.master", "true"},
                                                         {"optimizer.beta1", "0.8"},
                                                         {"optimizer.beta2", "0.99"},
                                                         {"optimizer.epsilon", "1e-7"},
                                                         {"optimizer.weight_decay", "0.2"},
                                                         {"optimizer.max_norm", "2"},
                                                         {"optimizer.z_loss", "0"},
                                                         {"spike.threshold", "12.5"},
                                                         {"spike.from_step", "100"},
                                                         {"spike.skipped", "4"},
                                                         {"spike.halt_events", "2"},
                                                         {"spike.halt_window", "50"},
                                                         {"run.checkpoint_every", "7"}};
  return all;
}

TEST_CASE("every key is read, printed and read again") {
  const auto& other = other_texts();
  const run_config run = parse_config(other, "test");
  CHECK(texts(run) == other); // for_each_key has exactly these keys
  const std::map<std::string, std::string> defaults = texts(run_config());
  for (const auto& pair : other) {
    CAPTURE(pair.first);
    CHECK(defaults.at(pair.first) != pair.second);
  }
  CHECK(texts(parse_config(texts(run), "again")) == other);
  CHECK(to_json(run).size() == other.size());
  // Every field has a key: this does not compile when a field comes or goes.
  const auto& [model, linear, weight_steps, theta, norm_epsilon, deviation, seed, sequence,
               micro_batch, replicas, shards, ramp, total, warmup, peak, floor, clock, master,
               beta1, beta2, epsilon, decay, max_norm, z_loss, threshold, from, skipped, events,
               window, every] = run;
  const auto& [layers, hidden, heads, kv_heads, head_dim, feed_forward, vocabulary, padded,
               keys_seen, full_every] = model;
  CHECK(other.size() == 29 + 10);
  CHECK(layers == 3);
  CHECK(full_every == 2);
  CHECK(every == 7);
  CHECK(window == 50);
  CHECK(seed == UINT64_MAX);
  CHECK(master);
  CHECK(clock == schedule_clock::after);
  CHECK(linear == ordo::nn::linear_kind::binary32);
  CHECK(weight_steps == ordo::quant::step_rule::largest_magnitude);
  CHECK(ramp == std::vector<batch_phase>{{100, 2}, {200, 4}, {UINT64_MAX, 8}});
  // Through a genesis record.
  const json genesis = make_genesis(run, "tokenizer", "corpus", {}, {});
  CHECK(texts(config_of(genesis, "genesis")) == other);
  json later = genesis;
  later["contract"] = 2;
  CHECK_THROWS_WITH_AS(config_of(later, "genesis"), doctest::Contains("contract 2"), ordo::error);
  json damaged = genesis;
  damaged["configuration"]["model.layers"] = 3;
  CHECK_THROWS_WITH_AS(config_of(damaged, "genesis"), doctest::Contains("model.layers"),
                       ordo::error);
  damaged = genesis;
  damaged["configuration"].erase("model.layers");
  CHECK_THROWS_WITH_AS(config_of(damaged, "genesis"), doctest::Contains("model.layers"),
                       ordo::error);
}

TEST_CASE("unknown keys are refused, naming those that exist") {
  CHECK_THROWS_WITH_AS(with("model.layer", "3"), doctest::Contains("unknown key 'model.layer'"),
                       ordo::error);
  CHECK_THROWS_WITH_AS(with("model.layer", "3"), doctest::Contains("run.checkpoint_every"),
                       ordo::error);
  CHECK_THROWS_WITH_AS(with("", "3"), doctest::Contains("unknown key ''"), ordo::error);
}

TEST_CASE("impossible values are refused, naming the key") {
  const std::pair<const char*, std::vector<const char*>> wrong[] = {
      {"model.layers", {"0", "-1", "x", "", "1.5", "99999999999999999999", "16777216", "3 "}},
      {"model.hidden", {"0", "133121"}},
      {"model.heads", {"0", "6", "4096"}},
      {"model.kv_heads", {"0", "3", "32"}},
      {"model.head_dim", {"0", "8", "24", "272"}},
      {"model.feed_forward", {"0", "66561"}},
      {"model.vocabulary", {"0", "128257"}},
      {"model.padded_vocabulary", {"0", "128255", "133121"}},
      {"model.window", {"0", "-5"}},
      {"model.full_every", {"-1"}},
      {"model.rope_theta", {"0", "1", "1e20", "nan", "x", "-5"}},
      {"model.norm_epsilon", {"0", "-1e-5", "1e-40", "1e-21", "inf"}},
      {"model.initial_std", {"0", "-1", "1e-46"}},
      {"model.linear", {"int4", "", "INT8"}},
      {"model.weight_steps", {"median"}},
      {"data.seed", {"-1", "18446744073709551616", "0x1"}},
      {"data.sequence", {"0", "1048577", "40000"}},
      {"mesh.micro_batch", {"0", "65537", "33"}},
      {"mesh.replicas", {"0", "65537"}},
      {"mesh.shards", {"0", "65537"}},
      {"mesh.accumulation",
       {"", "x", "4@", "@4", "4@100,", ",4", "4@100@200", "4@x", "6,4@100", "4@200,6@100",
        "4@100,6@100", "0", "4@100,0", "-4", "1000000000"}},
      {"schedule.total_tokens", {"0", "4503599627370497", "4000000000"}},
      {"schedule.warmup_tokens", {"-1", "400000000000"}},
      {"schedule.peak_rate", {"0", "-1", "1e-50", "1e30", "four"}},
      {"schedule.floor_rate", {"-1e-5", "1e-3"}},
      {"schedule.clock", {"during"}},
      {"optimizer.master", {"yes", "1", ""}},
      {"optimizer.beta1", {"1", "-0.1", "0.99999999999"}},
      {"optimizer.beta2", {"1", "2", "-0.1"}},
      {"optimizer.epsilon", {"0", "-1", "1e-40"}},
      {"optimizer.weight_decay", {"-0.1", "1e39"}},
      {"optimizer.max_norm", {"0", "-1", "1e39"}},
      {"optimizer.z_loss", {"-1", "1e39"}},
      {"spike.threshold", {"0", "-1", "1e39", "1e400"}},
      {"spike.from_step", {"-1", "x"}},
      {"spike.skipped", {"0", "-1"}},
      {"spike.halt_events", {"-1"}},
      {"spike.halt_window", {"0", "-1"}},
      {"run.checkpoint_every", {"0", "4294967296"}}};
  std::set<std::string> tried;
  for (const auto& each : wrong) {
    const std::string key = each.first, last = key.substr(key.find('.') + 1);
    tried.insert(key);
    for (const char* const value : each.second) {
      INFO(key << " = '" << value << "'");
      CHECK_THROWS_WITH_AS(with(key, value), doctest::Contains(last.c_str()), ordo::error);
    }
  }
  CHECK(tried.size() == other_texts().size());
  // The edges of what is possible.
  // The sliced head multiplies hidden x vocabulary: K may be at most 132,104 (gemm_sliced.hpp).
  CHECK_NOTHROW(with("model.hidden", "132104"));
  CHECK_THROWS_WITH_AS(with("model.hidden", "132105"), doctest::Contains("hidden"), ordo::error);
  CHECK_NOTHROW(with("model.feed_forward", "66560"));
  CHECK_NOTHROW(with("mesh.micro_batch", "32"));
  CHECK_NOTHROW(with("model.full_every", "0"));
  CHECK_NOTHROW(with("optimizer.beta1", "0"));
  CHECK_NOTHROW(with("schedule.warmup_tokens", "0"));
}

} // namespace
