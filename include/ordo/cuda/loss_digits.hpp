// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// From logits to both operands that probabilities are: by row for the gradient of the hidden
/// states, by word within 256 rows for that of the weight. Logits are read once.

#include <bit>
#include <cstdint>
#include <cstring>

#include <ordo/arith/functions.hpp>
#include <ordo/cuda/fixed_point.hpp>
#include <ordo/cuda/loss_task.hpp>
#include <ordo/cuda/slice.hpp>

namespace ordo::cuda::head {

struct digits_task {
  const float* logits;
  std::int64_t pitch, vocabulary;
  row_terms terms;
  slices<2> by_row, by_word;
};

/// The terms of a thread's eight consecutive rows.
template <class T>
__device__ __forceinline__ void load_eight(const T* from, T (&to)[8]) {
  static_assert(sizeof(T) == 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + half);
    const std::uint32_t word[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[4 * half + i] = std::bit_cast<T>(word[i]);
  }
}

/// Probabilities and weighted probabilities of eight rows and four words, where no row needs a
/// special case (power_of_row): every operation has the bits of the one in arith that it stands
/// for. Stores the digits by row; x becomes the weighted ones.
__device__ __forceinline__ void plain_part(const digits_task& task, std::int64_t row,
                                           std::int64_t column, const float (&power)[8],
                                           float (&x)[8][4]) {
  float largest[8], inverse[8], factor[8];
  std::uint32_t label[8];
  load_eight(task.terms.largest + row, largest);
  load_eight(task.terms.inverse + row, inverse);
  load_eight(task.terms.factor + row, factor);
  load_eight(task.terms.label + row, label);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[i][e] = __fmul_rn(arith::detail::exp_bounded(sliced::sub_values(x[i][e], largest[i])),
                          inverse[i]);
    const std::uint32_t at_label = label[i] - static_cast<std::uint32_t>(column);
    if (at_label < 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[i][e] = e == static_cast<int>(at_label) ? 0.0f : x[i][e];
    }
    std::uint32_t bytes[2];
    sliced::plain_digits(x[i], power[i], bytes);
    const std::int64_t at = (row + i) * task.by_row.stride + column;
#pragma unroll
    for (int s = 0; s < 2; ++s)
      *reinterpret_cast<std::uint32_t*>(task.by_row.slice[s] + at) = bytes[s];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[i][e] = __fmul_rn(x[i][e], factor[i]);
  }
}

/// The same for any rows, by the rules. Rows that take no part have an inverse of 0.
inline __device__ __noinline__ void part_by_rule(const digits_task& task, std::int64_t row,
                                                 std::int64_t column, float (&x)[8][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const row_terms& terms = task.terms;
    const float largest = terms.largest[row + i], inverse = terms.inverse[row + i];
    const std::int32_t shift = terms.shift[row + i];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool counts = inverse != 0.0f && column + e != terms.label[row + i];
      const float p = arith::mul(arith::exp(arith::sub(x[i][e], largest)), inverse);
      x[i][e] = counts ? p : 0.0f;
    }
    const std::int32_t shifts[4] = {shift, shift, shift, shift};
    std::uint32_t bytes[2];
    sliced::pack_digits_by_rule<2>(x[i], shifts, bytes);
    const std::int64_t at = (row + i) * task.by_row.stride + column;
#pragma unroll
    for (int s = 0; s < 2; ++s)
      *reinterpret_cast<std::uint32_t*>(task.by_row.slice[s] + at) = bytes[s];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[i][e] = arith::mul(terms.factor[row + i], x[i][e]);
  }
}

/// A block has 256 rows and 32 words: blockIdx.x counts words, blockIdx.y blocks of rows. All of
/// the tile lies within the memory of the chunk; what it holds after the last word is never used,
/// and rows after the last have an inverse of 0.
template <int Threads = 256>
__global__ void __launch_bounds__(Threads, 2) digits_kernel(const digits_task task) {
  __shared__ alignas(16) std::uint32_t memory[8][32];
  const sliced::tile_part part;
  const std::int64_t row = std::int64_t{blockIdx.y} * loss::block_rows + part.row;
  const std::int64_t first = std::int64_t{blockIdx.x} * 32, column = first + part.column;
  float x[8][4], power[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 four =
        __ldcs(reinterpret_cast<const float4*>(task.logits + (row + i) * task.pitch + column));
    x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
  }
  load_eight(task.terms.power + row, power);
  bool plain = true;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    plain = plain && power[i] > 0.0f;
  if (__all_sync(0xffffffffu, plain)) {
    plain_part(task, row, column, power, x);
  } else {
    float copy[8][4]; // lies in memory for the call, so that x need not
    std::memcpy(copy, x, sizeof x);
    part_by_rule(task, row, column, copy);
    std::memcpy(x, copy, sizeof x);
  }
  std::uint32_t of_four[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      of_four[e] = ordo::detail::larger_magnitude(of_four[e], x[i][e]);
  const std::uint32_t largest = sliced::tile_column_largest(of_four, memory);
  const std::int32_t shift = ordo::detail::alignment<2>(arith::from_bits(largest));
  if (threadIdx.x < 32)
    task.by_word.shift[std::int64_t{blockIdx.y} * task.pitch + first + threadIdx.x] = shift;
  std::int8_t* to[2];
#pragma unroll
  for (int s = 0; s < 2; ++s)
    to[s] = task.by_word.slice[s] + column * task.by_word.stride + row;
  sliced::store_tile<2>(x, shift, 8, task.vocabulary - column, true, to, task.by_word.stride);
}

/// Whether the token of a row counts: its label is a word.
struct counting_rows {
  const std::uint32_t* labels;
  std::int64_t vocabulary;
  __device__ __forceinline__ bool operator()(std::int64_t row) const {
    return labels[row] < vocabulary;
  }
};

/// Hidden states by feature within 256 rows, +0 where the token does not count and after the last
/// row. A block has 256 rows and 32 features.
template <int Threads = 256>
__global__ void __launch_bounds__(Threads)
    hidden_by_feature_kernel(const bf16* __restrict__ h, std::int64_t rows, std::int64_t width,
                             bool wide, counting_rows counts, slices<2> out,
                             std::int64_t shift_pitch) {
  __shared__ alignas(16) std::uint32_t memory[8][32];
  const sliced::tile_part part;
  const std::int64_t row = std::int64_t{blockIdx.y} * loss::block_rows + part.row;
  const std::int64_t first = std::int64_t{blockIdx.x} * 32, column = first + part.column;
  float x[8][4];
  std::uint32_t of_four[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bool there = row + i < rows && counts(row + i);
    sliced::load_four(h + (row + i) * width + column, there ? width - column : 0, wide, x[i]);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      of_four[e] = ordo::detail::larger_magnitude(of_four[e], x[i][e]);
  }
  const std::uint32_t largest = sliced::tile_column_largest(of_four, memory);
  const std::int32_t shift = ordo::detail::alignment<2>(arith::from_bits(largest));
  if (threadIdx.x < 32 && first + threadIdx.x < width)
    out.shift[std::int64_t{blockIdx.y} * shift_pitch + first + threadIdx.x] = shift;
  std::int8_t* to[2];
#pragma unroll
  for (int s = 0; s < 2; ++s)
    to[s] = out.slice[s] + column * out.stride + row;
  sliced::store_tile<2>(x, shift, 8, width - column, true, to, out.stride);
}

/// The least and the largest shift of each block of hidden states; a warp for each block.
template <int Threads = 32>
__global__ void __launch_bounds__(Threads)
    feature_range_kernel(const std::int32_t* shift, std::int64_t width, std::int64_t pitch,
                         std::int32_t* range) {
  const std::int32_t* of_block = shift + std::int64_t{blockIdx.x} * pitch;
  std::int32_t least = of_block[0], most = least;
  for (std::int64_t d = threadIdx.x; d < width; d += Threads) {
    least = min(least, of_block[d]);
    most = max(most, of_block[d]);
  }
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1) {
    least = min(least, __shfl_xor_sync(0xffffffffu, least, apart));
    most = max(most, __shfl_xor_sync(0xffffffffu, most, apart));
  }
  if (threadIdx.x == 0) {
    range[2 * blockIdx.x] = least;
    range[2 * blockIdx.x + 1] = most;
  }
}

} // namespace ordo::cuda::head
