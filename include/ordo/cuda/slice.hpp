// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Rows and columns of a matrix as int8 slices, on the device: `ordo::slice_rows` and
/// `ordo::slice_columns`.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/cuda/fixed_point.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/linalg/digits.hpp>

namespace ordo::cuda {

/// Rows of fixed-point integers in device memory. `slice[i]` holds the digits of weight 128^i, row
/// after row, each row `stride` bytes after the one before.
template <int Slices>
struct slices {
  std::int8_t* slice[Slices];
  std::int32_t* shift;
  std::int64_t stride;
};

namespace sliced {

/// Up to four entries, `valid` of them there; the others are +0. `wide`: all four by one load.
template <class T>
__device__ __forceinline__ void load_four(const T* p, std::int64_t valid, bool wide,
                                          float (&x)[4]) {
  if (wide && valid >= 4) {
    if constexpr (std::is_same_v<T, float>) {
      const float4 four = *reinterpret_cast<const float4*>(p);
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
      const uint2 four = *reinterpret_cast<const uint2*>(p);
      x[0] = arith::from_bits(four.x << 16), x[1] = arith::from_bits(four.x & 0xffff0000u);
      x[2] = arith::from_bits(four.y << 16), x[3] = arith::from_bits(four.y & 0xffff0000u);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[e] = arith::flush(x[e]);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[e] = e < valid ? arith::to_f32(p[e]) : 0.0f;
  }
}

/// Stores the lowest `valid` of four bytes. `wide`: all four by one store.
__device__ __forceinline__ void store_four(std::int8_t* p, std::uint32_t bytes, std::int64_t valid,
                                           bool wide) {
  if (wide && valid >= 4) {
    *reinterpret_cast<std::uint32_t*>(p) = bytes;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < valid)
        p[e] = static_cast<std::int8_t>(bytes >> (8 * e));
  }
}

/// The digits of four entries of one plain shift; `power` is 2^shift.
__device__ __forceinline__ void plain_digits(const float (&x)[4], float power,
                                             std::uint32_t (&bytes)[2]) {
  const digit_bytes digits = pack_digits(digit_code(x[0], power), digit_code(x[1], power),
                                         digit_code(x[2], power), digit_code(x[3], power));
  bytes[0] = digits.low;
  bytes[1] = digits.high;
}

/// The digits of four entries of one shift.
template <int Slices>
__device__ __forceinline__ void four_digits(const float (&x)[4], std::int32_t shift,
                                            std::uint32_t (&bytes)[Slices]) {
  if constexpr (Slices == 2) {
    if (plain_shift(shift)) {
      plain_digits(x, arith::pow2(shift), bytes);
      return;
    }
  }
  const std::int32_t shifts[4] = {shift, shift, shift, shift};
  pack_digits_by_rule<Slices>(x, shifts, bytes);
}

/// The largest of the calling warp's values, in every lane.
__device__ __forceinline__ std::uint32_t warp_largest(std::uint32_t value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1)
    value = max(value, __shfl_xor_sync(0xffffffffu, value, apart));
  return value;
}

/// One warp for each row, which it reads twice: for the largest magnitude, and for the digits.
/// Rows for which `keep` is false are zeros.
template <int Slices, class T, class Keep>
__global__ void __launch_bounds__(256)
    slice_rows_kernel(const T* __restrict__ x, std::int64_t rows, std::int64_t columns,
                      std::int64_t stride, bool wide_in, bool wide_out, slices<Slices> out,
                      Keep keep) {
  const std::int64_t row = std::int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (row >= rows)
    return;
  const int lane = threadIdx.x % 32;
  const bool kept = keep(row);
  const T* from = x + row * stride;
  std::uint32_t largest = 0;
#pragma unroll 4
  for (std::int64_t c = 4 * lane; kept && c < columns; c += 128) {
    float four[4];
    load_four(from + c, columns - c, wide_in, four);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      largest = ordo::detail::larger_magnitude(largest, four[e]);
  }
  const std::int32_t shift =
      ordo::detail::alignment<Slices>(arith::from_bits(warp_largest(largest)));
  if (lane == 0)
    out.shift[row] = shift;
#pragma unroll 4
  for (std::int64_t c = 4 * lane; c < columns; c += 128) {
    float four[4] = {};
    if (kept)
      load_four(from + c, columns - c, wide_in, four);
    std::uint32_t bytes[Slices];
    four_digits<Slices>(four, shift, bytes);
#pragma unroll
    for (int i = 0; i < Slices; ++i)
      store_four(out.slice[i] + row * out.stride + c, bytes[i], columns - c, wide_out);
  }
}

/// A thread's part of a tile of 256 rows and 32 columns: eight consecutive rows of four consecutive
/// columns. Eight threads read 32 columns of a row; four write 32 rows of a column.
struct tile_part {
  int row, column;
  __device__ __forceinline__ tile_part()
      : row(static_cast<int>(threadIdx.x / 8) * 8), column(static_cast<int>(threadIdx.x % 8) * 4) {}
};

/// The largest of a column's magnitudes over a tile: of `of_four`, those of the thread's rows. The
/// calling thread gets the one of column threadIdx.x % 32. All 256 threads of the block call this.
__device__ __forceinline__ std::uint32_t tile_column_largest(std::uint32_t (&of_four)[4],
                                                             std::uint32_t (*memory)[32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    of_four[e] = max(of_four[e], __shfl_xor_sync(0xffffffffu, of_four[e], 8));
    of_four[e] = max(of_four[e], __shfl_xor_sync(0xffffffffu, of_four[e], 16));
  }
  if (lane < 8)
    *reinterpret_cast<uint4*>(&memory[warp][4 * lane]) =
        make_uint4(of_four[0], of_four[1], of_four[2], of_four[3]);
  __syncthreads();
  std::uint32_t largest = 0;
#pragma unroll
  for (int w = 0; w < 8; ++w)
    largest = max(largest, memory[w][lane]);
  return largest;
}

/// The digits of eight entries of one shift. `Plain`: plain_shift(shift) is known.
template <bool Plain, int Slices>
__device__ __forceinline__ void eight_digits(const float (&x)[8][4], int e, std::int32_t shift,
                                             std::uint32_t (&a)[Slices],
                                             std::uint32_t (&b)[Slices]) {
  const float above[4] = {x[0][e], x[1][e], x[2][e], x[3][e]};
  const float below[4] = {x[4][e], x[5][e], x[6][e], x[7][e]};
  if constexpr (Plain) {
    const float power = arith::pow2(shift);
    plain_digits(above, power, a);
    plain_digits(below, power, b);
  } else {
    four_digits<Slices>(above, shift, a);
    four_digits<Slices>(below, shift, b);
  }
}

/// Stores the digits of the thread's part x[row][column], aligned by column, along the rows.
/// `column_shift` belongs to column threadIdx.x % 32 of the tile. `rows`, `columns`: how many of
/// the tile's exist from the thread's first on; `to[i]` is the place of the first entry.
template <bool Plain, int Slices>
__device__ __forceinline__ void
store_tile_columns(const float (&x)[8][4], std::int32_t column_shift, std::int64_t rows,
                   std::int64_t columns, bool wide, std::int8_t* const (&to)[Slices],
                   std::int64_t stride) {
  const int first = static_cast<int>(threadIdx.x % 8) * 4;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const std::int32_t shift = __shfl_sync(0xffffffffu, column_shift, first + e);
    std::uint32_t a[Slices], b[Slices];
    eight_digits<Plain, Slices>(x, e, shift, a, b);
#pragma unroll
    for (int i = 0; i < Slices; ++i) {
      std::int8_t* p = to[i] + e * stride;
      if (e < columns && wide && rows >= 8) {
        *reinterpret_cast<uint2*>(p) = make_uint2(a[i], b[i]);
      } else if (e < columns) {
        store_four(p, a[i], rows, false);
        store_four(p + 4, b[i], rows - 4, false);
      }
    }
  }
}

/// The same for any shifts, with the short way where all of the warp's are plain.
template <int Slices>
__device__ __forceinline__ void store_tile(const float (&x)[8][4], std::int32_t column_shift,
                                           std::int64_t rows, std::int64_t columns, bool wide,
                                           std::int8_t* const (&to)[Slices], std::int64_t stride) {
  if constexpr (Slices == 2) {
    if (__all_sync(0xffffffffu, plain_shift(column_shift))) {
      store_tile_columns<true, Slices>(x, column_shift, rows, columns, wide, to, stride);
      return;
    }
  }
  store_tile_columns<false, Slices>(x, column_shift, rows, columns, wide, to, stride);
}

/// Largest magnitudes of columns, as bits, into `largest`, which starts as zeros. A block has 32
/// columns of `rows_of_block` rows.
template <class T>
__global__ void __launch_bounds__(256)
    column_largest_kernel(const T* __restrict__ x, std::int64_t rows, std::int64_t columns,
                          std::int64_t stride, bool wide, std::int64_t rows_of_block,
                          std::uint32_t* largest) {
  __shared__ std::uint32_t memory[8][32];
  const std::int64_t column = std::int64_t{blockIdx.x} * 32 + threadIdx.x % 8 * 4;
  const std::int64_t begin = std::int64_t{blockIdx.y} * rows_of_block;
  const std::int64_t end = begin + rows_of_block < rows ? begin + rows_of_block : rows;
  std::uint32_t of_four[4] = {};
#pragma unroll 4
  for (std::int64_t r = begin + threadIdx.x / 8; r < end; r += 32) {
    float four[4];
    load_four(x + r * stride + column, columns - column, wide, four);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      of_four[e] = ordo::detail::larger_magnitude(of_four[e], four[e]);
  }
  const std::uint32_t found = tile_column_largest(of_four, memory);
  const std::int64_t own = std::int64_t{blockIdx.x} * 32 + threadIdx.x;
  if (threadIdx.x < 32 && own < columns)
    atomicMax(largest + own, found);
}

/// Bits of largest magnitudes become shifts.
template <int Slices>
__global__ void __launch_bounds__(256) shifts_kernel(std::int32_t* shift, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < n)
    shift[i] =
        ordo::detail::alignment<Slices>(arith::from_bits(static_cast<std::uint32_t>(shift[i])));
}

/// Digits of tiles of 256 rows and 32 columns, whose shifts are known.
template <int Slices, class T>
__global__ void __launch_bounds__(256)
    slice_columns_kernel(const T* __restrict__ x, std::int64_t rows, std::int64_t columns,
                         std::int64_t stride, bool wide_in, bool wide_out, slices<Slices> out) {
  const tile_part part;
  const std::int64_t row = std::int64_t{blockIdx.x} * 256 + part.row;
  const std::int64_t column = std::int64_t{blockIdx.y} * 32 + part.column;
  const std::int64_t own = std::int64_t{blockIdx.y} * 32 + threadIdx.x % 32;
  const std::int32_t shift = own < columns ? out.shift[own] : 0;
  float x_of[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    load_four(x + (row + i) * stride + column, row + i < rows ? columns - column : 0, wide_in,
              x_of[i]);
  std::int8_t* to[Slices];
#pragma unroll
  for (int i = 0; i < Slices; ++i)
    to[i] = out.slice[i] + column * out.stride + row;
  store_tile<Slices>(x_of, shift, rows - row, columns - column, wide_out, to, out.stride);
}

template <class T>
bool four_aligned(const T* p, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(p) % (4 * sizeof(T)) == 0 && stride % 4 == 0;
}

struct keep_all {
  __device__ bool operator()(std::int64_t) const { return true; }
};

} // namespace sliced

/// `ordo::slice_rows`: x [rows, columns], row-major with `stride`, into `out` of the same shape.
/// Rows for which `keep(row)` is false count as +0, whatever they hold.
///
/// Bits: of the entries only. Cost: one pass over x from memory, one from the cache.
template <int Slices, class T, class Keep = sliced::keep_all>
void slice_rows(cudaStream_t stream, const T* x, std::int64_t rows, std::int64_t columns,
                std::int64_t stride, const slices<Slices>& out, Keep keep = {}) {
  const bool wide_in = sliced::four_aligned(x, stride);
  bool wide_out = true;
  for (const std::int8_t* plane : out.slice)
    wide_out = wide_out && sliced::four_aligned(plane, out.stride);
  launch("ordo::slice_rows", sliced::slice_rows_kernel<Slices, T, Keep>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(rows, 8))), dim3(256), 0, stream, x, rows,
         columns, stride, wide_in, wide_out, out, keep);
}

/// `ordo::slice_columns` of all rows of x [rows, columns]: `out` is columns x rows.
///
/// Bits: of the entries only. Cost: two passes over x.
template <int Slices, class T>
void slice_columns(cudaStream_t stream, const T* x, std::int64_t rows, std::int64_t columns,
                   std::int64_t stride, const slices<Slices>& out) {
  constexpr std::int64_t rows_of_block = 1024, most_grid = 65535;
  if (columns == 0)
    return;
  const char* where = "ordo::slice_columns";
  const bool wide_in = sliced::four_aligned(x, stride);
  bool wide_out = true;
  for (const std::int8_t* plane : out.slice)
    wide_out = wide_out && reinterpret_cast<std::uintptr_t>(plane) % 8 == 0 && out.stride % 8 == 0;
  const auto columns_of_grid = static_cast<unsigned>(pieces<std::int64_t>(columns, 32));
  check(cudaMemsetAsync(out.shift, 0, static_cast<std::size_t>(columns) * sizeof(std::int32_t),
                        stream),
        where);
  const std::int64_t each =
      std::max(rows_of_block, pieces(pieces(rows, most_grid), std::int64_t{32}) * 32);
  launch(where, sliced::column_largest_kernel<T>,
         dim3(columns_of_grid, static_cast<unsigned>(pieces(rows, each))), dim3(256), 0, stream, x,
         rows, columns, stride, wide_in, each, reinterpret_cast<std::uint32_t*>(out.shift));
  launch(where, sliced::shifts_kernel<Slices>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(columns, 256))), dim3(256), 0, stream,
         out.shift, columns);
  // The grid's second axis has at most 65,535 blocks: two million columns at a time.
  for (std::int64_t first = 0; first < columns; first += most_grid * 32) {
    const std::int64_t some = std::min(columns - first, most_grid * 32);
    slices<Slices> part = out;
    part.shift += first;
    for (std::int8_t*& plane : part.slice)
      plane += first * out.stride;
    launch(where, sliced::slice_columns_kernel<Slices, T>,
           dim3(static_cast<unsigned>(pieces<std::int64_t>(rows, 256)),
                static_cast<unsigned>(pieces<std::int64_t>(some, 32))),
           dim3(256), 0, stream, x + first, rows, some, stride, wide_in, wide_out, part);
  }
}

} // namespace ordo::cuda
