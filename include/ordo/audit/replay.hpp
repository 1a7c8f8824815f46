// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Replaying recorded steps, and naming what differs.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ordo/train/driver.hpp>
#include <ordo/train/run_directory.hpp>

namespace ordo::audit {

using train::json;

/// Where a replay parts from the records: the step, the record's field, the tensors, the roots.
struct difference {
  std::uint64_t step = 0;
  std::string field;                ///< first of train::record_fields, or a file
  std::vector<std::string> tensors; ///< whose roots differ, in name order; or micro-batch numbers
  std::string expected, found;      ///< roots
  std::string meaning;              ///< a sentence for people
};

/// Outcome of a replay: the last step that agreed and its root, or the first difference.
struct replay_result {
  std::uint64_t step = 0;
  digest::hash256 root{};
  std::optional<difference> differs;
};

namespace detail {

/// What a differing field points to.
inline std::string meaning_of(const std::string& field) {
  if (field == "batch_root")
    return "the step was not trained on the windows of this corpus";
  if (field == "windows" || field == "tokens" || field == "cursor") {
    return "the step did not take its place in the stream";
  }
  if (field == "learning_rate")
    return "the learning rate is not the schedule's";
  if (field == "microbatch_root")
    return "the gradient of a micro-batch came out different";
  if (field == "gradient_root")
    return "the reduction of the gradients came out different";
  if (field == "loss")
    return "the loss came out different";
  if (field == "norm" || field == "clip")
    return "the gradient norm or its clipping came out different";
  if (field == "spike" || field == "adam_step")
    return "the spike rule was not followed";
  if (field == "parameter_root" || field == "optimizer_root") {
    return "the optimizer update came out different";
  }
  return "the record came out different";
}

/// Names whose roots differ between two commitment objects.
inline std::vector<std::string> differing_names(const json& a, const json& b) {
  std::vector<std::string> names;
  if (!a.is_object() || !b.is_object())
    return names;
  for (const auto& [name, root] : a.items()) {
    const auto other = b.find(name);
    if (other == b.end() || *other != root)
      names.push_back(name);
  }
  return names;
}

/// The tensors or micro-batches behind a differing field, where commitments were kept.
inline std::vector<std::string> localise(const std::string& field, const std::optional<json>& kept,
                                         const json& found) {
  if (!kept || !kept->is_object())
    return {};
  const auto part = [&](const json& from, const char* key) { return from.value(key, json()); };
  const char* const key = field == "gradient_root"    ? "gradients"
                          : field == "parameter_root" ? "parameters"
                          : field == "optimizer_root" ? "optimizer"
                                                      : nullptr;
  if (key != nullptr)
    return differing_names(part(*kept, key), part(found, key));
  std::vector<std::string> numbers;
  if (field == "microbatch_root") {
    const json a = part(*kept, "microbatches"), b = part(found, "microbatches");
    for (std::size_t i = 0; a.is_array() && b.is_array() && i < std::min(a.size(), b.size()); ++i) {
      if (a[i] != b[i])
        numbers.push_back("micro-batch " + std::to_string(i));
    }
  }
  return numbers;
}

/// Compares the state with the roots in the record of its step (the genesis for step 0).
inline std::optional<difference> compare_state(const train::run_directory& run,
                                               train::driver& driver, std::uint64_t step) {
  const json said = step == 0 ? run.genesis() : run.record(step);
  const auto kept = step == 0 ? std::optional<json>() : run.commitments(step);
  const auto check =
      [&](const char* field, const char* part,
          const std::vector<digest::named_root>& roots) -> std::optional<difference> {
    const std::string found = digest::hex(digest::state_root(roots));
    const std::string expected = digest::hex(
        io::get_hash(said, field, run.path().string() + ", step " + std::to_string(step)));
    if (found == expected)
      return std::nullopt;
    json names = json::object();
    for (const digest::named_root& r : roots)
      names[r.name] = digest::hex(r.root);
    return difference{step,
                      field,
                      localise(field, kept, {{part, names}}),
                      expected,
                      found,
                      step == 0 ? "the initial state is not the one the seed gives"
                                : "the checkpoint is not the state that the record commits to"};
  };
  if (auto d = check("parameter_root", "parameters", driver.parameter_roots()))
    return d;
  return check("optimizer_root", "optimizer", driver.optimizer_roots());
}

} // namespace detail

/// Brings `driver` to the state after `step`: from the nearest checkpoint at or before it, or from
/// the seed, and checks that state against the records. Returns the difference if there is one.
/// A checkpoint of step 0 has to be what the seed gives.
inline std::optional<difference> load_nearest(const train::run_directory& run,
                                              train::driver& driver, std::uint64_t step,
                                              std::uint64_t& loaded) {
  loaded = 0;
  bool found = false;
  for (const std::uint64_t candidate : train::checkpoint_steps(run.checkpoints())) {
    if (candidate > step)
      break;
    loaded = candidate;
    found = true;
  }
  if (found) {
    try {
      const auto info = driver.load(run.checkpoints(), loaded, run.genesis_root());
      json claimed;
      const std::string field = run.disagreement(info, claimed);
      if (!field.empty() && field.find("_root") == std::string::npos) {
        return difference{loaded,
                          field,
                          {},
                          digest::hex(run.root(loaded)),
                          digest::hex(field == "record" ? info.record : train::root_of(claimed)),
                          "the checkpoint belongs to another record"};
      }
    } catch (const mismatch& m) {
      // What was read is still there: it names the tensor, where commitments were kept.
      auto d = detail::compare_state(run, driver, loaded);
      return difference{m.step,     "checkpoint", d ? d->tensors : std::vector<std::string>(),
                        m.expected, m.found,      m.what()};
    }
    if (auto d = detail::compare_state(run, driver, loaded))
      return d;
  }
  if (loaded > 0)
    return std::nullopt;
  driver.initialise();
  return detail::compare_state(run, driver, 0);
}

/// Replays steps `from` to `to` (steps between the checkpoint and `from` too, unreported), each
/// against its record. `report(step, root)` is called after every step that agrees.
///
/// Throws where the replay cannot be done; a difference is a result.
inline replay_result
replay(const train::run_directory& run, train::driver& driver, std::uint64_t from, std::uint64_t to,
       const std::function<void(std::uint64_t, const digest::hash256&)>& report) {
  require(from >= 1 && from <= to, "replay",
          "steps " + std::to_string(from) + " to " + std::to_string(to) + " are no range",
          "steps count from 1");
  require(to <= run.steps(), "replay",
          "step " + std::to_string(to) + " is not recorded, the last one is " +
              std::to_string(run.steps()));
  std::uint64_t at = 0;
  if (auto d = load_nearest(run, driver, from - 1, at))
    return {at, run.root(at), d};
  while (at < to) {
    ++at;
    const train::advanced step = driver.advance(run.root(at - 1));
    const json said = run.record(at);
    const std::string field = train::first_difference(said, step.record);
    if (!field.empty()) {
      return {at, run.root(at),
              difference{at, field, detail::localise(field, run.commitments(at), step.commitments),
                         digest::hex(run.root(at)), digest::hex(train::root_of(step.record)),
                         detail::meaning_of(field)}};
    }
    if (at >= from)
      report(at, run.root(at));
  }
  return {at, run.root(at), std::nullopt};
}

/// Compares step `step` of two runs by their records and commitments alone.
inline std::optional<difference> compare_runs(const train::run_directory& a,
                                              const train::run_directory& b, std::uint64_t step) {
  if (a.genesis_root() != b.genesis_root()) {
    json keys = a.genesis();
    keys.update(b.genesis());
    for (const auto& [key, unused] : keys.items()) {
      const json in_a = a.genesis().value(key, json()), in_b = b.genesis().value(key, json());
      if (in_a == in_b)
        continue;
      return difference{0,
                        "genesis, " + key,
                        detail::differing_names(in_a, in_b),
                        digest::hex(a.genesis_root()),
                        digest::hex(b.genesis_root()),
                        "the runs do not start from the same genesis"};
    }
  }
  // The first step at which they part, at or before the one asked for.
  for (std::uint64_t s = 1; s <= step; ++s) {
    if (a.root(s) == b.root(s))
      continue;
    const std::string field = train::first_difference(a.record(s), b.record(s));
    const auto found = b.commitments(s);
    return difference{s,
                      field,
                      detail::localise(field, a.commitments(s), found ? *found : json()),
                      digest::hex(a.root(s)),
                      digest::hex(b.root(s)),
                      detail::meaning_of(field)};
  }
  return std::nullopt;
}

} // namespace ordo::audit
