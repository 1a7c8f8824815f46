// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The tiles of the backward pass: P, dS and the three gradient products.

#include <cstdint>
#include <cstring>

#include <ordo/nn/attention_alignment.hpp>
#include <ordo/nn/attention_finish.hpp>
#include <ordo/nn/attention_integers.hpp>

namespace ordo::nn::detail {

/// Heads from their inputs to dq, and their part of dk and dv: one after the other, while a head's
/// integers are in a core's cache. Item: (sequence, `together` heads of one group). How many is
/// tuning: together they share accumulators of dk and dv, which are integers.
template <class Blocks>
struct backward_heads {
  static constexpr int queries = Blocks::query, keys = Blocks::key;
  attention_problem a;
  attention_gradient g;
  std::int64_t together;

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
  ORDO_FORCE_FUNCTION void run(std::int64_t item) const {
    const std::int64_t first = item * together, n = first / a.s.heads;
    const std::int64_t key_bytes = a.key_blocks * keys * a.dim() * 8;
    std::memset(a.b.d_k + item * key_bytes / 8, 0, static_cast<std::size_t>(key_bytes));
    std::memset(a.b.d_v + item * key_bytes / 8, 0, static_cast<std::size_t>(key_bytes));
    const attention_units units = group_units<Blocks>(a, n, first % a.s.heads / a.s.group());
    for (std::int64_t head = first; head < first + together; ++head) {
      const std::int64_t blocks = head * a.query_blocks;
      const std::int64_t query_bytes = a.query_blocks * queries * a.dim() * 8;
      std::memset(a.b.d_q + head * query_bytes / 8, 0, static_cast<std::size_t>(query_bytes));
      for (std::int64_t qb = 0; qb < a.query_blocks; ++qb)
        backward_queries<Blocks>{a, g}.template run<Engine>(blocks + qb);
      if (units.representable && a.s.window > 0)
        all_tiles<Engine>(units, head);
      for (std::int64_t qb = 0; qb < a.query_blocks; ++qb)
        backward_finish_queries<Blocks>{a, g}.template run<Engine>(blocks + qb);
    }
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
    for (int j = 0; j < keys; ++j)
      t.largest_p[j] = t.largest_ds[j] = 0;
    for (int i = 0; i < queries; ++i) {
      const std::int64_t q = qb * queries + i;
      const std::int64_t from = a.s.first_key(q) - kb * keys, to = q + 1 - kb * keys;
      const int begin = static_cast<int>(from > 0 ? (from < keys ? from : keys) : 0);
      const int end = static_cast<int>(to > 0 ? (to < keys ? to : keys) : 0);
      float* p = t.p + i * keys;
      float* ds = t.ds + i * keys;
      t.row_shift[i] = 0;
      if (begin >= end || a.b.poisoned[slot + i] != 0) {
        for (int j = 0; j < keys; ++j)
          p[j] = ds[j] = 0.0f;
        continue;
      }
      const std::uint32_t largest = gradient_row<keys>(
          t.low + i * keys, t.high + i * keys, a.scales.logit, g.log_sum_exp[head * a.s.seq + q],
          a.b.delta[slot + i], a.b.o_scale[slot + i], column_scale, begin, end, p, ds, t.largest_p,
          t.largest_ds);
      t.row_shift[i] = static_cast<std::int32_t>(largest);
    }
  }

  /// Turns P and dS into integers: dS by rows and by columns, P by columns.
  ORDO_FORCE_FUNCTION void align_tile(const attention_units& units, std::int32_t o_shift,
                                      tile& t) const {
    for (int i = 0; i < queries; ++i) {
      const std::int32_t s = tile_shift(static_cast<std::uint32_t>(t.row_shift[i]), units.query);
      align_row<keys>(t.ds + i * keys, arith::pow2(s), t.ds_rows + i * keys);
      t.row_shift[i] = rest_of_unit(units.query, s);
    }
    for (int j = 0; j < keys; ++j) {
      const std::int32_t s = tile_shift(t.largest_ds[j], units.key);
      const std::int32_t r = tile_shift(t.largest_p[j], units.value - o_shift);
      t.ds_scale[j] = arith::pow2(s);
      t.p_scale[j] = arith::pow2(r);
      t.ds_shift[j] = rest_of_unit(units.key, s);
      t.p_shift[j] = rest_of_unit(units.value - o_shift, r);
    }
    for (int i = 0; i < queries; i += 2) {
      align_pairs<keys>(t.ds + i * keys, t.ds + (i + 1) * keys, t.ds_scale, t.ds_pairs + i * keys);
      align_pairs<keys>(t.p + i * keys, t.p + (i + 1) * keys, t.p_scale, t.p_pairs + i * keys);
    }
  }

  /// The three gradient products of the tile, added to the head's accumulators.
  template <class Engine>
  ORDO_FORCE_FUNCTION void accumulate(std::int64_t head, std::int64_t kv, std::int64_t qb,
                                      std::int64_t kb, tile& t) const {
    const int dim = a.dim();
    const std::int64_t query_slab = (head * a.query_blocks + qb) * queries * dim;
    const std::int64_t key_slab = (head / together * a.key_blocks + kb) * keys * dim;
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

} // namespace ordo::nn::detail
