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
#include <ordo/train/record.hpp>
#include <ordo/train/shared_tensors.hpp>
#include <ordo/train/state_digest.hpp>

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
/// final name, syncs, renames. Throws with nothing left behind when the disk is full. Collective:
/// process 0 writes what it collects from all, a tensor at a time.
template <execution_space Space>
void save_checkpoint(const Space& space, comm::communicator& processes,
                     const std::filesystem::path& folder, const train_state<Space>& state,
                     const checkpoint_info& info) {
  processes.enter("saving the checkpoint of step " + std::to_string(state.at.step));
  const auto parameters = parameter_vectors(state), optimizer = optimizer_vectors(state);
  shared_tensors<Space> tensors(space, processes, *state.parts);
  if (processes.rank() != 0) {
    if (told_by_first(processes, false)) // already there
      return;
    tensors.serve_reads(parameters);
    tensors.serve_reads(optimizer);
    state_roots<Space>(space, processes, state, parameters);
    state_roots<Space>(space, processes, state, optimizer);
    return;
  }
  const std::filesystem::path target = folder / step_name(state.at.step);
  if (told_by_first(processes, std::filesystem::exists(target)))
    return; // complete checkpoints are never rewritten
  io::staged_directory staged(target);
  const std::map<std::string, std::string> about{{"format", "pt"}, {"producer", "ordo"}};
  const auto write = [&](const char* name, std::span<const state_vector> vectors) {
    io::write_safetensors(
        staged.path() / name, tensors.described(vectors), about,
        [&](const digest::tensor_ref& tensor) { return tensors.read(vectors, tensor.name); });
  };
  write("model.safetensors", parameters);
  write("optimizer.safetensors", optimizer);
  const auto root = [&](std::span<const state_vector> vectors) {
    return digest::hex(digest::state_root(state_roots<Space>(space, processes, state, vectors)));
  };
  json text = {{"format", "ordo checkpoint 1"},
               {"step", state.at.step},
               {"tokens", state.at.tokens},
               {"windows", state.at.windows},
               {"adam_step", state.at.adam_step},
               {"spikes", to_json(state.at.spikes)},
               {"cursor", info.cursor},
               {"record", digest::hex(info.record)},
               {"genesis", digest::hex(info.genesis)}};
  text["parameter_root"] = root(parameters);
  text["optimizer_root"] = root(optimizer);
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

/// The counters in state.json.
inline progress progress_of(const json& text, const std::string& where) {
  const auto number = [&](const char* key) { return io::get_u64(text, key, where); };
  progress at{number("step"), number("tokens"), number("windows"), number("adam_step"), {}};
  const json& spikes = io::get_object(text, "spikes", where);
  at.spikes.skips_left = io::get_u64(spikes, "skips_left", where);
  for (const json& event : io::get_array(spikes, "events", where)) {
    require(event.is_number_unsigned(), where, "a spike event is no step");
    at.spikes.event_steps.push_back(event.get<std::uint64_t>());
  }
  return at;
}

/// Reads state.json of a checkpoint and checks what it claims: the step and the run.
inline checkpoint_info read_checkpoint_info(const std::filesystem::path& source, std::uint64_t step,
                                            const digest::hash256& genesis) {
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
  info.at = progress_of(text, where);
  info.cursor = io::get_object(text, "cursor", where);
  info.record = hash("record");
  info.parameter_root = hash("parameter_root");
  info.optimizer_root = hash("optimizer_root");
  return info;
}

/// Gives what process 0 read to all others.
inline void share_info(comm::communicator& processes, checkpoint_info& info) {
  if (processes.size() == 1)
    return;
  const progress& at = info.at;
  std::string text = io::canonical_json({{"step", at.step},
                                         {"tokens", at.tokens},
                                         {"windows", at.windows},
                                         {"adam_step", at.adam_step},
                                         {"spikes", to_json(at.spikes)},
                                         {"cursor", info.cursor}});
  comm::broadcast(processes, text);
  const std::string where = "what process 0 says of the checkpoint";
  const json shared = io::parse_json(text, where);
  info.at = progress_of(shared, where);
  info.cursor = shared.at("cursor");
}

} // namespace detail

/// Loads `folder`/step-NNNNNN into `state` and verifies it: the step it claims, the run it claims,
/// and both roots against its tensors. Collective: process 0 reads and hands out.
///
/// Throws, naming the file, on damage, on a checkpoint of another run, and on one that was renamed.
template <execution_space Space>
checkpoint_info load_checkpoint(const Space& space, comm::communicator& processes,
                                const std::filesystem::path& folder, std::uint64_t step,
                                const digest::hash256& genesis, train_state<Space>& state) {
  processes.enter("loading the checkpoint of step " + std::to_string(step));
  const std::filesystem::path source = folder / step_name(step);
  const bool first = processes.rank() == 0;
  checkpoint_info info;
  if (first)
    info = detail::read_checkpoint_info(source, step, genesis);
  shared_tensors<Space> tensors(space, processes, *state.parts);
  const auto load = [&](const char* file, std::span<const state_vector> vectors,
                        const digest::hash256& expected) {
    const std::filesystem::path path = source / file;
    if (first) {
      io::safetensors_reader reader(path);
      tensors.fill(vectors, reader, path.string());
    } else {
      tensors.serve_writes(vectors);
    }
    const auto roots = state_roots<Space>(space, processes, state, vectors);
    if (!first)
      return;
    const digest::hash256 got = digest::state_root(roots);
    if (got != expected) {
      throw mismatch(path.string(), "its tensors do not have the root in state.json", step,
                     digest::hex(expected), digest::hex(got));
    }
  };
  load("model.safetensors", parameter_vectors(state), info.parameter_root);
  load("optimizer.safetensors", optimizer_vectors(state), info.optimizer_root);
  detail::share_info(processes, info);
  state.at = info.at;
  return info;
}

/// The same for a process that holds the whole state.
template <execution_space Space>
checkpoint_info load_checkpoint(const Space& space, const std::filesystem::path& folder,
                                std::uint64_t step, const digest::hash256& genesis,
                                train_state<Space>& state) {
  comm::self_communicator alone;
  return load_checkpoint(space, alone, folder, step, genesis, state);
}

} // namespace ordo::train
