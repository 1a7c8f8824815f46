// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Parts of tiles of attention's backward pass on CUDA: shared memory, and products over the head
/// dimension.

#include <cstdint>

#include <ordo/cuda/attention_gradient.hpp>
#include <ordo/nn/attention_tiles.hpp>

namespace ordo::cuda::detail {

/// Shared memory of the tile kernel: four slabs, then this.
struct tile_rows {
  float lse[64], delta[64], o_scale[64];
  float query_part[2][64], key_part[2][64], p_part[2][64]; ///< largest magnitudes of half a tile
  float query_scale[64], key_scale[64], p_scale[64];       ///< 2^shift
};
template <int Dim>
inline constexpr int tile_shared_bytes = 4 * Dim * 128 + static_cast<int>(sizeof(tile_rows));

#if defined(__CUDACC__)

/// A warp's part of a tile: 32 keys (rows) by 32 queries (columns). Lane (g, t) holds keys
/// 16m + 8r + g and queries 8u + 2t + c in [m][u][2r + c].
using tile_part = float[2][4][4];

/// Products of 32 keys and 16 queries over the head dimension, from slabs of balanced digits.
/// `keys` and `queries` point at the lane's piece (load_piece) of their first rows.
template <int Dim>
__device__ __forceinline__ void dot_rows(const uint4* keys, const uint4* queries,
                                         std::int32_t (&x)[2][2][4]) {
  constexpr int steps = Dim / 32;
  std::int32_t high[2][2][4] = {}, middle[2][2][4] = {}, low[2][2][4] = {};
#pragma unroll
  for (int s = 0; s < steps; ++s) {
    uint4 q_low, q_high;
    load_piece(q_low, queries + s * 128);
    load_piece(q_high, queries + s * 128 + row_digit<Dim>);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint4 k_low, k_high;
      load_piece(k_low, keys + 16 * m + s * 128);
      load_piece(k_high, keys + 16 * m + s * 128 + row_digit<Dim>);
      const std::uint32_t al[4] = {k_low.x, k_low.y, k_low.z, k_low.w};
      const std::uint32_t ah[4] = {k_high.x, k_high.y, k_high.z, k_high.w};
      mma_s8(high[m][0], ah, q_high.x, q_high.z);
      mma_s8(high[m][1], ah, q_high.y, q_high.w);
      mma_s8(middle[m][0], ah, q_low.x, q_low.z);
      mma_s8(middle[m][1], ah, q_low.y, q_low.w);
      mma_s8(low[m][0], al, q_low.x, q_low.z);
      mma_s8(low[m][1], al, q_low.y, q_low.w);
      mma_s8(middle[m][0], al, q_high.x, q_high.z);
      mma_s8(middle[m][1], al, q_high.y, q_high.w);
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[m][u][e] = (high[m][u][e] * 128 + middle[m][u][e]) * 128 + low[m][u][e];
    }
  }
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
