// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The loss of a set of tokens as an integer, so that tokens, micro-batches and ranks may be added
/// in any grouping; and the options of the loss.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <ordo/arith/value.hpp>
#include <ordo/core/error.hpp>

namespace ordo::loss {

/// The label of a token that takes no part: no loss, no gradient, not counted.
inline constexpr std::uint32_t ignore_label = 0xffffffffu;

/// Rows of a micro-batch that share one alignment in the weight gradient. Part of contract 1.
inline constexpr std::int64_t block_rows = 256;

struct options {
  /// What the gradient of one token's loss is multiplied by: 1/N for N valid tokens in the whole
  /// step, times the reciprocal factors by which the reductions that follow multiply.
  float token_scale = 1.0f;
  /// Coefficient of the squared log-partition; not negative.
  float z_coefficient = 1e-4f;
};

/// The sum of token losses in units of 2^-32, and over how many tokens.
///
/// Bits: integers, so independent of order and grouping. A token's loss is never negative; one that
/// is not finite or reaches `token_limit`, or a sum that reaches 2^30, makes the whole sum
/// non-finite: `sum` is then 0 and `finite` false, whatever is added.
struct loss_sum {
  std::int64_t sum = 0;
  std::int64_t tokens = 0;
  bool finite = true;

  static constexpr float token_limit = 0x1p20f;
  static constexpr std::int64_t sum_limit = std::int64_t{1} << 62;

  loss_sum& operator+=(const loss_sum& other) {
    tokens += other.tokens;
    finite = finite && other.finite && sum + other.sum < sum_limit;
    sum = finite ? sum + other.sum : 0;
    return *this;
  }
  friend loss_sum operator+(loss_sum a, const loss_sum& b) { return a += b; }
  friend bool operator==(const loss_sum&, const loss_sum&) = default;

  /// The sum as binary32, rounded once; NaN if it is not finite.
  float total() const {
    return finite ? arith::scale_pow2(arith::from_int(sum), -32)
                  : arith::from_bits(arith::canonical_nan);
  }
  /// total * (1/tokens), the reciprocal rounded first; 0 when no token was counted.
  float mean() const {
    if (tokens == 0) {
      return finite ? 0.0f : total();
    }
    return arith::mul(total(), arith::div(1.0f, arith::from_int(tokens)));
  }
};

/// A loss whose computation may still be under way on a device.
class pending_loss {
public:
  pending_loss() = default;
  explicit pending_loss(std::function<loss_sum()> wait) : wait_(std::move(wait)) {}
  /// The loss. Sync: waits for it. Throws: what the call that made it announces. Once; before the
  /// scratch of that call is used again.
  loss_sum get() const { return wait_(); }

private:
  std::function<loss_sum()> wait_;
};

/// Whether a token's loss can be added: false for NaN, infinity and from `token_limit` on.
ORDO_FORCE_FUNCTION bool token_is_finite(float token_loss) {
  return token_loss < loss_sum::token_limit;
}

/// A finite token loss in units of 2^-32, to the nearest even.
ORDO_FORCE_FUNCTION std::int64_t token_units(float token_loss) {
  return arith::to_int64(arith::mul(token_loss, 0x1p32f));
}

namespace detail {

/// What is thrown for a label that is neither a word nor `ignore_label`.
inline error bad_label(std::int64_t row, std::uint32_t label, std::int64_t vocabulary) {
  return error("ordo::cross_entropy",
               "row " + std::to_string(row) + " has label " + std::to_string(label) +
                   ", the vocabulary " + std::to_string(vocabulary) + " words",
               "give tokens that take no part the label " + std::to_string(ignore_label));
}

/// The integers of a call. Token losses are kept as whole units and fractions in 2^-32, so that
/// neither sum can overflow.
enum loss_total : int { whole, fraction, counted, damaged, first_bad_row, loss_totals };

/// What a call adds up, from the integers it left behind.
inline loss_sum sum_of(const std::int64_t* totals) {
  const std::int64_t whole_sum = totals[whole] + (totals[fraction] >> 32);
  constexpr std::int64_t limit = loss_sum::sum_limit >> 32;
  if (totals[damaged] != 0 || whole_sum >= limit) {
    return {0, totals[counted], false};
  }
  return {whole_sum * (std::int64_t{1} << 32) + (totals[fraction] & 0xffffffff), totals[counted],
          true};
}

} // namespace detail
} // namespace ordo::loss
