// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Rotary position embedding by its definition: the table, the rotation and its inverse.

#include <cstddef>
#include <cstdint>
#include <span>

#include <ordo/arith/host_math.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/error.hpp>

namespace ordo::reference {

/// cosine[p * hd/2 + i] = cos(p f_i) and sine likewise, f_i = theta^(-2i/hd), for p < positions.
///
/// Shape: cosine, sine [positions, head_dim / 2].
/// Order: everything in binary64 with + - * /: g = root(theta, hd/2), f_0 = 1, f_i = f_(i-1) / g,
/// angle = p * f_i, `host::cos` and `host::sin`, then one rounding to binary32 each.
/// Error: the table's entries are within 2^-24 (1 + 2^-10) of the exact values for p < 2^16.
inline void rope_table(double theta, std::int64_t head_dim, std::int64_t positions,
                       std::span<float> cosine, std::span<float> sine) {
  const std::int64_t pairs = head_dim / 2;
  require(head_dim > 0 && head_dim % 2 == 0 && positions >= 0 && theta >= 1.0,
          "ordo::reference::rope_table", "head_dim must be even and positive, theta at least 1");
  require(static_cast<std::int64_t>(cosine.size()) == positions * pairs &&
              cosine.size() == sine.size(),
          "ordo::reference::rope_table",
          "the tables hold " + shape(cosine.size()) + " and " + shape(sine.size()) +
              " entries for " + shape(positions, pairs));
  const double ratio = host::root(theta, static_cast<int>(pairs));
  double frequency = 1.0;
  for (std::int64_t i = 0; i < pairs; ++i) {
    for (std::int64_t p = 0; p < positions; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      const std::size_t at = static_cast<std::size_t>(p * pairs + i);
      cosine[at] = arith::flush(static_cast<float>(host::cos(angle)));
      sine[at] = arith::flush(static_cast<float>(host::sin(angle)));
    }
    frequency = frequency / ratio;
  }
}

/// (y_2i, y_2i+1) becomes (y_2i c_i - y_2i+1 s_i, y_2i s_i + y_2i+1 c_i), for every i, in place.
inline void rotate(std::span<float> y, std::span<const float> cosine, std::span<const float> sine) {
  for (std::size_t i = 0; i < cosine.size(); ++i) {
    const float first = y[2 * i], second = y[2 * i + 1];
    y[2 * i] = arith::sub(arith::mul(first, cosine[i]), arith::mul(second, sine[i]));
    y[2 * i + 1] = arith::add(arith::mul(first, sine[i]), arith::mul(second, cosine[i]));
  }
}

/// The inverse: (g_2i c_i + g_2i+1 s_i, g_2i+1 c_i - g_2i s_i), in place.
inline void rotate_back(std::span<float> g, std::span<const float> cosine,
                        std::span<const float> sine) {
  for (std::size_t i = 0; i < cosine.size(); ++i) {
    const float first = g[2 * i], second = g[2 * i + 1];
    g[2 * i] = arith::add(arith::mul(first, cosine[i]), arith::mul(second, sine[i]));
    g[2 * i + 1] = arith::sub(arith::mul(second, cosine[i]), arith::mul(first, sine[i]));
  }
}

} // namespace ordo::reference
