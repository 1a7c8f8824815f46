// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// run.ini to a run's configuration.

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <boost/program_options.hpp>

#include <ordo/train/genesis.hpp>

namespace ordo::program {

/// Reads a configuration file. Throws an error naming the file and the key that is unknown, given
/// twice, or impossible.
inline train::run_config read_config(const std::filesystem::path& path) {
  namespace options = boost::program_options;
  require(std::filesystem::is_regular_file(path), path.string(), "there is no such file",
          "shipped configurations are in trainer/configs");
  std::ifstream in(path);
  options::options_description none;
  std::vector<std::pair<std::string, std::string>> pairs;
  try {
    for (const auto& option : options::parse_config_file(in, none, true).options) {
      require(option.value.size() == 1, path.string(), "'" + option.string_key + "' has no value");
      for (const auto& [key, value] : pairs) {
        require(key != option.string_key, path.string(), "'" + key + "' is given twice");
      }
      pairs.emplace_back(option.string_key, option.value.front());
    }
  } catch (const options::error& wrong) {
    throw error(path.string(), wrong.what(), "write [section] lines and key = value lines");
  }
  return train::parse_config(pairs, path.string());
}

} // namespace ordo::program
