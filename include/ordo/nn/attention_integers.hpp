// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The first stages of the backward pass: integer forms of q, k, v and dO, block by block.

#include <cstdint>
#include <cstring>

#include <ordo/nn/attention_forward.hpp>

namespace ordo::nn::detail {

/// What the backward stages read and write besides `attention_problem`.
struct attention_gradient {
  const bf16 *out, *d_out;
  const float* log_sum_exp;
  bf16* d_qkv;
};

/// v = low + 128 high with low in [-64, 63].
ORDO_FORCE_FUNCTION void split(std::int16_t v, std::int16_t& low, std::int16_t& high) {
  const std::int32_t rest = ((v + 64) & 127) - 64;
  low = static_cast<std::int16_t>(rest);
  high = static_cast<std::int16_t>((v - rest) >> 7);
}

/// Rows to two column-wise parts: low[d][i] and high[d][i] from row[i][d]. Two rows at a time, so
/// that the transposition moves four bytes.
template <int Rows>
ORDO_FORCE_FUNCTION void place_columns(const std::int16_t* ORDO_RESTRICT rows, int n,
                                       std::int16_t* ORDO_RESTRICT low,
                                       std::int16_t* ORDO_RESTRICT high) {
  alignas(64) std::int16_t low_pairs[Rows * most_dims], high_pairs[Rows * most_dims];
  for (int i = 0; i < Rows; i += 2) {
    const std::int16_t* ORDO_RESTRICT x = rows + i * n;
    std::int16_t* ORDO_RESTRICT l = low_pairs + i * n;
    std::int16_t* ORDO_RESTRICT h = high_pairs + i * n;
    for (int d = 0; d < n; ++d) {
      split(x[d], l[2 * d], h[2 * d]);
      split(x[n + d], l[2 * d + 1], h[2 * d + 1]);
    }
  }
  for (int d = 0; d < n; ++d) {
    for (int i = 0; i < Rows; i += 2) {
      std::memcpy(low + d * Rows + i, low_pairs + i * n + 2 * d, 4);
      std::memcpy(high + d * Rows + i, high_pairs + i * n + 2 * d, 4);
    }
  }
}

/// A row of bf16 times 2^shift as integers.
ORDO_FORCE_FUNCTION void align_bf16(const bf16* ORDO_RESTRICT x, int n, std::int32_t shift,
                                    std::int32_t limit, std::int16_t* ORDO_RESTRICT out) {
  const float scale = arith::pow2(shift);
  for (int d = 0; d < n; ++d) {
    out[d] =
        static_cast<std::int16_t>(arith::to_int(arith::mul(arith::to_f32(x[d]), scale), limit));
  }
}

/// Item: (sequence, kv head, key block).
template <class Blocks>
struct backward_keys {
  attention_problem a;

  template <class Engine>
  ORDO_FORCE_FUNCTION void run(std::int64_t item) const {
    constexpr int keys = Blocks::key;
    const int dim = a.dim();
    const std::int64_t block = item % a.key_blocks, head = item / a.key_blocks;
    const std::int64_t g = head % a.s.kv_heads, n = head / a.s.kv_heads, first = block * keys;
    const int count = static_cast<int>(a.s.seq - first < keys ? a.s.seq - first : keys);
    alignas(64) std::int16_t rows[keys * most_dims], v[most_dims];
    bool finite[keys];
    std::uint32_t block_largest = 0;
    a.template fixed<keys>(n, first, count, a.k_column(g), rows, finite);
    std::memset(rows + count * dim, 0, static_cast<std::size_t>((keys - count) * dim) * 2);
    for (int j = 0; j < keys; ++j) {
      const std::int64_t t = first + j;
      bool bad = true;
      std::int32_t shift = 126;
      const std::int16_t* k = rows + j * dim;
      for (int d = 0; d < dim; ++d)
        v[d] = 0;
      if (j < count) {
        const std::uint32_t largest = row_largest(a.token(n, t, a.v_column(g)), dim);
        bad = !finite[j] || largest >= 0x7f800000u;
        if (!bad) {
          block_largest = largest > block_largest ? largest : block_largest;
          shift = aligned_shift(largest, a.scales.row_limit, 126);
          align_bf16(a.token(n, t, a.v_column(g)), dim, shift, a.scales.row_limit, v);
        }
      }
      a.b.key_bad[head * a.key_blocks * keys + t] = bad;
      a.b.v_scale[head * a.key_blocks * keys + t] = arith::pow2(-shift);
      place_dims(k, dim, keys, j, a.b.k_dims + item * keys * dim);
      place_dims(v, dim, keys, j, a.b.v_dims + item * keys * dim);
      std::int16_t* ORDO_RESTRICT low = a.b.k_keys[0] + item * keys * dim + j / 2 * dim * 2 + j % 2;
      std::int16_t* ORDO_RESTRICT high =
          a.b.k_keys[1] + item * keys * dim + j / 2 * dim * 2 + j % 2;
      for (int d = 0; d < dim; ++d)
        split(k[d], low[2 * d], high[2 * d]);
    }
    a.b.v_largest[item] = block_largest;
  }
};

/// Whether a query row is poisoned, and the largest magnitude of its dO otherwise.
ORDO_FORCE_FUNCTION bool read_row(const attention_problem& a, const attention_gradient& g,
                                  std::int64_t head, std::int64_t t, std::uint32_t& largest) {
  const std::int64_t h = head % a.s.heads, n = head / a.s.heads;
  const bf16* d_out = g.d_out + (n * a.s.seq + t) * a.s.out_width() + h * a.s.head_dim;
  largest = row_largest(d_out, a.dim());
  const bool poisoned = largest >= 0x7f800000u || arith::is_nan(g.log_sum_exp[head * a.s.seq + t]);
  largest = poisoned ? 0 : largest;
  return poisoned;
}

/// The largest magnitude of dO in one block of queries. Item: (sequence, head, query block).
template <class Blocks>
struct backward_magnitudes {
  attention_problem a;
  attention_gradient g;

  template <class Engine>
  ORDO_FORCE_FUNCTION void run(std::int64_t item) const {
    const std::int64_t first = item % a.query_blocks * Blocks::query;
    std::uint32_t largest = 0;
    for (std::int64_t t = first; t < first + Blocks::query && t < a.s.seq; ++t) {
      std::uint32_t row = 0;
      read_row(a, g, item / a.query_blocks, t, row);
      largest = row > largest ? row : largest;
    }
    a.b.o_largest[item] = largest;
  }
};

/// Integer forms of q and dO of one block of queries. Item: (sequence, head, query block).
template <class Blocks>
struct backward_queries {
  attention_problem a;
  attention_gradient g;

  template <class Engine>
  ORDO_FORCE_FUNCTION void run(std::int64_t item) const {
    constexpr int queries = Blocks::query;
    const int dim = a.dim();
    const std::int64_t block = item % a.query_blocks, head = item / a.query_blocks;
    const std::int64_t h = head % a.s.heads, n = head / a.s.heads;
    std::int16_t* q = a.b.q_rows + item * queries * dim;
    std::int16_t* o = a.b.o_rows + item * queries * dim;
    alignas(64) std::int16_t block_o[queries * most_dims];
    const std::int64_t first = block * queries;
    const int count = static_cast<int>(a.s.seq - first < queries ? a.s.seq - first : queries);
    const std::size_t row_bytes = static_cast<std::size_t>(dim) * 2;
    float product[most_dims];
    bool finite[queries];
    row_sums<queries> sums;
    std::uint32_t row_max[queries];
    a.template fixed<queries>(n, first, count, h * a.s.head_dim, q, finite);
    std::memset(q + count * dim, 0, static_cast<std::size_t>(queries - count) * row_bytes);
    for (int i = 0; i < queries; ++i) {
      const std::int64_t t = block * queries + i, slot = item * queries + i;
      std::int32_t shift = 126;
      bool poisoned = true;
      row_max[i] = 0;
      if (i < count) {
        const bf16* ORDO_RESTRICT d_out = g.d_out + (n * a.s.seq + t) * a.s.out_width() + h * dim;
        const bf16* ORDO_RESTRICT out = g.out + (n * a.s.seq + t) * a.s.out_width() + h * dim;
        poisoned = read_row(a, g, head, t, row_max[i]);
        if (!poisoned) {
          shift = aligned_shift(row_max[i], a.scales.row_limit, 126);
          align_bf16(d_out, dim, shift, a.scales.row_limit, o + i * dim);
        }
        for (int d = 0; d < dim; ++d)
          product[d] = arith::mul_exact(arith::to_f32(d_out[d]), arith::to_f32(out[d]));
        sums.set(i, product, dim);
      }
      if (poisoned)
        std::memset(o + i * dim, 0, row_bytes);
      a.b.poisoned[slot] = poisoned;
      a.b.o_scale[slot] = arith::pow2(-shift);
    }
    const float* delta = sums.join(count);
    for (int i = 0; i < count; ++i)
      a.b.delta[item * queries + i] = delta[i];
    const std::int32_t block_shift = aligned_shift(a.b.o_largest[item], attention_limit, 126);
    a.b.o_shift[item] = block_shift;
    for (int i = 0; i < queries; ++i) {
      const std::int64_t t = block * queries + i;
      if (row_max[i] == 0) {
        for (int d = 0; d < dim; ++d)
          block_o[i * dim + d] = 0;
      } else {
        align_bf16(g.d_out + (n * a.s.seq + t) * a.s.out_width() + h * dim, dim, block_shift,
                   attention_limit, block_o + i * dim);
      }
    }
    const std::int64_t slab = item * queries * dim;
    place_columns<queries>(q, dim, a.b.q_columns[0] + slab, a.b.q_columns[1] + slab);
    place_columns<queries>(block_o, dim, a.b.o_columns[0] + slab, a.b.o_columns[1] + slab);
  }
};

} // namespace ordo::nn::detail
