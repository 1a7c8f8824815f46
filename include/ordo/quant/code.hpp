// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Steps and codes of the symmetric int8 quantizers, entry by entry.
///
/// Steps are recomputed from the data and never trained: trained steps drift until the run diverges
/// (OPEN-1B, section 4.2). The code -128 never occurs.

#include <cstdint>

#include <ordo/arith/value.hpp>

namespace ordo::quant {

/// Largest int8 code.
inline constexpr std::int32_t code_limit = 127;

/// Below this a step is 0 and every code is 0, so that an all-zero row is 0 and not 0/0.
inline constexpr float step_floor = 0x1p-100f;

/// How a weight row's step follows from the row.
enum class step_rule {
  mean_magnitude,    ///< 2 * mean|w| / sqrt(127), the published rule
  largest_magnitude, ///< max|w| / 127, which spends the whole int8 range
};

/// 1 / step, or 0 for a step of 0.
ORDO_FORCE_FUNCTION float inverse_step(float step) {
  return step == 0.0f ? 0.0f : arith::div(1.0f, step);
}

/// Nearest even code of `x` under the inverse step, clamped to [-127, 127]; NaN gives 0.
ORDO_FORCE_FUNCTION std::int8_t to_code(float x, float inverse) {
  return static_cast<std::int8_t>(arith::to_int(arith::mul(x, inverse), code_limit));
}

/// Step of a tensor or row whose largest magnitude is `largest`. NaN (the canonical one) and
/// infinity stay, so that a damaged tensor shows in every product it enters.
ORDO_FORCE_FUNCTION float step_of_largest(float largest) {
  const float step = arith::div(largest, 127.0f);
  return step < step_floor ? 0.0f : arith::canonical(step);
}

/// Step by the mean magnitude of `n` weights whose magnitudes sum to `sum`; 0 for none.
ORDO_FORCE_FUNCTION float step_of_sum(float sum, std::int64_t n) {
  constexpr float two_over_sqrt_127 = 0x1.6b7612p-3f;
  if (n == 0)
    return 0.0f;
  const float mean = arith::mul(sum, arith::div(1.0f, arith::from_int(n)));
  const float step = arith::mul(mean, two_over_sqrt_127);
  return step < step_floor ? 0.0f : arith::canonical(step);
}

} // namespace ordo::quant
