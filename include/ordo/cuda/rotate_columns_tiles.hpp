// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Columns rotated and quantized by warps that hold 256 rows of a few columns (hadamard_tile.hpp):
/// in passes over the matrix, or, where all blocks of a column fit a cluster of thread blocks, in
/// one, with the columns' maxima exchanged between the blocks of the cluster.

#include <cstdint>

#include <ordo/cuda/column_word.hpp>
#include <ordo/cuda/hadamard_tile.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/quant/rotation.hpp>

namespace ordo::cuda::detail {

/// Warps of a thread block.
inline constexpr int tile_warps = 8;

/// One pass: a thread block takes 2 row blocks of 4 neighbouring warps' columns.
template <class T, bool Whole, column_pass Pass>
__global__ __launch_bounds__(32 * tile_warps,
                             2) void tile_pass_kernel(const T* ORDO_RESTRICT x, std::int64_t m,
                                                      std::int64_t columns, std::int64_t groups,
                                                      std::uint32_t* word,
                                                      std::int8_t* ORDO_RESTRICT codes) {
#if __CUDA_ARCH__ >= 800
  using tile_type = hadamard_tile<T>;
  constexpr int own = tile_type::columns;
  const int warp = threadIdx.x / 32;
  const std::int64_t row = (blockIdx.x / groups * 2 + warp / 4) * quant::rotation_block;
  const std::int64_t c =
      (blockIdx.x % groups * 4 + warp % 4) * tile_type::warp_columns + tile_type::g() * own;
  if (row >= m)
    return;
  tile_type tile;
  tile.template read<Whole>(x, m, columns, row, c);
  const auto raise_words = [&](const auto& value) {
#pragma unroll
    for (int j = 0; j < own; ++j) {
      if (tile_type::q() == 0 && c + j < columns)
        atomicMax(word + c + j, value(j));
    }
  };
  if constexpr (Pass == column_pass::align) {
    std::uint32_t top[2];
    tile.largest(top);
    raise_words([&](int j) { return column_word(top[j]); });
  } else {
    std::uint32_t of[own];
#pragma unroll
    for (int j = 0; j < own; ++j)
      of[j] = c + j < columns ? word[c + j] : 0u;
    const hadamard_signs signs;
    if constexpr (tile_type::integers)
      tile.transpose();
    else
      tile.align(alignment_of(of[0]), alignment_of(of[1]));
    if constexpr (Pass == column_pass::measure) {
      std::int32_t top[own];
      tile.measure(signs, top);
      raise_words([&](int j) { return word_with(of[j], top[j]); });
    } else {
      float inverse[own];
#pragma unroll
      for (int j = 0; j < own; ++j)
        inverse[j] = quant::rotated_inverse(top_of(of[j]));
      const std::int64_t padded = quant::rotated_length(m);
      tile.template write<Whole>(signs, inverse, codes + c * padded + row, padded, columns - c);
    }
  }
#endif
}

/// The largest value of each column, from the parts of all warps of a cluster. Each part is pushed
/// to every thread block, so that one barrier is enough.
struct cluster_maxima {
  static constexpr int most = 32 * tile_warps; ///< columns
  std::uint32_t part[most], whole[most];

  __device__ __forceinline__ void clear() {
    part[threadIdx.x] = 0;
    whole[threadIdx.x] = 0;
  }

  static __device__ __forceinline__ void barrier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#endif
  }

  /// After each warp has raised its entries of `part`.
  __device__ __forceinline__ void exchange(unsigned columns, unsigned blocks) {
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    for (unsigned i = threadIdx.x; i < columns * blocks; i += blockDim.x) {
      const std::uint32_t value = part[i % columns];
      const auto here = static_cast<std::uint32_t>(__cvta_generic_to_shared(whole + i % columns));
      asm volatile("{ .reg .u32 there;\n\t"
                   "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                   "red.relaxed.cluster.shared::cluster.max.u32 [there], %2; }" ::"r"(here),
                   "r"(i / columns), "r"(value)
                   : "memory");
    }
#endif
    barrier();
  }
};
static_assert(cluster_maxima::most == 32 * tile_warps);

/// All passes in one: the cluster covers all rows of the columns of `groups` warps.
template <class T, bool Whole>
__global__ __launch_bounds__(32 * tile_warps,
                             2) void tile_cluster_kernel(const T* ORDO_RESTRICT x, std::int64_t m,
                                                         std::int64_t columns, int groups,
                                                         const float* ORDO_RESTRICT common,
                                                         std::int8_t* ORDO_RESTRICT codes,
                                                         float* ORDO_RESTRICT scale) {
#if __CUDA_ARCH__ >= 900
  using tile_type = hadamard_tile<T>;
  constexpr int own = tile_type::columns;
  __shared__ cluster_maxima of_values, of_rotated;
  const int warp = threadIdx.x / 32, group = warp % groups;
  const int block = blockIdx.x * (tile_warps / groups) + warp / groups;
  const std::int64_t row = std::int64_t{block} * quant::rotation_block;
  const unsigned local = group * tile_type::warp_columns + tile_type::g() * own;
  const unsigned width = groups * tile_type::warp_columns;
  const std::int64_t c = std::int64_t{blockIdx.y} * width + local;
  tile_type tile;
  tile.template read<Whole>(x, m, columns, row, c);
  const hadamard_signs signs;
  of_values.clear();
  of_rotated.clear();
  cluster_maxima::barrier();
  const bool first = tile_type::q() == 0;
  std::uint32_t largest[own] = {};
  int shift[own] = {};
  if constexpr (tile_type::integers) {
    tile.transpose();
  } else {
    tile.largest(largest);
    if (first) {
      atomicMax(of_values.part + local, largest[0]);
      atomicMax(of_values.part + local + 1, largest[1]);
    }
    of_values.exchange(width, gridDim.x);
    largest[0] = of_values.whole[local];
    largest[1] = of_values.whole[local + 1];
    const quant::detail::alignment to0(largest[0]), to1(largest[1]);
    tile.align(to0, to1);
    shift[0] = to0.shift;
    shift[1] = to1.shift;
  }
  std::int32_t top[own];
  tile.measure(signs, top);
#pragma unroll
  for (int j = 0; j < own; ++j) {
    if (first)
      atomicMax(of_rotated.part + local + j, static_cast<std::uint32_t>(top[j]));
  }
  of_rotated.exchange(width, gridDim.x);
  float inverse[own];
#pragma unroll
  for (int j = 0; j < own; ++j) {
    top[j] = static_cast<std::int32_t>(of_rotated.whole[local + j]);
    inverse[j] = quant::rotated_inverse(top[j]);
    if (first && block == 0 && c + j < columns)
      scale[c + j] = scale_of(largest[j], top[j], shift[j], common);
  }
  const std::int64_t padded = quant::rotated_length(m);
  if (row < m)
    tile.template write<Whole>(signs, inverse, codes + c * padded + row, padded, columns - c);
#endif
}

/// How a cluster covers a column: thread blocks, and warps side by side in each.
struct cluster_shape {
  int blocks, groups;

  /// As many warps side by side as portable clusters of eight leave room for; none beyond 64 row
  /// blocks.
  static cluster_shape of(std::int64_t m) {
    const std::int64_t tall = pieces<std::int64_t>(m, quant::rotation_block);
    for (int groups = tile_warps; groups > 0; groups /= 2) {
      const std::int64_t blocks = pieces<std::int64_t>(tall, tile_warps / groups);
      if (blocks <= 8)
        return {static_cast<int>(blocks), groups};
    }
    return {0, 0};
  }
};

template <class T, bool Whole>
void rotate_columns_in_cluster(cudaStream_t stream, cluster_shape shape, const T* x, std::int64_t m,
                               std::int64_t columns, const float* common, std::int8_t* codes,
                               float* scale) {
  const char* const where = "ordo::cuda::rotate_columns";
  const auto kernel = tile_cluster_kernel<T, Whole>;
  if (shape.blocks > 8)
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
          where);
  const std::int64_t width = std::int64_t{shape.groups} * hadamard_tile<T>::warp_columns;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(shape.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(pieces(columns, width)));
  config.blockDim = dim3(32 * tile_warps);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, x, m, columns, shape.groups, common, codes, scale),
        where);
}

template <class T, bool Whole>
void rotate_columns_by_tiles(cudaStream_t stream, const T* x, std::int64_t m, std::int64_t columns,
                             const float* common, std::int8_t* codes, float* scale) {
  const std::int64_t groups = pieces<std::int64_t>(columns, 4 * hadamard_tile<T>::warp_columns);
  const std::int64_t blocks = groups * pieces<std::int64_t>(m, 2 * quant::rotation_block);
  in_passes(stream, hadamard_tile<T>::integers, columns, common, scale,
            [&](column_pass pass, std::uint32_t* words) {
              const auto run = [&](auto kernel) {
                launch("ordo::cuda::rotate_columns", kernel, dim3(static_cast<unsigned>(blocks)),
                       dim3(32 * tile_warps), 0, stream, x, m, columns, groups, words, codes);
              };
              if (pass == column_pass::align) {
                if constexpr (!hadamard_tile<T>::integers)
                  run(tile_pass_kernel<T, Whole, column_pass::align>);
              } else if (pass == column_pass::measure) {
                run(tile_pass_kernel<T, Whole, column_pass::measure>);
              } else {
                run(tile_pass_kernel<T, Whole, column_pass::write>);
              }
            });
}

} // namespace ordo::cuda::detail
