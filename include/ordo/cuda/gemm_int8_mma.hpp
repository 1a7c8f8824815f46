// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two int8 matrices of any shape, stride and alignment, by the tensor instructions of
/// warps (compute capability 7.5 and later) or by sums of four products.

#include <cstdint>

#include <ordo/cuda/gemm_int8_finish.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda::gemm_mma {

/// A block makes tiles of 128 x 128, its eight warps 64 x 32 each; stages are 64 codes deep.
inline constexpr int tile = 128, depth = 64, stages = 3, threads = 256;
inline constexpr int warp_rows = 64, warp_columns = 32;
inline constexpr int stage_bytes = 2 * tile * depth, shared_bytes = stages * stage_bytes;

/// Where the 16 bytes `piece` of a row lie, so that eight rows are read without bank conflicts.
__device__ __forceinline__ int place(int row, int piece) {
  return row * depth + ((piece ^ (row / 2 % 4)) * 16);
}

/// Copies `bytes` (0 to 16) and zeros up to 16.
template <bool Aligned>
__device__ __forceinline__ void copy_16(std::uint32_t to, const std::int8_t* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (Aligned) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
    return;
  }
#endif
  std::uint32_t word[4] = {};
  if (Aligned && bytes == 16) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    word[0] = all.x, word[1] = all.y, word[2] = all.z, word[3] = all.w;
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (i < bytes)
        word[i / 4] |= std::uint32_t{static_cast<std::uint8_t>(from[i])} << (i % 4 * 8);
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]),
               "r"(word[2]), "r"(word[3])
               : "memory");
}

__device__ __forceinline__ void copies_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int Pending>
__device__ __forceinline__ void copies_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

/// Copies `tile` rows from `first` on, codes k0 to k0 + depth, zeros beyond the matrix.
template <bool Aligned>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const std::int8_t* x,
                                          std::int64_t stride, std::int64_t rows,
                                          std::int64_t first, std::int64_t k, std::int64_t k0) {
#pragma unroll
  for (int i = 0; i < tile * depth / 16 / threads; ++i) {
    const int index = static_cast<int>(threadIdx.x) + i * threads;
    const int row = index / (depth / 16), piece = index % (depth / 16);
    const std::int64_t left = first + row < rows ? k - k0 - piece * 16 : 0;
    const int bytes = left < 0 ? 0 : left > 16 ? 16 : static_cast<int>(left);
    const std::int8_t* from = bytes > 0 ? x + (first + row) * stride + k0 + piece * 16 : x;
    copy_16<Aligned>(to + place(row, piece), from, bytes);
  }
}

__device__ __forceinline__ void load_matrices(std::uint32_t (&m)[4], std::uint32_t address) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
#endif
}

/// c (16 x 8) += a (16 x 32) * b (8 x 32)^T in the layouts of m16n8k32.
__device__ __forceinline__ void multiply(std::int32_t* c, const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  // m8n8k16 has the layout of a quarter of the above.
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])
                 : "r"(a[i]), "r"(i < 2 ? b0 : b1));
#endif
}

struct sums {
  std::int32_t c[warp_rows / 16][warp_columns / 8][4];
};

/// The products of one stage.
__device__ __forceinline__ void multiply_stage(sums& s, std::uint32_t a, std::uint32_t b, int row,
                                               int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < depth / 32; ++k) {
    std::uint32_t of_b[warp_columns / 16][4];
    // Four matrices of 8 rows x 16 bytes: of B, both halves of k for 8 columns, then for 8 more.
#pragma unroll
    for (int j = 0; j < warp_columns / 16; ++j)
      load_matrices(of_b[j],
                    b + place(column + 16 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < warp_rows / 16; ++i) {
      std::uint32_t of_a[4]; // of A, 16 rows for the first half of k, then for the second
      load_matrices(of_a, a + place(row + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int j = 0; j < warp_columns / 8; ++j)
        multiply(s.c[i][j], of_a, of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <class Epilogue>
__device__ __forceinline__ void finish(const sums& s, const int8_operands& x, std::int64_t m0,
                                       std::int64_t n0, const Epilogue& epilogue) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < warp_rows / 16; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < warp_columns / 8; ++j) {
        const std::int64_t m = m0 + 16 * i + 8 * h + lane / 4, n = n0 + 8 * j + lane % 4 * 2;
        const std::int32_t pair[2] = {s.c[i][j][2 * h], s.c[i][j][2 * h + 1]};
        if (m < x.m && n < x.n)
          epilogue(m, n, n + 1 < x.n ? 2 : 1, static_cast<const std::int32_t*>(pair));
      }
}

/// One tile a block; blocks run along m first, in groups of eight tiles.
template <bool Aligned, class Epilogue>
__global__ void __launch_bounds__(threads) kernel(int8_operands x, Epilogue epilogue) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  extern __shared__ __align__(128) unsigned char memory_of_warps[];
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory_of_warps));
  constexpr std::int64_t group_rows = 8;
  const std::int64_t row_tiles = pieces<std::int64_t>(x.m, tile);
  const std::int64_t in_group = group_rows * pieces<std::int64_t>(x.n, tile);
  const std::int64_t first = blockIdx.x / in_group * group_rows, within = blockIdx.x % in_group;
  const std::int64_t height = row_tiles - first < group_rows ? row_tiles - first : group_rows;
  const std::int64_t m0 = (first + within % height) * tile, n0 = within / height * tile;
  const std::int64_t steps = pieces<std::int64_t>(x.k, depth);
  const auto copy = [&](std::int64_t step) {
    if (step < steps) {
      const std::uint32_t to = shared + static_cast<std::uint32_t>(step % stages) * stage_bytes;
      copy_rows<Aligned>(to, x.a, x.a_stride, x.m, m0, x.k, step * depth);
      copy_rows<Aligned>(to + tile * depth, x.b, x.b_stride, x.n, n0, x.k, step * depth);
    }
    copies_commit();
  };
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / 4 * warp_rows, column = warp % 4 * warp_columns;
  sums s = {};
  for (int step = 0; step < stages - 1; ++step)
    copy(step);
  for (std::int64_t step = 0; step < steps; ++step) {
    copies_wait<stages - 2>();
    __syncthreads();
    copy(step + stages - 1); // into the stage that all have just left
    const std::uint32_t a = shared + static_cast<std::uint32_t>(step % stages) * stage_bytes;
    multiply_stage(s, a, a + tile * depth, row, column);
  }
  finish(s, x, m0 + row, n0 + column, epilogue);
#endif
}

/// A kernel that has this much static shared memory exactly where it was compiled for 7.5 or later.
template <int Bytes>
__global__ void probe() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
  __shared__ volatile char present[Bytes];
  present[threadIdx.x % Bytes] = 1;
#endif
}

/// Whether the current device runs code of this program that was compiled for 7.5 or later.
inline bool available() {
  static signed char known[64] = {}; // 1 yes, -1 no; equal whichever thread asks first
  constexpr int bytes = 8192;
  int device = 0;
  check(cudaGetDevice(&device), "ordo::gemm_int8");
  if (device >= 64)
    return false;
  if (known[device] == 0) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&probe<bytes>)),
          "ordo::gemm_int8");
    known[device] = attributes.sharedSizeBytes >= bytes ? 1 : -1;
  }
  return known[device] > 0;
}

template <class Epilogue>
void run(cudaStream_t stream, const int8_operands& x, const Epilogue& epilogue) {
  const std::int64_t blocks = pieces<std::int64_t>(x.m, tile) * pieces<std::int64_t>(x.n, tile);
  require(blocks <= 0x7fffffff, "ordo::gemm_int8", "C is " + shape(x.m, x.n),
          "multiply in parts: the product has too many tiles");
  const auto aligned = [](const std::int8_t* base, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(base) % 16 == 0 && stride % 16 == 0;
  };
  const bool both = aligned(x.a, x.a_stride) && aligned(x.b, x.b_stride);
  launch("ordo::gemm_int8", both ? &kernel<true, Epilogue> : &kernel<false, Epilogue>,
         dim3(static_cast<unsigned>(blocks)), dim3(threads), shared_bytes, stream, x, epilogue);
}

} // namespace ordo::cuda::gemm_mma
