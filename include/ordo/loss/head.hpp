// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The output head: its weight prepared once a step, the logits of single tokens, and the word that
/// generation picks.

#include <cstdint>
#include <string>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/loss/contraction.hpp>

namespace ordo::loss {

/// The head weight w [padded, width] in the form that `Policy` multiplies, kept for a whole step.
///
/// Only the first `vocabulary` rows are words. The others are never read: no logit, no alignment
/// and no gradient depends on them. The bf16 weight itself is not copied and must stay.
template <class Policy, execution_space Space>
class head_weights {
public:
  using weight_operand = typename detail::contraction<Policy, Space>::template right<bf16>;

  head_weights(std::int64_t vocabulary, std::int64_t width)
      : by_word_(vocabulary, width), by_feature_(width, vocabulary), vocabulary_(vocabulary),
        width_(width) {
    require(vocabulary > 0 && width > 0, "ordo::loss::head_weights",
            "shape " + shape(vocabulary, width), "a head has at least one word and one feature");
  }

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t width() const { return width_; }
  /// The weight that was prepared, rows after `vocabulary` included.
  matrix_view<const bf16, Space> words() const { return words_; }
  const weight_operand& by_word() const { return by_word_; }
  const weight_operand& by_feature() const { return by_feature_; }

  /// Takes the weight of this step.
  /// Shape: w [padded, width], padded >= vocabulary.
  /// Order: row j of `by_word` is w[j, :]; row d of `by_feature` is w[0 ... vocabulary, d]. Under
  /// Sliced each is aligned by itself.
  /// Throws: a shape that does not fit.
  void prepare(const Space& space, matrix_view<const bf16, Space> w) {
    const auto padded = static_cast<std::int64_t>(w.extent(0));
    const auto columns = static_cast<std::int64_t>(w.extent(1));
    require(padded >= vocabulary_ && columns == width_, "ordo::loss::head_weights::prepare",
            "weight " + shape(padded, columns) + " for a head of " + shape(vocabulary_, width_),
            "pass every word's row; rows after the vocabulary are padding");
    words_ = w;
    detail::take_rows(space, detail::over<Space>(w.data(), vocabulary_, width_), by_word_);
    detail::take_columns(space, w, 0, vocabulary_, by_feature_);
  }

private:
  weight_operand by_word_, by_feature_;
  matrix_view<const bf16, Space> words_;
  std::int64_t vocabulary_, width_;
};

/// The logits of `h` [tokens, width] under the head, for generation.
///
/// Shape: out [tokens, vocabulary].
/// Order: contractions by `Policy`; row i is that of cross_entropy's logits, bit for bit.
template <execution_space Space, class Policy>
void logits(const Space& space, Policy policy,
            std::type_identity_t<matrix_view<const bf16, Space>> h,
            const head_weights<Policy, Space>& head,
            std::type_identity_t<matrix_view<float, Space>> out) {
  const auto tokens = static_cast<std::int64_t>(h.extent(0));
  require(static_cast<std::int64_t>(h.extent(1)) == head.width() && out.extent(0) == h.extent(0) &&
              static_cast<std::int64_t>(out.extent(1)) == head.vocabulary(),
          "ordo::loss::logits",
          "hidden states " + shape(h.extent(0), h.extent(1)) + ", head " +
              shape(head.vocabulary(), head.width()) + ", out " +
              shape(out.extent(0), out.extent(1)),
          "out has a row for each token and a column for each word, padding excluded");
  typename detail::contraction<Policy, Space>::template left<bf16> rows(tokens, head.width());
  detail::take_rows(space, h, rows);
  detail::multiply(space, policy, rows, head.by_word(),
                   ordo::detail::store_piece<float, Space>{out});
}

/// The word with the largest logit, the lowest of several; NaN is passed over, and 0 is returned
/// if nothing else is there.
///
/// Order: none, an integer maximum. -0 equals +0.
template <execution_space Space>
std::uint32_t argmax(const Space& space,
                     std::type_identity_t<vector_view<const float, Space>> logits) {
  const Kokkos::View<std::uint64_t, typename Space::memory_space> best("ordo::argmax::best");
  ordo::detail::for_blocks(
      space, "ordo::argmax::block", static_cast<std::int64_t>(logits.extent(0)), 4096,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        std::uint64_t largest = 0;
        for (std::int64_t j = begin; j < end; ++j) {
          const float l = arith::add(logits(j), 0.0f);
          const std::uint32_t b = arith::bits(l);
          const std::uint32_t key = b & 0x80000000u ? ~b : b | 0x80000000u;
          const std::uint64_t candidate =
              std::uint64_t{key} << 32 | (0xffffffffu - static_cast<std::uint32_t>(j));
          largest = !arith::is_nan(l) && candidate > largest ? candidate : largest;
        }
        Kokkos::atomic_fetch_max(&best(), largest);
      });
  std::uint64_t found = 0;
  Kokkos::deep_copy(found, best);
  return found == 0 ? 0u : 0xffffffffu - static_cast<std::uint32_t>(found);
}

} // namespace ordo::loss
