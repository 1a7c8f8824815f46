// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The last stages of the backward pass: from integer accumulators to dq, dk and dv.

#include <cstdint>

#include <ordo/nn/attention_integers.hpp>

namespace ordo::nn::detail {

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
    const std::int64_t first = block * queries;
    const int count = static_cast<int>(a.s.seq - first < queries ? a.s.seq - first : queries);
    bf16* dx = g.d_qkv + (n * a.s.seq + first) * a.s.qkv_width() + h * dim;
    unnormalise_rows<queries>({a.b.d_q + item * queries * dim, units.query,
                               a.token(n, first, h * dim), dx, a.s.qkv_width(),
                               a.cosine + first * pairs, a.sine + first * pairs},
                              count, dim, a.scales, a.eps);
    for (int i = 0; i < count; ++i) {
      if (units.representable && a.b.poisoned[item * queries + i] == 0)
        continue;
      for (int d = 0; d < dim; ++d)
        dx[i * a.s.qkv_width() + d] = bf16{0x7fc0};
    }
  }
};

/// dk and dv of one block of keys, over the heads of its group. Item: (sequence, kv head, key
/// block).
template <class Blocks>
struct backward_finish_keys {
  attention_problem a;
  attention_gradient g;
  std::int64_t together; ///< as in backward_heads

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
      nan[j] =
          !units.representable || a.b.key_bad[kv * a.key_blocks * keys + block * keys + j] != 0;
    for (std::int64_t h = first_head; h < first_head + a.s.group(); ++h)
      mark(h, block, nan);
    const std::int64_t first = block * keys, width = a.s.qkv_width();
    const int count = static_cast<int>(a.s.seq - first < keys ? a.s.seq - first : keys);
    alignas(64) std::int64_t sums[most_dims * keys];
    alignas(64) std::int64_t rows[most_dims * keys];
    sum_heads(a.b.d_k, first_head, block, sums);
    for (int j = 0; j < count; ++j) {
      for (int d = 0; d < dim; ++d)
        rows[j * dim + d] = sums[d * keys + j];
    }
    bf16* dk = g.d_qkv + (n * a.s.seq + first) * width + a.k_column(group);
    unnormalise_rows<keys>({rows, units.key, a.token(n, first, a.k_column(group)), dk, width,
                            a.cosine + first * pairs, a.sine + first * pairs},
                           count, dim, a.scales, a.eps);
    for (int j = 0; j < count; ++j) {
      for (int d = 0; nan[j] && d < dim; ++d)
        dk[j * width + d] = bf16{0x7fc0};
    }
    sum_heads(a.b.d_v, first_head, block, sums);
    for (int j = 0; j < count; ++j) {
      bf16* ORDO_RESTRICT dv = g.d_qkv + (n * a.s.seq + first + j) * width + a.v_column(group);
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
      if (i < first + Blocks::key && next < i + a.s.window)
        nan[i - first] = true;
    }
  }

  /// The block's accumulators [hd, key], summed over the group's heads.
  ORDO_FORCE_FUNCTION void sum_heads(const std::int64_t* accumulators, std::int64_t first_head,
                                     std::int64_t block, std::int64_t* ORDO_RESTRICT sums) const {
    const int count = a.dim() * Blocks::key;
    for (int e = 0; e < count; ++e)
      sums[e] = 0;
    for (std::int64_t h = first_head / together; h < (first_head + a.s.group()) / together; ++h) {
      const std::int64_t* ORDO_RESTRICT from = accumulators + (h * a.key_blocks + block) * count;
      for (int e = 0; e < count; ++e)
        sums[e] += from[e];
    }
  }
};

} // namespace ordo::nn::detail
