// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The stages of the backward pass: keys, magnitudes of dO, heads, and the end of dk and dv.

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

/// Rows to two column-wise parts: low[d][i] and high[d][i] from row[i][d]. Two rows at a time, so that
/// the transposition moves four bytes.
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
    alignas(64) std::int16_t k[most_dims], v[most_dims];
    std::uint32_t block_largest = 0;
    for (int j = 0; j < keys; ++j) {
      const std::int64_t t = first + j;
      bool bad = true;
      std::int32_t shift = 126;
      for (int d = 0; d < dim; ++d) k[d] = v[d] = 0;
      if (t < a.s.seq) {
        const bool finite = a.fixed(n, t, a.k_column(g), k);
        const std::uint32_t largest = row_largest(a.token(n, t, a.v_column(g)), dim);
        bad = !finite || largest >= 0x7f800000u;
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
      std::int16_t* ORDO_RESTRICT high = a.b.k_keys[1] + item * keys * dim + j / 2 * dim * 2 + j % 2;
      for (int d = 0; d < dim; ++d) split(k[d], low[2 * d], high[2 * d]);
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
  const bool poisoned =
      largest >= 0x7f800000u || arith::is_nan(g.log_sum_exp[head * a.s.seq + t]);
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
    const std::size_t row_bytes = static_cast<std::size_t>(dim) * 2;
    float product[most_dims];
    std::uint32_t row_max[queries];
    for (int i = 0; i < queries; ++i) {
      const std::int64_t t = block * queries + i, slot = item * queries + i;
      std::int32_t shift = 126;
      bool poisoned = true;
      a.b.delta[slot] = 0.0f;
      row_max[i] = 0;
      if (t >= a.s.seq) {
        std::memset(q + i * dim, 0, row_bytes);
      } else {
        const bf16* ORDO_RESTRICT d_out = g.d_out + (n * a.s.seq + t) * a.s.out_width() + h * dim;
        const bf16* ORDO_RESTRICT out = g.out + (n * a.s.seq + t) * a.s.out_width() + h * dim;
        a.fixed(n, t, h * a.s.head_dim, q + i * dim);
        poisoned = read_row(a, g, head, t, row_max[i]);
        if (!poisoned) {
          shift = aligned_shift(row_max[i], a.scales.row_limit, 126);
          align_bf16(d_out, dim, shift, a.scales.row_limit, o + i * dim);
          for (int d = 0; d < dim; ++d)
            product[d] = arith::mul_exact(arith::to_f32(d_out[d]), arith::to_f32(out[d]));
          a.b.delta[slot] = sum_lanes32(product, dim);
        }
      }
      if (poisoned) std::memset(o + i * dim, 0, row_bytes);
      a.b.poisoned[slot] = poisoned;
      a.b.o_scale[slot] = arith::pow2(-shift);
    }
    const std::int32_t block_shift = aligned_shift(a.b.o_largest[item], attention_limit, 126);
    a.b.o_shift[item] = block_shift;
    for (int i = 0; i < queries; ++i) {
      const std::int64_t t = block * queries + i;
      if (row_max[i] == 0) {
        for (int d = 0; d < dim; ++d) block_o[i * dim + d] = 0;
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

/// Units of one (sequence, kv head), from the largest magnitudes of its blocks.
template <class Blocks>
ORDO_FORCE_FUNCTION attention_units group_units(const attention_problem& a, std::int64_t n,
                                                std::int64_t g) {
  std::uint32_t values = 0, d_out = 0;
  for (std::int64_t b = 0; b < a.key_blocks; ++b) {
    const std::uint32_t u = a.b.v_largest[(n * a.s.kv_heads + g) * a.key_blocks + b];
    values = u > values ? u : values;
  }
  const std::int64_t heads = a.s.group();
  const std::uint32_t* largest = a.b.o_largest + (n * a.s.heads + g * heads) * a.query_blocks;
  for (std::int64_t b = 0; b < heads * a.query_blocks; ++b)
    d_out = largest[b] > d_out ? largest[b] : d_out;
  return make_attention_units(a.scales, d_out, values);
}

/// dq of one block of queries. Item: (sequence, head, query block).
template <class Blocks>
struct backward_finish_queries {
  attention_problem a;
  attention_gradient g;

  template <class Engine>
  ORDO_FORCE_FUNCTION void run(std::int64_t item) const {
    constexpr int queries = Blocks::query;
    const int dim = a.dim(), pairs = dim / 2;
    const std::int64_t block = item % a.query_blocks, head = item / a.query_blocks;
    const std::int64_t h = head % a.s.heads, n = head / a.s.heads;
    const attention_units units = group_units<Blocks>(a, n, h / a.s.group());
    for (std::int64_t i = 0; i < queries && block * queries + i < a.s.seq; ++i) {
      const std::int64_t t = block * queries + i;
      bf16* ORDO_RESTRICT dx = g.d_qkv + (n * a.s.seq + t) * a.s.qkv_width() + h * dim;
      const bf16* x = a.token(n, t, h * dim);
      unnormalise_row(a.b.d_q + (item * queries + i) * dim, units.query, x, a.dim(), a.scales, a.eps,
                      a.cosine + t * pairs, a.sine + t * pairs, dx);
      if (!units.representable || a.b.poisoned[item * queries + i] != 0) {
        for (int d = 0; d < dim; ++d) dx[d] = bf16{0x7fc0};
      }
    }
  }
};

ORDO_FORCE_FUNCTION std::int32_t within(std::int32_t s, std::int32_t low, std::int32_t high) {
  return s < low ? low : s > high ? high : s;
}

/// One head from its inputs to dq, and its part of dk and dv: while a head's integers are in a core's
/// cache. Item: (sequence, head).
template <class Blocks>
struct backward_heads {
  static constexpr int queries = Blocks::query, keys = Blocks::key;
  attention_problem a;
  attention_gradient g;

  /// Working memory of one tile.
  struct tile {
    alignas(64) std::int32_t low[(queries > keys ? queries : keys) * most_dims];
    alignas(64) std::int32_t high[(queries > keys ? queries : keys) * most_dims];
    alignas(64) float p[queries * keys];
    alignas(64) float ds[queries * keys];
    alignas(64) std::int16_t ds_rows[queries * keys];
    alignas(64) std::int16_t ds_pairs[queries * keys];
    alignas(64) std::int16_t p_pairs[queries * keys];
    std::int32_t row_shift[queries];
    alignas(64) std::uint32_t largest_p[keys];
    alignas(64) std::uint32_t largest_ds[keys];
    alignas(64) float p_scale[keys];
    alignas(64) float ds_scale[keys];
    alignas(64) std::int64_t p_shift[keys];
    alignas(64) std::int64_t ds_shift[keys];
  };

  template <class Engine>
  ORDO_FORCE_FUNCTION void run(std::int64_t head) const {
    const std::int64_t h = head % a.s.heads, n = head / a.s.heads, group = h / a.s.group();
    const std::int64_t dim = a.dim();
    std::int64_t* d_q = a.b.d_q + head * a.query_blocks * queries * dim;
    std::int64_t* d_k = a.b.d_k + head * a.key_blocks * keys * dim;
    std::int64_t* d_v = a.b.d_v + head * a.key_blocks * keys * dim;
    const std::int64_t key_slab = keys * dim;
    std::memset(d_q, 0, static_cast<std::size_t>(a.query_blocks * queries * dim) * 8);
    std::memset(d_k, 0, static_cast<std::size_t>(a.key_blocks * key_slab) * 8);
    std::memset(d_v, 0, static_cast<std::size_t>(a.key_blocks * key_slab) * 8);
    const attention_units units = group_units<Blocks>(a, n, group);
    for (std::int64_t qb = 0; qb < a.query_blocks; ++qb)
      backward_queries<Blocks>{a, g}.template run<Engine>(head * a.query_blocks + qb);
    if (units.representable && a.s.window > 0) all_tiles<Engine>(units, head);
    for (std::int64_t qb = 0; qb < a.query_blocks; ++qb)
      backward_finish_queries<Blocks>{a, g}.template run<Engine>(head * a.query_blocks + qb);
  }

 private:
  template <class Engine>
  ORDO_FORCE_FUNCTION void all_tiles(const attention_units& units, std::int64_t head) const {
    const std::int64_t kv = head / a.s.heads * a.s.kv_heads + head % a.s.heads / a.s.group();
    tile t;
    for (std::int64_t kb = 0; kb < a.key_blocks; ++kb) {
      const std::int64_t last_query = (kb + 1) * keys + a.s.window - 2;
      for (std::int64_t qb = kb * keys / queries; qb < a.query_blocks && qb * queries <= last_query;
           ++qb) {
        products<Engine>(head, kv, qb, kb, t);
        align_tile(units, a.b.o_shift[head * a.query_blocks + qb], t);
        accumulate<Engine>(head, kv, qb, kb, t);
      }
    }
  }

  /// P and dS of the tile; rows of dS as integers.
  template <class Engine>
  ORDO_FORCE_FUNCTION void products(std::int64_t head, std::int64_t kv, std::int64_t qb,
                                    std::int64_t kb, tile& t) const {
    const int dim = a.dim();
    const std::int64_t slot = (head * a.query_blocks + qb) * queries;
    const std::int64_t slab = (kv * a.key_blocks + kb) * keys * dim;
    Engine::dot16(queries, keys, dim, a.b.q_rows + slot * dim, a.b.k_dims + slab, t.low);
    Engine::dot16(queries, keys, dim, a.b.o_rows + slot * dim, a.b.v_dims + slab, t.high);
    const float* column_scale = a.b.v_scale + (kv * a.key_blocks + kb) * keys;
    for (int j = 0; j < keys; ++j) t.largest_p[j] = t.largest_ds[j] = 0;
    for (int i = 0; i < queries; ++i) {
      const std::int64_t q = qb * queries + i;
      const std::int64_t from = a.s.first_key(q) - kb * keys, to = q + 1 - kb * keys;
      const int begin = static_cast<int>(from > 0 ? (from < keys ? from : keys) : 0);
      const int end = static_cast<int>(to > 0 ? (to < keys ? to : keys) : 0);
      float* p = t.p + i * keys;
      float* ds = t.ds + i * keys;
      t.row_shift[i] = 0;
      if (begin >= end || a.b.poisoned[slot + i] != 0) {
        for (int j = 0; j < keys; ++j) p[j] = ds[j] = 0.0f;
        continue;
      }
      const std::uint32_t largest = gradient_row<keys>(
          t.low + i * keys, t.high + i * keys, a.scales.logit,
          g.log_sum_exp[head * a.s.seq + q], a.b.delta[slot + i], a.b.o_scale[slot + i],
          column_scale, begin, end, p, ds, t.largest_p, t.largest_ds);
      t.row_shift[i] = static_cast<std::int32_t>(largest);
    }
  }

  /// Turns P and dS into integers: dS by rows and by columns, P by columns.
  ORDO_FORCE_FUNCTION void align_tile(const attention_units& units, std::int32_t o_shift,
                                      tile& t) const {
    for (int i = 0; i < queries; ++i) {
      const std::int32_t s =
          within(aligned_shift(static_cast<std::uint32_t>(t.row_shift[i]), attention_limit,
                               units.query), -126, 126);
      align_row<keys>(t.ds + i * keys, arith::pow2(s), t.ds_rows + i * keys);
      t.row_shift[i] = within(units.query - s, 0, 62);
    }
    for (int j = 0; j < keys; ++j) {
      const std::int32_t s =
          within(aligned_shift(t.largest_ds[j], attention_limit, units.key), -126, 126);
      const std::int32_t r =
          within(aligned_shift(t.largest_p[j], attention_limit, units.value - o_shift), -126, 126);
      t.ds_scale[j] = arith::pow2(s);
      t.p_scale[j] = arith::pow2(r);
      t.ds_shift[j] = within(units.key - s, 0, 62);
      t.p_shift[j] = within(units.value - o_shift - r, 0, 62);
    }
    for (int i = 0; i < queries; i += 2) {
      align_pairs<keys>(t.ds + i * keys, t.ds + (i + 1) * keys, t.ds_scale, t.ds_pairs + i * keys);
      align_pairs<keys>(t.p + i * keys, t.p + (i + 1) * keys, t.p_scale, t.p_pairs + i * keys);
    }
  }

  /// The three gradient products of the tile, added to the head's accumulators.
  template <class Engine>
  ORDO_FORCE_FUNCTION void accumulate(std::int64_t head, std::int64_t kv,
                                      std::int64_t qb, std::int64_t kb, tile& t) const {
    const int dim = a.dim();
    const std::int64_t query_slab = (head * a.query_blocks + qb) * queries * dim;
    const std::int64_t key_slab = (head * a.key_blocks + kb) * keys * dim;
    const std::int64_t kv_slab = (kv * a.key_blocks + kb) * keys * dim;
    Engine::dot16(queries, dim, keys, t.ds_rows, a.b.k_keys[0] + kv_slab, t.low);
    Engine::dot16(queries, dim, keys, t.ds_rows, a.b.k_keys[1] + kv_slab, t.high);
    for (int i = 0; i < queries; ++i) {
      accumulate_row(dim, t.low + i * dim, t.high + i * dim, t.row_shift[i],
                     a.b.d_q + query_slab + i * dim);
    }
    Engine::dot16(dim, keys, queries, a.b.q_columns[0] + query_slab, t.ds_pairs, t.low);
    Engine::dot16(dim, keys, queries, a.b.q_columns[1] + query_slab, t.ds_pairs, t.high);
    for (int d = 0; d < dim; ++d) {
      accumulate_columns<keys>(t.low + d * keys, t.high + d * keys, t.ds_shift,
                               a.b.d_k + key_slab + d * keys);
    }
    Engine::dot16(dim, keys, queries, a.b.o_columns[0] + query_slab, t.p_pairs, t.low);
    Engine::dot16(dim, keys, queries, a.b.o_columns[1] + query_slab, t.p_pairs, t.high);
    for (int d = 0; d < dim; ++d) {
      accumulate_columns<keys>(t.low + d * keys, t.high + d * keys, t.p_shift,
                               a.b.d_v + key_slab + d * keys);
    }
  }
};

/// dk and dv of one block of keys, over the heads of its group. Item: (sequence, kv head, key block).
template <class Blocks>
struct backward_finish_keys {
  attention_problem a;
  attention_gradient g;

  template <class Engine>
  ORDO_FORCE_FUNCTION void run(std::int64_t item) const {
    constexpr int keys = Blocks::key;
    const int dim = a.dim();
    const std::int64_t pairs = dim / 2, block = item % a.key_blocks, kv = item / a.key_blocks;
    const std::int64_t group = kv % a.s.kv_heads, n = kv / a.s.kv_heads;
    const std::int64_t first_head = n * a.s.heads + group * a.s.group();
    const attention_units units = group_units<Blocks>(a, n, group);
    bool nan[keys];
    for (int j = 0; j < keys; ++j)
      nan[j] = !units.representable || a.b.key_bad[kv * a.key_blocks * keys + block * keys + j] != 0;
    for (std::int64_t h = first_head; h < first_head + a.s.group(); ++h) mark(h, block, nan);
    alignas(64) std::int64_t sums[most_dims * keys];
    std::int64_t row[most_dims];
    sum_heads(a.b.d_k, first_head, block, sums);
    for (int j = 0; j < keys && block * keys + j < a.s.seq; ++j) {
      const std::int64_t t = block * keys + j, column = a.k_column(group);
      for (int d = 0; d < dim; ++d) row[d] = sums[d * keys + j];
      bf16* ORDO_RESTRICT dk = g.d_qkv + (n * a.s.seq + t) * a.s.qkv_width() + column;
      unnormalise_row(row, units.key, a.token(n, t, column), dim, a.scales, a.eps,
                      a.cosine + t * pairs, a.sine + t * pairs, dk);
      for (int d = 0; nan[j] && d < dim; ++d) dk[d] = bf16{0x7fc0};
    }
    sum_heads(a.b.d_v, first_head, block, sums);
    for (int j = 0; j < keys && block * keys + j < a.s.seq; ++j) {
      const std::int64_t t = block * keys + j;
      bf16* ORDO_RESTRICT dv = g.d_qkv + (n * a.s.seq + t) * a.s.qkv_width() + a.v_column(group);
      for (int d = 0; d < dim; ++d) {
        const float x = arith::scale_pow2(arith::from_int(sums[d * keys + j]), -units.value);
        dv[d] = nan[j] ? bf16{0x7fc0} : arith::to_bf16(x);
      }
    }
  }

 private:
  /// Marks the keys of the block that a poisoned query of head h sees.
  ORDO_FORCE_FUNCTION void mark(std::int64_t h, std::int64_t block, bool* nan) const {
    const std::uint8_t* poisoned = a.b.poisoned + h * a.query_blocks * Blocks::query;
    const std::int64_t first = block * Blocks::key;
    std::int64_t end = first + Blocks::key - 1 + a.s.window;
    end = end < a.s.seq ? end : a.s.seq;
    // Descending: the smallest poisoned query at or after each key.
    std::int64_t next = a.s.seq + a.s.window;
    for (std::int64_t i = end - 1; i >= first; --i) {
      next = poisoned[i] != 0 ? i : next;
      if (i < first + Blocks::key && next < i + a.s.window) nan[i - first] = true;
    }
  }

  /// The block's accumulators [hd, key], summed over the group's heads.
  ORDO_FORCE_FUNCTION void sum_heads(const std::int64_t* accumulators, std::int64_t first_head,
                                     std::int64_t block, std::int64_t* ORDO_RESTRICT sums) const {
    const int count = a.dim() * Blocks::key;
    for (int e = 0; e < count; ++e) sums[e] = 0;
    for (std::int64_t h = first_head; h < first_head + a.s.group(); ++h) {
      const std::int64_t* ORDO_RESTRICT from = accumulators + (h * a.key_blocks + block) * count;
      for (int e = 0; e < count; ++e) sums[e] += from[e];
    }
  }
};

}  // namespace ordo::nn::detail
