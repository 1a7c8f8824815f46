// SPDX-License-Identifier: Apache-2.0
#pragma once

// The model in binary64 with the platform's functions and no rounding in between: what the
// gradients of a step are the derivatives of, but for the roundings that the contract puts in.

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ordo/train/run_config.hpp>

namespace oracle {

using vec = std::vector<double>;

/// Parameters by name, the run they belong to, and the loss of windows.
struct model {
  ordo::train::run_config run;
  std::map<std::string, vec> weights;

  const vec& weight(const std::string& name) const { return weights.at(name); }

  /// Rows of `x` divided by their root mean square, times `gain` where there is one.
  vec normalise(const vec& x, std::size_t width, const vec* gain) const {
    vec y(x.size());
    for (std::size_t row = 0; row < x.size(); row += width) {
      double squares = 0;
      for (std::size_t i = 0; i < width; ++i)
        squares += x[row + i] * x[row + i];
      const double r = 1 / std::sqrt(squares / static_cast<double>(width) + run.norm_epsilon.value);
      for (std::size_t i = 0; i < width; ++i) {
        y[row + i] = x[row + i] * r * (gain != nullptr ? (*gain)[i] : 1.0);
      }
    }
    return y;
  }

  /// y = x W^T for the rows of x, each `width` long.
  static vec linear(const vec& x, const vec& w, std::size_t width) {
    const std::size_t rows = x.size() / width, columns = w.size() / width;
    vec y(rows * columns);
    for (std::size_t t = 0; t < rows; ++t) {
      for (std::size_t n = 0; n < columns; ++n) {
        for (std::size_t k = 0; k < width; ++k)
          y[t * columns + n] += x[t * width + k] * w[n * width + k];
      }
    }
    return y;
  }

  void rotate(vec& x, std::size_t heads) const {
    const auto dim = static_cast<std::size_t>(run.model.head_dim);
    for (std::size_t row = 0; row < x.size() / dim; ++row) {
      const auto position = static_cast<double>(row / heads);
      for (std::size_t i = 0; i < dim / 2; ++i) {
        const double angle =
            position * std::pow(run.rope_theta.value,
                                -2.0 * static_cast<double>(i) / static_cast<double>(dim));
        double& a = x[row * dim + 2 * i];
        double& b = x[row * dim + 2 * i + 1];
        const double turned = a * std::cos(angle) - b * std::sin(angle);
        b = a * std::sin(angle) + b * std::cos(angle);
        a = turned;
      }
    }
  }

  vec attention(const vec& x, const std::string& layer, std::size_t seen) const {
    const auto d = static_cast<std::size_t>(run.model.hidden);
    const auto dim = static_cast<std::size_t>(run.model.head_dim);
    const auto heads = static_cast<std::size_t>(run.model.heads);
    const auto groups = static_cast<std::size_t>(run.model.kv_heads);
    vec q = normalise(linear(x, weight(layer + "self_attn.q_proj.weight"), d), dim, nullptr);
    vec k = normalise(linear(x, weight(layer + "self_attn.k_proj.weight"), d), dim, nullptr);
    const vec v = linear(x, weight(layer + "self_attn.v_proj.weight"), d);
    rotate(q, heads);
    rotate(k, groups);
    const std::size_t tokens = x.size() / d;
    vec out(tokens * heads * dim);
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t g = h / (heads / groups), first = t + 1 > seen ? t + 1 - seen : 0;
        vec p;
        double total = 0;
        for (std::size_t j = first; j <= t; ++j) {
          double logit = 0;
          for (std::size_t i = 0; i < dim; ++i) {
            logit += q[(t * heads + h) * dim + i] * k[(j * groups + g) * dim + i];
          }
          p.push_back(std::exp(logit / std::sqrt(static_cast<double>(dim))));
          total += p.back();
        }
        for (std::size_t j = first; j <= t; ++j) {
          for (std::size_t i = 0; i < dim; ++i) {
            out[(t * heads + h) * dim + i] += p[j - first] / total * v[(j * groups + g) * dim + i];
          }
        }
      }
    }
    return linear(out, weight(layer + "self_attn.o_proj.weight"), heads * dim);
  }

  vec feed_forward(const vec& x, const std::string& layer) const {
    const auto d = static_cast<std::size_t>(run.model.hidden);
    const vec gate = linear(x, weight(layer + "mlp.gate_proj.weight"), d);
    vec up = linear(x, weight(layer + "mlp.up_proj.weight"), d);
    for (std::size_t i = 0; i < up.size(); ++i)
      up[i] *= gate[i] / (1 + std::exp(-gate[i]));
    return linear(up, weight(layer + "mlp.down_proj.weight"),
                  static_cast<std::size_t>(run.model.feed_forward));
  }

  /// Sum of the token losses of one window, squared log-partitions included.
  double loss(const std::vector<std::uint32_t>& window) const {
    const auto d = static_cast<std::size_t>(run.model.hidden);
    const auto words = static_cast<std::size_t>(run.model.vocabulary);
    const std::size_t tokens = window.size() - 1;
    vec x;
    for (std::size_t t = 0; t < tokens; ++t) {
      const vec& table = weight("model.embed_tokens.weight");
      const auto row = table.begin() + static_cast<std::ptrdiff_t>(window[t] * d);
      x.insert(x.end(), row, row + static_cast<std::ptrdiff_t>(d));
    }
    const auto add = [&](const vec& branch) {
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] += branch[i];
    };
    x = normalise(x, d, &weight("model.embed_norm.weight"));
    for (std::int64_t i = 0; i < run.model.layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      const std::size_t seen =
          run.model.full_attention(i) ? tokens : static_cast<std::size_t>(run.model.window);
      add(attention(normalise(x, d, &weight(layer + "input_layernorm.weight")), layer, seen));
      add(feed_forward(normalise(x, d, &weight(layer + "post_attention_layernorm.weight")), layer));
    }
    const vec logits =
        linear(normalise(x, d, &weight("model.norm.weight")), weight("lm_head.weight"), d);
    double sum = 0;
    for (std::size_t t = 0; t < tokens; ++t) {
      const double* const row = logits.data() + t * (logits.size() / tokens);
      double total = 0;
      for (std::size_t w = 0; w < words; ++w)
        total += std::exp(row[w]);
      const double partition = std::log(total);
      sum += partition - row[window[t + 1]] + run.z_loss.value * partition * partition;
    }
    return sum;
  }
};

} // namespace oracle
