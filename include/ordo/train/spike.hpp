// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The spike protocol: which steps leave the parameters alone, and when a run halts.

#include <bit>
#include <cstdint>
#include <vector>

#include <ordo/arith/value.hpp>

namespace ordo::train {

struct spike_rule {
  float threshold = 0;           ///< on the norm before clipping, strictly greater
  std::uint64_t from_step = 1;   ///< the first step on which the threshold counts
  std::uint64_t skipped = 5;     ///< steps skipped by an event, the event's own included
  std::uint64_t halt_events = 0; ///< events within `halt_window` steps that halt the run; 0: never
  std::uint64_t halt_window = 0;
};

/// State carried from step to step; part of every record and checkpoint.
struct spike_state {
  std::uint64_t skips_left = 0;           ///< further steps to skip
  std::vector<std::uint64_t> event_steps; ///< events within the halt window
  friend bool operator==(const spike_state&, const spike_state&) = default;
};

struct spike_decision {
  bool skip = false;  ///< no optimizer update this step
  bool event = false; ///< this step triggered
  bool halt = false;  ///< stop after this step's record and checkpoint
};

/// Decides step `step` from its norm before clipping and its loss, and advances the state.
///
/// A non-finite norm or loss always triggers; spikes while steps are being skipped do not extend
/// the skipping, a non-finite value then keeps only its own step from updating.
inline spike_decision decide_spike(const spike_rule& rule, spike_state& state, std::uint64_t step,
                                   float norm, float loss) {
  const bool broken = !arith::is_finite(norm) || !arith::is_finite(loss);
  const bool spike = broken || (step >= rule.from_step && norm > rule.threshold);
  spike_decision decision;
  std::erase_if(state.event_steps,
                [&](std::uint64_t event) { return step - event >= rule.halt_window; });
  if (state.skips_left > 0) {
    --state.skips_left;
    decision.skip = true;
  } else if (spike) {
    decision.skip = decision.event = true;
    state.skips_left = rule.skipped > 0 ? rule.skipped - 1 : 0;
    state.event_steps.push_back(step);
    decision.halt = rule.halt_events > 0 && state.event_steps.size() >= rule.halt_events;
  }
  return decision;
}

} // namespace ordo::train
