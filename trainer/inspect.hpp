// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What a run or a checkpoint holds, for people and for machines.

#include <cstdio>
#include <filesystem>
#include <iostream>

#include <ordo/train/run_directory.hpp>

#include "command_line.hpp"

namespace ordo::program {

inline int inspect_checkpoint(const std::filesystem::path& path, bool as_json) {
  const std::string where = (path / "state.json").string();
  const train::json state = io::parse_json(io::read_file(where, 1 << 20), where);
  train::json text = {{"state", state}, {"tensors", train::json::object()}};
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const io::safetensors_reader reader(path / file);
    for (const auto& entry : reader.tensors()) {
      text["tensors"][entry.name] = {{"dtype", digest::dtype_name(entry.type)},
                                     {"shape", entry.shape}};
    }
  }
  if (as_json) {
    std::cout << io::canonical_json(text) << "\n";
    return same_or_done;
  }
  for (const auto& [key, value] : state.items())
    std::cout << key << " " << value.dump() << "\n";
  for (const auto& [name, tensor] : text["tensors"].items()) {
    std::cout << name << " " << tensor["dtype"].get<std::string>() << " " << tensor["shape"].dump()
              << "\n";
  }
  return same_or_done;
}

inline int inspect(const std::filesystem::path& path, bool as_json) {
  if (std::filesystem::is_regular_file(path / "state.json"))
    return inspect_checkpoint(path, as_json);
  const train::run_directory run(path);
  const auto checkpoints = train::checkpoint_steps(run.checkpoints());
  const train::json last = run.steps() > 0 ? run.record(run.steps()) : train::json();
  if (as_json) {
    std::cout << io::canonical_json({{"genesis", digest::hex(run.genesis_root())},
                                     {"parameters", model::parameter_count(run.config().model)},
                                     {"configuration", train::to_json(run.config())},
                                     {"steps", run.steps()},
                                     {"root", digest::hex(run.root(run.steps()))},
                                     {"last_record", last},
                                     {"checkpoints", checkpoints}})
              << "\n";
    return same_or_done;
  }
  std::cout << "genesis     " << digest::hex(run.genesis_root()) << "\nparameters  "
            << model::parameter_count(run.config().model) << "\nsteps       " << run.steps()
            << "\nroot        " << digest::hex(run.root(run.steps())) << "\ncheckpoints";
  for (const std::uint64_t step : checkpoints)
    std::cout << " " << step;
  std::cout << "\n";
  if (run.steps() > 0) {
    const std::string where = path.string();
    std::printf("last loss   %.4f at %llu tokens\n",
                static_cast<double>(io::parse_f32_hex(io::get_string(last, "loss", where), where)),
                static_cast<unsigned long long>(io::get_u64(last, "tokens", where)));
  }
  std::cout << "\n";
  train::for_each_key(run.config(), [](const char* key, const auto& field, const char* meaning) {
    std::cout << key << " = " << train::detail::to_text(field) << "   # " << meaning << "\n";
  });
  return same_or_done;
}

} // namespace ordo::program
