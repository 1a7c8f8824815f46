// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The ordering policies: which additions a sum makes, and in which order. Each definition can be
/// executed by hand. Policies are empty types passed as values; none is a default anywhere.
///
/// The addends 1e8, 1, -1e8, 1 give 1 under Sequential, 0 under Tree and 2 under Exact. In a sum of
/// binary32 every addition is `arith::add`.

#include <type_traits>

namespace ordo::order {

/// Ascending, starting from +0.
///
/// Order: ((((+0 + x0) + x1) + x2) + ...) + x[n-1]. n = 0 gives +0.
struct Sequential {};

/// W interleaved partial sums, then adjacent pairs.
///
/// Order: lane j, for j = 0 ... W-1, starts from +0 and adds x[j], x[j+W], x[j+2W], ... in that
/// order. Then lanes are joined by adjacent pairs, ((l0+l1)+(l2+l3))+((l4+l5)+(l6+l7)) for W = 8.
/// All W lanes take part whatever n is; n = 0 gives +0. W is part of the result and has nothing to
/// do with the vector width of the machine. Lanes<1> is Sequential.
template <int W>
struct Lanes {
  static_assert(W > 0 && (W & (W - 1)) == 0,
                "ordo::order::Lanes: the number of lanes is no power of two; use 1, 2, 4, 8, ...");
  static constexpr int width = W;
};

/// Adjacent pairs inside power-of-two blocks, largest block first, blocks folded from the left.
///
/// Order: n is written as a sum of distinct powers of two, largest first; the addends are cut into
/// consecutive blocks of these lengths. A block of one is its element, a larger block is (its first
/// half) + (its second half), each by the same rule. Blocks are added from the left.
/// Six addends: ((0+1)+(2+3))+(4+5). Seven: (((0+1)+(2+3))+(4+5))+6. There is no initial +0: n = 1
/// returns the element. n = 0 gives +0.
struct Tree {};

/// No order: the exact sum, rounded to nearest even once at the end.
///
/// Order: none; every permutation of the addends gives the same bits. Integers are summed as
/// integers under a bound that is checked before the work starts; binary32 is summed in a wide
/// integer (reduce/exact.hpp), where n below 2^31 cannot overflow.
struct Exact {};

namespace detail {
template <class T>
inline constexpr bool is_policy = false;
template <>
inline constexpr bool is_policy<Sequential> = true;
template <int W>
inline constexpr bool is_policy<Lanes<W>> = true;
template <>
inline constexpr bool is_policy<Tree> = true;
template <>
inline constexpr bool is_policy<Exact> = true;
} // namespace detail

/// One of the policies above.
template <class T>
concept ordering_policy = detail::is_policy<std::remove_cv_t<T>>;

/// A policy under which a sum is a fixed expression of binary32 additions: all but Exact.
template <class T>
concept floating_order = ordering_policy<T> && !std::is_same_v<std::remove_cv_t<T>, Exact>;

} // namespace ordo::order
