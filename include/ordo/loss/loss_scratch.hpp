// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The memory a loss works in, allocated once.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/loss/contraction.hpp>
#include <ordo/loss/loss_sum.hpp>

namespace ordo::loss {

namespace detail {

/// The integers of a call. Token losses are kept as whole units and fractions in 2^-32, so that
/// neither sum can overflow.
enum loss_total : int { whole, fraction, counted, damaged, first_bad_row, loss_totals };

} // namespace detail

/// Memory for micro-batches of at most `max_tokens` tokens under one head. Not for two calls at a
/// time.
///
/// Cost: under Sliced<2, 2> 8 bytes per word and 6 per feature for each row of a chunk, 512 bytes
/// per word and feature.
template <class Policy, execution_space Space>
class loss_scratch {
  using contraction = detail::contraction<Policy, Space>;

 public:
  /// `chunk_rows`: rows whose logits exist at one time, rounded up to whole blocks. Tuning: changes
  /// no bit.
  loss_scratch(std::int64_t max_tokens, std::int64_t vocabulary, std::int64_t width,
               std::int64_t chunk_rows = block_rows)
      : chunk_rows_(std::min(std::max<std::int64_t>(max_tokens, 1),
                             (std::max<std::int64_t>(chunk_rows, 1) + block_rows - 1) /
                                 block_rows * block_rows)),
        max_tokens_(max_tokens), vocabulary_(vocabulary), width_(width),
        hidden_by_row(chunk_rows_, width), probability_by_row(chunk_rows_, vocabulary),
        probability_by_word(vocabulary, std::min(chunk_rows_, block_rows)),
        hidden_by_feature(width, std::min(chunk_rows_, block_rows)),
        hidden_(detail::uninitialized("ordo::cross_entropy::hidden"), chunk_rows_ * width),
        logits_(detail::uninitialized("ordo::cross_entropy::logits"), chunk_rows_ * vocabulary),
        factors(detail::uninitialized("ordo::cross_entropy::factors"), chunk_rows_),
        totals("ordo::cross_entropy::totals", detail::loss_totals),
        host_totals(Kokkos::create_mirror_view(totals)) {}

  std::int64_t chunk_rows() const { return chunk_rows_; }

  /// Throws unless this is enough memory for `tokens` tokens and exactly that head.
  void require_fit(std::int64_t tokens, std::int64_t vocabulary, std::int64_t width) const {
    require(tokens <= max_tokens_ && vocabulary == vocabulary_ && width == width_,
            "ordo::cross_entropy",
            "scratch for " + shape(max_tokens_, vocabulary_, width_) +
                " (tokens, words, features), the call has " + shape(tokens, vocabulary, width),
            "construct loss_scratch for the largest micro-batch and this head");
  }

  /// Row-major views of the chunk's rows.
  matrix_view<bf16, Space> hidden(std::int64_t rows) const {
    return detail::over<Space>(hidden_.data(), rows, width_);
  }
  matrix_view<float, Space> logits(std::int64_t rows) const {
    return detail::over<Space>(logits_.data(), rows, vocabulary_);
  }

  void reset_totals() {
    for (int i = 0; i < detail::loss_totals; ++i) {
      host_totals(i) = 0;
    }
    host_totals(detail::first_bad_row) = std::numeric_limits<std::int64_t>::max();
    Kokkos::deep_copy(totals, host_totals);
  }
  std::int64_t total(detail::loss_total which) {
    Kokkos::deep_copy(host_totals, totals);
    return host_totals(which);
  }

 private:
  std::int64_t chunk_rows_, max_tokens_, vocabulary_, width_;

 public:
  // Working memory of detail::*_chunk; no part of the interface.
  typename contraction::template left<bf16> hidden_by_row;
  typename contraction::template left<float> probability_by_row, probability_by_word;
  typename contraction::template right<bf16> hidden_by_feature;

 private:
  template <class T>
  using memory = Kokkos::View<T*, Kokkos::LayoutRight, typename Space::memory_space>;
  memory<bf16> hidden_;
  memory<float> logits_;

 public:
  memory<float> factors;
  memory<std::int64_t> totals;
  typename memory<std::int64_t>::HostMirror host_totals;
};

} // namespace ordo::loss
