// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Collectives whose sums have a stated order, whatever carries them.

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <ordo/comm/mesh_fold.hpp>
#include <ordo/comm/scatter_blocks.hpp>
#include <ordo/order/policies.hpp>

namespace ordo::comm {

namespace detail {

/// The processes' values folded as if each process were a rank.
template <class Order>
fold_program program_of(const Order&, int processes, fold_result result) {
  const auto n = static_cast<std::uint64_t>(processes);
  if constexpr (std::is_same_v<Order, order::Tree>) {
    return {n, 1, result};
  } else {
    static_assert(std::is_same_v<Order, order::Sequential>,
                  "ordo::comm: collectives have the orders Sequential and Tree; for Exact convert "
                  "the values to integers first");
    return {1, n, result};
  }
}

/// Takes the steps of a whole program on one block, in the memory of the values themselves.
/// Returns where the result is.
template <execution_space Space>
float* fold_block(const Space& space, fold_program program, std::int64_t n,
                  std::span<float* const> values) {
  std::vector<float*> slots;
  const auto view = [&](float* entries) {
    return vector_view<float, Space>(entries, static_cast<std::size_t>(n));
  };
  const auto take = [&](const fold_step& step, float* value) {
    const auto slot = static_cast<std::size_t>(step.slot);
    switch (step.what) {
    case fold_step::load:
      slots.resize(std::max(slots.size(), slot + 1));
      slots[slot] = value;
      break;
    case fold_step::add:
      add_into<Space>(space, view(slots[slot]), view(value));
      break;
    case fold_step::join:
      add_into<Space>(space, view(slots[slot]), view(slots[static_cast<std::size_t>(step.from)]));
      break;
    case fold_step::scale:
      scale<Space>(space, view(slots[slot]), step.factor);
      break;
    }
  };
  for (float* const value : values)
    for (const fold_step& step : program.push())
      take(step, value);
  for (const fold_step& step : program.finish())
    take(step, nullptr);
  return slots.front();
}

} // namespace detail

/// Every process ends with the sum (or mean) of all processes' values.
///
/// Shape: `values` [n], the same n everywhere, overwritten.
/// Order: `order` over the processes, entry by entry: Sequential from process 0's value on, or
/// Tree. The mean multiplies by 1/size, rounded to binary32.
/// Bits: of the values and the order alone, not of how n is divided.
/// Cost: every process sends and receives 2 (size - 1) / size of n, whatever the order and size.
/// Source: OPEN-1B, appendix A.1, whose order this is, without its traffic.
template <class Order, execution_space Space>
void all_reduce(const Space& space, const Order& order, communicator& processes,
                vector_view<float, Space> values, exchange_memory<Space>& memory,
                fold_result result = fold_result::sum) {
  const auto n = static_cast<std::int64_t>(values.extent(0));
  const auto cuts = even_cuts(n, processes.size());
  const fold_program program = detail::program_of(order, processes.size(), result);
  float* const share = values.data() + cuts[static_cast<std::size_t>(processes.rank())];
  const std::vector<bool> all(static_cast<std::size_t>(processes.size()), true);
  scatter_blocks<Space>(space, processes, values.data(), cuts, all, values.data(), memory,
                        [&](std::int64_t begin, std::int64_t count, std::span<float* const> from) {
                          float* const folded = detail::fold_block(space, program, count, from);
                          if (folded == share + begin)
                            return;
                          const auto extent = static_cast<std::size_t>(count);
                          Kokkos::deep_copy(space, vector_view<float, Space>(share + begin, extent),
                                            vector_view<const float, Space>(folded, extent));
                        });
}

/// Every process ends with its share of the sum (or mean) of all processes' values.
///
/// Shape: `values` [n], the same n everywhere; entries [cuts[p], cuts[p + 1]) are process p's, in
/// `share`. Order, Bits: as all_reduce.
/// Cost: every process sends and receives (size - 1) / size of n where shares are even.
template <class Order, execution_space Space>
void reduce_scatter(const Space& space, const Order& order, communicator& processes,
                    vector_view<const float, Space> values, std::span<const std::int64_t> cuts,
                    vector_view<float, Space> share, exchange_memory<Space>& memory,
                    fold_result result = fold_result::sum) {
  const auto rank = static_cast<std::size_t>(processes.rank());
  require(cuts.back() == static_cast<std::int64_t>(values.extent(0)) &&
              cuts[rank + 1] - cuts[rank] == static_cast<std::int64_t>(share.extent(0)),
          "ordo::comm::reduce_scatter", "the cuts do not fit the values or the share");
  const fold_program program = detail::program_of(order, processes.size(), result);
  const std::vector<bool> all(static_cast<std::size_t>(processes.size()), true);
  std::vector<float*> movable;
  scatter_blocks<Space>(
      space, processes, values.data(), cuts, all, nullptr, memory,
      [&](std::int64_t begin, std::int64_t count, std::span<float* const> from) {
        const auto extent = static_cast<std::size_t>(count);
        const vector_view<float, Space> to(share.data() + begin, extent);
        // The own values are not to be touched: they are folded in the share's memory.
        Kokkos::deep_copy(space, to, vector_view<const float, Space>(from[rank], extent));
        movable.assign(from.begin(), from.end());
        movable[rank] = to.data();
        const float* const folded = detail::fold_block<Space>(space, program, count, movable);
        if (folded != to.data())
          Kokkos::deep_copy(space, to, vector_view<const float, Space>(folded, extent));
      });
}

} // namespace ordo::comm
