// SPDX-License-Identifier: Apache-2.0
#pragma once

// Exact softmax attention in binary64 with the platform's exp, sin and cos: what the errors that
// attention documents are measured against.

#include <cmath>
#include <cstdint>
#include <vector>

#include <ordo/arith/bf16.hpp>
#include <ordo/nn/attention_shape.hpp>

namespace oracle {

using vec = std::vector<double>;

struct attention {
  ordo::nn::attention_shape s;
  double theta, eps;
  const std::vector<ordo::bf16>*qkv, *d_out;
  vec out, d_qkv, log_sum_exp;

  std::size_t at(std::int64_t n, std::int64_t t, std::int64_t column, std::int64_t width) const {
    return static_cast<std::size_t>((n * s.seq + t) * width + column);
  }
  static double value(ordo::bf16 x) { return ordo::arith::to_f32(x); }

  vec rotate(vec y, std::int64_t t, double direction) const {
    const std::int64_t hd = s.head_dim;
    for (std::size_t i = 0; i < y.size() / 2; ++i) {
      const double angle = static_cast<double>(t) *
                           std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(hd));
      const double c = std::cos(angle), w = direction * std::sin(angle);
      const double a = y[2 * i], b = y[2 * i + 1];
      y[2 * i] = a * c - b * w;
      y[2 * i + 1] = a * w + b * c;
    }
    return y;
  }

  /// y = x r, and r.
  vec normalise(std::int64_t n, std::int64_t t, std::int64_t column, double& r) const {
    const ordo::bf16* x = &(*qkv)[at(n, t, column, s.qkv_width())];
    double squares = 0;
    vec y;
    for (std::int64_t d = 0; d < s.head_dim; ++d)
      squares += value(x[d]) * value(x[d]);
    r = 1 / std::sqrt(squares / static_cast<double>(s.head_dim) + eps);
    for (std::int64_t d = 0; d < s.head_dim; ++d)
      y.push_back(value(x[d]) * r);
    return y;
  }

  /// Adds the gradient of the rotated, normalised row to that of x.
  void back(std::int64_t n, std::int64_t t, std::int64_t column, const vec& gradient) {
    double r = 0, mean = 0;
    const vec y = normalise(n, t, column, r), dy = rotate(gradient, t, -1);
    for (std::size_t d = 0; d < y.size(); ++d)
      mean += dy[d] * y[d] / static_cast<double>(y.size());
    for (std::size_t d = 0; d < y.size(); ++d) {
      d_qkv[at(n, t, column, s.qkv_width()) + d] += r * (dy[d] - y[d] * mean);
    }
  }

  void head(std::int64_t n, std::int64_t h) {
    const std::int64_t g = h / s.group(), hd = s.head_dim, k_column = (s.heads + g) * hd;
    const std::int64_t v_column = (s.heads + s.kv_heads + g) * hd;
    const std::size_t dim = static_cast<std::size_t>(hd);
    const double root = std::sqrt(static_cast<double>(hd));
    double r = 0;
    std::vector<vec> k, dk(static_cast<std::size_t>(s.seq), vec(dim, 0.0));
    for (std::int64_t j = 0; j < s.seq; ++j)
      k.push_back(rotate(normalise(n, j, k_column, r), j, 1));
    for (std::int64_t i = 0; i < s.seq; ++i) {
      const vec q = rotate(normalise(n, i, h * hd, r), i, 1);
      const std::size_t row = at(n, i, h * hd, s.out_width());
      vec p, dp, dq(dim, 0.0);
      double total = 0, delta = 0;
      const std::int64_t first = s.first_key(i);
      for (std::int64_t j = first; j <= i; ++j) {
        double logit = 0;
        for (std::size_t d = 0; d < dim; ++d)
          logit += q[d] * k[static_cast<std::size_t>(j)][d];
        p.push_back(std::exp(logit / root));
        total += p.back();
      }
      log_sum_exp.push_back(std::log(total));
      for (std::int64_t j = first; j <= i; ++j) {
        const std::size_t e = static_cast<std::size_t>(j - first),
                          v = at(n, j, v_column, s.qkv_width());
        p[e] /= total;
        dp.push_back(0);
        for (std::size_t d = 0; d < dim; ++d) {
          out[row + d] += p[e] * value((*qkv)[v + d]);
          dp[e] += value((*d_out)[row + d]) * value((*qkv)[v + d]);
          d_qkv[v + d] += p[e] * value((*d_out)[row + d]);
        }
        delta += p[e] * dp[e];
      }
      for (std::int64_t j = first; j <= i; ++j) {
        const std::size_t e = static_cast<std::size_t>(j - first),
                          key = static_cast<std::size_t>(j);
        const double ds = p[e] * (dp[e] - delta) / root;
        for (std::size_t d = 0; d < dim; ++d) {
          dq[d] += ds * k[key][d];
          dk[key][d] += ds * q[d];
        }
      }
      back(n, i, h * hd, dq);
    }
    for (std::int64_t j = 0; j < s.seq; ++j)
      back(n, j, k_column, dk[static_cast<std::size_t>(j)]);
  }

  void run() {
    out.assign(static_cast<std::size_t>(s.tokens() * s.out_width()), 0.0);
    d_qkv.assign(static_cast<std::size_t>(s.tokens() * s.qkv_width()), 0.0);
    for (std::int64_t n = 0; n < s.batch; ++n) {
      for (std::int64_t h = 0; h < s.heads; ++h)
        head(n, h);
    }
  }
};

/// Relative error in norm over columns [begin, end) of a matrix with `width` columns.
inline double error(const std::vector<ordo::bf16>& got, const vec& wanted, std::int64_t width,
                    std::int64_t begin, std::int64_t end) {
  double difference = 0, norm = 0;
  for (std::size_t e = 0; e < wanted.size(); ++e) {
    const std::int64_t column = static_cast<std::int64_t>(e) % width;
    if (column < begin || column >= end)
      continue;
    const double x = attention::value(got[e]) - wanted[e];
    difference += x * x;
    norm += wanted[e] * wanted[e];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

} // namespace oracle
