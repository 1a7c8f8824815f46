// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Products of two matrices of two slices over consecutive blocks of 256 along k, each rounded by
/// itself and added to a binary32 matrix, ascending: the weight gradient of the head.

#include <cstdint>

#include <ordo/cuda/gemm_sliced.hpp>
#include <ordo/cuda/gemm_sliced_wgmma.hpp>
#include <ordo/loss/loss_sum.hpp>

namespace ordo::cuda {

/// The operands and the result. Row r of `a` has its shift of block i at a.shift[i * a_pitch + r],
/// `b` likewise. Along k both have whole blocks, with zeros after the last entry.
struct block_products {
  slices<2> a, b;
  std::int64_t a_pitch, b_pitch;
  const std::int32_t* b_range; ///< the least and the largest shift of b, for each block
  std::int64_t m, n, blocks;
  float* c; ///< m x n
  std::int64_t c_stride;
  bool starts; ///< c counts as +0
};

namespace sliced {

inline constexpr int block_k = static_cast<int>(loss::block_rows);
inline constexpr int stages_of_block = block_k / stage_k;
static_assert(block_k <= block_value_max_k && stages_of_block * stage_k == block_k);

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// What a thread keeps of a tile: rows lane / 4 and 8 more of its warp's 16, two of every eight
/// columns.
struct block_tile {
  float total[sums_of_thread];
  std::int32_t hh[sums_of_thread], rest[sums_of_thread];
};

/// The sums of one block: rest = mid * 2^7 + ll, which fits, so that the products of mid come
/// first and are shifted before those of ll are added.
__device__ __forceinline__ void multiply_block(block_tile& tile, const stage_ring& ring, int group,
                                               hopper::ring_place<stages>& place) {
  hopper::ring_place<stages> again = place;
#pragma unroll
  for (int s = 0; s < stages_of_block; ++s) {
    hopper::barrier_wait(ring.full(place.stage), place.parity);
    hopper::products_begin();
    const stage_operands x(ring, place.stage, group);
#pragma unroll
    for (int k = 0; k < stage_k / 32; ++k) {
      const std::uint64_t along = static_cast<std::uint64_t>(k) * next_k;
      hopper::multiply(tile.rest, x.a_high + along, x.b_low + along, s > 0 || k > 0);
      hopper::multiply(tile.rest, x.a_low + along, x.b_high + along, true);
    }
    place.advance();
  }
  hopper::products_commit();
  hopper::products_wait<0>();
  hopper::products_settle(tile.rest);
#pragma unroll
  for (int d = 0; d < sums_of_thread; ++d)
    tile.rest[d] <<= 7;
  hopper::products_begin();
  const int first = again.stage;
#pragma unroll
  for (int s = 0; s < stages_of_block; ++s) {
    const stage_operands x(ring, again.stage, group);
#pragma unroll
    for (int k = 0; k < stage_k / 32; ++k) {
      const std::uint64_t along = static_cast<std::uint64_t>(k) * next_k;
      hopper::multiply(tile.hh, x.a_high + along, x.b_high + along, s > 0 || k > 0);
      hopper::multiply(tile.rest, x.a_low + along, x.b_low + along, true);
    }
    hopper::products_commit();
    again.advance();
  }
  const auto release_next = [&](int s) { release(ring, (first + s) % stages); };
  hopper::products_wait<3>();
  release_next(0);
  hopper::products_wait<2>();
  release_next(1);
  hopper::products_wait<1>();
  release_next(2);
  hopper::products_wait<0>();
  release_next(3);
  hopper::products_settle(tile.hh);
  hopper::products_settle(tile.rest);
}
static_assert(stages_of_block == 4);

/// Rounds one block and adds it.
///
/// Where every shift is plain, values are multiples of 2^-125, zero or at least as large: nothing
/// is flushed or NaN. A total that is NaN stays so, and becomes canonical when it is stored.
__device__ __forceinline__ void add_block(block_tile& tile, const block_products& task,
                                          std::int64_t block, int m0, int n0) {
  constexpr unsigned all = 0xffffffffu;
  const int quad = threadIdx.x % 4;
  const std::int32_t* a_shift = task.a.shift + block * task.a_pitch;
  const std::int32_t* b_shift = task.b.shift + block * task.b_pitch;
  std::int32_t shift[2];
#pragma unroll
  for (int h = 0; h < 2; ++h)
    shift[h] = m0 + 8 * h < task.m ? a_shift[m0 + 8 * h] : 0;
  const std::int32_t least = __ldg(task.b_range + 2 * block),
                     most = __ldg(task.b_range + 2 * block + 1);
  const bool plain = plain_row(shift[0]) && plain_row(shift[1]) && least >= least_plain &&
                     most <= most_plain && max(shift[0], shift[1]) + most <= most_plain_sum;
  if (__all_sync(all, plain)) {
    const row_unit<14> unit[2] = {row_unit<14>(shift[0]), row_unit<14>(shift[1])};
#pragma unroll
    for (int j = 0; j < wide_tile / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = n0 + 8 * j + 2 * quad + i;
        const float column = unit_of(n < task.n ? b_shift[n] : 0);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int d = 4 * j + 2 * h + i;
          tile.total[d] = add_exact_product(block_value(unit[h], tile.hh[d], tile.rest[d]), column,
                                            tile.total[d]);
        }
      }
    }
  } else {
#pragma unroll
    for (int d = 0; d < sums_of_thread; ++d) {
      const int h = d / 2 % 2, n = n0 + d / 4 * 8 + 2 * quad + d % 2;
      const float value =
          value_by_rule(tile.hh[d], 0, tile.rest[d], shift[h], n < task.n ? b_shift[n] : 0);
      tile.total[d] = arith::canonical(arith::add(tile.total[d], value));
    }
  }
}

/// Calls f(total, address of it in C) for the thread's places in C.
template <class F>
__device__ __forceinline__ void each_total(block_tile& tile, const block_products& task, int m0,
                                           int n0, const F& f) {
  const int quad = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::int64_t m = m0 + 8 * h;
    float* row = task.c + m * task.c_stride;
#pragma unroll
    for (int j = 0; j < wide_tile / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = n0 + 8 * j + 2 * quad + i;
        if (m < task.m && n < task.n)
          f(tile.total[4 * j + 2 * h + i], row + n);
      }
  }
}

#endif // __CUDA_ARCH_FEAT_SM90_ALL

template <int Threads = wgmma_threads>
__global__ void __launch_bounds__(Threads, 1)
    block_products_kernel(const __grid_constant__ operand_maps maps, const tile_walk walk,
                          const __grid_constant__ block_products task) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char ordo_gemm_sliced_memory[];
  const stage_ring ring(ordo_gemm_sliced_memory);
  ring.start();
  const int group = static_cast<int>(threadIdx.x / 128) - 1;
  if (group < 0) {
    hopper::registers_down_to<24>();
    if (threadIdx.x == 0)
      copy_stages(maps, walk, static_cast<int>(task.blocks) * stages_of_block, ring);
  } else {
    hopper::registers_up_to<240>();
    hopper::ring_place<stages> place;
    block_tile tile;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (std::int64_t t = blockIdx.x; t < walk.count(); t += gridDim.x) {
      int m0, n0;
      walk.place(t, m0, n0);
      m0 += 64 * group + 16 * warp + lane / 4;
#pragma unroll
      for (int d = 0; d < sums_of_thread; ++d)
        tile.total[d] = 0.0f;
      if (!task.starts)
        each_total(tile, task, m0, n0, [](float& total, const float* c) { total = *c; });
      for (std::int64_t block = 0; block < task.blocks; ++block) {
        multiply_block(tile, ring, group, place);
        add_block(tile, task, block, m0, n0);
      }
      each_total(tile, task, m0, n0, [](float& total, float* c) { *c = arith::canonical(total); });
    }
  }
#endif
}

/// The epilogue of one block in the general kernel.
struct add_piece {
  float* c;
  std::int64_t stride;
  bool starts;

  __device__ void operator()(std::int64_t m, std::int64_t n0, int count, const float* piece) const {
    float* out = c + m * stride + n0;
    for (int i = 0; i < count; ++i)
      out[i] = arith::canonical(arith::add(starts ? 0.0f : out[i], piece[i]));
  }
};

} // namespace sliced

/// c = canonical(add(c, product of block)), blocks ascending; from +0 where `starts`.
///
/// Bits: of the operands only. Cost: c is read and written once on sm_90a, once a block elsewhere.
inline void add_block_products(cudaStream_t stream, const block_products& task) {
  const char* where = "ordo::cuda::add_block_products";
  const std::int64_t k = task.blocks * sliced::block_k;
  if (sliced::wgmma_takes(task.a, task.b, task.m, task.n, k)) {
    const sliced::tile_walk walk = sliced::walk_of(task.m, task.n);
    launch(where, sliced::block_products_kernel<>, dim3(sliced::wgmma_blocks(walk)),
           dim3(sliced::wgmma_threads), sliced::wgmma_shared, stream,
           sliced::maps_of(task.a, task.b, task.m, task.n, k), walk, task);
    return;
  }
  for (std::int64_t block = 0; block < task.blocks; ++block) {
    const auto part = [&](slices<2> x, std::int64_t pitch) {
      for (std::int8_t*& plane : x.slice)
        plane += block * sliced::block_k;
      x.shift += block * pitch;
      return x;
    };
    gemm_sliced_general(stream, part(task.a, task.a_pitch), part(task.b, task.b_pitch), task.m,
                        task.n, sliced::block_k,
                        sliced::add_piece{task.c, task.c_stride, task.starts && block == 0});
  }
}

} // namespace ordo::cuda
