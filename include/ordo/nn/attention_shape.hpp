// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Shapes, blocks and fixed-point scales of attention: everything that follows from the shape.

#include <cmath>
#include <cstdint>

#include <ordo/arith/alignment.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/error.hpp>

namespace ordo::nn {

/// Queries and keys are cut into blocks at absolute positions 0, QueryBlock, 2 QueryBlock, ...
/// (KeyBlock likewise). Both are part of the result: a softmax block has one int8 step, and the
/// gradients of a tile (one block of each) are aligned together.
template <int QueryBlock, int KeyBlock>
struct AttentionBlocks {
  static_assert(QueryBlock > 0 && QueryBlock % 16 == 0 && QueryBlock <= 128 && KeyBlock > 0 &&
                    KeyBlock % 16 == 0 && KeyBlock <= 128,
                "ordo::nn::AttentionBlocks: blocks are multiples of 16, at most 128; use 64, 64");
  static constexpr int query = QueryBlock, key = KeyBlock;
};

/// A micro-batch: `batch` sequences of `seq` tokens. Query head h uses key-value head
/// h / (heads / kv_heads). Query i sees the keys max(0, i - window + 1) ... i of its sequence; a
/// window of `seq` or more is full causal attention, a window of 0 sees nothing.
struct attention_shape {
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0, window = 0;

  ORDO_FUNCTION std::int64_t tokens() const { return batch * seq; }
  ORDO_FUNCTION std::int64_t group() const { return heads / kv_heads; }
  ORDO_FUNCTION std::int64_t out_width() const { return heads * head_dim; }
  ORDO_FUNCTION std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  /// The first key that query i sees (i + 1 if none).
  ORDO_FUNCTION std::int64_t first_key(std::int64_t i) const {
    return i - window + 1 > 0 ? i - window + 1 : 0;
  }
  friend bool operator==(const attention_shape&, const attention_shape&) = default;
};

/// Throws unless the shape is one that attention is defined for.
inline void require_shape(const attention_shape& s, const char* where) {
  require(s.batch >= 0 && s.seq >= 0 && s.window >= 0 && s.heads > 0 && s.kv_heads > 0 &&
              s.heads % s.kv_heads == 0,
          where,
          "batch, seq, heads, kv_heads, window are " +
              shape(s.batch, s.seq, s.heads, s.kv_heads, s.window),
          "heads must be a multiple of kv_heads");
  require(s.head_dim > 0 && s.head_dim % 16 == 0 && s.head_dim <= 256, where,
          "head_dim is " + std::to_string(s.head_dim), "it must be a multiple of 16, at most 256");
  require(s.seq <= (std::int64_t{1} << 20) && s.heads <= 1024, where,
          "seq and heads are " + shape(s.seq, s.heads), "they may be at most 2^20 and 1024");
}

/// Largest magnitude of a two-slice fixed-point value: 127 * 128 + 63.
inline constexpr std::int32_t attention_limit = 16319;

/// The constants that follow from the shape. Binary64 with * / and sqrt, rounded once to binary32.
///
/// Normalised and rotated q and k have the Euclidean norm sqrt(hd) (1 + 2^-18) at most. With
/// `fixed` = 16287 / sqrt(hd) their fixed-point rows have a norm of at most 16287 (1 + 2^-18) +
/// sqrt(hd) / 2 < 16297, rounding included. So every entry is within 16319, and by the
/// Cauchy-Schwarz inequality a dot product and all its partial sums are below 16297^2 < 2^28.
struct attention_scales {
  float inverse_dim;        ///< 1 / hd
  float fixed;              ///< q or k times this is a fixed-point value
  float logit;              ///< 1 / (fixed^2 sqrt(hd)): dot product to logit, |logit| < 16.1
  float gradient;           ///< 1 / (fixed sqrt(hd)): sum of dS times fixed k to gradient of q
  std::int32_t row_limit;   ///< largest magnitude of rows of dO and V: hd * row_limit^2 < 2^31
  std::int32_t log_dim;     ///< ceil(log2(hd))
  std::int32_t log_queries; ///< ceil(log2(queries that may see one key, over the group))
};

inline attention_scales make_attention_scales(const attention_shape& s) {
  const double dim = static_cast<double>(s.head_dim), root = std::sqrt(dim);
  attention_scales r{};
  r.inverse_dim = static_cast<float>(1.0 / dim);
  r.fixed = static_cast<float>(16287.0 / root);
  const double fixed = r.fixed;
  r.logit = static_cast<float>(1.0 / (fixed * fixed * root));
  r.gradient = static_cast<float>(1.0 / (fixed * root));
  r.row_limit = attention_limit;
  while (s.head_dim * r.row_limit * r.row_limit > 0x7fffffff)
    --r.row_limit;
  while ((std::int64_t{1} << r.log_dim) < s.head_dim)
    ++r.log_dim;
  const std::int64_t queries = (s.window < s.seq ? s.window : s.seq) * s.group();
  while ((std::int64_t{1} << r.log_queries) < queries)
    ++r.log_queries;
  return r;
}

/// The largest s <= cap with magnitude * 2^s <= limit, for the bits of a finite magnitude. Zero
/// gives cap.
ORDO_FORCE_FUNCTION std::int32_t aligned_shift(std::uint32_t magnitude, std::int32_t limit,
                                               std::int32_t cap) {
  const std::int32_t s = arith::alignment_shift(magnitude, limit);
  return magnitude != 0 && s < cap ? s : cap;
}

/// Units of the gradient accumulators of one (sequence, key-value head): an int64 `a` stands for
/// a * 2^-query (of dS times fixed-point k), a * 2^-key (of dS times fixed-point q), a * 2^-value.
///
/// Bounds, with A and B the largest magnitudes of dO and V there, A < 2^(a+1), B < 2^(b+1),
/// E = a + b + 2 and hd <= 2^h: |dP| <= hd A B. The forward pass has p^/127 <= 2 u, so |o| <= 2 B
/// and |D| <= 2 hd A B: |dS_ij| <= P_ij 2^(E+h+2). Rows of P sum to 1, columns to at most the
/// number of queries, n <= 2^g. Fixed-point k and q are below 2^14. So the sums are below
/// 2^(E+h+16), 2^(E+h+16+g) and 2^(a+1+g); one bit more covers all roundings, and 2^62 holds the
/// rest.
struct attention_units {
  std::int32_t query, key, value;
  bool representable; ///< otherwise every gradient of the group is NaN
};

ORDO_FUNCTION attention_units make_attention_units(const attention_scales& s, std::uint32_t d_out,
                                                   std::uint32_t values) {
  const std::int32_t a = static_cast<std::int32_t>(d_out >> 23) - 127;
  const std::int32_t b = static_cast<std::int32_t>(values >> 23) - 127;
  const std::int32_t sum = a + b + 2, e = sum > -200 ? sum : -200;
  const std::int32_t query = 45 - s.log_dim - e;
  return {query, query - s.log_queries, 60 - s.log_queries - a, a <= 90 && sum <= 110};
}

/// i * 2^n for n >= 0. In a non-zero contribution n is below 50 and the product below 2^62.
ORDO_FORCE_FUNCTION std::int64_t in_units(std::int64_t i, std::int32_t n) {
  n = n < 62 ? n : 62;
  n = n > 0 ? n : 0;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(i) << n);
}

} // namespace ordo::nn
