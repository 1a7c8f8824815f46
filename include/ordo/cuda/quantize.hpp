// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The symmetric int8 quantizers on the device: one step per tensor or per row (quant/int8.hpp).

#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/abs_max.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/lanes.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/order/sum.hpp>
#include <ordo/quant/code.hpp>
#include <ordo/quant/rotation.hpp>

namespace ordo::cuda {
namespace detail {

/// The bytes of four codes, lowest first; of each word only the low byte counts.
__device__ __forceinline__ std::uint32_t four_bytes(std::uint32_t a, std::uint32_t b,
                                                    std::uint32_t c, std::uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

/// The two bf16 of a word, not flushed.
__device__ __forceinline__ float low_bf16(std::uint32_t word) {
  return arith::from_bits(word << 16);
}
__device__ __forceinline__ float high_bf16(std::uint32_t word) {
  return arith::from_bits(word & 0xffff0000u);
}

/// The nearest even integer of x, within [-127, 127], in the low byte.
__device__ __forceinline__ std::uint32_t byte_of_nearest(float x) {
  return arith::bits(arith::detail::add_rn(x, quant::detail::rounder));
}

/// 16 bytes at once, or one by one where `to` is not aligned for it.
template <bool Whole>
__device__ __forceinline__ void write_piece(std::int8_t* to, uint4 piece) {
  if constexpr (Whole) {
    *reinterpret_cast<uint4*>(to) = piece;
  } else {
    const std::uint32_t word[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 16; ++i)
      to[i] = static_cast<std::int8_t>(word[i / 4] >> (8 * (i % 4)));
  }
}

/// `quant::to_code` for any step.
struct any_code {
  float inverse;
  __device__ __forceinline__ std::uint32_t operator()(float x) const {
    return static_cast<std::uint8_t>(quant::to_code(arith::flush(x), inverse));
  }
};

/// `quant::to_code` where the step came from the largest magnitude L, which is finite. Then it
/// needs no clamp: the step is at least L / 127 (1 - 2^-24) and its reciprocal at most
/// 127 / L (1 + 2^-23), so that no product exceeds 127 (1 + 2^-22), which rounds to 127; or the
/// step is 0 and all products are. And it needs no flush: the reciprocal is at most 2^100, so what
/// a flush would change rounds to 0.
struct bounded_code {
  float inverse;
  __device__ __forceinline__ std::uint32_t operator()(float x) const {
    return byte_of_nearest(arith::detail::mul_rn(x, inverse));
  }
};

/// Eight bf16 to eight codes.
template <class Code>
__device__ __forceinline__ uint2 eight_codes(uint4 x, const Code& code) {
  return make_uint2(four_bytes(code(low_bf16(x.x)), code(high_bf16(x.x)), code(low_bf16(x.y)),
                               code(high_bf16(x.y))),
                    four_bytes(code(low_bf16(x.z)), code(high_bf16(x.z)), code(low_bf16(x.w)),
                               code(high_bf16(x.w))));
}

/// The codes of x[n] by the threads [first, first + threads, ...) of a group; `whole` pieces of
/// eight may be read and written as such.
template <class Code>
__device__ __forceinline__ void
write_codes(const bf16* ORDO_RESTRICT x, std::int8_t* ORDO_RESTRICT codes, std::int64_t n,
            std::int64_t whole, std::int64_t first, std::int64_t threads, const Code& code) {
  const auto* from = reinterpret_cast<const uint4*>(x);
  auto* to = reinterpret_cast<uint2*>(codes);
#pragma unroll 4
  for (std::int64_t i = first; i < whole; i += threads)
    to[i] = eight_codes(from[i], code);
  for (std::int64_t i = 8 * whole + first; i < n; i += threads)
    codes[i] = static_cast<std::int8_t>(
        code(arith::from_bits(static_cast<std::uint32_t>(x[i].bits) << 16)));
}

/// Eight entries a thread and turn, from the end of the tensor to its beginning: what the pass
/// over the magnitudes read last may still be in the cache.
template <class Code>
__device__ __forceinline__ void write_tensor_codes(const bf16* ORDO_RESTRICT x,
                                                   std::int8_t* ORDO_RESTRICT codes, std::int64_t n,
                                                   std::int64_t whole, const Code& code) {
  constexpr int turns = 4;
  const std::int64_t block = gridDim.x - 1 - blockIdx.x;
  const std::int64_t begin = block * turns * blockDim.x + threadIdx.x;
  const auto* from = reinterpret_cast<const uint4*>(x);
  auto* to = reinterpret_cast<uint2*>(codes);
  uint4 piece[turns];
#pragma unroll
  for (int t = 0; t < turns; ++t) {
    const std::int64_t i = begin + t * blockDim.x;
    piece[t] = i < whole ? from[i] : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int t = 0; t < turns; ++t) {
    const std::int64_t i = begin + t * blockDim.x;
    if (i < whole)
      to[i] = eight_codes(piece[t], code);
  }
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  write_codes(x, codes, n, 0, 8 * whole + std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x,
              threads, code);
}

template <int Threads>
__global__ __launch_bounds__(Threads) void tensor_codes_kernel(
    const bf16* ORDO_RESTRICT x, std::int8_t* ORDO_RESTRICT codes, std::int64_t n,
    std::int64_t whole, const std::uint32_t* ORDO_RESTRICT cell, float* ORDO_RESTRICT step) {
  const float largest = arith::from_bits(*cell);
  const float found = quant::step_of_largest(largest);
  if (blockIdx.x == 0 && threadIdx.x == 0)
    *step = found;
  const float inverse = quant::inverse_step(found);
  if (arith::is_finite(largest))
    write_tensor_codes(x, codes, n, whole, bounded_code{inverse});
  else
    write_tensor_codes(x, codes, n, whole, any_code{inverse});
}

/// The sum of the magnitudes of a row by `Order`, in all lanes of a warp.
template <class Order>
__device__ __forceinline__ float sum_of_magnitudes(Order order, const bf16* ORDO_RESTRICT row,
                                                   std::int64_t n) {
  const auto load = [=](std::int64_t k) { return arith::abs(arith::to_f32(row[k])); };
  const unsigned lane = threadIdx.x % 32;
  float sum = 0.0f;
  if constexpr (std::is_same_v<Order, order::Lanes<32>>) {
#pragma unroll 8
    for (std::int64_t k = lane; k < n; k += 32)
      sum = arith::add(sum, load(k));
    sum = join_adjacent(sum);
  } else {
    if (lane == 0)
      sum = order::sum(order, n, load);
    sum = __shfl_sync(0xffffffffu, sum, 0);
  }
  return sum;
}

/// One warp for each row.
template <class Order>
__global__ __launch_bounds__(256) void quantize_rows_kernel(
    quant::step_rule rule, const bf16* ORDO_RESTRICT w, std::int64_t rows, std::int64_t columns,
    std::int64_t whole, std::int8_t* ORDO_RESTRICT codes, float* ORDO_RESTRICT steps) {
  const std::int64_t row = std::int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (row >= rows)
    return;
  const bf16* const line = w + row * columns;
  float step;
  if (rule == quant::step_rule::mean_magnitude) {
    step = quant::step_of_sum(sum_of_magnitudes(Order{}, line, columns), columns);
  } else {
    running_largest<bf16> largest;
    for (std::int64_t k = lane; k < columns; k += 32)
      largest.take(line[k]);
    step = quant::step_of_largest(arith::from_bits(warp_largest(largest.result())));
  }
  if (lane == 0)
    steps[row] = step;
  write_codes(line, codes + row * columns, columns, whole, lane, 32,
              any_code{quant::inverse_step(step)});
}

} // namespace detail

/// Bits of the largest magnitude of each row. Shape: x [rows, columns] bf16; largest [rows].
inline void row_largest_bits(cudaStream_t stream, const bf16* x, std::int64_t rows,
                             std::int64_t columns, std::uint32_t* largest) {
  row_largest(stream, x, rows, columns, largest);
}

/// Quantizes a whole tensor with one step from its largest magnitude.
///
/// Shape: x [n] bf16; codes [n]; step [1]; scratch [1], not read where n is 0.
/// Order: none. Bits: depend on x alone.
inline void quantize_tensor(cudaStream_t stream, const bf16* x, std::int64_t n, std::int8_t* codes,
                            float* step, std::uint32_t* scratch) {
  if (n == 0) { // the step of nothing is +0
    check(cudaMemsetAsync(step, 0, sizeof *step, stream), "ordo::cuda::quantize_tensor");
    return;
  }
  largest_bits(stream, x, n, scratch);
  const bool whole = aligned(x, 16) && aligned(codes, 8);
  launch("ordo::cuda::quantize_tensor", detail::tensor_codes_kernel<256>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(n, 256 * 32))), dim3(256), 0, stream, x,
         codes, n, whole ? n / 8 : 0, static_cast<const std::uint32_t*>(scratch), step);
}

/// Quantizes each row with its own step.
///
/// Shape: w [rows, columns] bf16; codes alike; steps [rows].
/// Order: the row sum of magnitudes (mean_magnitude) is by `Order`; Lanes<32> runs in a warp,
/// others in one thread.
/// Bits: each row's depend on that row, the rule and the order.
template <class Order>
void quantize_rows(cudaStream_t stream, Order, quant::step_rule rule, const bf16* w,
                   std::int64_t rows, std::int64_t columns, std::int8_t* codes, float* steps) {
  const bool whole = columns % 8 == 0 && aligned(w, 16) && aligned(codes, 8);
  launch("ordo::cuda::quantize_rows", detail::quantize_rows_kernel<Order>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(rows, 8))), dim3(256), 0, stream, rule, w,
         rows, columns, whole ? columns / 8 : 0, codes, steps);
}

} // namespace ordo::cuda
