// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two int8 matrices by warpgroups: compute capability 9.0a.
///
/// A cluster of two blocks makes tiles of 256 x 256, each block 128 rows of one. In a block, one
/// thread copies operands into a ring of stages, each 128 codes deep; each block copies half of the
/// cluster's rows of B to both. Two warpgroups multiply 64 x 256 each. The grid stays; its clusters
/// walk through the tiles, and the copies of the next tile run during the epilogue of this one.

#include <cstdint>

#include <ordo/cuda/gemm_int8_finish.hpp>
#include <ordo/cuda/hopper.hpp>

namespace ordo::cuda::gemm_wgmma {

inline constexpr int cluster = 2, stages = 4, threads = 384, consumer_warps = 8;
/// Clusters that follow each other in the order of tiles share rows of A in groups of this many.
inline constexpr int group_rows = 8;

/// Offsets in shared memory; a base at a multiple of 1024.
struct layout {
  static constexpr int a_stage = tile_rows * tile_depth, b_stage = tile_columns * tile_depth;
  static constexpr int a = 0, b = a + stages * a_stage, output = b + stages * b_stage;
  static constexpr int factors = output + warpgroups * finish_buffers * finish_buffer;
  static constexpr int full = factors + warpgroups * tile_columns * 4, empty = full + 8 * stages;
  static constexpr int size = empty + 8 * stages;
};
static_assert(layout::size <= 227 * 1024);

struct tile {
  int row, column; ///< the cluster's first
};

/// Tile `item` of the order: within groups of `group_rows` tiles along m, m runs first.
__device__ __forceinline__ tile tile_of(int item, const problem& p) {
  const int group = item / (group_rows * p.column_tiles), first = group * group_rows;
  const int height = min(group_rows, p.row_tiles - first);
  const int within = item - group * group_rows * p.column_tiles;
  return {(first + within % height) * cluster * tile_rows, within / height * tile_columns};
}

/// The copies of all tiles of this cluster; one thread of each block.
__device__ __forceinline__ void produce(const CUtensorMap& map_a, const CUtensorMap& map_b,
                                        const problem& p, std::uint32_t shared) {
  constexpr int half = tile_columns / cluster;
  constexpr std::uint16_t both = 3;
  const int rank = static_cast<int>(hopper::cluster_rank());
  hopper::ring_place<stages> place;
  for (int item = blockIdx.x / cluster; item < p.tiles; item += gridDim.x / cluster) {
    const tile t = tile_of(item, p);
    const int row = t.row + rank * tile_rows, column = t.column + rank * half;
    for (int step = 0; step < p.steps; ++step) {
      const std::uint32_t full = shared + layout::full + 8 * place.stage;
      hopper::barrier_wait(shared + layout::empty + 8 * place.stage, place.parity ^ 1u);
      hopper::barrier_expect(full, layout::a_stage + layout::b_stage);
      hopper::load_box(shared + layout::a + place.stage * layout::a_stage, map_a, row,
                       step * tile_depth, full);
      hopper::load_box_multicast(shared + layout::b + place.stage * layout::b_stage +
                                     rank * half * tile_depth,
                                 map_b, column, step * tile_depth, full, both);
      place.advance();
    }
  }
}

/// The sums of one tile. Frees each stage, in both blocks, when the products that read it are done.
__device__ __forceinline__ void multiply_tile(std::int32_t (&d)[sums_per_thread], int steps,
                                              std::uint32_t a, std::uint32_t b, std::uint32_t full,
                                              std::uint32_t empty_there, bool frees,
                                              hopper::ring_place<stages>& place) {
  int previous = 0;
  for (int step = 0; step < steps; ++step) {
    hopper::barrier_wait(full + 8 * place.stage, place.parity);
    const std::uint64_t of_a = hopper::operand(a + place.stage * layout::a_stage);
    const std::uint64_t of_b = hopper::operand(b + place.stage * layout::b_stage);
    hopper::products_begin();
#pragma unroll
    for (int k = 0; k < tile_depth / 32; ++k)
      hopper::multiply(d, of_a + 2 * k, of_b + 2 * k, step + k > 0); // 2: 32 bytes of an address
    hopper::products_commit();
    if (step > 0) {
      hopper::products_wait<1>();
      if (frees)
        hopper::barrier_arrive_cluster(empty_there + 8 * previous);
    }
    previous = place.stage;
    place.advance();
  }
  hopper::products_wait<0>();
  hopper::products_settle(d);
  if (frees)
    hopper::barrier_arrive_cluster(empty_there + 8 * previous);
}

/// The products and the epilogue of all tiles, for the 64 rows of warpgroup `group` in each.
template <class Finish>
__device__ __forceinline__ void consume(const CUtensorMap& map_out, const problem& p,
                                        const Finish& finish, int group, std::uint32_t shared) {
  const int lane = threadIdx.x % 32, rank = static_cast<int>(hopper::cluster_rank());
  const bool frees = lane < cluster; // in each warp, one thread for each block
  const std::uint32_t empty_there =
      hopper::in_block(shared + layout::empty, frees ? static_cast<std::uint32_t>(lane) : 0u);
  const std::uint32_t a = shared + layout::a + group * 64 * tile_depth, b = shared + layout::b;
  finish_place out{shared + layout::output + group * finish_buffers * finish_buffer,
                   shared + layout::factors + group * tile_columns * 4, 1 + group, 0};
  hopper::ring_place<stages> place;
  for (int item = blockIdx.x / cluster; item < p.tiles; item += gridDim.x / cluster) {
    const tile t = tile_of(item, p);
    const int row = t.row + rank * tile_rows + group * 64;
    const auto early = finish.load(row, t.column, p);
    std::int32_t d[sums_per_thread];
    multiply_tile(d, p.steps, a, b, shared + layout::full, empty_there, frees, place);
    finish.store(d, early, row, t.column, p, map_out, out);
  }
  hopper::store_wait_read<0>();
}

template <class Finish>
__global__ void __launch_bounds__(threads, 1)
    kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
           const __grid_constant__ CUtensorMap map_out, problem p, Finish finish) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = hopper::shared_address(memory);
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < stages; ++s) {
      hopper::barrier_init(shared + layout::full + 8 * s, 1);
      hopper::barrier_init(shared + layout::empty + 8 * s, cluster * consumer_warps);
    }
    hopper::barrier_init_done();
  }
  hopper::cluster_barrier();
  if (group == 0) {
    hopper::registers_down_to<40>();
    if (threadIdx.x < 32 && hopper::elect_one())
      produce(map_a, map_b, p, shared);
    __syncwarp();
  } else {
    hopper::registers_up_to<232>();
    consume(map_out, p, finish, group - 1, shared);
  }
  hopper::cluster_barrier(); // the other block writes here until its last tile
#endif
}

/// Launches one cluster for each two multiprocessors, or for each tile if there are fewer.
template <class Finish>
void run(cudaStream_t stream, const CUtensorMap& map_a, const CUtensorMap& map_b,
         const CUtensorMap& map_out, const problem& p, const Finish& finish) {
  const int clusters = std::min(p.tiles, std::max(1, limits().multiprocessors / cluster));
  hopper::launch_clusters("ordo::gemm_int8", &kernel<Finish>, cluster,
                          dim3(static_cast<unsigned>(clusters * cluster)), dim3(threads),
                          layout::size, stream, map_a, map_b, map_out, p, finish);
}

} // namespace ordo::cuda::gemm_wgmma

namespace ordo::cuda {

/// Whether the operands can be multiplied by warpgroups on the current device.
inline bool gemm_int8_wgmma_serves(const int8_operands& x) {
  using namespace gemm_wgmma;
  const std::int64_t tiles =
      pieces<std::int64_t>(x.m, cluster * tile_rows) * pieces<std::int64_t>(x.n, tile_columns);
  return x.k > 0 && tiles < (std::int64_t{1} << 30) &&
         hopper::mappable(x.a, x.m, x.k, x.a_stride) &&
         hopper::mappable(x.b, x.n, x.k, x.b_stride) && hopper::available();
}

/// Hands C[m, n] = sum over k of A[m, k] * B[n, k] to the epilogue; for operands that
/// `gemm_int8_wgmma_serves`.
template <class Epilogue>
void gemm_int8_wgmma(cudaStream_t stream, const int8_operands& x, const Epilogue& epilogue) {
  using namespace gemm_wgmma;
  constexpr auto pattern = hopper::swizzle::bytes_128;
  const CUtensorMap a =
      hopper::tensor_map(x.a, x.m, x.k, x.a_stride, tile_rows, tile_depth, pattern);
  const CUtensorMap b =
      hopper::tensor_map(x.b, x.n, x.k, x.b_stride, tile_columns / cluster, tile_depth, pattern);
  problem p{};
  p.m = static_cast<int>(x.m);
  p.n = static_cast<int>(x.n);
  p.row_tiles = static_cast<int>(pieces<std::int64_t>(x.m, cluster * tile_rows));
  p.column_tiles = static_cast<int>(pieces<std::int64_t>(x.n, tile_columns));
  p.steps = static_cast<int>(pieces<std::int64_t>(x.k, tile_depth));
  p.tiles = p.row_tiles * p.column_tiles;
  if constexpr (is_scaled_store<Epilogue>) {
    using finish = scaled_finish<Epilogue>;
    if (finish::serves(epilogue, x.m, x.n)) {
      const CUtensorMap out = hopper::tensor_map(epilogue.out, x.m, x.n, epilogue.stride, 64,
                                                 finish::chunk_columns, pattern);
      run(stream, a, b, out, p, finish{epilogue});
      return;
    }
  }
  run(stream, a, b, a, p, piece_finish<Epilogue>{epilogue});
}

} // namespace ordo::cuda
