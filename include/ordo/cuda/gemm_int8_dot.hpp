// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two int8 matrices without tensor instructions: any device, shape and alignment.

#include <cstdint>

#include <ordo/cuda/gemm_int8_finish.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda::gemm_dot {

/// A block makes a tile of 64 x 64, each of its threads 4 x 4 of it; steps are 32 codes deep.
inline constexpr int tile = 64, depth = 32, words = depth / 4, threads = 256, side = 4;

/// sum + the four products of the codes in two words.
__device__ __forceinline__ std::int32_t add_products(std::int32_t a, std::int32_t b,
                                                     std::int32_t sum) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 610
  return __dp4a(a, b, sum);
#else
  for (int i = 0; i < 4; ++i)
    sum += std::int32_t{static_cast<std::int8_t>(a >> (8 * i))} *
           static_cast<std::int8_t>(b >> (8 * i));
  return sum;
#endif
}

/// Words of four codes along k, word by word for all rows; zeros beyond the matrix.
__device__ __forceinline__ void copy_rows(std::int32_t (&to)[words][tile + 1], const std::int8_t* x,
                                          std::int64_t stride, std::int64_t rows,
                                          std::int64_t first, std::int64_t k, std::int64_t k0) {
  for (int i = threadIdx.x; i < tile * words; i += threads) {
    const int row = i / words, word = i % words;
    std::uint32_t packed = 0;
    for (int j = 0; j < 4; ++j) {
      const std::int64_t at = k0 + 4 * word + j;
      if (first + row < rows && at < k)
        packed |= std::uint32_t{static_cast<std::uint8_t>(x[(first + row) * stride + at])}
                  << (8 * j);
    }
    to[word][row] = static_cast<std::int32_t>(packed);
  }
}

template <class Epilogue>
__global__ void __launch_bounds__(threads) kernel(int8_operands x, Epilogue epilogue) {
  __shared__ std::int32_t a[words][tile + 1], b[words][tile + 1];
  const std::int64_t row_tiles = pieces<std::int64_t>(x.m, tile);
  const std::int64_t m0 = blockIdx.x % row_tiles * tile, n0 = blockIdx.x / row_tiles * tile;
  const int row = static_cast<int>(threadIdx.x) / 16 * side;
  const int column = static_cast<int>(threadIdx.x) % 16 * side;
  std::int32_t c[side][side] = {};
  for (std::int64_t k0 = 0; k0 < x.k; k0 += depth) {
    copy_rows(a, x.a, x.a_stride, x.m, m0, x.k, k0);
    copy_rows(b, x.b, x.b_stride, x.n, n0, x.k, k0);
    __syncthreads();
#pragma unroll
    for (int word = 0; word < words; ++word)
#pragma unroll
      for (int i = 0; i < side; ++i)
#pragma unroll
        for (int j = 0; j < side; ++j)
          c[i][j] = add_products(a[word][row + i], b[word][column + j], c[i][j]);
    __syncthreads();
  }
  const std::int64_t n = n0 + column, left = x.n - n;
  if (left <= 0)
    return;
#pragma unroll
  for (int i = 0; i < side; ++i)
    if (m0 + row + i < x.m)
      epilogue(m0 + row + i, n, left < side ? static_cast<int>(left) : side,
               static_cast<const std::int32_t*>(c[i]));
}

template <class Epilogue>
void run(cudaStream_t stream, const int8_operands& x, const Epilogue& epilogue) {
  const std::int64_t blocks = pieces<std::int64_t>(x.m, tile) * pieces<std::int64_t>(x.n, tile);
  require(blocks <= 0x7fffffff, "ordo::gemm_int8", "C is " + shape(x.m, x.n),
          "multiply in parts: the product has too many tiles");
  launch("ordo::gemm_int8", &kernel<Epilogue>, dim3(static_cast<unsigned>(blocks)), dim3(threads),
         0, stream, x, epilogue);
}

} // namespace ordo::cuda::gemm_dot
