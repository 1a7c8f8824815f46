// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The memory a loss works in, allocated once.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/loss/contraction.hpp>
#include <ordo/loss/loss_sum.hpp>

namespace ordo::loss {

/// For what a loss_scratch has memory.
struct loss_extents {
  std::int64_t max_tokens, vocabulary, width, chunk_rows;

  loss_extents(std::int64_t max_tokens_, std::int64_t vocabulary_, std::int64_t width_,
               std::int64_t wanted_rows)
      : max_tokens(max_tokens_), vocabulary(vocabulary_), width(width_),
        chunk_rows(rows_of_chunk(max_tokens_, wanted_rows)) {}

  /// Throws unless this is enough memory for `tokens` tokens and made for that head.
  void require_fit(std::int64_t tokens, std::int64_t words, std::int64_t features) const {
    require(tokens <= max_tokens && words == vocabulary && features == width, "ordo::cross_entropy",
            "scratch for " + shape(max_tokens, vocabulary, width) +
                " (tokens, words, features), the call has " + shape(tokens, words, features),
            "construct loss_scratch for the largest micro-batch and this head");
  }

private:
  static std::int64_t rows_of_chunk(std::int64_t max_tokens_, std::int64_t wanted) {
    const std::int64_t blocks = (std::max<std::int64_t>(wanted, 1) + block_rows - 1) / block_rows;
    return std::min(std::max<std::int64_t>(max_tokens_, 1), blocks * block_rows);
  }
};

/// Memory for micro-batches of at most `max_tokens` tokens under one head. Not for two calls at a
/// time. Members other than the constructor are the working memory of cross_entropy.hpp.
///
/// Cost: under Sliced<2, 2>, 6 bytes per word and 4 per feature for each row of a chunk, and 512
/// per word and feature.
template <class Policy, execution_space Space>
struct loss_scratch : loss_extents {
  template <class T>
  using memory = Kokkos::View<T*, Kokkos::LayoutRight, typename Space::memory_space>;
  template <class T>
  using left = typename detail::contraction<Policy, Space>::template left<T>;
  template <class T>
  using right = typename detail::contraction<Policy, Space>::template right<T>;

  left<bf16> hidden_by_row;
  left<float> probability_by_row, probability_by_word;
  right<bf16> hidden_by_feature;
  memory<bf16> hidden_memory;
  memory<float> logits_memory, factors, pulls;
  memory<std::int64_t> totals;
  decltype(Kokkos::create_mirror_view(std::declval<memory<std::int64_t>>())) host_totals;

  /// `wanted_rows`: rows whose logits exist at one time, rounded up to whole blocks. Tuning:
  /// changes no bit.
  loss_scratch(std::int64_t max_tokens_, std::int64_t vocabulary_, std::int64_t width_,
               std::int64_t wanted_rows = block_rows)
      : loss_extents(max_tokens_, vocabulary_, width_, wanted_rows),
        hidden_by_row(chunk_rows, width), probability_by_row(chunk_rows, vocabulary),
        probability_by_word(vocabulary, std::min(chunk_rows, block_rows)),
        hidden_by_feature(width, std::min(chunk_rows, block_rows)),
        hidden_memory(detail::uninitialized("ordo::cross_entropy::hidden"), size(width)),
        logits_memory(detail::uninitialized("ordo::cross_entropy::logits"), size(vocabulary)),
        factors(detail::uninitialized("ordo::cross_entropy::factors"), size(1)),
        pulls(detail::uninitialized("ordo::cross_entropy::pulls"),
              static_cast<std::size_t>(max_tokens)),
        totals("ordo::cross_entropy::totals", detail::loss_totals),
        host_totals(Kokkos::create_mirror_view(totals)) {}

  matrix_view<bf16, Space> hidden(std::int64_t rows) const {
    return detail::over<Space>(hidden_memory.data(), rows, width);
  }
  matrix_view<float, Space> logits(std::int64_t rows) const {
    return detail::over<Space>(logits_memory.data(), rows, vocabulary);
  }

  void reset_totals() {
    for (int i = 0; i < detail::loss_totals; ++i) {
      host_totals(i) = 0;
    }
    host_totals(detail::first_bad_row) = std::numeric_limits<std::int64_t>::max();
    Kokkos::deep_copy(totals, host_totals);
  }
  const std::int64_t* read_totals() {
    Kokkos::deep_copy(host_totals, totals);
    return host_totals.data();
  }

private:
  std::size_t size(std::int64_t columns) const {
    return static_cast<std::size_t>(chunk_rows * columns);
  }
};

} // namespace ordo::loss
