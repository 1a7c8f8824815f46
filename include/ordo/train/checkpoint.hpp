// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Checkpoints: complete or absent, verified on load.

#include <filesystem>
#include <string>
#include <vector>

#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>
#include <ordo/io/safetensors.hpp>
#include <ordo/train/host_window.hpp>
#include <ordo/train/record.hpp>
#include <ordo/train/state.hpp>

namespace ordo::train {

/// "step-000100".
inline std::string step_name(std::uint64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < 6)
    digits.insert(0, 6 - digits.size(), '0');
  return "step-" + digits;
}

/// What a checkpoint says of itself beside the tensors.
struct checkpoint_info {
  progress at;
  json cursor;              ///< of the data stream
  digest::hash256 record{}; ///< root of the record of step at.step, of the genesis for step 0
  digest::hash256 genesis{};
  digest::hash256 parameter_root{}, optimizer_root{};
};

/// Writes `folder`/step-NNNNNN (model.safetensors, optimizer.safetensors, state.json) beside its
/// final name, syncs, renames. Throws with nothing left behind when the disk is full.
template <execution_space Space>
void save_checkpoint(const Space& space, const std::filesystem::path& folder,
                     const train_state<Space>& state, const checkpoint_info& info) {
  const std::filesystem::path target = folder / step_name(state.at.step);
  if (std::filesystem::exists(target))
    return; // complete checkpoints are never rewritten
  io::staged_directory staged(target);
  const std::map<std::string, std::string> about{{"format", "pt"}, {"producer", "ordo"}};
  const auto parameters = parameter_tensors(state), optimizer = optimizer_tensors(state);
  host_window<Space> window(space);
  const auto bytes_of = [&](const digest::tensor_ref& tensor) { return window.read(tensor); };
  io::write_safetensors(staged.path() / "model.safetensors", parameters, about, bytes_of);
  io::write_safetensors(staged.path() / "optimizer.safetensors", optimizer, about, bytes_of);
  const json text = {
      {"format", "ordo checkpoint 1"},
      {"step", state.at.step},
      {"tokens", state.at.tokens},
      {"windows", state.at.windows},
      {"adam_step", state.at.adam_step},
      {"spikes", to_json(state.at.spikes)},
      {"cursor", info.cursor},
      {"record", digest::hex(info.record)},
      {"genesis", digest::hex(info.genesis)},
      {"parameter_root", digest::hex(digest::state_root(digest::tensor_roots(space, parameters)))},
      {"optimizer_root", digest::hex(digest::state_root(digest::tensor_roots(space, optimizer)))}};
  io::write_file_atomic(staged.path() / "state.json", io::canonical_json(text) + "\n");
  staged.commit();
}

/// Steps of the complete checkpoints in `folder`, ascending. Throws when the folder is missing.
inline std::vector<std::uint64_t> checkpoint_steps(const std::filesystem::path& folder) {
  require(std::filesystem::is_directory(folder), "checkpoints",
          "'" + folder.string() + "' is missing", "give the folder that 'ordo-train init' made");
  std::vector<std::uint64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::uint64_t step = 0;
    if (name.rfind("step-", 0) != 0)
      continue;
    const char* const end = name.data() + name.size();
    const auto [stop, failure] = std::from_chars(name.data() + 5, end, step);
    if (failure == std::errc() && stop == end && step_name(step) == name)
      steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

namespace detail {

/// Reads every tensor of `wanted` from a safetensors file, which must hold these and no others.
template <execution_space Space>
void read_tensors(const Space& space, const std::filesystem::path& path,
                  const std::vector<digest::tensor_ref>& wanted) {
  host_window<Space> window(space);
  io::safetensors_reader reader(path);
  require(reader.tensors().size() == wanted.size(), path.string(),
          "it holds " + std::to_string(reader.tensors().size()) + " tensors, the run has " +
              std::to_string(wanted.size()),
          "this checkpoint belongs to another configuration");
  for (const digest::tensor_ref& tensor : wanted) {
    const io::safetensors_entry& entry = reader.find(tensor.name);
    require(entry.type == tensor.type && entry.shape == tensor.shape, path.string(),
            "tensor '" + tensor.name + "' has another type or shape than the run's",
            "this checkpoint belongs to another configuration");
    reader.read(tensor.name, window.begin_write(tensor));
    window.commit(tensor);
  }
}

} // namespace detail

/// Loads `folder`/step-NNNNNN into `state` and verifies it: the step it claims, the run it claims,
/// and both roots against its tensors.
///
/// Throws, naming the file, on damage, on a checkpoint of another run, and on one that was renamed.
template <execution_space Space>
checkpoint_info load_checkpoint(const Space& space, const std::filesystem::path& folder,
                                std::uint64_t step, const digest::hash256& genesis,
                                train_state<Space>& state) {
  const std::filesystem::path source = folder / step_name(step);
  const std::string where = (source / "state.json").string();
  const json text = io::parse_json(io::read_file(where, 1 << 20), where);
  const auto number = [&](const char* key) { return io::get_u64(text, key, where); };
  const auto hash = [&](const char* key) { return io::get_hash(text, key, where); };
  require(io::get_string(text, "format", where) == "ordo checkpoint 1", where,
          "this is no checkpoint of ordo");
  require(number("step") == step, where,
          "the folder says step " + std::to_string(step) + ", the checkpoint step " +
              std::to_string(number("step")),
          "the checkpoint was renamed; use it under its own step");
  checkpoint_info info;
  info.genesis = hash("genesis");
  require(info.genesis == genesis, where, "this checkpoint belongs to another run",
          "its genesis is " + digest::hex(info.genesis) + ", the run's " + digest::hex(genesis));
  info.at = {step, number("tokens"), number("windows"), number("adam_step"), {}};
  const json& spikes = io::get_object(text, "spikes", where);
  info.at.spikes.skips_left = io::get_u64(spikes, "skips_left", where);
  for (const json& event : io::get_array(spikes, "events", where)) {
    require(event.is_number_unsigned(), where, "a spike event is no step");
    info.at.spikes.event_steps.push_back(event.get<std::uint64_t>());
  }
  info.cursor = io::get_object(text, "cursor", where);
  info.record = hash("record");
  info.parameter_root = hash("parameter_root");
  info.optimizer_root = hash("optimizer_root");

  const auto verify = [&](const char* file, const std::vector<digest::tensor_ref>& tensors,
                          const digest::hash256& expected) {
    detail::read_tensors(space, source / file, tensors);
    const digest::hash256 got = digest::state_root(digest::tensor_roots(space, tensors));
    if (got != expected) {
      throw mismatch((source / file).string(), "its tensors do not have the root in state.json",
                     step, digest::hex(expected), digest::hex(got));
    }
  };
  verify("model.safetensors", parameter_tensors(state), info.parameter_root);
  verify("optimizer.safetensors", optimizer_tensors(state), info.optimizer_root);
  state.at = info.at;
  return info;
}

} // namespace ordo::train
