// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What a step takes from the number of tokens consumed before it: batch size and learning rate.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <ordo/arith/host_math.hpp>
#include <ordo/core/error.hpp>

namespace ordo::train {

/// One phase of the batch ramp: `accumulation` micro-batches a virtual rank until `until_tokens`
/// have been consumed.
struct batch_phase {
  std::uint64_t until_tokens = 0;
  std::uint64_t accumulation = 1;
  friend bool operator==(const batch_phase&, const batch_phase&) = default;
};

/// The accumulation of a step that starts after `tokens` tokens: the first phase whose end is past
/// them; the last phase goes on for ever.
inline std::uint64_t accumulation_at(const std::vector<batch_phase>& phases, std::uint64_t tokens) {
  require(!phases.empty(), "ordo::train::accumulation_at", "the batch ramp has no phase");
  for (const batch_phase& phase : phases) {
    if (tokens < phase.until_tokens)
      return phase.accumulation;
  }
  return phases.back().accumulation;
}

/// Linear warm-up, then cosine, both anchored to tokens.
struct learning_rate_schedule {
  double peak = 0, floor = 0;
  std::uint64_t warmup_tokens = 0, total_tokens = 0;

  /// The binary32 learning rate of a step whose clock shows `tokens`: tokens consumed before the
  /// step (the published schedule, whose first step therefore has rate 0) or up to its end.
  ///
  /// peak * tokens / warmup below the warm-up; then floor + (peak - floor) (1 + cos(pi p)) / 2 with
  /// p = (tokens - warmup) / (total - warmup), at most 1. Binary64 with + - * / and the library's
  /// own cosine, one rounding to binary32 (`host::narrow`).
  float at(std::uint64_t tokens) const {
    if (tokens < warmup_tokens) {
      return host::narrow(peak *
                          (static_cast<double>(tokens) / static_cast<double>(warmup_tokens)));
    }
    if (tokens >= total_tokens)
      return host::narrow(floor);
    const double progress = static_cast<double>(tokens - warmup_tokens) /
                            static_cast<double>(total_tokens - warmup_tokens);
    constexpr double pi = 0x1.921fb54442d18p+1;
    return host::narrow(floor + (peak - floor) * (0.5 * (1.0 + host::cos(pi * progress))));
  }
};

} // namespace ordo::train
