// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Softmax of one row of logits by one thread: maximum and sum are integers, so the loops may be
/// cut and vectorized in any way.

#include <cstdint>

#include <ordo/arith/functions.hpp>
#include <ordo/arith/value.hpp>

namespace ordo::loss::detail {

/// An integer that orders as binary32 does, -0 below +0. Its own inverse.
ORDO_FORCE_FUNCTION std::int32_t order_key(std::int32_t bits) {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

/// The largest of n > 0 logits, or canonical NaN unless all of them are finite.
ORDO_FORCE_FUNCTION float row_largest(const float* row, std::int64_t n) {
  std::int32_t key = INT32_MIN, magnitude = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    const auto b = static_cast<std::int32_t>(arith::bits(row[j]));
    const std::int32_t k = order_key(b), a = b & 0x7fffffff;
    key = k > key ? k : key;
    magnitude = a > magnitude ? a : magnitude;
  }
  return magnitude < 0x7f800000 ? arith::from_bits(static_cast<std::uint32_t>(order_key(key)))
                                : arith::from_bits(arith::canonical_nan);
}

/// u[j] = exp(row[j] - largest), and their sum: each to the nearest multiple of 2^-40, the total
/// rounded to binary32 once. `u` may be `row`; with `Keep` false it is not written.
///
/// Order: none, integers. n < 2^22 keeps the total below 2^62.
template <bool Keep>
ORDO_FORCE_FUNCTION float exponentials(const float* row, float largest, std::int64_t n, float* u) {
  // u * 2^40 in two parts of 20 bits, so that 32-bit lanes hold the sums of a piece. The upper
  // part is truncated and even in units of the lower, so rounding the lower rounds the whole.
  constexpr std::int64_t piece = 1024;
  std::int64_t total = 0;
  for (std::int64_t first = 0; first < n; first += piece) {
    const std::int64_t last = first + piece < n ? first + piece : n;
    std::int32_t upper = 0, lower = 0;
    for (std::int64_t j = first; j < last; ++j) {
      const float e = arith::exp(arith::sub(row[j], largest));
      if constexpr (Keep) {
        u[j] = e;
      }
      const float scaled = arith::mul(e, 0x1p20f);
      const auto whole = static_cast<std::int32_t>(scaled);
      const float rest = arith::sub(scaled, static_cast<float>(whole));
      upper += whole;
      lower += arith::to_int(arith::mul(rest, 0x1p20f), 1 << 20);
    }
    total += std::int64_t{upper} * (1 << 20) + lower;
  }
  return arith::scale_pow2(arith::from_int(total), -40);
}

/// What a row of logits gives: its log-sum-exp, the reciprocal of its sum and its token's loss.
struct partition {
  float log_sum_exp, inverse, token_loss;
};

/// From a row's largest logit and its sum of exponentials:
/// loss = (lse - logit at the label) + z * (lse * lse), each step rounded.
ORDO_FORCE_FUNCTION partition partition_of(float largest, float sum, float at_label, float z) {
  const float lse = arith::add(largest, arith::log(sum));
  const float penalty = arith::mul(z, arith::mul(lse, lse));
  const float loss = arith::add(arith::sub(lse, at_label), penalty);
  return {lse, arith::div(1.0f, sum), arith::canonical(loss)};
}

/// What the gradients of a token are made of: `factor` weighs the probabilities of the words other
/// than the label, `pull` = factor * probability - token_scale stands for the label's own.
struct token_weights {
  float factor = 0.0f, pull = 0.0f;
};

/// scale * (1 + 2z * lse).
ORDO_FORCE_FUNCTION float factor_of(float log_sum_exp, float scale, float z) {
  const float slope = arith::mul(arith::mul(2.0f, z), log_sum_exp);
  return arith::mul(scale, arith::add(1.0f, slope));
}

/// For the label's probability p.
ORDO_FORCE_FUNCTION float pull_of(float factor, float p, float scale) {
  return arith::sub(arith::mul(factor, p), scale);
}

/// The partition of a row; all NaN if a logit of it is not finite. With `Keep`, the exponentials
/// replace the logits.
template <bool Keep>
ORDO_FORCE_FUNCTION partition partition_row(float* row, std::int64_t n, std::int64_t label,
                                            float z) {
  const float largest = row_largest(row, n);
  if (arith::is_nan(largest)) {
    if constexpr (Keep) {
      for (std::int64_t j = 0; j < n; ++j) {
        row[j] = largest;
      }
    }
    return {largest, largest, largest};
  }
  const float at_label = row[label];
  return partition_of(largest, exponentials<Keep>(row, largest, n, row), at_label, z);
}

} // namespace ordo::loss::detail
