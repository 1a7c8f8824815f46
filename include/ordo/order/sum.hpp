// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Sums in a stated order by one thread: the building block of row reductions inside kernels.

#include <cstdint>

#include <ordo/arith/value.hpp>
#include <ordo/order/policies.hpp>

namespace ordo::order {

/// Joins W partial sums by adjacent pairs, in place; the result is left in lane[0] and returned.
template <int W>
ORDO_FORCE_FUNCTION float join_lanes(float (&lane)[W]) {
  for (int half = W / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lane[j] = arith::add(lane[2 * j], lane[2 * j + 1]);
  }
  return lane[0];
}

/// The sum of load(0) ... load(n-1), each a value, by order::Sequential.
///
/// Bits: of n and the loaded values only.
template <class Load>
ORDO_FUNCTION float sum(Sequential, std::int64_t n, const Load& load) {
  float total = 0.0f;
  for (std::int64_t i = 0; i < n; ++i) total = arith::add(total, load(i));
  return total;
}

/// The same by order::Lanes<W>. The inner loop runs across lanes, so compilers vectorize it.
template <int W, class Load>
ORDO_FUNCTION float sum(Lanes<W>, std::int64_t n, const Load& load) {
  float lane[W] = {};
  const std::int64_t whole = n - n % W;
  for (std::int64_t i = 0; i < whole; i += W) {
    for (int j = 0; j < W; ++j) lane[j] = arith::add(lane[j], load(i + j));
  }
  for (std::int64_t i = whole; i < n; ++i) lane[i - whole] = arith::add(lane[i - whole], load(i));
  return join_lanes(lane);
}

/// The same by order::Tree. Element i closes as many pairs as i + 1 has trailing zero bits, so a
/// stack of one partial sum for each bit of n holds the open blocks, largest at the bottom.
template <class Load>
ORDO_FUNCTION float sum(Tree, std::int64_t n, const Load& load) {
  if (n <= 0) return 0.0f;
  float open[64];
  int depth = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    float block = load(i);
    for (std::int64_t closed = i + 1; closed % 2 == 0; closed /= 2) {
      block = arith::add(open[--depth], block);
    }
    open[depth++] = block;
  }
  float total = open[0];
  for (int level = 1; level < depth; ++level) total = arith::add(total, open[level]);
  return total;
}

}  // namespace ordo::order
