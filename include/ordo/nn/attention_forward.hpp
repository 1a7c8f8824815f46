// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The stages of the forward pass: one block of keys, one block of queries.

#include <cstdint>
#include <cstring>

#include <ordo/nn/attention_scratch.hpp>
#include <ordo/nn/attention_tiles.hpp>
#include <ordo/nn/qk_norm_rope.hpp>

namespace ordo::nn::detail {

/// What every stage reads.
struct attention_problem {
  attention_shape s;
  attention_scales scales;
  const float *cosine, *sine;
  float eps;
  const bf16* qkv;
  std::int64_t key_blocks, query_blocks;
  attention_buffers b;

  ORDO_FORCE_FUNCTION int dim() const { return static_cast<int>(s.head_dim) & ~15; }
  /// Token t of sequence n, from its entry `column` on.
  ORDO_FORCE_FUNCTION const bf16* token(std::int64_t n, std::int64_t t, std::int64_t column) const {
    return qkv + (n * s.seq + t) * s.qkv_width() + column;
  }
  ORDO_FORCE_FUNCTION std::int64_t k_column(std::int64_t g) const {
    return (s.heads + g) * s.head_dim;
  }
  ORDO_FORCE_FUNCTION std::int64_t v_column(std::int64_t g) const {
    return (s.heads + s.kv_heads + g) * s.head_dim;
  }
  /// Fixed-point rows of tokens first ... first + count - 1 into out [count, hd].
  template <int Rows>
  ORDO_FORCE_FUNCTION void fixed(std::int64_t n, std::int64_t first, int count, std::int64_t column,
                                 std::int16_t* out, bool* finite) const {
    const int hd = dim();
    float r[Rows];
    inverse_rms<Rows>(token(n, first, column), s.qkv_width(), count, hd, scales, eps, r, finite);
    for (int i = 0; i < count; ++i) {
      const std::int64_t at = (first + i) * (hd / 2);
      fixed_row(token(n, first + i, column), hd, r[i], finite[i], scales, cosine + at, sine + at,
                out + i * hd);
    }
  }
};

/// Largest magnitude of a row, as bits, 0x7f800000 and above for one that is not finite.
ORDO_FORCE_FUNCTION std::uint32_t row_largest(const bf16* ORDO_RESTRICT x, int n) {
  std::uint32_t largest = 0;
  for (int d = 0; d < n; ++d) {
    const std::uint32_t u = static_cast<std::uint32_t>(x[d].bits & 0x7fffu) << 16;
    const std::uint32_t value = u & (0u - static_cast<std::uint32_t>(u >= 0x00800000u));
    largest = value > largest ? value : largest;
  }
  return largest;
}

/// [row][d] of int16 pairs to column `j` of a pair-of-dims layout with `columns` columns.
ORDO_FORCE_FUNCTION void place_dims(const std::int16_t* ORDO_RESTRICT row, int n, int columns,
                                    int j, std::int16_t* ORDO_RESTRICT out) {
  for (int d = 0; d < n; d += 2) {
    out[(d / 2 * columns + j) * 2] = row[d];
    out[(d / 2 * columns + j) * 2 + 1] = row[d + 1];
  }
}

/// Fixed-point keys and int8 values of one block. Item: (sequence, kv head, key block).
template <class Blocks>
struct forward_keys {
  attention_problem a;

  template <class Engine>
  ORDO_FORCE_FUNCTION void run(std::int64_t item) const {
    constexpr int keys = Blocks::key;
    const int dim = a.dim();
    const std::int64_t block = item % a.key_blocks, head = item / a.key_blocks;
    const std::int64_t g = head % a.s.kv_heads, n = head / a.s.kv_heads, first = block * keys;
    const int count = static_cast<int>(a.s.seq - first < keys ? a.s.seq - first : keys);
    alignas(64) std::int16_t rows[keys * most_dims];
    bool usable[keys], finite[keys];
    std::uint32_t largest = 0;
    a.template fixed<keys>(n, first, count, a.k_column(g), rows, finite);
    std::memset(rows + count * dim, 0, static_cast<std::size_t>((keys - count) * dim) * 2);
    for (int j = 0; j < keys; ++j) {
      std::uint32_t magnitude = 0x7f800000u;
      if (j < count) {
        magnitude = row_largest(a.token(n, first + j, a.v_column(g)), dim);
        a.b.key_bad[head * a.key_blocks * keys + first + j] =
            !finite[j] || magnitude >= 0x7f800000u;
      }
      usable[j] = magnitude < 0x7f800000u;
      if (usable[j] && magnitude > largest)
        largest = magnitude;
      place_dims(rows + j * dim, dim, keys, j, a.b.k_dims + item * keys * dim);
    }
    float step = arith::div(arith::from_bits(largest), 127.0f);
    step = step > 0x1p-100f ? step : 0.0f;
    const float inverse = step > 0.0f ? arith::div(1.0f, step) : 0.0f;
    a.b.v_weight[item] = arith::mul(step, arith::div(1.0f, 127.0f));
    std::int8_t* out = a.b.v8 + item * keys * dim;
    for (int j = 0; j < keys; ++j) {
      std::int8_t* ORDO_RESTRICT column = out + j / 4 * dim * 4 + j % 4;
      if (!usable[j]) {
        for (int d = 0; d < dim; ++d)
          column[4 * d] = 0;
        continue;
      }
      const bf16* ORDO_RESTRICT v = a.token(n, first + j, a.v_column(g));
      for (int d = 0; d < dim; ++d) {
        column[4 * d] =
            static_cast<std::int8_t>(arith::to_int(arith::mul(arith::to_f32(v[d]), inverse), 127));
      }
    }
  }
};

/// One block of queries of one head against all keys it sees. Item: (sequence, head, query block).
template <class Blocks>
struct forward_queries {
  attention_problem a;
  bf16* out;
  float* log_sum_exp;

  template <class Engine>
  ORDO_FORCE_FUNCTION void run(std::int64_t item) const {
    constexpr int queries = Blocks::query, keys = Blocks::key;
    const int dim = a.dim();
    const std::int64_t block = item % a.query_blocks, head = item / a.query_blocks;
    const std::int64_t h = head % a.s.heads, n = head / a.s.heads, first = block * queries;
    const std::int64_t kv = n * a.s.kv_heads + h / a.s.group();
    const int rows = static_cast<int>(a.s.seq - first < queries ? a.s.seq - first : queries);
    alignas(64) std::int16_t q[queries * most_dims];
    alignas(64) float sums[queries * most_dims];
    alignas(64) std::int32_t products[queries * (most_dims > keys ? most_dims : keys)];
    alignas(64) std::uint8_t p[queries * keys];
    alignas(64) float total[queries] = {}, largest[queries] = {}, weight[queries];
    alignas(64) std::int32_t sum[queries] = {};
    alignas(64) std::uint32_t seen[queries] = {};
    bool finite[queries];
    a.template fixed<queries>(n, first, rows, h * a.s.head_dim, q, finite);
    for (int e = 0; e < rows * dim; ++e)
      sums[e] = 0.0f;
    const std::int64_t first_key = a.s.first_key(first), last_key = first + rows - 1;
    for (std::int64_t b = first_key / keys; b * keys <= last_key && a.s.window > 0; ++b) {
      const std::int64_t slab = (kv * a.key_blocks + b) * keys * dim;
      Engine::dot16(rows, keys, dim, q, a.b.k_dims + slab, products);
      for (int i = 0; i < rows; ++i) {
        int begin, end;
        visible(first + i, b, begin, end);
        seen[i] = begin < end ? ~0u : 0u;
        largest[i] = 0.0f;
        sum[i] = 0;
        if (begin < end) {
          softmax_row<keys>(products + i * keys, a.scales.logit, begin, end, p + i * keys,
                            largest[i], sum[i]);
        } else {
          std::memset(p + i * keys, 0, keys);
        }
      }
      const float step = a.b.v_weight[kv * a.key_blocks + b];
      for (int i = 0; i < queries; ++i) {
        const float f = arith::detail::exp_bounded(largest[i]);
        const float next =
            masked_add(total[i], masked_mul(f, masked_mul(arith::from_int(sum[i]), 0x1p-22f)));
        total[i] =
            arith::from_bits((arith::bits(next) & seen[i]) | (arith::bits(total[i]) & ~seen[i]));
        weight[i] = masked_mul(f, step);
      }
      Engine::dot8(rows, dim, keys, p, a.b.v8 + slab, products);
      for (int i = 0; i < rows; ++i) {
        if (seen[i] == 0)
          continue;
        const std::int32_t* ORDO_RESTRICT product = products + i * dim;
        float* ORDO_RESTRICT o = sums + i * dim;
        const float w = weight[i];
        for (int d = 0; d < dim; ++d)
          o[d] = masked_add(o[d], masked_mul(w, arith::from_int(product[d])));
      }
    }
    finish(n, h, head, kv, first, rows, sums, total, finite);
  }

private:
  /// The keys of block b that query i sees are [begin, end) of the block.
  ORDO_FORCE_FUNCTION void visible(std::int64_t i, std::int64_t b, int& begin, int& end) const {
    constexpr int keys = Blocks::key;
    const std::int64_t from = a.s.first_key(i) - b * keys, to = i + 1 - b * keys;
    begin = static_cast<int>(from > 0 ? (from < keys ? from : keys) : 0);
    end = static_cast<int>(to > 0 ? (to < keys ? to : keys) : 0);
  }

  ORDO_FORCE_FUNCTION void finish(std::int64_t n, std::int64_t h, std::int64_t head,
                                  std::int64_t kv, std::int64_t first, int rows, const float* sums,
                                  const float* total, const bool* finite) const {
    const int dim = a.dim();
    const std::uint8_t* bad = a.b.key_bad + kv * a.key_blocks * Blocks::key;
    std::int64_t last_bad = -1, j = a.s.first_key(first);
    for (int i = 0; i < rows; ++i) {
      const std::int64_t t = first + i;
      for (; j <= t; ++j)
        last_bad = bad[j] ? j : last_bad;
      const bool nan = !finite[i] || last_bad >= a.s.first_key(t);
      const bool empty = a.s.window == 0;
      const float inverse = empty ? 0.0f : arith::div(1.0f, total[i]);
      bf16* ORDO_RESTRICT o = out + (n * a.s.seq + t) * a.s.out_width() + h * dim;
      const float* ORDO_RESTRICT sum = sums + i * dim;
      for (int d = 0; d < dim; ++d) {
        o[d] = nan ? bf16{0x7fc0} : arith::to_bf16(arith::mul(sum[d], inverse));
      }
      const float lse = empty ? arith::from_bits(0xff800000u) : arith::log(total[i]);
      log_sum_exp[head * a.s.seq + t] = nan ? arith::from_bits(arith::canonical_nan) : lse;
    }
  }
};

} // namespace ordo::nn::detail
