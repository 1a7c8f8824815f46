// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The orders as plain loops: what a reader checks by hand.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ordo/arith/value.hpp>
#include <ordo/order/policies.hpp>

namespace ordo::reference {

/// ((+0 + x0) + x1) + ...
inline float sum(order::Sequential, std::span<const float> x) {
  float total = 0.0f;
  for (const float element : x)
    total = arith::add(total, element);
  return total;
}

/// The adjacent-pair tree over a power-of-two number of addends: left half + right half.
inline float pair_tree(std::span<const float> x) {
  if (x.size() == 1)
    return x[0];
  const std::size_t half = x.size() / 2;
  return arith::add(pair_tree(x.first(half)), pair_tree(x.subspan(half)));
}

/// Lane j: +0, then x[j], x[j + W], ...; then the adjacent-pair tree over all lanes.
template <int W>
float sum(order::Lanes<W>, std::span<const float> x) {
  std::vector<float> lane(W, 0.0f);
  for (std::size_t i = 0; i < x.size(); ++i)
    lane[i % W] = arith::add(lane[i % W], x[i]);
  return pair_tree(lane);
}

/// Power-of-two blocks, largest first, each an adjacent-pair tree, folded from the left.
inline float sum(order::Tree, std::span<const float> x) {
  if (x.empty())
    return 0.0f;
  std::size_t block = std::bit_floor(x.size());
  float total = pair_tree(x.first(block));
  for (x = x.subspan(block); !x.empty(); x = x.subspan(block)) {
    block = std::bit_floor(x.size());
    total = arith::add(total, pair_tree(x.first(block)));
  }
  return total;
}

} // namespace ordo::reference
