// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two matrices of two slices by the warpgroup products of sm_90a: tiles of 128 x 128,
/// operands through the tensor copy engine, three sums of digit products for each result.
///
/// A block has three warpgroups: one copies, two multiply 64 rows of the tile each. Blocks stay and
/// go from tile to tile, so that the copies of a tile begin while the one before is being rounded.

#include <cstdint>

#include <ordo/cuda/fixed_point.hpp>
#include <ordo/cuda/hopper.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/cuda/slice.hpp>
#include <ordo/linalg/digits.hpp>

namespace ordo::cuda::sliced {

/// Bytes along k of one stage, and how many stages a block's shared memory holds.
inline constexpr int stage_k = 64, stages = 7, wide_tile = 128;
inline constexpr int plane_bytes = wide_tile * stage_k, stage_bytes = 4 * plane_bytes;
inline constexpr int wgmma_threads = 384, sums_of_thread = wide_tile / 2;
/// Stages, their barriers, and room to align them.
inline constexpr std::size_t wgmma_shared = stages * stage_bytes + stages * 16 + 1024;

/// Maps of the digits of both operands, for boxes of 128 rows of one stage.
struct operand_maps {
  CUtensorMap a_high, a_low, b_high, b_low;
};

inline CUtensorMap digit_map(const std::int8_t* digits, std::int64_t rows, std::int64_t columns,
                             std::int64_t stride) {
  return hopper::tensor_map(digits, rows, columns, stride, wide_tile, stage_k,
                            hopper::swizzle::bytes_64);
}

inline operand_maps maps_of(const slices<2>& a, const slices<2>& b, std::int64_t m, std::int64_t n,
                            std::int64_t k) {
  return {digit_map(a.slice[1], m, k, a.stride), digit_map(a.slice[0], m, k, a.stride),
          digit_map(b.slice[1], n, k, b.stride), digit_map(b.slice[0], n, k, b.stride)};
}

/// Whether the kernels of sm_90a exist here and the copy engine can read both operands.
inline bool wgmma_takes(const slices<2>& a, const slices<2>& b, std::int64_t m, std::int64_t n,
                        std::int64_t k) {
  bool takes = k > 0 && m > 0 && n > 0 && hopper::available();
  for (int i = 0; takes && i < 2; ++i)
    takes = hopper::mappable(a.slice[i], m, k, a.stride) &&
            hopper::mappable(b.slice[i], n, k, b.stride);
  return takes;
}

/// The order in which tiles are worked on: bands of 16 tiles along the shorter side, so that what
/// is multiplied at a time is in the cache.
struct tile_walk {
  std::int64_t m_tiles, n_tiles;
  static constexpr std::int64_t band = 16;

  __host__ __device__ std::int64_t count() const { return m_tiles * n_tiles; }
  __device__ __forceinline__ void place(std::int64_t index, int& m0, int& n0) const {
    const bool m_inside = m_tiles <= n_tiles;
    const std::int64_t inside = m_inside ? m_tiles : n_tiles,
                       outside = m_inside ? n_tiles : m_tiles;
    const std::int64_t first = index / (band * outside) * band;
    const std::int64_t width = inside - first < band ? inside - first : band;
    const std::int64_t rest = index - first * outside;
    const std::int64_t in = first + rest % width, out = rest / width;
    m0 = static_cast<int>((m_inside ? in : out) * wide_tile);
    n0 = static_cast<int>((m_inside ? out : in) * wide_tile);
  }
};

inline tile_walk walk_of(std::int64_t m, std::int64_t n) {
  return {pieces<std::int64_t>(m, wide_tile), pieces<std::int64_t>(n, wide_tile)};
}

inline unsigned wgmma_blocks(const tile_walk& walk) {
  const std::int64_t most = limits().multiprocessors;
  return static_cast<unsigned>(walk.count() < most ? walk.count() : most);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// A row of 64 bytes, swizzled in groups of eight rows: as hopper::operand, for stages of 64.
__device__ __forceinline__ std::uint64_t narrow_operand(std::uint32_t address) {
  constexpr std::uint64_t group_bytes = 8 * stage_k, swizzled_by_64 = 2;
  return static_cast<std::uint64_t>((address & 0x3ffffu) >> 4) | (std::uint64_t{1} << 16) |
         ((group_bytes >> 4) << 32) | (swizzled_by_64 << 62);
}

/// The ring of stages in shared memory: its buffers and two barriers for each.
struct stage_ring {
  std::uint32_t base;

  __device__ __forceinline__ explicit stage_ring(unsigned char* memory)
      : base((hopper::shared_address(memory) + 1023u) & ~1023u) {}
  __device__ __forceinline__ std::uint32_t buffer(int stage) const {
    return base + static_cast<std::uint32_t>(stage * stage_bytes);
  }
  __device__ __forceinline__ std::uint32_t full(int stage) const {
    return base + static_cast<std::uint32_t>(stages * stage_bytes + stage * 16);
  }
  __device__ __forceinline__ std::uint32_t free(int stage) const { return full(stage) + 8; }

  /// By all threads of the block. A stage is free when the eight multiplying warps have said so.
  __device__ __forceinline__ void start() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < stages; ++s) {
        hopper::barrier_init(full(s), 1);
        hopper::barrier_init(free(s), 8);
      }
      hopper::barrier_init_done();
    }
    __syncthreads();
  }
};

/// What the copying thread does: all stages of all tiles of the block.
__device__ __forceinline__ void copy_stages(const operand_maps& maps, const tile_walk& walk,
                                            int k_steps, const stage_ring& ring) {
  hopper::ring_place<stages> place;
  for (std::int64_t t = blockIdx.x; t < walk.count(); t += gridDim.x) {
    int m0, n0;
    walk.place(t, m0, n0);
    for (int step = 0; step < k_steps; ++step) {
      hopper::barrier_wait(ring.free(place.stage), place.parity ^ 1u);
      const std::uint32_t full = ring.full(place.stage), to = ring.buffer(place.stage);
      hopper::barrier_expect(full, stage_bytes);
      hopper::load_box(to, maps.a_high, m0, step * stage_k, full);
      hopper::load_box(to + plane_bytes, maps.a_low, m0, step * stage_k, full);
      hopper::load_box(to + 2 * plane_bytes, maps.b_high, n0, step * stage_k, full);
      hopper::load_box(to + 3 * plane_bytes, maps.b_low, n0, step * stage_k, full);
      place.advance();
    }
  }
}

/// How a warpgroup finds its operands in one stage.
struct stage_operands {
  std::uint64_t a_high, a_low, b_high, b_low;

  __device__ __forceinline__ stage_operands(const stage_ring& ring, int stage, int group) {
    const std::uint32_t at = ring.buffer(stage);
    const auto rows = static_cast<std::uint32_t>(group * 64 * stage_k);
    a_high = narrow_operand(at + rows);
    a_low = narrow_operand(at + plane_bytes + rows);
    b_high = narrow_operand(at + 2 * plane_bytes);
    b_low = narrow_operand(at + 3 * plane_bytes);
  }
};

/// 32 bytes further along k, as operands count.
inline constexpr std::uint64_t next_k = 32 / 16;

/// The sums of the digit products of a tile, by weight, of one warpgroup.
struct tile_sums {
  std::int32_t hh[sums_of_thread], mid[sums_of_thread], ll[sums_of_thread];

  /// Adds one stage; the first stage of a tile starts the sums.
  __device__ __forceinline__ void add_stage(const stage_operands& x, bool starts) {
#pragma unroll
    for (int k = 0; k < stage_k / 32; ++k) {
      const bool add = k > 0 || !starts;
      const std::uint64_t along = static_cast<std::uint64_t>(k) * next_k;
      hopper::multiply(hh, x.a_high + along, x.b_high + along, add);
      hopper::multiply(mid, x.a_high + along, x.b_low + along, add);
      hopper::multiply(mid, x.a_low + along, x.b_high + along, true);
      hopper::multiply(ll, x.a_low + along, x.b_low + along, add);
    }
  }
};

__device__ __forceinline__ void release(const stage_ring& ring, int stage) {
  if (threadIdx.x % 32 == 0)
    hopper::barrier_arrive(ring.free(stage));
}

/// All stages of one tile.
__device__ __forceinline__ void multiply_tile(tile_sums& sums, const stage_ring& ring, int k_steps,
                                              int group, hopper::ring_place<stages>& place) {
  int before = 0;
  for (int step = 0; step < k_steps; ++step) {
    hopper::barrier_wait(ring.full(place.stage), place.parity);
    hopper::products_begin();
    sums.add_stage(stage_operands(ring, place.stage, group), step == 0);
    hopper::products_commit();
    hopper::products_wait<1>();
    if (step > 0)
      release(ring, before);
    before = place.stage;
    place.advance();
  }
  hopper::products_wait<0>();
  release(ring, before);
  hopper::products_settle(sums.hh);
  hopper::products_settle(sums.mid);
  hopper::products_settle(sums.ll);
}

/// Whether all results of the calling warp are plain: its rows' shifts, one or two in each lane,
/// and those of the tile's columns.
__device__ __forceinline__ bool plain_tile(std::int32_t above, std::int32_t below,
                                           const std::int32_t* column_shift, int n0, int n_total) {
  constexpr unsigned all = 0xffffffffu;
  std::int32_t least = 0, most = 0;
#pragma unroll
  for (int i = 0; i < wide_tile; i += 32) {
    const int n = n0 + i + static_cast<int>(threadIdx.x % 32);
    const std::int32_t shift = n < n_total ? column_shift[n] : 0;
    least = min(least, shift);
    most = max(most, shift);
  }
  least = __reduce_min_sync(all, least);
  most = __reduce_max_sync(all, most);
  const std::int32_t least_row = __reduce_min_sync(all, min(above, below));
  const std::int32_t most_row = __reduce_max_sync(all, max(above, below));
  return least_row >= least_plain && least >= least_plain && most_row <= most_plain &&
         most <= most_plain && most_row + most <= most_plain_sum;
}

#endif // __CUDA_ARCH_FEAT_SM90_ALL

/// Sizes of a product, and the shifts of its rows and columns.
struct product_shape {
  int m, n, k_steps;
  const std::int32_t* a_shift;
  const std::int32_t* b_shift;
  bool short_k; ///< k <= long_value_max_k
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Rounds the thread's sums and hands them on. Plain: every shift of the warp's rows and the tile's
/// columns is, and k is short.
template <bool Plain, class Epilogue>
__device__ __forceinline__ void finish_pairs(const tile_sums& sums, const product_shape& shape,
                                             int m0, int n0, std::int32_t above, std::int32_t below,
                                             Epilogue& epilogue) {
  const int quad = threadIdx.x % 4;
  const std::int32_t shift[2] = {above, below};
  const row_unit<23> unit[2] = {row_unit<23>(Plain ? above : 0), row_unit<23>(Plain ? below : 0)};
  auto states = epilogue.begin();
#pragma unroll
  for (int j = 0; j < wide_tile / 8; ++j) {
    const int n = n0 + 8 * j + 2 * quad;
    std::int32_t column[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      column[i] = n + i < shape.n ? shape.b_shift[n + i] : 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float c[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = 4 * j + 2 * h + i;
        if constexpr (Plain)
          c[i] = __fmul_rn(long_value(unit[h], sums.hh[d], sums.mid[d], sums.ll[d]),
                           unit_of(column[i]));
        else
          c[i] = value_by_rule(sums.hh[d], sums.mid[d], sums.ll[d], shift[h], column[i]);
      }
      if (m0 + 8 * h < shape.m && n < shape.n)
        epilogue.pair(states[h], m0 + 8 * h, n, n + 1 < shape.n ? 2 : 1, c);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
    epilogue.end(states[h], m0 + 8 * h, m0 + 8 * h < shape.m);
}

#endif // __CUDA_ARCH_FEAT_SM90_ALL

/// An epilogue of pieces (`ordo::gemm_sliced`) as one of pairs.
///
/// An epilogue of pairs takes two consecutive columns of one row at a time, of which `count` exist.
/// `begin` gives states for the two rows of a thread; each sees all of the thread's pairs of a row
/// and then the `end`, which the four lanes that share a row reach together, also for rows that do
/// not exist.
template <class Pieces>
struct pair_epilogue {
  Pieces pieces_of;

  struct none {};
  struct two {
    __device__ none& operator[](int) { return nothing; }
    none nothing;
  };
  __device__ __forceinline__ two begin() const { return {}; }
  __device__ __forceinline__ void pair(none&, std::int64_t m, std::int64_t n, int count,
                                       const float (&c)[2]) const {
    pieces_of(m, n, count, static_cast<const float*>(c));
  }
  __device__ __forceinline__ void end(none&, std::int64_t, bool) const {}
};

template <class Epilogue>
__global__ void __launch_bounds__(wgmma_threads, 1)
    gemm_sliced_wgmma_kernel(const __grid_constant__ operand_maps maps, const tile_walk walk,
                             const product_shape shape, Epilogue epilogue) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char ordo_gemm_sliced_memory[];
  const stage_ring ring(ordo_gemm_sliced_memory);
  ring.start();
  const int group = static_cast<int>(threadIdx.x / 128) - 1;
  if (group < 0) {
    hopper::registers_down_to<24>();
    if (threadIdx.x == 0)
      copy_stages(maps, walk, shape.k_steps, ring);
  } else {
    hopper::registers_up_to<240>();
    hopper::ring_place<stages> place;
    tile_sums sums;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (std::int64_t t = blockIdx.x; t < walk.count(); t += gridDim.x) {
      int m0, n0;
      walk.place(t, m0, n0);
      m0 += 64 * group + 16 * warp + lane / 4;
      multiply_tile(sums, ring, shape.k_steps, group, place);
      const std::int32_t above = m0 < shape.m ? shape.a_shift[m0] : 0;
      const std::int32_t below = m0 + 8 < shape.m ? shape.a_shift[m0 + 8] : 0;
      if (shape.short_k && plain_tile(above, below, shape.b_shift, n0, shape.n))
        finish_pairs<true>(sums, shape, m0, n0, above, below, epilogue);
      else
        finish_pairs<false>(sums, shape, m0, n0, above, below, epilogue);
    }
  }
#endif
}

/// The product with an epilogue of pairs, which `wgmma_takes`.
template <class Epilogue>
void launch_wgmma(cudaStream_t stream, const slices<2>& a, const slices<2>& b, std::int64_t m,
                  std::int64_t n, std::int64_t k, const Epilogue& epilogue) {
  const tile_walk walk = walk_of(m, n);
  const product_shape shape{static_cast<int>(m),
                            static_cast<int>(n),
                            static_cast<int>(pieces<std::int64_t>(k, stage_k)),
                            a.shift,
                            b.shift,
                            k <= long_value_max_k};
  launch("ordo::cuda::gemm_sliced", gemm_sliced_wgmma_kernel<Epilogue>, dim3(wgmma_blocks(walk)),
         dim3(wgmma_threads), wgmma_shared, stream, maps_of(a, b, m, n, k), walk, shape, epilogue);
}

/// `ordo::gemm_sliced` of what `wgmma_takes`.
template <class Epilogue>
void gemm_sliced_wgmma(cudaStream_t stream, const slices<2>& a, const slices<2>& b, std::int64_t m,
                       std::int64_t n, std::int64_t k, const Epilogue& epilogue) {
  launch_wgmma(stream, a, b, m, n, k, pair_epilogue<Epilogue>{epilogue});
}

} // namespace ordo::cuda::sliced
