// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The stages of cross_entropy.hpp, chunk of rows by chunk of rows.

#include <algorithm>
#include <cstdint>
#include <string>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/cpu/vectorized.hpp>
#include <ordo/loss/head.hpp>
#include <ordo/loss/loss_scratch.hpp>
#include <ordo/loss/loss_sum.hpp>
#include <ordo/loss/partition.hpp>

namespace ordo::loss {
namespace detail {

/// The arguments of one call, checked, as kernels see them.
template <class Policy, execution_space Space>
struct head_task {
  matrix_view<const bf16, Space> h;
  const head_weights<Policy, Space>& head;
  vector_view<const std::uint32_t, Space> labels;
  vector_view<float, Space> token_losses;
  float token_scale, z_coefficient;

  std::int64_t tokens() const { return static_cast<std::int64_t>(h.extent(0)); }
};

/// Throws unless every label is a word or `ignore_label`.
template <class Policy, execution_space Space>
void require_labels(const Space& space, const head_task<Policy, Space>& task,
                    loss_scratch<Policy, Space>& scratch) {
  const std::int64_t tokens = task.tokens(), vocabulary = task.head.vocabulary();
  const auto labels = task.labels;
  scratch.reset_totals();
  const auto totals = scratch.totals;
  ordo::detail::for_blocks(
      space, "ordo::cross_entropy::labels", tokens, 1024,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          if (labels(i) >= vocabulary && labels(i) != ignore_label) {
            Kokkos::atomic_fetch_min(&totals(first_bad_row), i);
            return;
          }
        }
      });
  const std::int64_t row = scratch.read_totals()[first_bad_row];
  if (row < tokens) {
    std::uint32_t label = 0;
    Kokkos::deep_copy(label, Kokkos::subview(labels, row));
    throw bad_label(row, label, vocabulary);
  }
}

/// Hidden states of rows [first, first + rows) with those of ignored tokens +0: they then align
/// nothing, and what is not finite in them stays there.
template <class Policy, execution_space Space>
void mask_hidden(const Space& space, const head_task<Policy, Space>& task, std::int64_t first,
                 std::int64_t rows, loss_scratch<Policy, Space>& scratch) {
  const auto h = task.h;
  const auto labels = task.labels;
  const auto masked = scratch.hidden(rows);
  const auto width = task.head.width();
  ordo::detail::for_blocks(
      space, "ordo::cross_entropy::mask", rows, 16,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const bool counts = labels(first + i) != ignore_label;
          for (std::int64_t d = 0; d < width; ++d) {
            masked(i, d) = counts ? h(first + i, d) : bf16{0};
          }
        }
      });
}

/// Hidden states of the chunk by row, and its logits.
template <class Policy, execution_space Space>
void logits_chunk(const Space& space, const head_task<Policy, Space>& task, std::int64_t first,
                  std::int64_t rows, loss_scratch<Policy, Space>& scratch) {
  mask_hidden(space, task, first, rows, scratch);
  take_rows(space, matrix_view<const bf16, Space>(scratch.hidden(rows)), scratch.hidden_by_row);
  const ordo::detail::store_piece<float, Space> store{scratch.logits(rows)};
  multiply(space, Policy{}, scratch.hidden_by_row, task.head.by_word(), store);
}

/// Adds a token's loss to the integers of the call.
template <class Totals>
ORDO_FUNCTION void count_token(const Totals& totals, float token_loss) {
  const bool finite = token_is_finite(token_loss);
  const std::int64_t units = finite ? token_units(token_loss) : 0;
  Kokkos::atomic_add(&totals(counted), std::int64_t{1});
  Kokkos::atomic_add(&totals(damaged), std::int64_t{finite ? 0 : 1});
  Kokkos::atomic_add(&totals(whole), units >> 32);
  Kokkos::atomic_add(&totals(fraction), units & 0xffffffff);
}

/// The loss of a row of logits. With `Keep` the probabilities of the words other than the label
/// become row i of `by_row`, and, weighted by the factor, replace the logits.
template <bool Keep, class Operand>
ORDO_FUNCTION partition finish_row(float* row, std::int64_t vocabulary, std::uint32_t label,
                                   float scale, float z, const Operand& by_row, std::int64_t i,
                                   token_weights& weights) {
  partition part{};
  cpu::vectorized([&]() ORDO_VECTORIZED {
    if (label != ignore_label) {
      part = partition_row<Keep>(row, vocabulary, label, z);
      weights.factor = factor_of(part.log_sum_exp, scale, z);
    }
    if constexpr (Keep) {
      for (std::int64_t j = 0; j < vocabulary; ++j) {
        row[j] = label != ignore_label ? arith::mul(row[j], part.inverse) : 0.0f;
      }
      if (label != ignore_label) {
        weights.pull = pull_of(weights.factor, row[label], scale);
        row[label] = 0.0f;
      }
      take_row(row, vocabulary, by_row, i);
      for (std::int64_t j = 0; j < vocabulary; ++j) {
        row[j] = arith::mul(weights.factor, row[j]);
      }
    }
  });
  return part;
}

/// Losses of the chunk from its logits. With `Keep`, weighted probabilities replace the logits, +0
/// for ignored tokens.
template <bool Keep, class Policy, execution_space Space>
void partition_chunk(const Space& space, const head_task<Policy, Space>& task, std::int64_t first,
                     std::int64_t rows, loss_scratch<Policy, Space>& scratch) {
  const std::int64_t vocabulary = task.head.vocabulary();
  const auto logits = scratch.logits(rows);
  const auto by_row = scratch.probability_by_row.shaped(rows, vocabulary);
  const auto labels = task.labels;
  const auto token_losses = task.token_losses;
  const auto factors = scratch.factors;
  const auto pulls = scratch.pulls;
  const auto totals = scratch.totals;
  const float scale = task.token_scale, z = task.z_coefficient;
  ordo::detail::for_each(
      space, "ordo::cross_entropy::rows", rows, KOKKOS_LAMBDA(std::int64_t i) {
        const std::uint32_t label = labels(first + i);
        token_weights weights;
        const partition part =
            finish_row<Keep>(&logits(i, 0), vocabulary, label, scale, z, by_row, i, weights);
        factors(i) = weights.factor;
        pulls(first + i) = weights.pull;
        if (label != ignore_label) {
          count_token(totals, part.token_loss);
        }
        if (token_losses.extent(0) != 0) {
          token_losses(first + i) = part.token_loss;
        }
      });
}

/// d_h of the chunk: factor * (probabilities x weight) + pull * weight[label].
template <class Policy, execution_space Space>
void hidden_gradient(const Space& space, const head_task<Policy, Space>& task, std::int64_t first,
                     const loss_scratch<Policy, Space>& scratch, matrix_view<bf16, Space> d_h) {
  const auto labels = task.labels;
  const auto words = task.head.words();
  const auto factors = scratch.factors;
  const auto pulls = scratch.pulls;
  multiply(
      space, Policy{}, scratch.probability_by_row, task.head.by_feature(),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t d0, std::int64_t count, const float* c) {
        const std::uint32_t label = labels(first + i);
        bf16* out = &d_h(first + i, d0);
        for (std::int64_t d = 0; label == ignore_label && d < count; ++d) {
          out[d] = bf16{0};
        }
        if (label != ignore_label) {
          const bf16* word = &words(label, d0);
          const float factor = factors(i), pull = pulls(first + i);
          for (std::int64_t d = 0; d < count; ++d) {
            const float at_label = arith::mul(pull, arith::to_f32(word[d]));
            out[d] = arith::to_bf16(arith::add(arith::mul(factor, c[d]), at_label));
          }
        }
      });
}

/// Adds the chunk's blocks to d_w, ascending; the first block of the micro-batch starts from +0.
template <class Policy, execution_space Space>
void weight_gradient(const Space& space, std::int64_t first, std::int64_t rows,
                     loss_scratch<Policy, Space>& scratch, matrix_view<float, Space> d_w) {
  const auto logits = scratch.logits(rows);
  for (std::int64_t begin = 0; begin < rows; begin += block_rows) {
    const std::int64_t end = std::min(begin + block_rows, rows);
    const bool starts = first + begin == 0;
    take_columns(space, matrix_view<const float, Space>(logits), begin, end,
                 scratch.probability_by_word);
    take_columns(space, matrix_view<const bf16, Space>(scratch.hidden(rows)), begin, end,
                 scratch.hidden_by_feature);
    multiply(
        space, Policy{}, scratch.probability_by_word, scratch.hidden_by_feature,
        KOKKOS_LAMBDA(std::int64_t j, std::int64_t d0, std::int64_t count, const float* c) {
          float* out = &d_w(j, d0);
          for (std::int64_t d = 0; d < count; ++d) {
            out[d] = arith::canonical(arith::add(starts ? 0.0f : out[d], c[d]));
          }
        });
  }
}

/// The one-hot part of d_w. A work item owns some features of every word and goes through the
/// tokens in ascending order, so no two items meet.
template <class Policy, execution_space Space>
void scatter_labels(const Space& space, const head_task<Policy, Space>& task,
                    const loss_scratch<Policy, Space>& scratch, matrix_view<float, Space> d_w) {
  const auto h = task.h;
  const auto labels = task.labels;
  const auto pulls = scratch.pulls;
  const std::int64_t tokens = task.tokens();
  constexpr std::int64_t grain = 32;
  ordo::detail::for_blocks(
      space, "ordo::cross_entropy::scatter", task.head.width(), grain,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = 0; i < tokens; ++i) {
          const std::uint32_t label = labels(i);
          for (std::int64_t d = begin; label != ignore_label && d < end; ++d) {
            const float at_label = arith::mul(pulls(i), arith::to_f32(h(i, d)));
            d_w(label, d) = arith::canonical(arith::add(d_w(label, d), at_label));
          }
        }
      });
}

/// +0 in the rows of d_w from `first` on.
template <execution_space Space>
void clear_rows(const Space& space, matrix_view<float, Space> d_w, std::int64_t first) {
  const auto rows = static_cast<std::int64_t>(d_w.extent(0));
  const auto width = static_cast<std::int64_t>(d_w.extent(1));
  ordo::detail::for_each(
      space, "ordo::cross_entropy::clear", rows - first, KOKKOS_LAMBDA(std::int64_t j) {
        for (std::int64_t d = 0; d < width; ++d) {
          d_w(first + j, d) = 0.0f;
        }
      });
}

/// Throws unless the shapes fit and the options are meaningful.
template <class Policy, execution_space Space>
void require_task(const head_task<Policy, Space>& task,
                  const loss_scratch<Policy, Space>& scratch) {
  const char* where = "ordo::cross_entropy";
  require(static_cast<std::int64_t>(task.h.extent(1)) == task.head.width(), where,
          "hidden states " + shape(task.h.extent(0), task.h.extent(1)) + ", head " +
              shape(task.head.vocabulary(), task.head.width()),
          "both have the same number of features");
  require(task.labels.extent(0) == task.h.extent(0), where,
          std::to_string(task.labels.extent(0)) + " labels for hidden states " +
              shape(task.h.extent(0), task.h.extent(1)),
          "give one label a token");
  require(task.token_losses.extent(0) == 0 || task.token_losses.extent(0) == task.h.extent(0),
          where,
          std::to_string(task.token_losses.extent(0)) + " token losses for hidden states " +
              shape(task.h.extent(0), task.h.extent(1)),
          "give one a token, or none");
  require(task.head.words().extent(0) != 0, where, "the head has no weight",
          "call head_weights::prepare once a step");
  require(arith::is_finite(task.z_coefficient) && task.z_coefficient >= 0.0f, where,
          "the z coefficient is negative or not finite", "it weighs a penalty; 1e-4 is usual");
  scratch.require_fit(task.tokens(), task.head.vocabulary(), task.head.width());
}

/// The work of cross_entropy_forward_backward, its arguments checked but for the labels.
template <class Policy, execution_space Space>
loss_sum forward_backward(const Space& space, const head_task<Policy, Space>& task,
                          matrix_view<bf16, Space> d_h, matrix_view<float, Space> d_w,
                          loss_scratch<Policy, Space>& scratch) {
  require_labels(space, task, scratch);
  const std::int64_t tokens = task.tokens();
  clear_rows(space, d_w, tokens == 0 ? 0 : task.head.vocabulary());
  for (std::int64_t first = 0; first < tokens; first += scratch.chunk_rows) {
    const std::int64_t rows = std::min(scratch.chunk_rows, tokens - first);
    logits_chunk(space, task, first, rows, scratch);
    partition_chunk<true>(space, task, first, rows, scratch);
    hidden_gradient(space, task, first, scratch, d_h);
    weight_gradient(space, first, rows, scratch, d_w);
  }
  scatter_labels(space, task, scratch, d_w);
  return sum_of(scratch.read_totals());
}

/// The same of cross_entropy_forward.
template <class Policy, execution_space Space>
loss_sum forward(const Space& space, const head_task<Policy, Space>& task,
                 loss_scratch<Policy, Space>& scratch) {
  require_labels(space, task, scratch);
  const std::int64_t tokens = task.tokens();
  for (std::int64_t first = 0; first < tokens; first += scratch.chunk_rows) {
    const std::int64_t rows = std::min(scratch.chunk_rows, tokens - first);
    logits_chunk(space, task, first, rows, scratch);
    partition_chunk<false>(space, task, first, rows, scratch);
  }
  return sum_of(scratch.read_totals());
}

} // namespace detail

} // namespace ordo::loss
