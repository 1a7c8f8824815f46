// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The first record of a run: the configuration and everything else the run starts from.

#include <string>

#include <ordo/core/version.hpp>
#include <ordo/train/record.hpp>
#include <ordo/train/run_config.hpp>

namespace ordo::train {

/// The configuration as a JSON object of key and text.
inline json to_json(const run_config& run) {
  json object = json::object();
  for_each_key(run, [&](const char* key, const auto& field, const char*) {
    object[key] = detail::to_text(field);
  });
  return object;
}

/// Reads a configuration from pairs of key and text, all of which must be known; keys that are not
/// given keep their defaults. `where` names the source in errors.
template <class Pairs>
run_config parse_config(const Pairs& pairs, const std::string& where) {
  run_config run;
  for (const auto& pair : pairs) {
    const std::string &key = pair.first, &text = pair.second;
    bool known = false;
    std::string keys;
    for_each_key(run, [&](const char* name, auto& field, const char*) {
      keys += (keys.empty() ? "" : ", ") + std::string(name);
      if (key != name)
        return;
      known = true;
      detail::parse(text, name, field);
    });
    require(known, where, "unknown key '" + std::string(key) + "'", "known keys: " + keys);
  }
  run.check();
  return run;
}

/// Makes the genesis of a run. `tokenizer` and `corpus` are the digests of tokenizer and manifest.
inline json make_genesis(const run_config& run, const std::string& tokenizer,
                         const std::string& corpus, const digest::hash256& parameter_root,
                         const digest::hash256& optimizer_root) {
  return {{"format", "ordo run 1"},
          {"contract", contract_version},
          {"version", version},
          {"configuration", to_json(run)},
          {"tokenizer", tokenizer},
          {"corpus", corpus},
          {"parameter_root", digest::hex(parameter_root)},
          {"optimizer_root", digest::hex(optimizer_root)}};
}

/// The configuration of a genesis; refuses another contract version.
inline run_config config_of(const json& genesis, const std::string& where) {
  require(genesis.is_object() && genesis.value("format", json()) == "ordo run 1", where,
          "this is no genesis of a run", "give the folder that 'ordo-train init' made");
  const json contract = genesis.value("contract", json());
  require(contract == contract_version, where,
          "the run follows contract " + contract.dump() + ", this program contract " +
              std::to_string(contract_version),
          "use the release that implements the run's contract");
  const auto found = genesis.find("configuration");
  require(found != genesis.end() && found->is_object(), where, "it has no configuration");
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [key, value] : found->items()) {
    require(value.is_string(), where, "the value of '" + key + "' is no text");
    pairs.emplace_back(key, value.template get<std::string>());
  }
  return parse_config(pairs, where);
}

} // namespace ordo::train
