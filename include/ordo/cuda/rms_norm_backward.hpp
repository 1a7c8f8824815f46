// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// RMSNorm by order::Lanes<32> backward on CUDA: the gain's gradient down the columns, the input
/// gradient along the rows.

#include <algorithm>
#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/lanes.hpp>
#include <ordo/cuda/rms_norm.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/nn/rms_norm_entry.hpp>
#include <ordo/order/sum.hpp>

namespace ordo::cuda {

namespace detail {

/// Operands of one backward pass. `residual` is null where nothing is added.
struct norm_gradient_operands {
  const bf16 *dy, *x, *gain, *residual;
  const float* inverse_rms;
  bf16* dx;
  float *dgain, *partial;
  std::int64_t rows, d;
  float reciprocal;
};

/// One or two neighbouring entries of a row.
template <int Width>
struct entries;
template <>
struct entries<1> {
  using word = std::uint16_t;
  __device__ static float get(word w, int) { return arith::to_f32(bf16{w}); }
};
template <>
struct entries<2> {
  using word = std::uint32_t;
  __device__ static float get(word w, int i) { return i == 0 ? low(w) : high(w); }
};

inline constexpr int gain_threads = 128;

/// partial[block, j]: the terms of column j in the block's 256 rows, ascending. A thread owns Width
/// columns and reads several rows ahead.
template <int Width>
__global__ void __launch_bounds__(gain_threads) gain_partials(norm_gradient_operands at) {
  using word = typename entries<Width>::word;
  constexpr int ahead = 16;
  const std::int64_t words = at.d / Width;
  const std::int64_t j = std::int64_t{blockIdx.x} * gain_threads + threadIdx.x;
  if (j >= words)
    return;
  const word* const x = reinterpret_cast<const word*>(at.x) + j;
  const word* const dy = reinterpret_cast<const word*>(at.dy) + j;
  for (std::int64_t block = blockIdx.y; block * nn::gain_block < at.rows; block += gridDim.y) {
    float total[Width] = {};
    const auto add = [&](word entry, word grad, float r) {
#pragma unroll
      for (int i = 0; i < Width; ++i) {
        total[i] = arith::add(total[i], nn::gain_term(entries<Width>::get(grad, i),
                                                      entries<Width>::get(entry, i), r));
      }
    };
    std::int64_t row = block * nn::gain_block;
    const std::int64_t last = row + nn::gain_block < at.rows ? row + nn::gain_block : at.rows;
    for (; row + ahead <= last; row += ahead) {
      word entry[ahead], grad[ahead];
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        entry[i] = x[(row + i) * words];
        grad[i] = dy[(row + i) * words];
      }
#pragma unroll
      for (int i = 0; i < ahead; ++i)
        add(entry[i], grad[i], at.inverse_rms[row + i]);
    }
    for (; row < last; ++row)
      add(x[row * words], dy[row * words], at.inverse_rms[row]);
#pragma unroll
    for (int i = 0; i < Width; ++i)
      at.partial[block * at.d + j * Width + i] = total[i];
  }
}

/// dgain[j]: the partial sums of column j by order::Tree.
template <int Threads>
__global__ void __launch_bounds__(Threads) gain_join(norm_gradient_operands at) {
  const std::int64_t j = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j >= at.d)
    return;
  const std::int64_t blocks = pieces(at.rows, nn::gain_block);
  const float* const column = at.partial + j;
  at.dgain[j] = order::sum(order::Tree{}, blocks, [&](std::int64_t b) { return column[b * at.d]; });
}

/// Any d and alignment: thread t of the warp owns entries t, t + 32, ... of its row in both passes.
template <int Threads>
__global__ void __launch_bounds__(Threads) input_gradient_any(norm_gradient_operands at) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t warps = std::int64_t{gridDim.x} * (norm_threads / 32);
  std::int64_t row = std::int64_t{blockIdx.x} * (norm_threads / 32) + threadIdx.x / 32;
  for (; row < at.rows; row += warps) {
    const std::int64_t begin = row * at.d;
    const float r = at.inverse_rms[row];
    float total = 0.0f;
    for (std::int64_t j = lane; j < at.d; j += 32) {
      total = arith::add(total,
                         nn::input_term(arith::to_f32(at.dy[begin + j]), arith::to_f32(at.gain[j]),
                                        arith::to_f32(at.x[begin + j])));
    }
    const float factor = nn::input_factor(r, at.reciprocal, join_adjacent(total));
    for (std::int64_t j = lane; j < at.d; j += 32) {
      float v = nn::input_gradient(arith::to_f32(at.dy[begin + j]), arith::to_f32(at.gain[j]),
                                   arith::to_f32(at.x[begin + j]), r, factor);
      if (at.residual != nullptr)
        v = arith::add(arith::to_f32(at.residual[begin + j]), v);
      at.dx[begin + j] = arith::to_bf16(v);
    }
  }
}

inline constexpr int gradient_threads = 128;

/// d = 64 Pairs: the rows stay in registers, the gain in shared memory.
template <int Pairs, bool Residual, int Resident>
__global__ void __launch_bounds__(gradient_threads, Resident)
    input_gradient_pairs(norm_gradient_operands at) {
  __shared__ std::uint32_t gain[32 * Pairs];
  const std::uint32_t lane = threadIdx.x % 32;
  for (int i = static_cast<int>(threadIdx.x); i < 32 * Pairs; i += gradient_threads)
    gain[i] = reinterpret_cast<const std::uint32_t*>(at.gain)[i];
  __syncthreads();
  const std::int64_t warps = std::int64_t{gridDim.x} * (gradient_threads / 32);
  std::int64_t row = std::int64_t{blockIdx.x} * (gradient_threads / 32) + threadIdx.x / 32;
  for (; row < at.rows; row += warps) {
    const std::int64_t begin = row * (32 * Pairs) + lane;
    const float r = at.inverse_rms[row];
    std::uint32_t x[Pairs], dy[Pairs], residual[Residual ? Pairs : 1];
#pragma unroll
    for (int k = 0; k < Pairs; ++k) {
      x[k] = reinterpret_cast<const std::uint32_t*>(at.x)[begin + 32 * k];
      dy[k] = reinterpret_cast<const std::uint32_t*>(at.dy)[begin + 32 * k];
    }
    if constexpr (Residual) {
#pragma unroll
      for (int k = 0; k < Pairs; ++k)
        residual[k] = reinterpret_cast<const std::uint32_t*>(at.residual)[begin + 32 * k];
    }
    paired_lanes sum(static_cast<int>(lane));
#pragma unroll
    for (int k = 0; k < Pairs; ++k) {
      const std::uint32_t g = gain[lane + 32 * k];
      sum.add(nn::input_term(low(dy[k]), low(g), low(x[k])),
              nn::input_term(high(dy[k]), high(g), high(x[k])));
    }
    const float factor = nn::input_factor(r, at.reciprocal, sum.join());
    std::uint32_t* const to = reinterpret_cast<std::uint32_t*>(at.dx) + begin;
    bool nan = false;
#pragma unroll
    for (int k = 0; k < Pairs; ++k) {
      const std::uint32_t g = gain[lane + 32 * k];
      float first = nn::input_gradient(low(dy[k]), low(g), low(x[k]), r, factor);
      float second = nn::input_gradient(high(dy[k]), high(g), high(x[k]), r, factor);
      if constexpr (Residual) {
        first = arith::add(low(residual[k]), first);
        second = arith::add(high(residual[k]), second);
      }
      to[32 * k] = round_pair(first, second, nan);
    }
    if (nan) { // this thread's own pairs, as it has just written them
      for (int k = 0; k < Pairs; ++k)
        to[32 * k] = canonical_pair(to[32 * k]);
    }
  }
}

inline void gain_gradient(cudaStream_t stream, const norm_gradient_operands& at) {
  const char* const where = "ordo::cuda::rms_norm_backward";
  const bool paired = at.d % 2 == 0 && aligned(at.x, 4) && aligned(at.dy, 4);
  const std::int64_t words = paired ? at.d / 2 : at.d;
  const std::int64_t blocks = pieces(at.rows, nn::gain_block);
  const dim3 grid(static_cast<unsigned>(pieces<std::int64_t>(words, gain_threads)),
                  static_cast<unsigned>(std::min<std::int64_t>(blocks, 65535)));
  launch(where, paired ? gain_partials<2> : gain_partials<1>, grid, dim3(gain_threads), 0, stream,
         at);
  launch(where, gain_join<32>, dim3(static_cast<unsigned>(pieces<std::int64_t>(at.d, 32))),
         dim3(32), 0, stream, at);
}

template <bool Residual>
void input_gradient(cudaStream_t stream, const norm_gradient_operands& at) {
  const char* const where = "ordo::cuda::rms_norm_backward";
  const bool paired = aligned(at.x, 4) && aligned(at.dy, 4) && aligned(at.gain, 4) &&
                      aligned(at.residual, 4) && aligned(at.dx, 4);
  const auto pairs = [&](auto kernel, std::int64_t resident) {
    launch(where, kernel, row_grid(at.rows, gradient_threads, resident), dim3(gradient_threads), 0,
           stream, at);
  };
  if (paired && at.d == 2048) {
    pairs(input_gradient_pairs<32, Residual, 3>, 3);
  } else if (paired && at.d == 1024) {
    pairs(input_gradient_pairs<16, Residual, 4>, 4);
  } else if (paired && at.d == 4096) {
    pairs(input_gradient_pairs<64, Residual, 2>, 2);
  } else {
    launch(where, input_gradient_any<norm_threads>, row_grid(at.rows, norm_threads, 8),
           dim3(norm_threads), 0, stream, at);
  }
}

} // namespace detail

/// Backward of `rms_norm`; dx has `residual` added to it unless that is null.
///
/// Shape: dy, x, residual, dx [rows, d] bf16, dx may be any of the others; gain [d] bf16;
/// inverse_rms [rows]; dgain [d] binary32, overwritten; partial [ceil(rows / 256), d] scratch.
/// Order: row sums by order::Lanes<32>; dgain sequentially within blocks of 256 rows, whose sums
/// are joined by order::Tree. Bits: as nn::rms_norm_backward.
inline void rms_norm_backward(cudaStream_t stream, const bf16* dy, const bf16* x, const bf16* gain,
                              const float* inverse_rms, const bf16* residual, bf16* dx,
                              float* dgain, float* partial, std::int64_t rows, std::int64_t d) {
  const detail::norm_gradient_operands at{dy,
                                          x,
                                          gain,
                                          residual,
                                          inverse_rms,
                                          dx,
                                          dgain,
                                          partial,
                                          rows,
                                          d,
                                          arith::div(1.0f, arith::from_int(d))};
  detail::gain_gradient(stream, at); // first: dx may overwrite dy or x
  if (residual != nullptr) {
    detail::input_gradient<true>(stream, at);
  } else {
    detail::input_gradient<false>(stream, at);
  }
}

} // namespace ordo::cuda
