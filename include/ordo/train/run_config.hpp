// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Everything that decides a run's bits, in one table of keys: `run.ini` and the genesis record are
/// read and written through it.

#include <charconv>
#include <cstdint>
#include <string>
#include <vector>

#include <ordo/core/error.hpp>
#include <ordo/model/config.hpp>
#include <ordo/nn/linear_layer.hpp>
#include <ordo/train/schedule.hpp>
#include <ordo/train/spike.hpp>

namespace ordo::train {

/// A decimal as the configuration wrote it: the text goes into the genesis record, the nearest
/// binary64 into the arithmetic.
struct decimal {
  std::string text = "0";
  double value = 0;

  decimal() = default;
  explicit decimal(const std::string& written) : text(written) {
    const char* const end = written.data() + written.size();
    const auto [stop, failure] = std::from_chars(written.data(), end, value);
    require(failure == std::errc() && stop == end && value - value == 0, "configuration",
            "'" + written + "' is no decimal number");
  }
  float rounded() const { return host::narrow(value); }
};

enum class schedule_clock { before, after };

/// The description of a run.
struct run_config {
  model::config model;
  nn::linear_kind linear = nn::linear_kind::int8;
  quant::step_rule weight_steps = quant::step_rule::mean_magnitude;
  decimal rope_theta{"500000"}, norm_epsilon{"1e-5"}, initial_std{"0.02"};

  std::uint64_t seed = 0;
  std::uint64_t sequence = 0;    ///< tokens a window trains on; it holds one more
  std::uint64_t micro_batch = 0; ///< windows of one micro-batch
  std::uint64_t replicas = 1;    ///< dp_replicate of the virtual mesh
  std::uint64_t shards = 1;      ///< dp_shard of the virtual mesh
  std::vector<batch_phase> ramp; ///< accumulation by tokens consumed

  std::uint64_t total_tokens = 0, warmup_tokens = 0;
  decimal peak_rate, floor_rate;
  schedule_clock clock = schedule_clock::before;

  bool master = false; ///< binary32 master parameters
  decimal beta1{"0.9"}, beta2{"0.95"}, epsilon{"1e-8"}, weight_decay{"0.1"}, max_norm{"1"};
  decimal z_loss{"1e-4"};

  decimal spike_threshold{"1e30"};
  std::uint64_t spike_from = 1, spike_skipped = 5, spike_halt_events = 0, spike_halt_window = 0;

  std::uint64_t checkpoint_every = 100;

  learning_rate_schedule schedule() const {
    return {peak_rate.value, floor_rate.value, warmup_tokens, total_tokens};
  }
  spike_rule spikes() const {
    return {spike_threshold.rounded(), spike_from, spike_skipped, spike_halt_events,
            spike_halt_window};
  }
  std::uint64_t ranks() const { return replicas * shards; }
  /// Windows of a step that starts after `tokens` tokens.
  std::uint64_t windows_at(std::uint64_t tokens) const {
    return ranks() * accumulation_at(ramp, tokens) * micro_batch;
  }
  void check() const;
};

namespace detail {

inline std::string to_text(const std::string& v) {
  return v;
}
inline std::string to_text(const decimal& v) {
  return v.text;
}
inline std::string to_text(bool v) {
  return v ? "true" : "false";
}
inline std::string to_text(std::int64_t v) {
  return std::to_string(v);
}
inline std::string to_text(std::uint64_t v) {
  return std::to_string(v);
}
inline std::string to_text(nn::linear_kind v) {
  return v == nn::linear_kind::int8 ? "int8" : "binary32";
}
inline std::string to_text(schedule_clock v) {
  return v == schedule_clock::before ? "before" : "after";
}
inline std::string to_text(quant::step_rule v) {
  return v == quant::step_rule::mean_magnitude ? "mean" : "largest";
}
/// "192@4000000000,288@360000000000": accumulation @ tokens at which the phase ends.
inline std::string to_text(const std::vector<batch_phase>& v) {
  std::string text;
  for (const batch_phase& p : v) {
    text += (text.empty() ? "" : ",") + std::to_string(p.accumulation);
    if (p.until_tokens != UINT64_MAX)
      text += "@" + std::to_string(p.until_tokens);
  }
  return text;
}

template <class Integer>
Integer parse_integer(const std::string& text, const char* key) {
  Integer value{};
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  require(failure == std::errc() && stop == end, "configuration",
          std::string(key) + " is '" + text + "'", "a whole number is expected");
  return value;
}

template <class T>
T parse_choice(const std::string& text, const char* key, std::initializer_list<T> choices) {
  std::string known;
  for (const T choice : choices) {
    if (to_text(choice) == text)
      return choice;
    known += (known.empty() ? "" : ", ") + to_text(choice);
  }
  throw error("configuration", std::string(key) + " is '" + text + "'", "one of: " + known);
}

inline void parse(const std::string& t, const char* k, std::int64_t& v) {
  v = parse_integer<std::int64_t>(t, k);
}
inline void parse(const std::string& t, const char* k, std::uint64_t& v) {
  v = parse_integer<std::uint64_t>(t, k);
}
inline void parse(const std::string& t, const char* k, decimal& v) {
  try {
    v = decimal(t);
  } catch (const error&) {
    throw error("configuration", std::string(k) + " is '" + t + "'",
                "a decimal number is expected");
  }
}
inline void parse(const std::string& t, const char* k, bool& v) {
  v = parse_choice(t, k, {false, true});
}
inline void parse(const std::string& t, const char* k, nn::linear_kind& v) {
  v = parse_choice(t, k, {nn::linear_kind::int8, nn::linear_kind::binary32});
}
inline void parse(const std::string& t, const char* k, schedule_clock& v) {
  v = parse_choice(t, k, {schedule_clock::before, schedule_clock::after});
}
inline void parse(const std::string& t, const char* k, quant::step_rule& v) {
  v = parse_choice(t, k, {quant::step_rule::mean_magnitude, quant::step_rule::largest_magnitude});
}
inline void parse(const std::string& text, const char* key, std::vector<batch_phase>& phases) {
  phases.clear();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    const std::size_t sign = part.find('@');
    batch_phase phase{UINT64_MAX, parse_integer<std::uint64_t>(part.substr(0, sign), key)};
    if (sign != std::string::npos) {
      phase.until_tokens = parse_integer<std::uint64_t>(part.substr(sign + 1), key);
    }
    phases.push_back(phase);
    at = comma + 1;
  }
}

} // namespace detail

/// Calls `visit(key, field, meaning)` for every key, in the order in which they are printed.
template <class Config, class Visitor>
void for_each_key(Config& c, Visitor&& visit) {
  visit("model.layers", c.model.layers, "transformer blocks");
  visit("model.hidden", c.model.hidden, "width of the residual stream");
  visit("model.heads", c.model.heads, "query heads");
  visit("model.kv_heads", c.model.kv_heads, "key and value heads");
  visit("model.head_dim", c.model.head_dim, "width of a head, a multiple of 16");
  visit("model.feed_forward", c.model.feed_forward, "width of the SwiGLU");
  visit("model.vocabulary", c.model.vocabulary, "words of the tokenizer");
  visit("model.padded_vocabulary", c.model.padded_vocabulary, "rows of embedding and head");
  visit("model.window", c.model.window, "tokens seen by a sliding-window layer");
  visit("model.full_every", c.model.full_every,
        "every so many layers, and the last, see everything");
  visit("model.rope_theta", c.rope_theta, "base of the rotary frequencies");
  visit("model.norm_epsilon", c.norm_epsilon, "added to mean squares");
  visit("model.initial_std", c.initial_std, "standard deviation of the truncated normal");
  visit("model.linear", c.linear, "int8 or binary32");
  visit("model.weight_steps", c.weight_steps, "mean (published) or largest");
  visit("data.seed", c.seed, "seed of stream and initialisation");
  visit("data.sequence", c.sequence, "tokens a window trains on");
  visit("mesh.micro_batch", c.micro_batch, "windows of one micro-batch");
  visit("mesh.replicas", c.replicas, "dp_replicate of the virtual mesh");
  visit("mesh.shards", c.shards, "dp_shard of the virtual mesh");
  visit("mesh.accumulation", c.ramp, "micro-batches a virtual rank: N, or N@TOKENS,M@TOKENS,...");
  visit("schedule.total_tokens", c.total_tokens, "the run ends at the first step at or past them");
  visit("schedule.warmup_tokens", c.warmup_tokens, "linear warm-up");
  visit("schedule.peak_rate", c.peak_rate, "learning rate after the warm-up");
  visit("schedule.floor_rate", c.floor_rate, "learning rate at the end of the cosine");
  visit("schedule.clock", c.clock, "before (published) or after: which end of a step is its time");
  visit("optimizer.master", c.master, "binary32 master parameters");
  visit("optimizer.beta1", c.beta1, "decay of the first moment");
  visit("optimizer.beta2", c.beta2, "decay of the second moment");
  visit("optimizer.epsilon", c.epsilon, "added to the root of the second moment");
  visit("optimizer.weight_decay", c.weight_decay, "of matrices, decoupled");
  visit("optimizer.max_norm", c.max_norm, "gradients are clipped to this norm");
  visit("optimizer.z_loss", c.z_loss, "weight of the squared log-partition");
  visit("spike.threshold", c.spike_threshold, "norm before clipping that makes an event");
  visit("spike.from_step", c.spike_from, "first step on which the threshold counts");
  visit("spike.skipped", c.spike_skipped, "optimizer steps an event skips");
  visit("spike.halt_events", c.spike_halt_events, "events within halt_window that halt; 0: never");
  visit("spike.halt_window", c.spike_halt_window, "steps");
  visit("run.checkpoint_every", c.checkpoint_every, "steps between checkpoints");
}

/// Throws an error naming the first key that is impossible.
inline void run_config::check() const {
  model.check();
  const auto within = [](std::uint64_t value, std::uint64_t most, const char* key) {
    require(value >= 1 && value <= most, "configuration",
            std::string(key) + " is " + std::to_string(value),
            "it must lie between 1 and " + std::to_string(most));
  };
  within(sequence, 1u << 20, "data.sequence");
  within(micro_batch, 1u << 16, "mesh.micro_batch");
  within(sequence * micro_batch, model::longest_rotated, "data.sequence * mesh.micro_batch");
  within(replicas, 1u << 16, "mesh.replicas");
  within(shards, 1u << 16, "mesh.shards");
  constexpr std::uint64_t longest_step = std::uint64_t{1} << 36; // tokens
  const std::uint64_t pass = ranks() * (micro_batch * sequence);
  within(pass, longest_step, "mesh.replicas * mesh.shards * mesh.micro_batch * data.sequence");
  within(total_tokens, std::uint64_t{1} << 52, "schedule.total_tokens");
  within(checkpoint_every, UINT32_MAX, "run.checkpoint_every");
  require(!ramp.empty(), "configuration", "mesh.accumulation has no phase");
  for (std::size_t i = 0; i < ramp.size(); ++i) {
    within(ramp[i].accumulation, longest_step / pass, "mesh.accumulation");
    require(i == 0 || ramp[i].until_tokens > ramp[i - 1].until_tokens, "configuration",
            "mesh.accumulation: phases must end at ascending token counts");
  }
  require(warmup_tokens < total_tokens, "configuration",
          "schedule.warmup_tokens is not below schedule.total_tokens");
  const auto decimal_within = [](const decimal& d, const char* least, const char* most,
                                 const char* key) {
    require(d.value >= decimal(least).value && d.value <= decimal(most).value, "configuration",
            std::string(key) + " is " + d.text,
            std::string("it must lie between ") + least + " and " + most);
  };
  decimal_within(rope_theta, "2", "1e18", "model.rope_theta");
  decimal_within(norm_epsilon, "1e-20", "1", "model.norm_epsilon"); // its power -3/2 is finite
  decimal_within(initial_std, "1e-30", "1e6", "model.initial_std");
  decimal_within(peak_rate, "1e-30", "1e6", "schedule.peak_rate");
  decimal_within(floor_rate, "0", peak_rate.text.c_str(), "schedule.floor_rate");
  decimal_within(beta1, "0", "0.9999999", "optimizer.beta1"); // below 1 in binary32, too
  decimal_within(beta2, "0", "0.9999999", "optimizer.beta2");
  decimal_within(epsilon, "1e-30", "1e30", "optimizer.epsilon");
  decimal_within(weight_decay, "0", "1e30", "optimizer.weight_decay");
  decimal_within(max_norm, "1e-30", "1e30", "optimizer.max_norm");
  decimal_within(z_loss, "0", "1e30", "optimizer.z_loss");
  decimal_within(spike_threshold, "1e-30", "1e30", "spike.threshold");
  within(spike_skipped, UINT32_MAX, "spike.skipped");
  if (spike_halt_events > 0)
    within(spike_halt_window, UINT64_MAX, "spike.halt_window");
}

} // namespace ordo::train
