// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Token embedding on CUDA: gather forward; grouping of positions by word, and the ordered sum
/// over each word's positions, backward.

#include <algorithm>
#include <bit>
#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda {

namespace detail {

/// A warp copies a row, a `Word` a thread.
template <class Word>
__global__ void __launch_bounds__(256) embedding_rows(const std::uint32_t* ids, const Word* table,
                                                      Word* y, std::int64_t m, std::int64_t words) {
  const std::int64_t i = std::int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (i >= m)
    return;
  const Word* const from = table + static_cast<std::int64_t>(ids[i]) * words;
  Word* const to = y + i * words;
#pragma unroll 8
  for (std::int64_t j = threadIdx.x % 32; j < words; j += 32)
    to[j] = from[j];
}

/// Words of the vocabulary that a block counts together.
inline constexpr int words_of_tile = 2048;
inline constexpr int tile_threads = 256;

/// start[w + 1] = positions that hold w. A sum of integers: its order is of no matter.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    count_words(const std::uint32_t* ids, std::int64_t m, std::int64_t v, std::uint32_t* start) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < m && ids[i] < v)
    atomicAdd(start + ids[i] + 1, 1u);
}

/// The sum over the block's threads, in every thread; `scratch` holds one number a warp.
__device__ __forceinline__ std::uint32_t block_sum(std::uint32_t x, std::uint32_t* scratch) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, distance);
  __syncthreads();
  if (threadIdx.x % 32 == 0)
    scratch[threadIdx.x / 32] = x;
  __syncthreads();
  std::uint32_t sum = 0;
#pragma unroll
  for (int warp = 0; warp < tile_threads / 32; ++warp)
    sum += scratch[warp];
  return sum;
}

/// tile[b] = the sum of the b-th 2048 of the n numbers of `start`.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    sum_tiles(const std::uint32_t* start, std::int64_t n, std::uint32_t* tile) {
  __shared__ std::uint32_t scratch[tile_threads / 32];
  std::uint32_t sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < words_of_tile; i += tile_threads) {
    const std::int64_t w = std::int64_t{blockIdx.x} * words_of_tile + i;
    sum += w < n ? start[w] : 0u;
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0)
    tile[blockIdx.x] = sum;
}

/// Every number of `start` becomes the sum of those up to it.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    accumulate_tiles(std::uint32_t* start, std::int64_t n, const std::uint32_t* tile) {
  constexpr int own = words_of_tile / tile_threads;
  __shared__ std::uint32_t scratch[tile_threads / 32], warp_sum[tile_threads / 32];
  std::uint32_t before = 0;
  for (unsigned b = threadIdx.x; b < blockIdx.x; b += tile_threads)
    before += tile[b];
  before = block_sum(before, scratch);
  const std::int64_t first = std::int64_t{blockIdx.x} * words_of_tile + threadIdx.x * own;
  std::uint32_t up_to[own], sum = 0;
#pragma unroll
  for (int i = 0; i < own; ++i) {
    sum += first + i < n ? start[first + i] : 0u;
    up_to[i] = sum;
  }
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  std::uint32_t inclusive = sum;
#pragma unroll
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t left = __shfl_up_sync(0xffffffffu, inclusive, distance);
    inclusive += lane >= distance ? left : 0u;
  }
  if (lane == 31)
    warp_sum[warp] = inclusive;
  __syncthreads();
  before += inclusive - sum;
  for (unsigned w = 0; w < warp; ++w)
    before += warp_sum[w];
#pragma unroll
  for (int i = 0; i < own; ++i) {
    if (first + i < n)
      start[first + i] = before + up_to[i];
  }
}

/// Words whose positions one warp places: those with the same low bits.
inline constexpr int words_of_warp = 128;
inline constexpr int place_threads = 256;

/// position[start[w] ...]: the positions of w, ascending. Each warp reads all ids in turn and
/// places those of its own words, so that nobody else moves its cursors.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    place_positions(const std::uint32_t* ids, std::int64_t m, std::int64_t v,
                    const std::uint32_t* start, std::uint32_t* position, int bucket_bits) {
  __shared__ std::uint32_t all_cursors[place_threads / 32][words_of_warp];
  std::uint32_t* const cursor = all_cursors[threadIdx.x / 32];
  const std::uint32_t lane = threadIdx.x % 32, before = (1u << lane) - 1;
  const std::uint32_t bucket = blockIdx.x * (place_threads / 32) + threadIdx.x / 32;
  for (std::uint32_t i = lane; i < words_of_warp; i += 32) {
    const std::int64_t w = (std::int64_t{i} << bucket_bits) + bucket;
    cursor[i] = w < v ? start[w] : 0u;
  }
  __syncwarp();
  const std::uint32_t low_bits = (1u << bucket_bits) - 1;
  constexpr int ahead = 8;
  for (std::int64_t base = 0; base < m; base += 32 * ahead) {
    std::uint32_t id[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const std::int64_t i = base + 32 * k + lane;
      id[k] = i < m ? ids[i] : 0xffffffffu;
    }
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      const bool mine = id[k] < v && (id[k] & low_bits) == bucket;
      if (!__any_sync(0xffffffffu, mine))
        continue;
      // Threads that hold no word of this warp form a group of their own, which places nothing.
      const std::uint32_t same = __match_any_sync(0xffffffffu, mine ? id[k] : 0xffffffffu);
      const std::uint32_t w = mine ? id[k] >> bucket_bits : 0u;
      const std::uint32_t place = cursor[w] + __popc(same & before);
      __syncwarp();
      if (mine) {
        position[place] = static_cast<std::uint32_t>(base + 32 * k + lane);
        if ((same & before) == 0)
          cursor[w] += __popc(same);
      }
      __syncwarp();
    }
  }
}

/// What embedding_backward reads and writes.
struct embedding_gradient_operands {
  const bf16* dy;
  const std::uint32_t *position, *start;
  float* dtable;
  std::int64_t d;
};

/// A block takes the row of one word: eight neighbouring columns a thread.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    embedding_gradient_octets(embedding_gradient_operands at) {
  const std::uint32_t first = at.start[blockIdx.x], last = at.start[blockIdx.x + 1];
  const std::int64_t octets = at.d / 8;
  const std::int64_t j = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
  if (j >= octets)
    return;
  const uint4* const dy = reinterpret_cast<const uint4*>(at.dy) + j;
  float sum[8] = {};
  const auto add = [&](const uint4& g) {
    const std::uint32_t pairs[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[2 * i] = arith::add(sum[2 * i], low(pairs[i]));
      sum[2 * i + 1] = arith::add(sum[2 * i + 1], high(pairs[i]));
    }
  };
  std::uint32_t p = first;
  constexpr int ahead = 4;
  for (; p + ahead <= last; p += ahead) {
    uint4 g[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
      g[i] = dy[at.position[p + i] * octets];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
      add(g[i]);
  }
  for (; p < last; ++p)
    add(dy[at.position[p] * octets]);
  float4* const to = reinterpret_cast<float4*>(at.dtable + blockIdx.x * at.d) + 2 * j;
  __stcs(to, float4{sum[0], sum[1], sum[2], sum[3]});
  __stcs(to + 1, float4{sum[4], sum[5], sum[6], sum[7]});
}

/// Any d and alignment: a column a thread.
template <int Threads>
__global__ void __launch_bounds__(Threads) embedding_gradient_any(embedding_gradient_operands at) {
  const std::uint32_t first = at.start[blockIdx.x], last = at.start[blockIdx.x + 1];
  for (std::int64_t j = threadIdx.x; j < at.d; j += blockDim.x) {
    float sum = 0.0f;
    for (std::uint32_t p = first; p < last; ++p)
      sum = arith::add(sum, arith::to_f32(at.dy[at.position[p] * at.d + j]));
    at.dtable[blockIdx.x * at.d + j] = sum;
  }
}

} // namespace detail

/// y_i = table[ids_i]. Shape: ids [m]; table [v, d] bf16; y [m, d] bf16. Bits: copied.
inline void embedding(cudaStream_t stream, const std::uint32_t* ids, const bf16* table, bf16* y,
                      std::int64_t m, std::int64_t d) {
  const char* const where = "ordo::cuda::embedding";
  const dim3 grid(static_cast<unsigned>(pieces<std::int64_t>(m, 8)));
  if (d % 8 == 0 && aligned(table, 16) && aligned(y, 16)) {
    launch(where, detail::embedding_rows<uint4>, grid, dim3(256), 0, stream, ids,
           reinterpret_cast<const uint4*>(table), reinterpret_cast<uint4*>(y), m, d / 8);
  } else {
    launch(where, detail::embedding_rows<bf16>, grid, dim3(256), 0, stream, ids, table, y, m, d);
  }
}

/// Numbers that group_positions needs as scratch for a vocabulary of v words.
inline std::int64_t group_scratch(std::int64_t v) {
  return pieces<std::int64_t>(v + 1, detail::words_of_tile);
}

/// The positions of a micro-batch by word: start[w] to start[w + 1] is the part of `position` that
/// holds those of word w, ascending. Ids that are not below v are left out.
///
/// Shape: ids, position [m]; start [v + 1]; scratch [group_scratch(v)].
inline void group_positions(cudaStream_t stream, const std::uint32_t* ids, std::int64_t m,
                            std::int64_t v, std::uint32_t* start, std::uint32_t* position,
                            std::uint32_t* scratch) {
  using namespace detail;
  const char* const where = "ordo::cuda::group_positions";
  check(cudaMemsetAsync(start, 0, static_cast<std::size_t>(v + 1) * sizeof(*start), stream), where);
  launch(where, count_words<256>, dim3(static_cast<unsigned>(pieces<std::int64_t>(m, 256))),
         dim3(256), 0, stream, ids, m, v, start);
  const dim3 tiles(static_cast<unsigned>(group_scratch(v)));
  launch(where, sum_tiles<tile_threads>, tiles, dim3(tile_threads), 0, stream, start, v + 1,
         scratch);
  launch(where, accumulate_tiles<tile_threads>, tiles, dim3(tile_threads), 0, stream, start, v + 1,
         scratch);
  constexpr int warps = place_threads / 32;
  const auto buckets = std::bit_ceil(static_cast<std::uint64_t>(
      std::max<std::int64_t>(1024, pieces<std::int64_t>(v, words_of_warp))));
  if (m > 0) {
    launch(where, place_positions<place_threads>, dim3(static_cast<unsigned>(buckets / warps)),
           dim3(place_threads), 0, stream, ids, m, v, start, position, std::countr_zero(buckets));
  }
}

/// dtable[w] = sum of dy_i over the positions i of word w, ascending from +0; overwritten.
///
/// Shape: dy [m, d] bf16; position, start as from group_positions; dtable [v, d] binary32.
/// Bits: as nn::embedding_backward.
inline void embedding_backward(cudaStream_t stream, const bf16* dy, const std::uint32_t* position,
                               const std::uint32_t* start, float* dtable, std::int64_t v,
                               std::int64_t d) {
  const char* const where = "ordo::cuda::embedding_backward";
  const detail::embedding_gradient_operands at{dy, position, start, dtable, d};
  if (d == 0)
    return;
  const unsigned words = static_cast<unsigned>(v);
  if (d % 8 == 0 && aligned(dy, 16) && aligned(dtable, 16)) {
    const std::int64_t octets = d / 8;
    const int threads =
        static_cast<int>(std::min<std::int64_t>(256, pieces<std::int64_t>(octets, 32) * 32));
    launch(where, detail::embedding_gradient_octets<256>,
           dim3(words, static_cast<unsigned>(pieces<std::int64_t>(octets, threads))), dim3(threads),
           0, stream, at);
  } else {
    launch(where, detail::embedding_gradient_any<128>, dim3(words), dim3(128), 0, stream, at);
  }
}

} // namespace ordo::cuda
