// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The forward pass of attention by its definition. The backward pass is attention_backward.hpp.

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/nn/attention_shape.hpp>
#include <ordo/order/sum.hpp>
#include <ordo/reference/rope.hpp>

namespace ordo::reference {

/// One head of one sequence of q or k: row p is token p.
struct attention_head {
  std::vector<float> inverse_rms;  ///< r = rsqrt(mean of squares + eps)
  std::vector<float> normalised;   ///< y = x r, before the rotation; [seq, hd]
  std::vector<std::int32_t> fixed; ///< [seq, hd]
  std::vector<bool> bad;           ///< the row's sum of squares is not finite
};

/// Normalises (no gain), rotates and quantizes one head of q or k.
///
/// r = rsqrt(mean + eps) with mean = (sum of x^2 by order::Lanes<32>) * (1/hd); y = x r; pairs
/// (2i, 2i+1) rotated; fixed = to_int(y * scales.fixed, 16319). A row whose sum of squares is not
/// finite is bad and its fixed-point entries are 0.
/// `first` is the column of the head's entry 0 in qkv.
inline attention_head normalise_head(const nn::attention_shape& s, std::span<const float> cosine,
                                     std::span<const float> sine, float eps,
                                     std::span<const bf16> qkv, std::int64_t sequence,
                                     std::int64_t first) {
  const nn::attention_scales scales = nn::make_attention_scales(s);
  const std::size_t hd = static_cast<std::size_t>(s.head_dim), pairs = hd / 2;
  attention_head head;
  for (std::int64_t t = 0; t < s.seq; ++t) {
    const bf16* x = &qkv[static_cast<std::size_t>((sequence * s.seq + t) * s.qkv_width() + first)];
    const float sum = order::sum(order::Lanes<32>{}, s.head_dim, [=](std::int64_t d) {
      return arith::mul_exact(arith::to_f32(x[d]), arith::to_f32(x[d]));
    });
    const float r = arith::rsqrt(arith::add(arith::mul(sum, scales.inverse_dim), eps));
    std::vector<float> y(hd);
    for (std::size_t d = 0; d < hd; ++d)
      y[d] = arith::mul(arith::to_f32(x[d]), r);
    head.inverse_rms.push_back(r);
    head.normalised.insert(head.normalised.end(), y.begin(), y.end());
    head.bad.push_back(!arith::is_finite(sum));
    const std::size_t row = static_cast<std::size_t>(t) * pairs;
    rotate(y, cosine.subspan(row, pairs), sine.subspan(row, pairs));
    for (float& v : y) {
      head.fixed.push_back(
          head.bad.back() ? 0 : arith::to_int(arith::mul(v, scales.fixed), nn::attention_limit));
    }
  }
  return head;
}

/// One head of one sequence of v.
struct value_head {
  std::vector<float> v;  ///< [seq, hd]; a bad row's entries are 0
  std::vector<bool> bad; ///< the row holds a NaN or an infinity
};

inline value_head read_values(const nn::attention_shape& s, std::span<const bf16> qkv,
                              std::int64_t sequence, std::int64_t first) {
  value_head head;
  for (std::int64_t t = 0; t < s.seq; ++t) {
    const auto row =
        qkv.subspan(static_cast<std::size_t>((sequence * s.seq + t) * s.qkv_width() + first),
                    static_cast<std::size_t>(s.head_dim));
    const bool bad = std::any_of(row.begin(), row.end(),
                                 [](bf16 x) { return !arith::is_finite(arith::to_f32(x)); });
    head.bad.push_back(bad);
    for (const bf16 x : row)
      head.v.push_back(bad ? 0.0f : arith::to_f32(x));
  }
  return head;
}

/// What a query row sees: a key or value row that is bad makes it NaN, one that it does not see
/// changes nothing.
inline bool sees_bad(const nn::attention_shape& s, const attention_head& k, const value_head& v,
                     std::int64_t i) {
  for (std::int64_t j = s.first_key(i); j <= i; ++j) {
    if (k.bad[static_cast<std::size_t>(j)] || v.bad[static_cast<std::size_t>(j)])
      return true;
  }
  return false;
}

/// Exact dot product of fixed-point rows.
inline std::int32_t dot(const std::int32_t* a, const std::int32_t* b, std::int64_t n) {
  std::int32_t total = 0;
  for (std::int64_t d = 0; d < n; ++d)
    total += a[d] * b[d];
  return total;
}

/// One key block of v as int8 with one step, amax / 127, amax over the block's rows that are not
/// bad and lie within the sequence, whether a query sees them or not. q = to_int(v * (1/step),
/// 127); amax of 127 * 2^-100 or less gives step 0 and all zeros.
struct value_block {
  float step = 0.0f;
  std::vector<std::int32_t> q; ///< [keys of the block, hd]
};

inline value_block quantize_values(const nn::attention_shape& s, const value_head& values,
                                   std::int64_t begin, std::int64_t end) {
  value_block block;
  float amax = 0.0f;
  const auto v = std::span(values.v).subspan(static_cast<std::size_t>(begin * s.head_dim),
                                             static_cast<std::size_t>((end - begin) * s.head_dim));
  for (const float x : v)
    amax = arith::max(arith::abs(x), amax);
  const float step = arith::div(amax, 127.0f);
  block.step = step > 0x1p-100f ? step : 0.0f;
  const float inverse = block.step > 0.0f ? arith::div(1.0f, block.step) : 0.0f;
  for (const float x : v)
    block.q.push_back(arith::to_int(arith::mul(x, inverse), 127));
  return block;
}

/// One query row of one head: writes o [hd] and returns the row's log-sum-exp.
///
/// For the key blocks that hold a visible key, ascending, over the block's visible keys j:
/// l_j = from_int(dot) * scales.logit;  m = max l_j;  u_j = exp(l_j - m);
/// p_j = to_int(u_j * 127, 127);  S = sum of to_int(u_j * 2^22, 2^22), an integer;
/// I_d = sum of p_j v_jd, an integer;  f = exp(m);
/// O_d = O_d + (f * (step * (1/127))) * from_int(I_d);  L = L + f * (from_int(S) * 2^-22).
/// Then o = to_bf16(O * (1/L)) and the log-sum-exp is log(L). No running maximum is needed: a logit
/// is below 16.1 in magnitude, so f is between 1e-7 and 1e7.
/// Nothing visible: o is +0 and the log-sum-exp -infinity.
template <int QueryBlock, int KeyBlock>
float attend(nn::AttentionBlocks<QueryBlock, KeyBlock>, const nn::attention_shape& s,
             const std::int32_t* query, const attention_head& k, std::span<const value_block> v,
             std::int64_t i, bf16* o) {
  const nn::attention_scales scales = nn::make_attention_scales(s);
  const std::int64_t hd = s.head_dim, first = s.first_key(i);
  std::vector<float> out(static_cast<std::size_t>(hd), 0.0f);
  float total = 0.0f;
  for (std::int64_t b = first / KeyBlock; b * KeyBlock <= i && first <= i; ++b) {
    const std::int64_t begin = std::max(first, b * KeyBlock);
    const std::int64_t end = std::min(i + 1, (b + 1) * KeyBlock);
    std::vector<float> logit;
    for (std::int64_t j = begin; j < end; ++j) {
      logit.push_back(
          arith::mul(arith::from_int(dot(query, &k.fixed[static_cast<std::size_t>(j * hd)], hd)),
                     scales.logit));
    }
    const float m = *std::max_element(logit.begin(), logit.end());
    const value_block& block = v[static_cast<std::size_t>(b)];
    std::vector<std::int32_t> sums(static_cast<std::size_t>(hd), 0);
    std::int32_t sum = 0;
    for (std::int64_t j = begin; j < end; ++j) {
      const float u = arith::exp(arith::sub(logit[static_cast<std::size_t>(j - begin)], m));
      const std::int32_t p = arith::to_int(arith::mul(u, 127.0f), 127);
      sum += arith::to_int(arith::mul(u, 0x1p22f), 1 << 22);
      for (std::int64_t d = 0; d < hd; ++d) {
        sums[static_cast<std::size_t>(d)] +=
            p * block.q[static_cast<std::size_t>((j - b * KeyBlock) * hd + d)];
      }
    }
    const float f = arith::exp(m);
    const float weight = arith::mul(f, arith::mul(block.step, arith::div(1.0f, 127.0f)));
    for (std::size_t d = 0; d < out.size(); ++d) {
      out[d] = arith::add(out[d], arith::mul(weight, arith::from_int(sums[d])));
    }
    total = arith::add(total, arith::mul(f, arith::mul(arith::from_int(sum), 0x1p-22f)));
  }
  const bool empty = first > i;
  const float inverse = empty ? 0.0f : arith::div(1.0f, total);
  for (std::size_t d = 0; d < out.size(); ++d)
    o[d] = arith::to_bf16(arith::mul(out[d], inverse));
  return empty ? -std::numeric_limits<float>::infinity() : arith::log(total);
}

/// Attention forward.
///
/// Shape: qkv [batch * seq, (heads + 2 kv_heads) * hd]: q heads, k heads, v heads; cosine, sine
/// [positions >= seq, hd / 2]; out [batch * seq, heads * hd]; log_sum_exp [batch, heads, seq].
/// Bits: a query row's depend on what it sees, and on the magnitudes of the values that share a key
/// block with them. A query row that is bad or sees a bad key or value row is NaN.
template <int QueryBlock, int KeyBlock>
void attention_forward(nn::AttentionBlocks<QueryBlock, KeyBlock> blocks,
                       const nn::attention_shape& s, std::span<const float> cosine,
                       std::span<const float> sine, float eps, std::span<const bf16> qkv,
                       std::span<bf16> out, std::span<float> log_sum_exp) {
  const std::int64_t hd = s.head_dim;
  for (std::int64_t n = 0; n < s.batch; ++n) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t g = h / s.group();
      const attention_head q = normalise_head(s, cosine, sine, eps, qkv, n, h * hd);
      const attention_head k = normalise_head(s, cosine, sine, eps, qkv, n, (s.heads + g) * hd);
      const value_head v = read_values(s, qkv, n, (s.heads + s.kv_heads + g) * hd);
      std::vector<value_block> v_blocks;
      for (std::int64_t j = 0; j < s.seq; j += KeyBlock) {
        v_blocks.push_back(quantize_values(s, v, j, std::min<std::int64_t>(s.seq, j + KeyBlock)));
      }
      for (std::int64_t i = 0; i < s.seq; ++i) {
        bf16* o = &out[static_cast<std::size_t>((n * s.seq + i) * s.out_width() + h * hd)];
        float& lse = log_sum_exp[static_cast<std::size_t>((n * s.heads + h) * s.seq + i)];
        lse = attend(blocks, s, &q.fixed[static_cast<std::size_t>(i * hd)], k, v_blocks, i, o);
        if (q.bad[static_cast<std::size_t>(i)] || sees_bad(s, k, v, i)) {
          lse = arith::from_bits(arith::canonical_nan);
          std::fill(o, o + hd, bf16{0x7fc0});
        }
      }
    }
  }
}

} // namespace ordo::reference
