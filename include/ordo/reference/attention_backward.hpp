// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The backward pass of attention by its definition.

#include <algorithm>
#include <span>
#include <vector>

#include <ordo/reference/attention.hpp>

namespace ordo::reference {

/// A row, column or block as fixed-point integers: entry = v * 2^-shift.
struct aligned {
  std::int32_t shift;
  std::vector<std::int32_t> v;
};

/// shift = the largest s <= cap with max|x| 2^s <= limit (cap for all zeros), at least -126;
/// v = to_int(x * 2^shift, limit).
inline aligned align(std::span<const float> x, std::int32_t limit, std::int32_t cap) {
  std::uint32_t largest = 0;
  for (const float e : x)
    largest = std::max(largest, arith::bits(arith::abs(e)));
  aligned r{std::max(-126, nn::aligned_shift(largest, limit, std::min(cap, 126))), {}};
  for (const float e : x)
    r.v.push_back(arith::to_int(arith::mul(e, arith::pow2(r.shift)), limit));
  return r;
}

/// One query head of the backward pass: what its tiles read, and its accumulator.
struct query_gradient {
  attention_head q;
  std::vector<float> d_out;              ///< dO [seq, hd]; poisoned rows are 0
  std::vector<float> delta;              ///< D_i = sum of dO * o by order::Lanes<32>
  std::vector<bool> poisoned;            ///< the forward row or dO holds a NaN or an infinity
  std::vector<std::int64_t> accumulator; ///< [seq, hd] in units of 2^-units.query
};

/// The key-value head: inputs and accumulators.
struct key_gradient {
  attention_head k;
  value_head v;
  std::vector<std::int64_t> key, value; ///< [seq, hd] in units of 2^-units.key, 2^-units.value
  std::vector<bool> touched;            ///< a poisoned query sees this key
};

/// Adds one tile's gradients: queries [i0, i1), keys [j0, j1), pairs that see each other only.
///
/// P_ij = exp(l_ij - lse_i);  dP_ij = from_int(dot of dO row i and v row j, each aligned with
/// scales.row_limit) * 2^-shift_i * 2^-shift_j;  dS_ij = P_ij * (dP_ij - D_i). Then, in integers:
/// dQ_i += sum_j [dS_ij] k_j with row i of the tile's dS aligned (limit 16319, cap units.query);
/// dK_j += sum_i [dS_ij] q_i with column j aligned (cap units.key);
/// dV_j += sum_i [P_ij] [dO_i] with column j of P aligned (cap units.value - shift of dO) and dO of
/// the whole query block aligned by one shift. Every sum is shifted left into its unit, exactly:
/// the order of tiles, heads and threads leaves no trace.
inline void add_tile(const nn::attention_shape& s, const nn::attention_units& units,
                     std::span<const float> lse, query_gradient& query, key_gradient& keys,
                     std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1) {
  const nn::attention_scales scales = nn::make_attention_scales(s);
  const std::int64_t hd = s.head_dim, rows = i1 - i0, columns = j1 - j0;
  const std::size_t dim = static_cast<std::size_t>(hd);
  const auto at = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
  std::vector<float> p(at(rows, columns), 0.0f), ds(at(rows, columns), 0.0f);
  for (std::int64_t i = i0; i < i1; ++i) {
    const std::size_t row = static_cast<std::size_t>(i);
    if (query.poisoned[row])
      continue;
    const aligned o = align(std::span(query.d_out).subspan(at(i, hd), dim), scales.row_limit, 126);
    for (std::int64_t j = std::max(j0, s.first_key(i)); j < std::min(j1, i + 1); ++j) {
      const aligned v = align(std::span(keys.v.v).subspan(at(j, hd), dim), scales.row_limit, 126);
      const float logit =
          arith::mul(arith::from_int(dot(&query.q.fixed[at(i, hd)], &keys.k.fixed[at(j, hd)], hd)),
                     scales.logit);
      const float dp = arith::mul(
          arith::mul(arith::from_int(dot(o.v.data(), v.v.data(), hd)), arith::pow2(-o.shift)),
          arith::pow2(-v.shift));
      const std::size_t cell = static_cast<std::size_t>((i - i0) * columns + (j - j0));
      p[cell] = arith::exp(arith::sub(logit, lse[row]));
      ds[cell] = arith::mul(p[cell], arith::sub(dp, query.delta[row]));
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const aligned row =
        align(std::span(ds).subspan(at(i, columns), static_cast<std::size_t>(columns)),
              nn::attention_limit, units.query);
    for (std::int64_t d = 0; d < hd; ++d) {
      std::int64_t sum = 0;
      for (std::int64_t j = 0; j < columns; ++j) {
        sum += std::int64_t{row.v[static_cast<std::size_t>(j)]} *
               keys.k.fixed[static_cast<std::size_t>((j0 + j) * hd + d)];
      }
      query.accumulator[static_cast<std::size_t>((i0 + i) * hd + d)] +=
          nn::in_units(sum, units.query - row.shift);
    }
  }
  const aligned o =
      align(std::span(query.d_out).subspan(at(i0, hd), at(rows, hd)), nn::attention_limit, 126);
  for (std::int64_t j = 0; j < columns; ++j) {
    std::vector<float> ds_column, p_column;
    for (std::int64_t i = 0; i < rows; ++i) {
      ds_column.push_back(ds[static_cast<std::size_t>(i * columns + j)]);
      p_column.push_back(p[static_cast<std::size_t>(i * columns + j)]);
    }
    const aligned dsj = align(ds_column, nn::attention_limit, units.key);
    const aligned pj = align(p_column, nn::attention_limit, units.value - o.shift);
    for (std::int64_t d = 0; d < hd; ++d) {
      std::int64_t key_sum = 0, value_sum = 0;
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::size_t row = static_cast<std::size_t>(i);
        key_sum +=
            std::int64_t{dsj.v[row]} * query.q.fixed[static_cast<std::size_t>((i0 + i) * hd + d)];
        value_sum += std::int64_t{pj.v[row]} * o.v[static_cast<std::size_t>(i * hd + d)];
      }
      const std::size_t cell = static_cast<std::size_t>((j0 + j) * hd + d);
      keys.key[cell] += nn::in_units(key_sum, units.key - dsj.shift);
      keys.value[cell] += nn::in_units(value_sum, units.value - pj.shift - o.shift);
    }
  }
}

/// One row of dq or dk, from the accumulator through the rotation and the normalisation to dx.
///
/// g = (from_int(a) * 2^-unit) * scales.gradient; dy = g rotated back;
/// mean = (sum of dy * y by order::Lanes<32>) * (1/hd);  dx = to_bf16(r * (dy - y * mean)).
inline void unnormalise_row(const nn::attention_shape& s, std::span<const std::int64_t> accumulator,
                            std::int32_t unit, std::span<const float> cosine,
                            std::span<const float> sine, std::span<const float> y, float r,
                            std::span<bf16> dx) {
  const nn::attention_scales scales = nn::make_attention_scales(s);
  std::vector<float> dy;
  for (const std::int64_t a : accumulator) {
    dy.push_back(arith::mul(arith::scale_pow2(arith::from_int(a), -unit), scales.gradient));
  }
  rotate_back(dy, cosine, sine);
  const float sum = order::sum(order::Lanes<32>{}, s.head_dim, [&](std::int64_t d) {
    return arith::mul(dy[static_cast<std::size_t>(d)], y[static_cast<std::size_t>(d)]);
  });
  const float mean = arith::mul(sum, scales.inverse_dim);
  for (std::size_t d = 0; d < dy.size(); ++d) {
    dx[d] = arith::to_bf16(arith::mul(r, arith::sub(dy[d], arith::mul(y[d], mean))));
  }
}

/// Reads one query head for the backward pass.
inline query_gradient read_query(const nn::attention_shape& s, attention_head q,
                                 std::span<const bf16> out, std::span<const float> lse,
                                 std::span<const bf16> d_out, std::int64_t sequence,
                                 std::int64_t h) {
  query_gradient g{std::move(q), {}, {}, {}, {}};
  g.accumulator.assign(static_cast<std::size_t>(s.seq * s.head_dim), 0);
  for (std::int64_t i = 0; i < s.seq; ++i) {
    const std::size_t row =
        static_cast<std::size_t>((sequence * s.seq + i) * s.out_width() + h * s.head_dim);
    bool poisoned = arith::is_nan(lse[static_cast<std::size_t>(i)]);
    for (std::int64_t d = 0; d < s.head_dim; ++d) {
      const std::size_t at = row + static_cast<std::size_t>(d);
      poisoned = poisoned || !arith::is_finite(arith::to_f32(d_out[at]));
    }
    g.poisoned.push_back(poisoned);
    for (std::int64_t d = 0; d < s.head_dim; ++d) {
      g.d_out.push_back(poisoned ? 0.0f : arith::to_f32(d_out[row + static_cast<std::size_t>(d)]));
    }
    g.delta.push_back(order::sum(order::Lanes<32>{}, s.head_dim, [&](std::int64_t d) {
      return arith::mul_exact(g.d_out[static_cast<std::size_t>(i * s.head_dim + d)],
                              arith::to_f32(out[row + static_cast<std::size_t>(d)]));
    }));
  }
  return g;
}

/// Largest magnitude of the entries, as bits.
inline std::uint32_t largest_magnitude(std::span<const float> x) {
  std::uint32_t largest = 0;
  for (const float e : x)
    largest = std::max(largest, arith::bits(arith::abs(e)));
  return largest;
}

/// The log-sum-exps of sequence n, head h.
inline std::span<const float> head_lse(const nn::attention_shape& s,
                                       std::span<const float> log_sum_exp, std::int64_t n,
                                       std::int64_t h) {
  return log_sum_exp.subspan(static_cast<std::size_t>((n * s.heads + h) * s.seq),
                             static_cast<std::size_t>(s.seq));
}

/// The backward pass of one sequence and key-value head: the group's inputs, then their gradients.
struct gradient_group {
  key_gradient keys;
  std::vector<bool> bad; ///< key or value row that is not finite
  std::vector<query_gradient> queries;
  nn::attention_units units;
};

/// Reads the inputs of sequence n, key-value head g.
inline gradient_group read_group(const nn::attention_shape& s, std::span<const float> cosine,
                                 std::span<const float> sine, float eps, std::span<const bf16> qkv,
                                 std::span<const bf16> out, std::span<const float> log_sum_exp,
                                 std::span<const bf16> d_out, std::int64_t n, std::int64_t g) {
  gradient_group r;
  r.keys.k = normalise_head(s, cosine, sine, eps, qkv, n, (s.heads + g) * s.head_dim);
  r.keys.v = read_values(s, qkv, n, (s.heads + s.kv_heads + g) * s.head_dim);
  r.keys.key.assign(static_cast<std::size_t>(s.seq * s.head_dim), 0);
  r.keys.value = r.keys.key;
  r.keys.touched.assign(static_cast<std::size_t>(s.seq), false);
  for (std::size_t j = 0; j < r.keys.touched.size(); ++j) {
    r.bad.push_back(r.keys.k.bad[j] || r.keys.v.bad[j]);
    if (r.bad[j]) {
      std::fill_n(&r.keys.v.v[j * static_cast<std::size_t>(s.head_dim)], s.head_dim, 0.0f);
    }
  }
  std::uint32_t largest = 0;
  for (std::int64_t h = g * s.group(); h < (g + 1) * s.group(); ++h) {
    r.queries.push_back(read_query(s, normalise_head(s, cosine, sine, eps, qkv, n, h * s.head_dim),
                                   out, head_lse(s, log_sum_exp, n, h), d_out, n, h));
    largest = std::max(largest, largest_magnitude(r.queries.back().d_out));
    for (std::int64_t i = 0; i < s.seq; ++i) {
      if (!r.queries.back().poisoned[static_cast<std::size_t>(i)])
        continue;
      for (std::int64_t j = s.first_key(i); j <= i; ++j) {
        r.keys.touched[static_cast<std::size_t>(j)] = true;
      }
    }
  }
  r.units = nn::make_attention_units(nn::make_attention_scales(s), largest,
                                     largest_magnitude(r.keys.v.v));
  return r;
}

/// Writes token t's part of d_qkv (`token`, a row of d_qkv) for head group g.
inline void write_token(const nn::attention_shape& s, std::span<const float> cosine,
                        std::span<const float> sine, const gradient_group& r, std::int64_t g,
                        std::int64_t t, std::span<bf16> token) {
  const std::size_t dim = static_cast<std::size_t>(s.head_dim), pairs = dim / 2;
  const std::size_t row = static_cast<std::size_t>(t), from = row * dim;
  const std::size_t k_column = static_cast<std::size_t>(s.heads + g) * dim;
  const std::size_t v_column = static_cast<std::size_t>(s.heads + s.kv_heads + g) * dim;
  const auto c = cosine.subspan(row * pairs, pairs), w = sine.subspan(row * pairs, pairs);
  const auto nan = [&](std::size_t column) { std::fill_n(&token[column], dim, bf16{0x7fc0}); };
  for (std::size_t m = 0; m < r.queries.size(); ++m) {
    const query_gradient& q = r.queries[m];
    const std::size_t column = (static_cast<std::size_t>(g * s.group()) + m) * dim;
    unnormalise_row(s, std::span(q.accumulator).subspan(from, dim), r.units.query, c, w,
                    std::span(q.q.normalised).subspan(from, dim), q.q.inverse_rms[row],
                    token.subspan(column, dim));
    if (!r.units.representable || q.poisoned[row])
      nan(column);
  }
  unnormalise_row(s, std::span(r.keys.key).subspan(from, dim), r.units.key, c, w,
                  std::span(r.keys.k.normalised).subspan(from, dim), r.keys.k.inverse_rms[row],
                  token.subspan(k_column, dim));
  for (std::size_t d = 0; d < dim; ++d) {
    token[v_column + d] =
        arith::to_bf16(arith::scale_pow2(arith::from_int(r.keys.value[from + d]), -r.units.value));
  }
  if (!r.units.representable || r.bad[row] || r.keys.touched[row]) {
    nan(k_column);
    nan(v_column);
  }
}

/// Attention backward: d_qkv from d_out, the forward pass's inputs, `out` and `log_sum_exp`.
///
/// Units are those of `nn::make_attention_units` for the largest magnitudes of dO over the head
/// group's rows that are not poisoned and of v over the rows that are not bad, of one sequence.
/// Bits: a poisoned query row's dq is NaN, and so are dk and dv of every key that it sees, and of
/// bad rows. Where the units are not representable (dO above 2^91, dO times v above 2^112) every
/// gradient of that sequence and head group is NaN.
template <int QueryBlock, int KeyBlock>
void attention_backward(nn::AttentionBlocks<QueryBlock, KeyBlock>, const nn::attention_shape& s,
                        std::span<const float> cosine, std::span<const float> sine, float eps,
                        std::span<const bf16> qkv, std::span<const bf16> out,
                        std::span<const float> log_sum_exp, std::span<const bf16> d_out,
                        std::span<bf16> d_qkv) {
  for (std::int64_t n = 0; n < s.batch; ++n) {
    for (std::int64_t g = 0; g < s.kv_heads; ++g) {
      gradient_group r = read_group(s, cosine, sine, eps, qkv, out, log_sum_exp, d_out, n, g);
      for (std::int64_t m = 0; r.units.representable && m < s.group(); ++m) {
        const auto lse = head_lse(s, log_sum_exp, n, g * s.group() + m);
        for (std::int64_t i = 0; i < s.seq; i += QueryBlock) {
          for (std::int64_t j = 0; j < s.seq; j += KeyBlock) {
            add_tile(s, r.units, lse, r.queries[static_cast<std::size_t>(m)], r.keys, i,
                     std::min(s.seq, i + QueryBlock), j, std::min(s.seq, j + KeyBlock));
          }
        }
      }
      for (std::int64_t t = 0; t < s.seq; ++t) {
        write_token(s, cosine, sine, r, g, t,
                    d_qkv.subspan(static_cast<std::size_t>((n * s.seq + t) * s.qkv_width()),
                                  static_cast<std::size_t>(s.qkv_width())));
      }
    }
  }
}

} // namespace ordo::reference
