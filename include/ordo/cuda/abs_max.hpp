// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Largest magnitudes on the device, as integer maxima of the bits: in no order, and NaN wins.
///
/// Flushing the largest magnitude is flushing them all, so it is done once, at the end of each
/// thread's part.

#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda {
namespace detail {

/// Bits of |x| as a binary32, not flushed.
__device__ __forceinline__ std::uint32_t magnitude_bits(float x) {
  return arith::bits(arith::abs(x));
}
__device__ __forceinline__ std::uint32_t magnitude_bits(bf16 x) {
  return static_cast<std::uint32_t>(x.bits & 0x7fffu) << 16;
}

__device__ __forceinline__ std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  return a > b ? a : b;
}

/// Raises `top` to the larger magnitude; NaN wins.
__device__ __forceinline__ void raise(float& top, float x) {
#if __CUDA_ARCH__ >= 800
  asm("{ .reg .f32 a; abs.f32 a, %1; max.NaN.f32 %0, %0, a; }" : "+f"(top) : "f"(x));
#else
  top = arith::from_bits(larger(arith::bits(top), magnitude_bits(x)));
#endif
}

/// The largest magnitude of elements that come one by one or 16 bytes at a time.
template <class T>
struct running_largest {
  std::uint32_t top = 0, packed = 0; ///< packed: two bf16 magnitudes

  __device__ __forceinline__ void take(T x) { top = larger(top, magnitude_bits(x)); }
  __device__ __forceinline__ void take(uint4 x) {
    if constexpr (std::is_same_v<T, float>) {
      top = larger(larger(larger(top, x.x & 0x7fffffffu), x.y & 0x7fffffffu),
                   larger(x.z & 0x7fffffffu, x.w & 0x7fffffffu));
    } else {
      packed = __vmaxu2(packed, __vmaxu2(__vmaxu2(x.x & 0x7fff7fffu, x.y & 0x7fff7fffu),
                                         __vmaxu2(x.z & 0x7fff7fffu, x.w & 0x7fff7fffu)));
    }
  }
  /// Bits of the largest value.
  __device__ __forceinline__ std::uint32_t result() const {
    const std::uint32_t both = larger(packed & 0xffff0000u, packed << 16);
    return arith::bits(arith::flush(arith::from_bits(larger(top, both))));
  }
};

/// The largest of the values of the warp, in all its lanes.
__device__ __forceinline__ std::uint32_t warp_largest(std::uint32_t value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, value);
#else
  for (int step = 16; step > 0; step /= 2)
    value = larger(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
#endif
}

/// The same of the block, in all its threads. `cell` is shared memory of one word for each warp,
/// which nobody may write before the block's next barrier.
__device__ __forceinline__ std::uint32_t block_largest(std::uint32_t value, std::uint32_t* cell) {
  const unsigned lane = threadIdx.x % 32;
  value = warp_largest(value);
  if (lane == 0)
    cell[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_largest(lane < blockDim.x / 32 ? cell[lane] : 0u);
}

/// The bits as they are, or the value with its NaN canonical.
template <class Out>
__device__ __forceinline__ Out largest_as(std::uint32_t top) {
  if constexpr (std::is_same_v<Out, float>)
    return arith::canonical(arith::from_bits(top));
  else
    return top;
}

/// Entries of T in 16 bytes.
template <class T>
inline constexpr std::int64_t per_piece = 16 / static_cast<std::int64_t>(sizeof(T));

template <class T>
__global__ __launch_bounds__(256) void largest_kernel(const T* ORDO_RESTRICT x, std::int64_t n,
                                                      std::int64_t whole,
                                                      std::uint32_t* ORDO_RESTRICT cell) {
  __shared__ std::uint32_t of_warp[8];
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  running_largest<T> largest;
  const auto* piece = reinterpret_cast<const uint4*>(x);
#pragma unroll 4
  for (std::int64_t i = first; i < whole; i += threads)
    largest.take(piece[i]);
  for (std::int64_t i = whole * per_piece<T> + first; i < n; i += threads)
    largest.take(x[i]);
  const std::uint32_t top = block_largest(largest.result(), of_warp);
  if (threadIdx.x == 0)
    atomicMax(cell, top);
}

/// One warp for each row; `whole`: pieces of 16 bytes that may be read as such.
template <class T, class Out>
__global__ __launch_bounds__(256) void row_largest_kernel(const T* ORDO_RESTRICT x,
                                                          std::int64_t rows, std::int64_t columns,
                                                          std::int64_t whole,
                                                          Out* ORDO_RESTRICT out) {
  const std::int64_t row = std::int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (row >= rows)
    return;
  const T* const line = x + row * columns;
  running_largest<T> largest;
  const auto* piece = reinterpret_cast<const uint4*>(line);
#pragma unroll 4
  for (std::int64_t i = lane; i < whole; i += 32)
    largest.take(piece[i]);
  for (std::int64_t i = whole * per_piece<T> + lane; i < columns; i += 32)
    largest.take(line[i]);
  const std::uint32_t top = warp_largest(largest.result());
  if (lane == 0)
    out[row] = largest_as<Out>(top);
}

/// Raises `out` [columns], which starts as zeros, by 256 rows of 32 columns.
template <class T>
__global__ __launch_bounds__(256) void column_largest_kernel(const T* ORDO_RESTRICT x,
                                                             std::int64_t rows,
                                                             std::int64_t columns,
                                                             std::uint32_t* ORDO_RESTRICT out) {
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + threadIdx.x % 32;
  const std::int64_t tall = std::int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  const std::int64_t begin = tall * 256 + threadIdx.x / 32;
  if (column >= columns)
    return;
  running_largest<T> largest;
  for (int i = 0; i < 32; ++i) {
    if (const std::int64_t row = begin + 8 * i; row < rows)
      largest.take(x[row * columns + column]);
  }
  atomicMax(out + column, arith::bits(largest_as<float>(largest.result())));
}

} // namespace detail

/// cell[0] = bits of the largest |x| of n float or bf16; those of a NaN if there is one.
template <class T>
void largest_bits(cudaStream_t stream, const T* x, std::int64_t n, std::uint32_t* cell) {
  check(cudaMemsetAsync(cell, 0, sizeof *cell, stream), "ordo::cuda::largest_bits");
  const std::int64_t whole = aligned(x, 16) ? n / detail::per_piece<T> : 0;
  const std::int64_t blocks = pieces<std::int64_t>(n, 256 * 4 * detail::per_piece<T>);
  const std::int64_t most = std::int64_t{limits().multiprocessors} * 8;
  launch("ordo::cuda::largest_bits", detail::largest_kernel<T>,
         dim3(static_cast<unsigned>(blocks < most ? blocks : most)), dim3(256), 0, stream, x, n,
         whole, cell);
}

/// The largest |x| of each row: its bits (Out std::uint32_t) or the value (Out float).
///
/// Shape: x [rows, columns] float or bf16; out [rows].
template <class T, class Out>
void row_largest(cudaStream_t stream, const T* x, std::int64_t rows, std::int64_t columns,
                 Out* out) {
  const bool whole = aligned(x, 16) && columns % detail::per_piece<T> == 0;
  launch("ordo::cuda::row_largest", detail::row_largest_kernel<T, Out>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(rows, 8))), dim3(256), 0, stream, x, rows,
         columns, whole ? columns / detail::per_piece<T> : 0, out);
}

/// The largest |x| of each column. Shape: x [rows, columns] float or bf16; out [columns].
template <class T>
void column_largest(cudaStream_t stream, const T* x, std::int64_t rows, std::int64_t columns,
                    float* out) {
  if (columns == 0)
    return;
  const std::size_t bytes = static_cast<std::size_t>(columns) * sizeof *out;
  check(cudaMemsetAsync(out, 0, bytes, stream), "ordo::cuda::column_largest");
  // Column blocks vary along x, which has no limit that matters; row blocks share the other two.
  const std::int64_t tall = pieces<std::int64_t>(rows, 256), most = 32768;
  launch("ordo::cuda::column_largest", detail::column_largest_kernel<T>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(columns, 32)),
              static_cast<unsigned>(tall < most ? tall : most),
              static_cast<unsigned>(pieces(tall, most))),
         dim3(256), 0, stream, x, rows, columns, reinterpret_cast<std::uint32_t*>(out));
}

} // namespace ordo::cuda
