// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Rows rotated and quantized along their length (quant/rotated.hpp), one thread block a row.
///
/// 16 threads share a block of 256 entries: thread t first holds entries 16 t ... 16 t + 15, the
/// four low index bits, then entries t, t + 16, ..., the four high bits; in the rotated order these
/// are 16 neighbours again. Integers below 2^24 are kept as binary32, where their sums are exact.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/abs_max.hpp>
#include <ordo/cuda/quantize.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/quant/hadamard.hpp>
#include <ordo/quant/rotation.hpp>

namespace ordo::cuda {
namespace detail {

/// a * b with subnormal operands and results as zeros of their sign: of the library's `mul` it
/// lacks only that a result of magnitude 2^-126 becomes zero.
__device__ __forceinline__ float mul_flushed(float a, float b) {
  float product;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
}

/// The shared memory of two blocks of 256 entries: rows of 16 with gaps, so that 16 bytes a thread
/// are written, and one word a thread is read down a column, without bank conflicts.
inline constexpr int exchange_row = 20, exchange_block = 16 * exchange_row + 16;

/// 16 entries of a row, in registers.
struct row_piece {
  float v[16];

  /// Products of x[k ... k + 16) with their factors, +0 beyond the row's end.
  template <bool Whole>
  __device__ __forceinline__ void read(const bf16* ORDO_RESTRICT x,
                                       const float* ORDO_RESTRICT factor, std::int64_t k,
                                       std::int64_t n) {
    if constexpr (Whole) { // n is a multiple of 8
#pragma unroll
      for (int half = 0; half < 16; half += 8) {
        uint4 e = make_uint4(0, 0, 0, 0);
        float4 f0 = make_float4(0, 0, 0, 0), f1 = f0;
        if (k + half < n) {
          e = *reinterpret_cast<const uint4*>(x + k + half);
          f0 = *reinterpret_cast<const float4*>(factor + k + half);
          f1 = *reinterpret_cast<const float4*>(factor + k + half + 4);
        }
        v[half] = mul_flushed(low_bf16(e.x), f0.x);
        v[half + 1] = mul_flushed(high_bf16(e.x), f0.y);
        v[half + 2] = mul_flushed(low_bf16(e.y), f0.z);
        v[half + 3] = mul_flushed(high_bf16(e.y), f0.w);
        v[half + 4] = mul_flushed(low_bf16(e.z), f1.x);
        v[half + 5] = mul_flushed(high_bf16(e.z), f1.y);
        v[half + 6] = mul_flushed(low_bf16(e.w), f1.z);
        v[half + 7] = mul_flushed(high_bf16(e.w), f1.w);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        v[i] = k + i < n ? mul_flushed(arith::to_f32(x[k + i]), factor[k + i]) : 0.0f;
    }
  }

  __device__ __forceinline__ float largest(float top) const {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      raise(top, v[i]);
    return top;
  }

  /// Products to integers. Where the alignment is plain, v * 2^s lies within 32767, and is either
  /// exact or so small that it rounds to 0: one rounding does what two would do.
  __device__ __forceinline__ void align(const quant::detail::alignment& to, float power) {
    using quant::detail::rounder;
    if (to.plain) {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        v[i] = arith::detail::add_rn(arith::detail::fma_rn(v[i], power, rounder), -rounder);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i)
        v[i] = arith::from_int(to(arith::detail::flush_rounded(v[i])));
    }
  }

  __device__ __forceinline__ void butterflies() {
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if ((i & step) == 0) {
          const float a = v[i], b = v[i + step];
          v[i] = arith::detail::add_rn(a, b);
          v[i + step] = arith::detail::add_rn(a, -b);
        }
      }
    }
  }

  /// Integers to H v; `line` is the shared memory of the warp, t the thread among 16.
  __device__ __forceinline__ void rotate(float* ORDO_RESTRICT line, unsigned t) {
    butterflies();
    __syncwarp();
    auto* mine = reinterpret_cast<float4*>(line + t * exchange_row);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      mine[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16; ++i)
      v[i] = line[i * exchange_row + t];
    butterflies();
  }

  /// The 16 codes, as the bytes of four words.
  __device__ __forceinline__ uint4 codes(float inverse) const {
    std::uint32_t c[16];
#pragma unroll
    for (int i = 0; i < 16; ++i)
      c[i] = byte_of_nearest(arith::detail::mul_rn(v[i], inverse));
    return make_uint4(four_bytes(c[0], c[1], c[2], c[3]), four_bytes(c[4], c[5], c[6], c[7]),
                      four_bytes(c[8], c[9], c[10], c[11]), four_bytes(c[12], c[13], c[14], c[15]));
  }
};

/// One row a thread block. Kept: the block's threads hold the whole row in registers; otherwise
/// they walk over it three times.
template <bool Whole, bool Kept, int Threads, int Blocks>
__global__ __launch_bounds__(Threads, Blocks) void rotate_rows_kernel(
    const bf16* ORDO_RESTRICT x, const float* ORDO_RESTRICT factor, std::int64_t n,
    std::int8_t* ORDO_RESTRICT codes, float* ORDO_RESTRICT scale) {
  extern __shared__ float4 exchange[];
  __shared__ std::uint32_t of_warp[2][32];
  const std::int64_t row = blockIdx.x, padded = quant::rotated_length(n);
  const unsigned warp = threadIdx.x / 32, t = threadIdx.x % 16;
  float* const line =
      reinterpret_cast<float*>(exchange) + (2 * warp + threadIdx.x / 16 % 2) * exchange_block;
  const std::int64_t first = std::int64_t{threadIdx.x} * 16;
  const std::int64_t stride = Kept ? padded : std::int64_t{blockDim.x} * 16;
  x += row * n;
  codes += row * padded;
  row_piece piece;
  float top = 0.0f;
  for (std::int64_t k = first; k - first < padded; k += stride) {
    piece.read<Whole>(x, factor, k, n);
    top = piece.largest(top);
  }
  // What a flush to zero leaves at 2^-126 is the smallest magnitude here, so flushing the largest
  // is still flushing them all.
  const std::uint32_t largest =
      block_largest(arith::bits(arith::detail::flush_rounded(top)) & 0x7fffffffu, of_warp[0]);
  const quant::detail::alignment to(largest);
  const float power = arith::pow2(to.plain ? to.shift : 0);
  const auto rotate = [&](std::int64_t k) {
    if constexpr (!Kept)
      piece.read<Whole>(x, factor, k, n);
    piece.align(to, power);
    piece.rotate(line, t);
  };
  top = 0.0f;
  for (std::int64_t k = first; k - first < padded; k += stride) {
    rotate(k);
    top = piece.largest(top);
  }
  const auto most =
      static_cast<std::int32_t>(arith::from_bits(block_largest(arith::bits(top), of_warp[1])));
  if (threadIdx.x == 0)
    scale[row] = quant::rotated_scale(largest, most, to.shift);
  const float inverse = quant::rotated_inverse(most);
  for (std::int64_t k = first; k - first < padded; k += stride) {
    if constexpr (!Kept)
      rotate(k);
    if (k < padded)
      write_piece<Whole>(codes + k, piece.codes(inverse));
  }
}

template <bool Whole>
void rotate_rows_by(cudaStream_t stream, const bf16* x, std::int64_t rows, std::int64_t n,
                    const float* factor, std::int8_t* codes, float* scale) {
  const char* const where = "ordo::cuda::rotate_rows";
  constexpr std::int64_t per_warp = 2 * quant::rotation_block;
  const std::int64_t warps = n == 0 ? 1 : pieces(n, per_warp);
  const dim3 grid(static_cast<unsigned>(rows));
  const auto run = [&](auto kernel, std::int64_t used) {
    launch(where, kernel, grid, dim3(static_cast<unsigned>(32 * used)),
           static_cast<std::size_t>(used) * 2 * exchange_block * sizeof(float), stream, x, factor,
           n, codes, scale);
  };
  if (warps <= 8)
    run(rotate_rows_kernel<Whole, true, 256, 5>, warps);
  else if (warps <= 23)
    run(rotate_rows_kernel<Whole, true, 736, 2>, warps);
  else if (warps <= 32)
    run(rotate_rows_kernel<Whole, true, 1024, 1>, warps);
  else
    run(rotate_rows_kernel<Whole, false, 512, 2>, 16);
}

} // namespace detail

/// Rotates and quantizes rows along their length, entry k multiplied by `factor[k]` beforehand.
///
/// Shape: x [rows, n] bf16; factor [n]; codes [rows, rotated_length(n)]; scale [rows].
/// Bits: row by row, see quant/rotated.hpp.
inline void rotate_rows(cudaStream_t stream, const bf16* x, std::int64_t rows, std::int64_t n,
                        const float* factor, std::int8_t* codes, float* scale) {
  const bool whole = n % 8 == 0 && aligned(x, 16) && aligned(factor, 16) && aligned(codes, 16);
  if (whole)
    detail::rotate_rows_by<true>(stream, x, rows, n, factor, codes, scale);
  else
    detail::rotate_rows_by<false>(stream, x, rows, n, factor, codes, scale);
}

} // namespace ordo::cuda
