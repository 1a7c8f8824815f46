// SPDX-License-Identifier: Apache-2.0
// ctest: THREADS 1 2 3 7

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include <ordo/audit/conformance_expected.hpp>
#include <ordo/audit/replay.hpp>
#include <ordo/reference/adamw.hpp>
#include <ordo/reference/norm.hpp>
#include <ordo/reference/tree_fold.hpp>

#include "../trainer/corpus_builder.hpp"
#include "devices.hpp"
#include "model_oracle.hpp"

using namespace ordo;

namespace {

using tensors = std::map<std::string, std::vector<float>>;

std::vector<const instances::device*> devices() {
  std::vector<const instances::device*> all{&instances::serial()};
#if defined(KOKKOS_ENABLE_OPENMP)
  all.push_back(&instances::openmp());
#endif
  return all;
}

/// A folder for one test, removed at its end.
struct scratch {
  std::filesystem::path path = std::filesystem::path(ORDO_BINARY_DIR) / "tests" /
                               ("audit_test-" + std::to_string(::getpid()));
  scratch() {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

/// Words by a fixed rule, a paragraph a document.
std::shared_ptr<const data::corpus> make_corpus(const scratch& folder) {
  std::string text;
  std::uint32_t word = 1;
  for (int i = 0; i < 3000; ++i) {
    word = word * 1664525u + 1013904223u;
    for (std::uint32_t n = word >> 29, letters = word; n-- > 0; letters >>= 4) {
      text += static_cast<char>('a' + letters % 11);
    }
    text += word >> 20 & 31 ? " " : "\n\n";
  }
  std::ofstream(folder.path / "text.txt") << text;
  program::build_request request;
  request.sources = {{"words", "1", {folder.path / "text.txt"}}};
  request.split_blank_lines = true;
  program::build_corpus(request, data::tokenizer(), folder.path / "corpus");
  return std::make_shared<const data::corpus>(folder.path / "corpus");
}

train::run_config tiny() {
  train::run_config run;
  run.model = {2, 32, 2, 1, 16, 64, 257, 272, 12, 5};
  run.seed = 3;
  run.sequence = 24;
  run.micro_batch = 2;
  run.ramp = {{UINT64_MAX, 1}};
  run.total_tokens = 1 << 20;
  run.peak_rate = train::decimal("1e-3");
  run.floor_rate = train::decimal("1e-3");
  run.check();
  return run;
}

/// A run whose parameters stand still, and whose first moments are the gradients themselves.
train::run_config still(train::run_config run) {
  run.peak_rate = run.floor_rate = train::decimal("1e-30");
  run.weight_decay = train::decimal("0");
  run.beta1 = train::decimal("0");
  run.max_norm = train::decimal("1e30");
  run.check();
  return run;
}

/// All tensors of a checkpoint's file whose names begin with `prefix`, under the rest of the name.
tensors read(const std::filesystem::path& file, const std::string& prefix) {
  tensors all;
  io::safetensors_reader reader(file);
  for (const auto& entry : reader.tensors()) {
    if (entry.name.rfind(prefix, 0) != 0)
      continue;
    std::uint64_t n = 1;
    for (const std::uint64_t extent : entry.shape)
      n *= extent;
    std::vector<float>& values = all[entry.name.substr(prefix.size())];
    values.resize(n);
    if (entry.type == digest::dtype::f32) {
      reader.read(entry.name, std::as_writable_bytes(std::span(values)));
    } else {
      std::vector<bf16> narrow(n);
      reader.read(entry.name, std::as_writable_bytes(std::span(narrow)));
      std::transform(narrow.begin(), narrow.end(), values.begin(),
                     [](bf16 x) { return arith::to_f32(x); });
    }
  }
  return all;
}

struct saved {
  tensors parameters, first, second, master;
};

/// What the driver's state is, by way of a checkpoint.
saved state_of(train::driver& driver, const scratch& folder) {
  const std::filesystem::path all = folder.path / "states";
  std::filesystem::remove_all(all);
  driver.save(all, {}, {});
  const std::filesystem::path at = all / train::step_name(driver.at().step);
  return {read(at / "model.safetensors", ""), read(at / "optimizer.safetensors", "exp_avg."),
          read(at / "optimizer.safetensors", "exp_avg_sq."),
          read(at / "optimizer.safetensors", "master.")};
}

bool same_bits(const tensors& a, const tensors& b) {
  if (a.size() != b.size())
    return false;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size() ||
        std::memcmp(values.data(), other->second.data(), 4 * values.size()) != 0) {
      return false;
    }
  }
  return true;
}

/// Entry by entry, a = combine(a, b).
template <class Combine>
void combine(tensors& a, const tensors& b, const Combine& with) {
  for (auto& [name, values] : a) {
    const std::vector<float>& other = b.at(name);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = with(values[i], other[i]);
  }
}
void add(tensors& a, const tensors& b) {
  combine(a, b, [](float x, float y) { return arith::add(x, y); });
}
void scale(tensors& a, float factor) {
  combine(a, a, [factor](float x, float) { return arith::mul(x, factor); });
}

std::uint64_t count_of(const tensors& all) {
  std::uint64_t n = 0;
  for (const auto& [name, values] : all)
    n += values.size();
  return n;
}

} // namespace

TEST_CASE("every device computes the contract") {
  const auto& expected = audit::expected_conformance();
  REQUIRE(!expected.empty());
  for (const instances::device* device : devices()) {
    const auto lines = device->conformance();
    REQUIRE(lines.size() == expected.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      CAPTURE(device->name);
      CAPTURE(lines[i].name);
      CHECK(lines[i].name == expected[i].name);
      CHECK(lines[i].sizes == expected[i].sizes);
      CHECK(digest::hex(lines[i].hash) == digest::hex(expected[i].hash));
    }
    CHECK(audit::conformance_digest(lines) == audit::conformance_digest(expected));
  }
  // The digest sees each part of each line.
  auto other = expected;
  other.back().sizes += " ";
  CHECK(audit::conformance_digest(other) != audit::conformance_digest(expected));
  other = expected;
  other.front().hash[31] ^= 1;
  CHECK(audit::conformance_digest(other) != audit::conformance_digest(expected));
}

TEST_CASE("devices advance alike") {
  const scratch folder;
  const auto corpus = make_corpus(folder);
  for (const auto linear : {nn::linear_kind::int8, nn::linear_kind::binary32}) {
    train::run_config run = tiny();
    run.linear = linear;
    run.shards = 2;
    run.replicas = 3;
    run.master = linear == nn::linear_kind::int8;
    std::vector<std::string> reports;
    for (const instances::device* device : devices()) {
      const auto driver = device->make_driver(run, corpus);
      driver->initialise();
      digest::hash256 previous{};
      std::string report;
      for (int step = 0; step < 3; ++step) {
        const train::advanced result = driver->advance(previous);
        report += io::canonical_json(result.record) + io::canonical_json(result.commitments);
        previous = train::root_of(result.record);
        CHECK(result.tokens == 6 * 2 * run.sequence);
      }
      reports.push_back(report);
    }
    for (const std::string& report : reports)
      CHECK(report == reports.front());
  }
}

TEST_CASE("a mesh's gradient is the stated fold of its micro-batches") {
  const scratch folder;
  const auto corpus = make_corpus(folder);
  train::run_config single = still(tiny()), mesh = single;
  mesh.replicas = 3;
  mesh.shards = 2;
  mesh.ramp = {{UINT64_MAX, 2}};

  // One micro-batch a step, parameters standing still: twelve gradients, each for the mean over 48
  // tokens, where the mesh's micro-batches count half of that. Halving is exact.
  const auto one = instances::serial().make_driver(single, corpus);
  one->initialise();
  const auto initial = one->parameter_roots();
  std::vector<tensors> micro_batch;
  for (int i = 0; i < 12; ++i) {
    one->advance({});
    micro_batch.push_back(state_of(*one, folder).first);
    scale(micro_batch.back(), 0.5f);
  }
  CHECK(digest::state_root(one->parameter_roots()) == digest::state_root(initial));

  const auto many = instances::serial().make_driver(mesh, corpus);
  many->initialise();
  const train::advanced step = many->advance({});
  const tensors got = state_of(*many, folder).first;

  const auto fold = [&](bool shards_ascending, bool tree) {
    std::vector<tensors> replicas;
    for (std::uint64_t r = 0; r < 3; ++r) {
      std::vector<tensors> shards;
      for (std::uint64_t s = 0; s < 2; ++s) {
        // Window = ((accumulation * replicas + replica) * shards + shard) * micro_batch + slot.
        tensors rank = micro_batch[r * 2 + s];
        add(rank, micro_batch[6 + r * 2 + s]);
        shards.push_back(rank);
      }
      if (!shards_ascending)
        std::swap(shards[0], shards[1]);
      add(shards[0], shards[1]);
      scale(shards[0], 0.5f);
      replicas.push_back(shards[0]);
    }
    if (!tree)
      std::swap(replicas[0], replicas[2]);
    tensors sum;
    for (const auto& [name, values] : replicas[0]) {
      std::vector<std::vector<float>> ranks;
      for (const tensors& replica : replicas)
        ranks.push_back(replica.at(name));
      sum[name] = reference::tree_fold(ranks);
    }
    scale(sum, static_cast<float>(1.0 / 3.0));
    return sum;
  };
  CHECK(same_bits(fold(true, true), got));
  CHECK(same_bits(fold(false, true), got));       // two addends: addition commutes
  CHECK_FALSE(same_bits(fold(true, false), got)); // three do not: the comparison can fail

  // The plain sum of all twelve, as an order-blind reduction would take it.
  tensors plain = micro_batch[0];
  for (std::size_t i = 1; i < micro_batch.size(); ++i)
    add(plain, micro_batch[i]);
  scale(plain, static_cast<float>(1.0 / 6.0));
  CHECK_FALSE(same_bits(plain, got));

  CHECK(step.result.norm == reference::global_norm(got));
  CHECK(step.result.clip == 1.0f);
  CHECK(step.result.microbatch_roots.size() == 12);
}

TEST_CASE("the update of a step is AdamW's") {
  const scratch folder;
  const auto corpus = make_corpus(folder);
  for (const bool master : {false, true}) {
    train::run_config run = tiny(), observed = still(tiny());
    run.master = observed.master = master;
    run.max_norm = train::decimal("0.25");
    const auto watch = instances::serial().make_driver(observed, corpus);
    watch->initialise();
    watch->advance({});
    const tensors gradient = state_of(*watch, folder).first;
    const auto driver = instances::serial().make_driver(run, corpus);
    driver->initialise();
    const saved before = state_of(*driver, folder);
    const train::advanced step = driver->advance({});
    const saved after = state_of(*driver, folder);
    const float norm = reference::global_norm(gradient);
    CHECK(step.result.norm == norm);
    CHECK(step.result.clip == arith::div(0.25f, arith::add(norm, 1e-6f)));
    CHECK(step.result.clip < 1.0f);
    optim::adamw_scalars scalars = train::adamw_scalars_of(run, 1, 1e-3f, step.result.clip);
    CHECK(step.result.learning_rate == 1e-3f);
    std::uint64_t wrong = 0, compared = 0;
    for (const auto& [name, g] : gradient) {
      scalars.weight_decay = name.find("norm") == std::string::npos ? 0.1f : 0.0f;
      for (std::size_t i = 0; i < g.size(); ++i) {
        const float from = master ? before.master.at(name)[i] : before.parameters.at(name)[i];
        const auto e = reference::adamw(scalars, {from, 0.0f, 0.0f}, g[i]);
        wrong += e.first != after.first.at(name)[i] || e.second != after.second.at(name)[i];
        wrong += arith::to_f32(arith::to_bf16(e.parameter)) != after.parameters.at(name)[i];
        if (master)
          wrong += e.parameter != after.master.at(name)[i];
        ++compared;
      }
    }
    CHECK(compared == static_cast<std::uint64_t>(model::parameter_count(run.model)));
    CHECK(wrong == 0);
  }
}

TEST_CASE("a step's gradient is the derivative of the loss") {
  const scratch folder;
  const auto corpus = make_corpus(folder);
  struct kind {
    nn::linear_kind linear;
    double most; ///< relative error of a tensor's gradient
  };
  for (const kind& k : {kind{nn::linear_kind::binary32, 0.02}, kind{nn::linear_kind::int8, 0.06}}) {
    train::run_config run = still(tiny());
    run.linear = k.linear;
    run.micro_batch = 1;
    // Steps by the largest magnitude clip nothing, so that the straight-through gradient is meant
    // to be that of the real product.
    run.weight_steps = quant::step_rule::largest_magnitude;
    const auto driver = instances::serial().make_driver(run, corpus);
    driver->initialise();
    oracle::model exact{run, {}};
    const saved start = state_of(*driver, folder);
    for (const auto& [name, values] : start.parameters) {
      exact.weights[name].assign(values.begin(), values.end());
    }
    data::window_stream stream(*corpus, run.seed, run.sequence);
    std::vector<std::uint32_t> window(run.sequence + 1);
    stream.next(window);
    const train::advanced step = driver->advance({});
    const double tokens = static_cast<double>(run.sequence);
    CHECK(step.result.loss == doctest::Approx(exact.loss(window) / tokens).epsilon(0.01));
    const tensors gradient = state_of(*driver, folder).first;
    CHECK(count_of(gradient) == static_cast<std::uint64_t>(model::parameter_count(run.model)));

    for (const auto& entry : gradient) {
      const std::string& name = entry.first;
      const std::vector<float>& g = entry.second;
      double norm = 0, errors = 0;
      for (const float x : g)
        norm += static_cast<double>(x) * x;
      REQUIRE(norm > 0);
      constexpr int directions = 6;
      const oracle::vec at = exact.weights[name];
      const double h = 1e-4;
      std::uint64_t random = 88172645463325252u;
      for (int i = 0; i < directions; ++i) {
        // A direction of +-1: its product with the error is about as large as the error's norm.
        std::vector<double> r(g.size());
        double said = 0;
        for (std::size_t e = 0; e < g.size(); ++e) {
          random ^= random << 13;
          random ^= random >> 7;
          random ^= random << 17;
          r[e] = random >> 63 ? 1 : -1;
          said += r[e] * g[e];
        }
        const auto loss_at = [&](double distance) {
          for (std::size_t e = 0; e < at.size(); ++e)
            exact.weights[name][e] = at[e] + distance * r[e];
          return exact.loss(window) / tokens;
        };
        const double derivative = (loss_at(h) - loss_at(-h)) / (2 * h);
        errors += (said - derivative) * (said - derivative);
      }
      exact.weights[name] = at;
      CAPTURE(name);
      CHECK(std::sqrt(errors / directions / norm) < k.most);
    }
  }
}

TEST_CASE("spikes skip updates and halt a run after its record") {
  const scratch folder;
  const auto corpus = make_corpus(folder);
  train::run_config run = tiny();
  run.spike_threshold = train::decimal("1e-20"); // every step is above it
  run.spike_from = 3;
  run.spike_skipped = 2;
  run.spike_halt_events = 2;
  run.spike_halt_window = 4;
  run.check();
  for (const instances::device* device : devices()) {
    const auto driver = device->make_driver(run, corpus);
    driver->initialise();
    std::vector<std::string> parameters{digest::hex(digest::state_root(driver->parameter_roots()))};
    std::vector<std::string> optimizer{digest::hex(digest::state_root(driver->optimizer_roots()))};
    struct expected {
      bool event, skip, halt;
      std::uint64_t skips_left, adam_step;
    };
    // Two updates, an event that skips two steps, then the second event within four steps.
    const expected steps[] = {{false, false, false, 0, 1},
                              {false, false, false, 0, 2},
                              {true, true, false, 1, 2},
                              {false, true, false, 0, 2},
                              {true, true, true, 1, 2}};
    std::uint64_t number = 0;
    for (const expected& e : steps) {
      ++number;
      CAPTURE(number);
      const train::advanced step = driver->advance({});
      CHECK(step.result.spike.event == e.event);
      CHECK(step.result.spike.skip == e.skip);
      CHECK(step.result.spike.halt == e.halt);
      CHECK(driver->at().spikes.skips_left == e.skips_left);
      CHECK(driver->at().adam_step == e.adam_step);
      CHECK(driver->at().step == number);
      CHECK(driver->at().tokens == number * step.tokens);
      CHECK(step.record.at("adam_step") == e.adam_step);
      parameters.push_back(step.record.at("parameter_root").get<std::string>());
      optimizer.push_back(step.record.at("optimizer_root").get<std::string>());
      CHECK((parameters[number] == parameters[number - 1]) == e.skip);
      CHECK((optimizer[number] == optimizer[number - 1]) == e.skip);
    }
  }
}

TEST_CASE("a state saved in the middle of skipping goes on alike") {
  const scratch folder;
  const auto corpus = make_corpus(folder);
  train::run_config run = tiny();
  run.spike_threshold = train::decimal("1e-20");
  run.spike_from = 2;
  run.spike_skipped = 3;
  run.spike_halt_events = 3;
  run.spike_halt_window = 100;
  run.master = true;
  run.ramp = {{240, 1}, {UINT64_MAX, 3}};
  const digest::hash256 genesis = digest::sha256_of(std::string_view("genesis"));
  const auto whole = instances::serial().make_driver(run, corpus);
  whole->initialise();
  std::vector<std::string> records;
  for (int i = 0; i < 9; ++i) {
    const auto step = whole->advance({});
    records.push_back(io::canonical_json(step.record));
    whole->save(folder.path / "checkpoints", genesis, train::root_of(step.record));
  }
  CHECK(whole->at().spikes.event_steps == std::vector<std::uint64_t>{2, 5, 8});
  for (std::uint64_t from = 1; from < 9; ++from) {
    const auto& device = *devices().at(from % devices().size());
    const auto driver = device.make_driver(run, corpus);
    driver->load(folder.path / "checkpoints", from, genesis);
    for (std::uint64_t step = from; step < 9; ++step) {
      CHECK(io::canonical_json(driver->advance({}).record) == records[step]);
    }
    CHECK(driver->at() == whole->at());
  }
  // Not as another step, nor for another run.
  const auto driver = instances::serial().make_driver(run, corpus);
  std::filesystem::rename(folder.path / "checkpoints" / "step-000009",
                          folder.path / "checkpoints" / "step-000000");
  CHECK_THROWS_WITH_AS(driver->load(folder.path / "checkpoints", 0, genesis),
                       doctest::Contains("the folder says step 0, the checkpoint step 9"), error);
  CHECK_THROWS_WITH_AS(driver->load(folder.path / "checkpoints", 4, {}),
                       doctest::Contains("belongs to another run"), error);
}

TEST_CASE("records that differ are told by their first field") {
  train::json a = {{"step", 1}, {"loss", "40000000"}, {"norm", "3f800000"}, {"previous", "00"}};
  train::json b = a;
  CHECK(train::first_difference(a, b).empty());
  b["previous"] = "01";
  CHECK(train::first_difference(a, b) == "previous");
  b["norm"] = "3f800001";
  CHECK(train::first_difference(a, b) == "norm");
  b["loss"] = 2;
  CHECK(train::first_difference(a, b) == "loss");
  b = a;
  b.erase("norm");
  CHECK(train::first_difference(a, b) == "norm");
  CHECK(train::first_difference(b, a) == "norm");
  b = a;
  b["surplus"] = nullptr;
  CHECK(train::first_difference(a, b) == "surplus");
  CHECK(train::first_difference(b, a) == "surplus");
}
