// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Text from a model: the likeliest token, or a draw.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <ordo/arith/functions.hpp>
#include <ordo/data/tokenizer.hpp>
#include <ordo/random/philox.hpp>
#include <ordo/train/run_directory.hpp>

#include "devices.hpp"

namespace ordo::program {

struct generate_options {
  std::string device, prompt;
  std::uint64_t step = 0, tokens = 200, seed = 0;
  float temperature = 0;
};

/// The index of the largest logit, the first of several; with a temperature, a draw in proportion
/// to exp((logit - largest) / temperature) by 64-bit integers, so that the choice has no rounding.
inline std::uint32_t choose(const std::vector<float>& logits, float temperature,
                            std::uint64_t word) {
  std::uint32_t best = 0;
  for (std::uint32_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best])
      best = i;
  }
  if (!(temperature > 0))
    return best;
  std::vector<std::uint64_t> weights;
  std::uint64_t total = 0;
  for (const float logit : logits) {
    const float e = arith::exp(arith::div(arith::sub(logit, logits[best]), temperature));
    weights.push_back(static_cast<std::uint64_t>(arith::to_int64(arith::mul(e, 0x1p32f))));
    total += weights.back();
  }
  __extension__ using wide = unsigned __int128;
  auto drawn = static_cast<std::uint64_t>((static_cast<wide>(word) * total) >> 64);
  for (std::uint32_t i = 0; i < weights.size(); ++i) {
    if (drawn < weights[i])
      return i;
    drawn -= weights[i];
  }
  return best;
}

/// What the checkpoint's model goes on with after the prompt, up to the end of its text.
inline std::string generate(const std::filesystem::path& path, const generate_options& given) {
  const train::run_directory run(path);
  const data::tokenizer tokenizer;
  require(io::get_string(run.genesis(), "tokenizer", path.string()) ==
              digest::hex(tokenizer.hash()),
          path.string(), "the run was trained with another tokenizer than this release's");
  require(!given.prompt.empty(), "--prompt", "it is empty", "give the text a beginning");
  require(given.temperature >= 0, "--temperature", "it is negative or no number",
          "0 takes the likeliest token, larger numbers draw more freely");
  const auto known = train::checkpoint_steps(run.checkpoints());
  const bool there = std::count(known.begin(), known.end(), given.step) > 0;
  std::string list = "0";
  for (const std::uint64_t step : known)
    list += step > 0 ? ", " + std::to_string(step) : "";
  require(there || given.step == 0, "--step " + std::to_string(given.step),
          "the run has no checkpoint of it", "one of: " + list);
  const auto driver = instances::find_device(given.device).make_driver(run.config(), nullptr);
  if (there) {
    driver->load(run.checkpoints(), given.step, run.genesis_root());
  } else {
    driver->initialise();
  }
  std::vector<std::uint32_t> ids;
  tokenizer.encode(given.prompt, ids);
  std::vector<std::uint32_t> made;
  const random::stream draws(given.seed, "ordo.generate");
  for (std::uint64_t i = 0; i < given.tokens; ++i) {
    const std::size_t seen = std::min<std::size_t>(ids.size(), run.config().sequence);
    const auto logits = driver->next_logits(std::span(ids).last(seen));
    const std::uint32_t next = choose(logits, given.temperature, draws.word64(i));
    if (next == tokenizer.separator())
      break;
    ids.push_back(next);
    made.push_back(next);
  }
  return tokenizer.decode(made);
}

} // namespace ordo::program
