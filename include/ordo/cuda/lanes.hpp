// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// order::Lanes<32> by a warp.

#include <cstdint>

#include <ordo/arith/value.hpp>

namespace ordo::cuda {

/// Adjacent pairs over `Width` neighbouring threads, thread j holding partial sum j; every thread
/// gets the result. All threads of the warp take part.
template <int Width = 32>
__device__ __forceinline__ float join_adjacent(float partial) {
#pragma unroll
  for (int distance = 1; distance < Width; distance *= 2)
    partial = arith::add(partial, __shfl_xor_sync(0xffffffffu, partial, distance));
  return partial;
}

/// Rows of bf16 as pairs, read by a warp: thread t of the warp has pair t of each group of 64
/// entries, that is entries 2t and 2t + 1. The partial sums of order::Lanes<32> lie differently:
/// lane 2t is kept by thread t, lane 2t + 1 by thread t + 16 (t < 16). Entry 2t goes to thread t
/// for both t < 16 and, as entry 32 + 2(t - 16), from thread t to thread t - 16; so threads t and
/// t + 16 exchange one entry of each pair, and a group adds the entry of its first half, then that
/// of its second.
struct paired_lanes {
  bool lower; ///< whether this thread is one of the first 16
  float total = 0.0f;

  __device__ explicit paired_lanes(int thread) : lower(thread < 16) {}

  /// Adds the addends of this thread's pair of the next group.
  __device__ __forceinline__ void add(float first, float second) {
    const float received = __shfl_xor_sync(0xffffffffu, lower ? second : first, 16);
    total = arith::add(total, lower ? first : received);
    total = arith::add(total, lower ? received : second);
  }

  /// Adds `term` of each entry of this thread's pairs of the next two groups: one exchange.
  template <class Term>
  __device__ __forceinline__ void add(std::uint32_t group, std::uint32_t next, const Term& term) {
    const std::uint32_t lows = __byte_perm(group, next, 0x5410);
    const std::uint32_t highs = __byte_perm(group, next, 0x7632);
    const std::uint32_t received = __shfl_xor_sync(0xffffffffu, lower ? highs : lows, 16);
    const std::uint32_t first = lower ? lows : received, second = lower ? received : highs;
    total = arith::add(total, term(arith::to_f32(bf16{static_cast<std::uint16_t>(first)})));
    total = arith::add(total, term(arith::to_f32(bf16{static_cast<std::uint16_t>(second)})));
    total = arith::add(total, term(arith::to_f32(bf16{static_cast<std::uint16_t>(first >> 16)})));
    total = arith::add(total, term(arith::to_f32(bf16{static_cast<std::uint16_t>(second >> 16)})));
  }

  /// The sum; every thread gets it. Sums of two do not depend on which comes first, so threads t
  /// and t + 16 may join lanes 2t and 2t + 1, and then the threads their pairs.
  __device__ __forceinline__ float join() const {
    const float pair = arith::add(total, __shfl_xor_sync(0xffffffffu, total, 16));
    return join_adjacent<16>(pair);
  }
};

} // namespace ordo::cuda
