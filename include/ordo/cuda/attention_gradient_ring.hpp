// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Shared memory of attention_gradient_tiles_wgmma.hpp, and the thread that fills it: the key
/// blocks that any warpgroup sees go into a ring that all read.

#include <cstdint>

#include <ordo/cuda/attention_gradient.hpp>
#include <ordo/cuda/attention_wgmma.hpp>

namespace ordo::cuda::detail {

/// Shared memory and threads. A stage: a slab of k, or one of v with its rows' scales.
struct tiles_ring {
  static constexpr int groups = 3, stages = 7, threads = groups * 128 + 128;
  static constexpr int slab = 64 * 128 * 2, stage = slab + 256;
  struct rows {
    float lse[64], delta[64], o_scale[64];
    float query_part[4][64], query_scale[64]; ///< largest magnitudes of each warp's part of a tile
  };
  static constexpr int ring = groups * 2 * slab, facts = ring + stages * stage;
  static constexpr int full = facts + groups * static_cast<int>(sizeof(rows));
  static constexpr int empty = full + 8 * stages, ready = empty + 8 * stages;
  static constexpr int size = ready + 8 * groups;
};
static_assert(tiles_ring::size <= 227 * 1024);

#if defined(__CUDACC__)

/// The work of a thread block: neighbouring blocks of queries of one head.
struct tile_block {
  std::int32_t head, last, lowest; ///< last block of queries; first block of keys
  std::int32_t group;              ///< over all sequences

  /// `heads`: of a group.
  __device__ __forceinline__ tile_block(const tile_pass& pass, int heads) {
    head = pass.head + static_cast<int>(blockIdx.x) % pass.heads;
    last = pass.end - 1 - static_cast<int>(blockIdx.x) / pass.heads * tiles_ring::groups;
    group = head / heads;
    lowest = pass.numbers.first(max(last - tiles_ring::groups + 1, pass.begin));
  }
};

/// The copies of all slabs; one thread.
__device__ __forceinline__ void copy_slabs(const attention_inputs& a, const gradient_buffers& b,
                                           const tile_pass& pass, const tile_block& of,
                                           std::uint32_t shared) {
  constexpr int words = tiles_ring::slab / 16;
  hopper::ring_place<tiles_ring::stages> ring;
  const auto stage = [&](const uint4* slab, const float* scales) {
    const std::uint32_t to = shared + tiles_ring::ring + ring.stage * tiles_ring::stage;
    const std::uint32_t full = shared + tiles_ring::full + 8 * ring.stage;
    hopper::barrier_wait(shared + tiles_ring::empty + 8 * ring.stage, ring.parity ^ 1u);
    hopper::barrier_expect(full, tiles_ring::slab + (scales != nullptr ? 256 : 0));
    load_bytes(to, slab, tiles_ring::slab, full);
    if (scales != nullptr)
      load_bytes(to + tiles_ring::slab, scales, 256, full);
    ring.advance();
  };
  for (int w = 0; w < tiles_ring::groups; ++w) {
    const int qb = of.last - w;
    if (qb < pass.begin)
      continue;
    const std::int64_t block = of.head * a.blocks() + qb;
    const std::uint32_t ready = shared + tiles_ring::ready + 8 * w;
    const std::uint32_t to = shared + w * 2 * tiles_ring::slab;
    hopper::barrier_expect(ready, 2 * tiles_ring::slab);
    load_bytes(to, b.q_rows + block * words, tiles_ring::slab, ready);
    load_bytes(to + tiles_ring::slab, b.o_rows + block * words, tiles_ring::slab, ready);
  }
  for (int kb = of.lowest; kb <= of.last; ++kb) {
    const std::int64_t block = of.group * a.blocks() + kb;
    stage(b.k_rows + block * words, nullptr);
    stage(b.v_rows + block * words, b.v_scale + block * 64);
  }
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
