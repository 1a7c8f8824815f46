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
    for (int j = 0; j < half; ++j)
      lane[j] = arith::add(lane[2 * j], lane[2 * j + 1]);
  }
  return lane[0];
}

/// The sum of load(0) ... load(n-1), each a value, by order::Sequential.
///
/// Bits: of n and the loaded values only.
template <class Load>
ORDO_FUNCTION float sum(Sequential, std::int64_t n, const Load& load) {
  float total = 0.0f;
  for (std::int64_t i = 0; i < n; ++i)
    total = arith::add(total, load(i));
  return total;
}

/// The same by order::Lanes<W>. The inner loop runs across lanes, so compilers vectorize it.
template <int W, class Load>
ORDO_FUNCTION float sum(Lanes<W>, std::int64_t n, const Load& load) {
  float lane[W] = {};
  const std::int64_t whole = n - n % W;
  for (std::int64_t i = 0; i < whole; i += W) {
    for (int j = 0; j < W; ++j)
      lane[j] = arith::add(lane[j], load(i + j));
  }
  for (std::int64_t i = whole; i < n; ++i)
    lane[i - whole] = arith::add(lane[i - whole], load(i));
  return join_lanes(lane);
}

/// The open blocks of an order::Tree sum whose leaves arrive in ascending order.
///
/// After `count` leaves there is one open block for each bit set in count, largest first. A leaf
/// may itself be the sum of a power-of-two block, the same power for all leaves of one object.
class tree_fold {
public:
  /// Adds the next leaf; closes as many pairs as the new count has trailing zero bits.
  ORDO_FUNCTION void push(float leaf) {
    ++count_;
    for (std::uint64_t closed = count_; closed % 2 == 0; closed /= 2) {
      leaf = arith::add(open_[--depth_], leaf);
    }
    open_[depth_++] = leaf;
  }

  /// The open blocks folded from the left; +0 if there are none.
  ORDO_FUNCTION float result() const { return result(tree_fold{}); }

  /// The same, continued by the open blocks of `rest`, all of which are smaller.
  ORDO_FUNCTION float result(const tree_fold& rest) const {
    const int blocks = depth_ + rest.depth_;
    if (blocks == 0)
      return 0.0f;
    float total = block(0, rest);
    for (int i = 1; i < blocks; ++i)
      total = arith::add(total, block(i, rest));
    return total;
  }

private:
  ORDO_FUNCTION float block(int i, const tree_fold& rest) const {
    return i < depth_ ? open_[i] : rest.open_[i - depth_];
  }
  float open_[64] = {};
  int depth_ = 0;
  std::uint64_t count_ = 0;
};

/// The same by order::Tree. Blocks of 32 are joined at once, which compilers vectorize; the rest
/// one by one.
template <class Load>
ORDO_FUNCTION float sum(Tree, std::int64_t n, const Load& load) {
  constexpr int leaf = 32;
  tree_fold leaves, rest;
  const std::int64_t whole = n - n % leaf;
  for (std::int64_t i = 0; i < whole; i += leaf) {
    float pair[leaf];
    for (int j = 0; j < leaf; ++j)
      pair[j] = load(i + j);
    leaves.push(join_lanes(pair));
  }
  for (std::int64_t i = whole; i < n; ++i)
    rest.push(load(i));
  return leaves.result(rest);
}

} // namespace ordo::order
