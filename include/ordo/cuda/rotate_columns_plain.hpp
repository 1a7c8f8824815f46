// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Columns rotated and quantized by any device, in passes over the matrix: a thread block takes
/// 256 rows of 32 columns, a thread 16 entries of a column.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/abs_max.hpp>
#include <ordo/cuda/column_word.hpp>
#include <ordo/cuda/quantize.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/quant/hadamard.hpp>
#include <ordo/quant/rotation.hpp>

namespace ordo::cuda::detail {

/// Aligned integers and what they are read from.
struct column_reader {
  quant::detail::alignment to;
  __device__ __forceinline__ std::int32_t operator()(bf16 x) const { return to(arith::to_f32(x)); }
  __device__ __forceinline__ std::int32_t operator()(std::int8_t x) const { return x; }
};

/// Thread (lane, y) reads rows 16 y + r of its column, r = 0 ... 15, transforms the low four index
/// bits, and after the exchange holds rows 16 r + y for the high four: 16 neighbours of the rotated
/// order.
template <class T, bool Pieces, column_pass Pass>
__global__ __launch_bounds__(512) void plain_pass_kernel(const T* ORDO_RESTRICT x, std::int64_t m,
                                                         std::int64_t columns, std::int64_t slabs,
                                                         std::uint32_t* word,
                                                         std::int8_t* ORDO_RESTRICT codes) {
  __shared__ std::int32_t exchange[quant::rotation_block][32];
  __shared__ std::uint32_t most[32];
  const int lane = threadIdx.x % 32, y = threadIdx.x / 32;
  const std::int64_t row = blockIdx.x / slabs * quant::rotation_block;
  const std::int64_t c = blockIdx.x % slabs * 32 + lane;
  const bool inside = c < columns;
  if (y == 0)
    most[lane] = 0;
  __syncthreads();
  if constexpr (Pass == column_pass::align) {
    running_largest<T> largest;
    for (std::int64_t i = row + y; inside && i < m && i < row + quant::rotation_block; i += 16)
      largest.take(x[i * columns + c]);
    atomicMax(&most[lane], column_word(largest.result()));
  } else {
    const std::uint32_t of = inside ? word[c] : 0u;
    const column_reader read{alignment_of(of)};
    std::int32_t v[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) {
      const std::int64_t i = row + 16 * y + r;
      v[r] = inside && i < m ? read(x[i * columns + c]) : 0;
    }
    quant::detail::butterflies<16, 1>(v);
    quant::detail::butterflies<16, 4>(v);
#pragma unroll
    for (int r = 0; r < 16; ++r)
      exchange[16 * y + r][lane] = v[r];
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 16; ++r)
      v[r] = exchange[16 * r + y][lane];
    quant::detail::butterflies<16, 1>(v);
    quant::detail::butterflies<16, 4>(v);
    if constexpr (Pass == column_pass::measure) {
      std::int32_t top = 0;
#pragma unroll
      for (int r = 0; r < 16; ++r)
        top = quant::magnitude(v[r]) > top ? quant::magnitude(v[r]) : top;
      atomicMax(&most[lane], word_with(of, top));
    } else if (inside) {
      const float inverse = quant::rotated_inverse(top_of(of));
      std::uint32_t code[16];
#pragma unroll
      for (int r = 0; r < 16; ++r)
        code[r] = static_cast<std::uint32_t>(quant::detail::rotated_code(v[r], inverse));
      write_piece<Pieces>(codes + c * quant::rotated_length(m) + row + 16 * y,
                          make_uint4(four_bytes(code[0], code[1], code[2], code[3]),
                                     four_bytes(code[4], code[5], code[6], code[7]),
                                     four_bytes(code[8], code[9], code[10], code[11]),
                                     four_bytes(code[12], code[13], code[14], code[15])));
    }
  }
  if constexpr (Pass != column_pass::write) {
    __syncthreads();
    if (y == 0 && inside)
      atomicMax(word + c, most[lane]);
  }
}

template <class T, bool Pieces>
void rotate_columns_plainly(cudaStream_t stream, const T* x, std::int64_t m, std::int64_t columns,
                            const float* common, std::int8_t* codes, float* scale) {
  const std::int64_t slabs = pieces<std::int64_t>(columns, 32);
  const std::int64_t blocks = slabs * pieces<std::int64_t>(m, quant::rotation_block);
  constexpr bool integers = sizeof(T) == 1;
  in_passes(stream, integers, columns, common, scale, [&](column_pass pass, std::uint32_t* words) {
    const auto run = [&](auto kernel) {
      launch("ordo::cuda::rotate_columns", kernel, dim3(static_cast<unsigned>(blocks)), dim3(512),
             0, stream, x, m, columns, slabs, words, codes);
    };
    if (pass == column_pass::align) {
      if constexpr (!integers)
        run(plain_pass_kernel<T, Pieces, column_pass::align>);
    } else if (pass == column_pass::measure) {
      run(plain_pass_kernel<T, Pieces, column_pass::measure>);
    } else {
      run(plain_pass_kernel<T, Pieces, column_pass::write>);
    }
  });
}

} // namespace ordo::cuda::detail
