// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two sliced matrices on the device: the general kernel, for any shape and any device,
/// and the choice between it and the one in gemm_sliced_wgmma.hpp.

#include <cstdint>

#include <ordo/cuda/gemm_sliced_wgmma.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/cuda/slice.hpp>
#include <ordo/linalg/digits.hpp>

namespace ordo::cuda {
namespace sliced {

/// A block of the general kernel has a tile of 64 x 64 results, four warps with 32 x 32 each, and
/// goes along k in steps of 64.
inline constexpr int tile = 64, step = 64, pitch = step + 16, piece = 16;

/// The entries of one row within one step, 16 bytes for each of 4 threads; zeros outside.
__device__ __forceinline__ uint4 load_sixteen(const std::int8_t* row, std::int64_t k,
                                              std::int64_t k_total, bool wide) {
  if (k >= k_total)
    return make_uint4(0, 0, 0, 0);
  if (wide && k + 16 <= k_total)
    return *reinterpret_cast<const uint4*>(row + k);
  std::uint32_t word[4] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i)
    if (k + i < k_total)
      word[i / 4] |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(row[k + i]))
                     << (8 * (i % 4));
  return make_uint4(word[0], word[1], word[2], word[3]);
}

/// One step of one operand from device memory into shared memory.
template <int Slices>
__device__ __forceinline__ void load_step(const slices<Slices>& x, std::int64_t first,
                                          std::int64_t rows, std::int64_t k, std::int64_t k_total,
                                          bool wide, std::int8_t (*to)[tile][pitch]) {
#pragma unroll
  for (int i = 0; i < Slices; ++i)
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int row = part * 32 + static_cast<int>(threadIdx.x / 4);
      const int column = static_cast<int>(threadIdx.x % 4) * 16;
      const std::int64_t at = first + row;
      const uint4 bytes = at < rows
                              ? load_sixteen(x.slice[i] + at * x.stride, k + column, k_total, wide)
                              : make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(&to[i][row][column]) = bytes;
    }
}

/// Adds the products of 16 rows, 8 columns and 32 entries to a thread's four sums: rows lane / 4
/// and 8 more, columns lane % 4 * 2 and the next.
__device__ __forceinline__ void multiply_16x8x32(std::int32_t (&sum)[4],
                                                 const std::int8_t (*a)[pitch],
                                                 const std::int8_t (*b)[pitch]) {
  const int lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const auto word = [](const std::int8_t* p) { return *reinterpret_cast<const std::int32_t*>(p); };
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const std::int32_t a0 = word(&a[group][4 * quad]), a1 = word(&a[group + 8][4 * quad]);
  const std::int32_t a2 = word(&a[group][16 + 4 * quad]), a3 = word(&a[group + 8][16 + 4 * quad]);
  const std::int32_t b0 = word(&b[group][4 * quad]), b1 = word(&b[group][16 + 4 * quad]);
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#elif defined(__CUDA_ARCH__)
#pragma unroll
  for (int k = 0; k < 32; k += 4)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[i] = __dp4a(word(&a[group + i / 2 * 8][k]), word(&b[2 * quad + i % 2][k]), sum[i]);
#endif
}

/// The shared memory of the general kernel: operands during the sums, results after them.
template <int A, int B>
union general_memory {
  struct {
    std::int8_t a[A][tile][pitch], b[B][tile][pitch];
  } operand;
  float result[tile][tile + 4];
};

/// The sums of digit products of one tile, by weight, for the thread's 2 x 4 places of 16 x 8.
template <int A, int B>
__device__ __forceinline__ void
sum_tile(const slices<A>& a, const slices<B>& b, std::int64_t m0, std::int64_t n0,
         std::int64_t m_total, std::int64_t n_total, std::int64_t k_total, bool wide,
         general_memory<A, B>& memory, std::int32_t (&sum)[A + B - 1][2][4][4]) {
  const int warp = threadIdx.x / 32, m_warp = warp / 2 * 32, n_warp = warp % 2 * 32;
  for (std::int64_t k = 0; k < k_total; k += step) {
    __syncthreads();
    load_step(a, m0, m_total, k, k_total, wide, memory.operand.a);
    load_step(b, n0, n_total, k, k_total, wide, memory.operand.b);
    __syncthreads();
#pragma unroll
    for (int half = 0; half < step; half += 32)
#pragma unroll
      for (int i = 0; i < A; ++i)
#pragma unroll
        for (int j = 0; j < B; ++j)
#pragma unroll
          for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              const std::int8_t* left = &memory.operand.a[i][m_warp + 16 * m][half];
              const std::int8_t* right = &memory.operand.b[j][n_warp + 8 * n][half];
              multiply_16x8x32(sum[i + j][m][n],
                               reinterpret_cast<const std::int8_t(*)[pitch]>(left),
                               reinterpret_cast<const std::int8_t(*)[pitch]>(right));
            }
  }
  __syncthreads();
}

template <int A, int B, class Epilogue>
__global__ void __launch_bounds__(128)
    gemm_sliced_kernel(slices<A> a, slices<B> b, std::int64_t m_total, std::int64_t n_total,
                       std::int64_t k_total, std::int64_t n_tiles, bool wide, Epilogue epilogue) {
  __shared__ alignas(16) general_memory<A, B> memory;
  const std::int64_t m0 = blockIdx.x / n_tiles * tile, n0 = blockIdx.x % n_tiles * tile;
  std::int32_t sum[A + B - 1][2][4][4] = {};
  sum_tile<A, B>(a, b, m0, n0, m_total, n_total, k_total, wide, memory, sum);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp / 2 * 32 + 16 * m + lane / 4 + i / 2 * 8;
        const int column = warp % 2 * 32 + 8 * n + lane % 4 * 2 + i % 2;
        std::int64_t v = 0;
#pragma unroll
        for (int w = A + B - 2; w >= 0; --w)
          v = v * 128 + sum[w][m][n][i];
        if (m0 + row < m_total && n0 + column < n_total)
          memory.result[row][column] =
              ordo::detail::sliced_value(v, a.shift[m0 + row], b.shift[n0 + column]);
      }
  __syncthreads();
  for (int item = threadIdx.x; item < tile * (tile / piece); item += 128) {
    const int row = item / (tile / piece), column = item % (tile / piece) * piece;
    const std::int64_t left = n_total - n0 - column;
    if (m0 + row < m_total && left > 0)
      epilogue(m0 + row, n0 + column, left < piece ? static_cast<int>(left) : piece,
               static_cast<const float*>(&memory.result[row][column]));
  }
}

template <int Slices>
bool sixteen_aligned(const slices<Slices>& x) {
  bool aligned = x.stride % 16 == 0;
  for (const std::int8_t* plane : x.slice)
    aligned = aligned && reinterpret_cast<std::uintptr_t>(plane) % 16 == 0;
  return aligned;
}

} // namespace sliced

/// `ordo::gemm_sliced` by the kernel that takes any shape: a is m x k, b is n x k; `epilogue` as
/// there, called on the device.
///
/// Bits: of the slices and shifts only. k is at most gemm_sliced_max_k.
template <int A, int B, class Epilogue>
void gemm_sliced_general(cudaStream_t stream, const slices<A>& a, const slices<B>& b,
                         std::int64_t m, std::int64_t n, std::int64_t k, const Epilogue& epilogue) {
  const std::int64_t m_tiles = pieces<std::int64_t>(m, sliced::tile);
  const std::int64_t n_tiles = pieces<std::int64_t>(n, sliced::tile);
  const bool wide = sliced::sixteen_aligned(a) && sliced::sixteen_aligned(b);
  require(m_tiles * n_tiles < std::int64_t{1} << 31, "ordo::cuda::gemm_sliced",
          "a product of " + shape(m, n), "at most 2^31 tiles of 64 x 64 fit into one launch");
  launch("ordo::cuda::gemm_sliced", sliced::gemm_sliced_kernel<A, B, Epilogue>,
         dim3(static_cast<unsigned>(m_tiles * n_tiles)), dim3(128), 0, stream, a, b, m, n, k,
         n_tiles, wide, epilogue);
}

/// `ordo::gemm_sliced`: by the tensor cores of sm_90a where they can take the shape.
template <int A, int B, class Epilogue>
void gemm_sliced(cudaStream_t stream, const slices<A>& a, const slices<B>& b, std::int64_t m,
                 std::int64_t n, std::int64_t k, const Epilogue& epilogue) {
  if constexpr (A == 2 && B == 2) {
    if (sliced::wgmma_takes(a, b, m, n, k)) {
      sliced::gemm_sliced_wgmma(stream, a, b, m, n, k, epilogue);
      return;
    }
  }
  gemm_sliced_general(stream, a, b, m, n, k, epilogue);
}

} // namespace ordo::cuda
