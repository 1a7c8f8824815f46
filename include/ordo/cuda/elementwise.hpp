// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Entry-by-entry operations on flat vectors, and transposition, on CUDA.

#include <algorithm>
#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/nn/swiglu_entry.hpp>

namespace ordo::cuda {

namespace detail {

inline constexpr int flat_threads = 256;

/// How a flat vector is cut: entries before the first 16-byte boundary, whole groups of `Width`
/// entries, and entries behind them. Thread `groups + i` takes the i-th entry outside the groups.
struct flat_cut {
  std::int64_t head, groups, rest; ///< rest counts the head too

  __host__ __device__ std::int64_t single(std::int64_t i, int width) const {
    return i < head ? i : i + groups * width;
  }
};

/// Cuts n entries of vectors that begin at `pointers`, in groups of `width` entries of which the
/// first pointer's make 16 bytes or less. No groups where no cut suits all of them.
template <class First, class... Rest>
flat_cut cut(std::int64_t n, int width, const First* first, const Rest*... rest) {
  std::int64_t head = 0;
  const auto suits = [&](const auto*... p) {
    return (aligned(p + head, std::min<std::size_t>(16, sizeof(*p) * width)) && ...);
  };
  while (head < width && !suits(first, rest...))
    ++head;
  if (head == width || n < head + width)
    return {0, 0, n};
  const std::int64_t groups = (n - head) / width;
  return {head, groups, n - groups * width};
}

/// One thread for each group and each entry outside the groups.
inline dim3 flat_grid(const flat_cut& c) {
  return dim3(static_cast<unsigned>(pieces<std::int64_t>(c.groups + c.rest, flat_threads)));
}

__device__ __forceinline__ std::int64_t flat_index() {
  return std::int64_t{blockIdx.x} * flat_threads + threadIdx.x;
}

template <int Threads>
__global__ void __launch_bounds__(Threads)
    residual_add(const bf16* a, const bf16* b, bf16* y, flat_cut c) {
  const std::int64_t i = flat_index();
  if (i < c.groups) {
    const uint4 left = reinterpret_cast<const uint4*>(a + c.head)[i];
    const uint4 right = reinterpret_cast<const uint4*>(b + c.head)[i];
    const auto pair = [](std::uint32_t l, std::uint32_t r) {
      return to_pair(arith::add(low(l), low(r)), arith::add(high(l), high(r)));
    };
    reinterpret_cast<uint4*>(y + c.head)[i] = {pair(left.x, right.x), pair(left.y, right.y),
                                               pair(left.z, right.z), pair(left.w, right.w)};
  } else if (i < c.groups + c.rest) {
    const std::int64_t at = c.single(i - c.groups, 8);
    y[at] = nn::residual_entry(a[at], b[at]);
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) add_into(float* a, const float* b, flat_cut c) {
  const std::int64_t i = flat_index();
  if (i < c.groups) {
    float4* const to = reinterpret_cast<float4*>(a + c.head) + i;
    const float4 l = *to, r = reinterpret_cast<const float4*>(b + c.head)[i];
    *to = {arith::add(l.x, r.x), arith::add(l.y, r.y), arith::add(l.z, r.z), arith::add(l.w, r.w)};
  } else if (i < c.groups + c.rest) {
    const std::int64_t at = c.single(i - c.groups, 4);
    a[at] = arith::add(a[at], b[at]);
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) scale(float* a, float factor, flat_cut c) {
  const std::int64_t i = flat_index();
  if (i < c.groups) {
    float4* const to = reinterpret_cast<float4*>(a + c.head) + i;
    const float4 v = *to;
    *to = {arith::mul(v.x, factor), arith::mul(v.y, factor), arith::mul(v.z, factor),
           arith::mul(v.w, factor)};
  } else if (i < c.groups + c.rest) {
    const std::int64_t at = c.single(i - c.groups, 4);
    a[at] = arith::mul(a[at], factor);
  }
}

inline constexpr int transpose_side = 64;

/// One tile of 64 x 64 a block of 64 x 8 threads; the tile's rows are padded by one word, so that
/// neither its rows nor its columns meet in one bank.
template <class T>
__global__ void __launch_bounds__(512)
    transpose(const T* x, T* y, std::int64_t rows, std::int64_t columns) {
  constexpr int padded = transpose_side + (sizeof(T) < 4 ? 4 / static_cast<int>(sizeof(T)) : 1);
  __shared__ T tile[transpose_side][padded];
  const std::int64_t across = pieces<std::int64_t>(columns, transpose_side);
  const std::int64_t r0 = blockIdx.x / across * transpose_side;
  const std::int64_t c0 = blockIdx.x % across * transpose_side;
  const int lane = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = static_cast<int>(threadIdx.y); i < transpose_side; i += 8) {
    if (r0 + i < rows && c0 + lane < columns)
      tile[i][lane] = x[(r0 + i) * columns + c0 + lane];
  }
  __syncthreads();
#pragma unroll
  for (int i = static_cast<int>(threadIdx.y); i < transpose_side; i += 8) {
    if (c0 + i < columns && r0 + lane < rows)
      y[(c0 + i) * rows + r0 + lane] = tile[lane][i];
  }
}

} // namespace detail

/// y = a + b of n entries, rounded to bf16; y may be a or b. Bits: as nn::residual_add.
inline void residual_add(cudaStream_t stream, const bf16* a, const bf16* b, bf16* y,
                         std::int64_t n) {
  const detail::flat_cut c = detail::cut(n, 8, a, b, y);
  launch("ordo::cuda::residual_add", detail::residual_add<detail::flat_threads>,
         detail::flat_grid(c), dim3(detail::flat_threads), 0, stream, a, b, y, c);
}

/// a_i = a_i + b_i of n entries. Bits: as comm::add_into.
inline void add_into(cudaStream_t stream, float* a, const float* b, std::int64_t n) {
  const detail::flat_cut c = detail::cut(n, 4, a, b);
  launch("ordo::cuda::add_into", detail::add_into<detail::flat_threads>, detail::flat_grid(c),
         dim3(detail::flat_threads), 0, stream, a, b, c);
}

/// a_i = a_i * factor of n entries. Bits: as comm::scale.
inline void scale(cudaStream_t stream, float* a, float factor, std::int64_t n) {
  const detail::flat_cut c = detail::cut(n, 4, a);
  launch("ordo::cuda::scale", detail::scale<detail::flat_threads>, detail::flat_grid(c),
         dim3(detail::flat_threads), 0, stream, a, factor, c);
}

/// y = x^T. Shape: x [rows, columns], y [columns, rows]. Bits: moved.
template <class T>
void transpose(cudaStream_t stream, const T* x, T* y, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t tile = detail::transpose_side;
  launch("ordo::cuda::transpose", detail::transpose<T>,
         dim3(static_cast<unsigned>(pieces(rows, tile) * pieces(columns, tile))),
         dim3(detail::transpose_side, 8), 0, stream, x, y, rows, columns);
}

} // namespace ordo::cuda
