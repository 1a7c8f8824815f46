// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// RMSNorm by order::Lanes<32> forward on CUDA: a warp takes a row, reads it once and writes it
/// once; with the sum of the residual stream in the same pass where that is wanted.

#include <algorithm>
#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/lanes.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/nn/rms_norm_entry.hpp>
#include <ordo/nn/swiglu_entry.hpp>

namespace ordo::cuda {

namespace detail {

/// Operands of one forward pass. `branch` and `stream` are null where nothing is added.
struct rms_norm_operands {
  const bf16 *x, *branch, *gain;
  bf16 *stream, *y;
  float* inverse_rms;
  std::int64_t rows, d;
  float eps, reciprocal;
};

/// Threads of a block: 8 rows at a time.
inline constexpr int norm_threads = 256;

/// Any d and alignment: thread t of the warp owns entries t, t + 32, ... of its row in every pass.
template <bool Residual>
__global__ void __launch_bounds__(norm_threads) rms_norm_any(rms_norm_operands at) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t warps = std::int64_t{gridDim.x} * (norm_threads / 32);
  std::int64_t row = std::int64_t{blockIdx.x} * (norm_threads / 32) + threadIdx.x / 32;
  for (; row < at.rows; row += warps) {
    const std::int64_t begin = row * at.d;
    const bf16* const source = Residual ? at.stream + begin : at.x + begin;
    float total = 0.0f;
    for (std::int64_t j = lane; j < at.d; j += 32) {
      bf16 entry;
      if constexpr (Residual) {
        entry = nn::residual_entry(at.x[begin + j], at.branch[begin + j]);
        at.stream[begin + j] = entry;
      } else {
        entry = source[j];
      }
      const float value = arith::to_f32(entry);
      total = arith::add(total, arith::mul_exact(value, value));
    }
    const float r = nn::inverse_rms_of(join_adjacent(total), at.reciprocal, at.eps);
    if (lane == 0)
      at.inverse_rms[row] = r;
    for (std::int64_t j = lane; j < at.d; j += 32) {
      at.y[begin + j] = arith::to_bf16(
          nn::rms_norm_entry(arith::to_f32(source[j]), r, arith::to_f32(at.gain[j])));
    }
  }
}

/// d = 64 Pairs: the row stays in registers, the gain in shared memory.
template <int Pairs, bool Residual>
__global__ void __launch_bounds__(norm_threads, (Residual ? 96 : 128) / (Pairs > 32 ? Pairs : 32))
    rms_norm_pairs(rms_norm_operands at) {
  __shared__ std::uint32_t gain[32 * Pairs];
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = static_cast<int>(threadIdx.x); i < 32 * Pairs; i += norm_threads)
    gain[i] = reinterpret_cast<const std::uint32_t*>(at.gain)[i];
  __syncthreads();
  const std::int64_t warps = std::int64_t{gridDim.x} * (norm_threads / 32);
  std::int64_t row = std::int64_t{blockIdx.x} * (norm_threads / 32) + threadIdx.x / 32;
  for (; row < at.rows; row += warps) {
    const std::int64_t begin = row * (32 * Pairs) + lane;
    std::uint32_t x[Pairs];
#pragma unroll
    for (int k = 0; k < Pairs; ++k)
      x[k] = reinterpret_cast<const std::uint32_t*>(at.x)[begin + 32 * k];
    if constexpr (Residual) {
      std::uint32_t branch[Pairs];
#pragma unroll
      for (int k = 0; k < Pairs; ++k)
        branch[k] = reinterpret_cast<const std::uint32_t*>(at.branch)[begin + 32 * k];
      bool nan = false;
#pragma unroll
      for (int k = 0; k < Pairs; ++k) {
        x[k] = round_pair(arith::add(low(x[k]), low(branch[k])),
                          arith::add(high(x[k]), high(branch[k])), nan);
      }
      if (nan) {
#pragma unroll
        for (int k = 0; k < Pairs; ++k)
          x[k] = canonical_pair(x[k]);
      }
#pragma unroll
      for (int k = 0; k < Pairs; ++k)
        reinterpret_cast<std::uint32_t*>(at.stream)[begin + 32 * k] = x[k];
    }
    paired_lanes sum(lane);
#pragma unroll
    for (int k = 0; k < Pairs; k += 2) {
      sum.add(x[k], x[k + 1], [](float v) { return arith::mul_exact(v, v); });
    }
    const float r = nn::inverse_rms_of(sum.join(), at.reciprocal, at.eps);
    if (lane == 0)
      at.inverse_rms[row] = r;
    std::uint32_t* const to = reinterpret_cast<std::uint32_t*>(at.y) + begin;
    bool nan = false;
#pragma unroll
    for (int k = 0; k < Pairs; ++k) {
      const std::uint32_t g = gain[lane + 32 * k];
      to[32 * k] = round_pair(nn::rms_norm_entry(low(x[k]), r, low(g)),
                              nn::rms_norm_entry(high(x[k]), r, high(g)), nan);
    }
    if (nan) { // this thread's own pairs, as it has just written them
      for (int k = 0; k < Pairs; ++k)
        to[32 * k] = canonical_pair(to[32 * k]);
    }
  }
}

/// Blocks of `threads` for `rows` rows, a warp each, at most `resident` on each multiprocessor.
inline dim3 row_grid(std::int64_t rows, std::int64_t threads, std::int64_t resident) {
  return dim3(static_cast<unsigned>(
      std::min(pieces(rows, threads / 32), resident * limits().multiprocessors)));
}

template <bool Residual>
void rms_norm(const char* where, cudaStream_t stream, const rms_norm_operands& at) {
  const bool paired = aligned(at.x, 4) && aligned(at.branch, 4) && aligned(at.gain, 4) &&
                      aligned(at.stream, 4) && aligned(at.y, 4);
  const auto run = [&](auto kernel, std::int64_t resident) {
    launch(where, kernel, row_grid(at.rows, norm_threads, resident), dim3(norm_threads), 0, stream,
           at);
  };
  constexpr int resident = Residual ? 3 : 4;
  if (paired && at.d == 2048) {
    run(rms_norm_pairs<32, Residual>, resident);
  } else if (paired && at.d == 1024) {
    run(rms_norm_pairs<16, Residual>, resident);
  } else if (paired && at.d == 4096) {
    run(rms_norm_pairs<64, Residual>, resident / 2);
  } else {
    run(rms_norm_any<Residual>, 8);
  }
}

} // namespace detail

/// y_ij = (x_ij r_i) g_j, r_i = rsqrt(mean_j x_ij^2 + eps).
///
/// Shape: x, y [rows, d] bf16, y may be x; gain [d] bf16; inverse_rms [rows].
/// Order: the row sum by order::Lanes<32>. Bits: as nn::rms_norm.
inline void rms_norm(cudaStream_t stream, const bf16* x, const bf16* gain, float eps, bf16* y,
                     float* inverse_rms, std::int64_t rows, std::int64_t d) {
  detail::rms_norm<false>("ordo::cuda::rms_norm", stream,
                          {x, nullptr, gain, nullptr, y, inverse_rms, rows, d, eps,
                           arith::div(1.0f, arith::from_int(d))});
}

/// total = a + b, rounded to bf16, and y the RMSNorm of total, in one pass.
///
/// Shape: a, b, total, y [rows, d] bf16, total may be a or b; gain [d] bf16; inverse_rms [rows].
/// Order: the row sum by order::Lanes<32>. Bits: as nn::residual_add and nn::rms_norm after it.
inline void residual_rms_norm(cudaStream_t stream, const bf16* a, const bf16* b, const bf16* gain,
                              float eps, bf16* total, bf16* y, float* inverse_rms,
                              std::int64_t rows, std::int64_t d) {
  detail::rms_norm<true>(
      "ordo::cuda::residual_rms_norm", stream,
      {a, b, gain, total, y, inverse_rms, rows, d, eps, arith::div(1.0f, arith::from_int(d))});
}

} // namespace ordo::cuda
