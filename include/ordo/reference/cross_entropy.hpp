// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The output head and its loss in plain serial loops: the definition. Logits are stored whole
/// here; the kernels in ordo/loss never do that.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/core/error.hpp>
#include <ordo/loss/loss_sum.hpp>
#include <ordo/reference/gemm_f32.hpp>
#include <ordo/reference/gemm_sliced.hpp>

namespace ordo::reference {

/// C[m, n] = sum over k of A[m, k] * B[n, k] with both sides as fixed-point rows: `gemm_sliced`
/// with each row aligned once.
struct sliced_contraction {
  int a_slices, b_slices;

  template <class TA, class TB>
  void operator()(std::size_t m_total, std::size_t n_total, std::size_t k_total,
                  const std::vector<TA>& a, const std::vector<TB>& b, std::vector<float>& c) const {
    std::vector<std::int32_t> a_shift, b_shift;
    const auto x = align(a, m_total, k_total, a_slices, a_shift);
    const auto y = align(b, n_total, k_total, b_slices, b_shift);
    c.assign(m_total * n_total, arith::from_bits(arith::canonical_nan));
    for (std::size_t m = 0; m < m_total; ++m) {
      for (std::size_t n = 0; n < n_total; ++n) {
        if (a_shift[m] != non_finite_shift && b_shift[n] != non_finite_shift) {
          std::int64_t sum = 0;
          for (std::size_t k = 0; k < k_total; ++k) {
            sum += std::int64_t{x[m * k_total + k]} * y[n * k_total + k];
          }
          c[m * n_total + n] =
              arith::scale_pow2(arith::from_int(sum), std::max(-(a_shift[m] + b_shift[n]), -252));
        }
      }
    }
  }

  template <class T>
  static std::vector<std::int32_t> align(const std::vector<T>& x, std::size_t rows,
                                         std::size_t columns, int slices,
                                         std::vector<std::int32_t>& shift) {
    std::vector<std::int32_t> v(rows * columns);
    std::vector<float> row(columns);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        row[j] = arith::to_f32(x[i * columns + j]);
      }
      shift.push_back(row_shift(row, slices));
      for (std::size_t j = 0; j < columns; ++j) {
        v[i * columns + j] = aligned(row[j], shift[i], slices);
      }
    }
    return v;
  }
};

/// The same in binary32 by order::Lanes<lanes>.
struct lanes_contraction {
  int lanes;

  template <class TA, class TB>
  void operator()(std::size_t m_total, std::size_t n_total, std::size_t k_total,
                  const std::vector<TA>& a, const std::vector<TB>& b, std::vector<float>& c) const {
    c.resize(m_total * n_total);
    gemm_f32(lanes, static_cast<std::int64_t>(m_total), static_cast<std::int64_t>(n_total),
             static_cast<std::int64_t>(k_total), std::span<const TA>(a), std::span<const TB>(b),
             std::span<float>(c));
  }
};

namespace detail {

/// The transpose of rows [first, last) of x [*, columns].
template <class T>
std::vector<T> transposed(const std::vector<T>& x, std::size_t first, std::size_t last,
                          std::size_t columns) {
  std::vector<T> t(columns * (last - first));
  for (std::size_t i = first; i < last; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      t[j * (last - first) + (i - first)] = x[i * columns + j];
    }
  }
  return t;
}

/// What the softmax of one row of logits leaves behind.
struct partition {
  float log_sum_exp, token_loss;
};

/// Overwrites a row of logits by probabilities. A row with a non-finite logit is NaN throughout.
inline partition normalize(std::span<float> row, std::size_t label, float z) {
  float largest = row[0];
  bool finite = true;
  for (const float l : row) {
    finite = finite && arith::is_finite(l);
    largest = l > largest ? l : largest;
  }
  if (!finite) {
    std::fill(row.begin(), row.end(), arith::from_bits(arith::canonical_nan));
    return {row[0], row[0]};
  }
  const float at_label = row[label];
  std::int64_t sum = 0; // of exponentials in units of 2^-40, so that no order exists
  for (float& u : row) {
    u = arith::exp(arith::sub(u, largest));
    sum += arith::to_int64(arith::mul(u, 0x1p40f));
  }
  const float s = arith::scale_pow2(arith::from_int(sum), -40);
  const float inverse = arith::div(1.0f, s);
  for (float& u : row) {
    u = arith::mul(u, inverse);
  }
  const float lse = arith::add(largest, arith::log(s));
  const float penalty = arith::mul(z, arith::mul(lse, lse));
  return {lse, arith::canonical(arith::add(arith::sub(lse, at_label), penalty))};
}

} // namespace detail

/// Cross-entropy plus z * (log-sum-exp)^2 of a micro-batch, and its gradients.
///
/// Hidden states are [tokens, width], the weight is [padded, width], of which the first
/// `vocabulary` rows count. Call `forward`, then the gradients. Order: each member says it;
/// `Contraction` is that of the three large products.
template <class Contraction>
struct cross_entropy {
  Contraction contract;
  std::size_t tokens, width, vocabulary;
  std::vector<bf16> hidden; ///< +0 where the token is ignored
  std::vector<bf16> weight; ///< without padding
  std::vector<std::uint32_t> labels;
  loss::options options;
  std::vector<float> probabilities{}; ///< [tokens, vocabulary], +0 at labels and where ignored
  std::vector<float> factors{};       ///< token_scale * (1 + 2z * lse)
  std::vector<float> pulls{};         ///< factor * probability of the label - token_scale
  std::vector<float> token_losses{};

  bool counts(std::size_t i) const { return labels[i] != loss::ignore_label; }

  /// Throws: a label that is neither a word nor `ignore_label`.
  loss::loss_sum forward() {
    for (std::size_t i = 0; i < tokens; ++i) {
      require(labels[i] < vocabulary || !counts(i), "ordo::cross_entropy",
              "row " + std::to_string(i) + " has label " + std::to_string(labels[i]) +
                  ", the vocabulary " + std::to_string(vocabulary) + " words");
    }
    // Ignored tokens are zero rows: they align nothing and leak nothing.
    for (std::size_t i = 0; i < tokens * width; ++i) {
      hidden[i] = counts(i / width) ? hidden[i] : bf16{0};
    }
    weight.resize(vocabulary * width);
    contract(tokens, vocabulary, width, hidden, weight, probabilities);

    loss::loss_sum sum;
    factors.assign(tokens, 0.0f);
    pulls.assign(tokens, 0.0f);
    token_losses.assign(tokens, 0.0f);
    for (std::size_t i = 0; i < tokens; ++i) {
      const auto row = std::span(probabilities).subspan(i * vocabulary, vocabulary);
      if (!counts(i)) {
        std::fill(row.begin(), row.end(), 0.0f);
        continue;
      }
      const auto [lse, token_loss] = detail::normalize(row, labels[i], options.z_coefficient);
      const float slope = arith::mul(arith::mul(2.0f, options.z_coefficient), lse);
      factors[i] = arith::mul(options.token_scale, arith::add(1.0f, slope));
      pulls[i] = arith::sub(arith::mul(factors[i], row[labels[i]]), options.token_scale);
      row[labels[i]] = 0.0f;
      token_losses[i] = token_loss;
      const bool finite = loss::token_is_finite(token_loss);
      sum += {finite ? loss::token_units(token_loss) : 0, 1, finite};
    }
    return sum;
  }

  /// factor * (probabilities x weight) + pull * weight[label], as binary32 before the one
  /// rounding to bf16; +0 for ignored tokens.
  std::vector<float> hidden_gradient() const {
    std::vector<float> g;
    contract(tokens, width, vocabulary, probabilities,
             detail::transposed(weight, 0, vocabulary, width), g);
    for (std::size_t i = 0; i < tokens; ++i) {
      for (std::size_t d = 0; d < width; ++d) {
        float& x = g[i * width + d];
        const float word = counts(i) ? arith::to_f32(weight[labels[i] * width + d]) : 0.0f;
        const float at_label = arith::mul(pulls[i], word);
        x = counts(i) ? arith::add(arith::mul(factors[i], x), at_label) : 0.0f;
      }
    }
    return g;
  }

  /// [padded, width]: from +0, adds the contraction of each block of 256 rows in ascending order,
  /// then adds pull * hidden of each token to its label's row, in ascending order.
  std::vector<float> weight_gradient(std::size_t padded) const {
    std::vector<float> weighted = probabilities, g(padded * width, 0.0f), part;
    for (std::size_t i = 0; i < weighted.size(); ++i) {
      weighted[i] = arith::mul(factors[i / vocabulary], weighted[i]);
    }
    for (std::size_t first = 0; first < tokens; first += loss::block_rows) {
      const std::size_t last = std::min<std::size_t>(first + loss::block_rows, tokens);
      contract(vocabulary, width, last - first,
               detail::transposed(weighted, first, last, vocabulary),
               detail::transposed(hidden, first, last, width), part);
      for (std::size_t i = 0; i < part.size(); ++i) {
        g[i] = arith::canonical(arith::add(g[i], part[i]));
      }
    }
    for (std::size_t i = 0; i < tokens * width; ++i) {
      if (counts(i / width)) {
        float& x = g[labels[i / width] * width + i % width];
        const float at_label = arith::mul(pulls[i / width], arith::to_f32(hidden[i]));
        x = arith::canonical(arith::add(x, at_label));
      }
    }
    return g;
  }
};

} // namespace ordo::reference
