// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// SwiGLU on CUDA. What the gate contributes is a function of its 16 bits: each block first tables
/// it for the magnitudes that occur, in shared memory, and computes it where a gate lies outside.

#include <algorithm>
#include <cstdint>

#include <ordo/arith/activation.hpp>
#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/nn/swiglu_entry.hpp>

namespace ordo::cuda {

namespace detail {

/// Gates in the table: magnitudes in [2^-14, 2^5), 128 of each power of two, of both signs.
inline constexpr std::uint32_t gate_first = (127 - 14) << 7, gate_count = 19 << 7;

/// A function of gates, tabled; `Function` is called with the gate as a value.
template <class Result>
struct gate_table {
  Result of[2 * gate_count]; ///< positive gates, then negative

  template <class Function>
  __device__ void fill(const Function& function) {
    for (std::uint32_t i = threadIdx.x; i < 2 * gate_count; i += blockDim.x) {
      const bool negative = i >= gate_count;
      const std::uint32_t magnitude = gate_first + (negative ? i - gate_count : i);
      of[i] = function(
          arith::to_f32(bf16{static_cast<std::uint16_t>(magnitude | (negative ? 0x8000u : 0u))}));
    }
  }
  /// Whether both gates of a pair are in the table.
  __device__ static bool holds(std::uint32_t pair) {
    return (pair & 0x7fffu) - gate_first < gate_count &&
           ((pair >> 16) & 0x7fffu) - gate_first < gate_count;
  }
  __device__ const Result& low(std::uint32_t pair) const {
    return of[(pair & 0x7fffu) - gate_first + ((pair & 0x8000u) != 0 ? gate_count : 0)];
  }
  __device__ const Result& high(std::uint32_t pair) const {
    return of[((pair >> 16) & 0x7fffu) - gate_first + (pair >> 31) * gate_count];
  }
};

inline constexpr int swiglu_threads = 1024;

/// Eight neighbouring entries of a row at a time: which row and where in it, for a thread that goes
/// on by all threads of the grid.
struct octet_walk {
  std::int64_t row, step_rows;
  std::uint32_t octet, step_octets, octets; ///< within a row

  __device__ octet_walk(std::int64_t f) : octets(static_cast<std::uint32_t>(f / 8)) {
    const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    row = at / octets, octet = static_cast<std::uint32_t>(at % octets);
    step_rows = step / octets, step_octets = static_cast<std::uint32_t>(step % octets);
  }
  __device__ void next() {
    row += step_rows, octet += step_octets;
    if (octet >= octets)
      octet -= octets, ++row;
  }
};

/// Operands: `dy` and `slopes_out` of the backward pass only.
struct swiglu_operands {
  const bf16 *gate_up, *dy;
  bf16* out; ///< y forward, d_gate_up backward
  std::int64_t rows, f;
};

/// Silu of both gates of a pair, from the table where it holds them.
__device__ __forceinline__ float2 silu_pair(const gate_table<float>& table, std::uint32_t gate,
                                            bool held) {
  return held ? float2{table.low(gate), table.high(gate)}
              : float2{arith::silu(low(gate)), arith::silu(high(gate))};
}

/// f a multiple of 8, everything 16-byte aligned.
template <int Threads>
__global__ void __launch_bounds__(Threads, 1) swiglu_octets(swiglu_operands at) {
  __shared__ gate_table<float> table;
  table.fill([](float gate) { return arith::silu(gate); });
  __syncthreads();
  octet_walk walk(at.f);
  const auto one = [&](const uint4& g, const uint4& u) {
    const bool held = table.holds(g.x) && table.holds(g.y) && table.holds(g.z) && table.holds(g.w);
    bool nan = false;
    const auto pair = [&](std::uint32_t gate, std::uint32_t up) {
      const float2 s = silu_pair(table, gate, held);
      return round_pair(nn::swiglu_entry(s.x, low(up)), nn::swiglu_entry(s.y, high(up)), nan);
    };
    uint4 y{pair(g.x, u.x), pair(g.y, u.y), pair(g.z, u.z), pair(g.w, u.w)};
    if (nan)
      y = {canonical_pair(y.x), canonical_pair(y.y), canonical_pair(y.z), canonical_pair(y.w)};
    return y;
  };
  constexpr int ahead = 2;
  while (walk.row < at.rows) {
    uint4 g[ahead], u[ahead];
    uint4* to[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i, walk.next()) {
      to[i] = nullptr;
      if (walk.row < at.rows) {
        const std::int64_t begin = walk.row * at.f + 8 * std::int64_t{walk.octet};
        const bf16* const gate = at.gate_up + begin + walk.row * at.f;
        g[i] = *reinterpret_cast<const uint4*>(gate);
        u[i] = *reinterpret_cast<const uint4*>(gate + at.f);
        to[i] = reinterpret_cast<uint4*>(at.out + begin);
      }
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (to[i] != nullptr)
        *to[i] = one(g[i], u[i]);
    }
  }
}

/// f a multiple of 8, everything 16-byte aligned.
template <int Threads>
__global__ void __launch_bounds__(Threads, 1) swiglu_backward_octets(swiglu_operands at) {
  __shared__ gate_table<nn::gate_slopes> table;
  table.fill([](float gate) { return nn::gate_slopes_of(gate); });
  __syncthreads();
  octet_walk walk(at.f);
  for (; walk.row < at.rows; walk.next()) {
    const std::int64_t begin = walk.row * at.f + 8 * std::int64_t{walk.octet};
    const std::int64_t wide = begin + walk.row * at.f;
    const uint4 g = *reinterpret_cast<const uint4*>(at.gate_up + wide);
    const uint4 u = *reinterpret_cast<const uint4*>(at.gate_up + wide + at.f);
    const uint4 d = *reinterpret_cast<const uint4*>(at.dy + begin);
    const bool held = table.holds(g.x) && table.holds(g.y) && table.holds(g.z) && table.holds(g.w);
    bool nan = false;
    const auto pair = [&](std::uint32_t gate, std::uint32_t up, std::uint32_t dy,
                          std::uint32_t& d_up) {
      const nn::gate_slopes first = held ? table.low(gate) : nn::gate_slopes_of(low(gate));
      const nn::gate_slopes second = held ? table.high(gate) : nn::gate_slopes_of(high(gate));
      d_up = round_pair(nn::up_gradient(low(dy), first), nn::up_gradient(high(dy), second), nan);
      return round_pair(nn::gate_gradient(low(dy), low(up), first),
                        nn::gate_gradient(high(dy), high(up), second), nan);
    };
    uint4 d_gate, d_up;
    d_gate.x = pair(g.x, u.x, d.x, d_up.x);
    d_gate.y = pair(g.y, u.y, d.y, d_up.y);
    d_gate.z = pair(g.z, u.z, d.z, d_up.z);
    d_gate.w = pair(g.w, u.w, d.w, d_up.w);
    if (nan) {
      d_gate = {canonical_pair(d_gate.x), canonical_pair(d_gate.y), canonical_pair(d_gate.z),
                canonical_pair(d_gate.w)};
      d_up = {canonical_pair(d_up.x), canonical_pair(d_up.y), canonical_pair(d_up.z),
              canonical_pair(d_up.w)};
    }
    *reinterpret_cast<uint4*>(at.out + wide) = d_gate;
    *reinterpret_cast<uint4*>(at.out + wide + at.f) = d_up;
  }
}

/// Any f and alignment: an entry a thread.
template <int Threads>
__global__ void __launch_bounds__(Threads) swiglu_any(swiglu_operands at) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < at.rows * at.f;
       i += step) {
    const bf16* const gate = at.gate_up + i / at.f * at.f + i;
    at.out[i] = arith::to_bf16(
        nn::swiglu_entry(arith::silu(arith::to_f32(gate[0])), arith::to_f32(gate[at.f])));
  }
}

template <int Threads>
__global__ void __launch_bounds__(Threads) swiglu_backward_any(swiglu_operands at) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < at.rows * at.f;
       i += step) {
    const std::int64_t wide = i / at.f * at.f + i;
    const float dy = arith::to_f32(at.dy[i]), up = arith::to_f32(at.gate_up[wide + at.f]);
    const nn::gate_slopes gate = nn::gate_slopes_of(arith::to_f32(at.gate_up[wide]));
    at.out[wide] = arith::to_bf16(nn::gate_gradient(dy, up, gate));
    at.out[wide + at.f] = arith::to_bf16(nn::up_gradient(dy, gate));
  }
}

/// Launches `octets` where rows can be read 16 bytes at a time and the table pays, else `any`.
inline void swiglu(const char* where, cudaStream_t stream, void (*octets)(swiglu_operands),
                   void (*any)(swiglu_operands), const swiglu_operands& at) {
  constexpr std::int64_t worth_a_table = std::int64_t{1} << 20;
  const std::int64_t n = at.rows * at.f;
  const bool wide = at.f % 8 == 0 && aligned(at.gate_up, 16) && aligned(at.dy, 16) &&
                    aligned(at.out, 16) && n >= worth_a_table;
  if (wide) {
    launch(where, octets, dim3(static_cast<unsigned>(limits().multiprocessors)),
           dim3(swiglu_threads), 0, stream, at);
  } else {
    launch(
        where, any,
        dim3(static_cast<unsigned>(std::min<std::int64_t>(pieces<std::int64_t>(n, 256), 1 << 20))),
        dim3(256), 0, stream, at);
  }
}

} // namespace detail

/// y = silu(gate) up.
///
/// Shape: gate_up [rows, 2 f] bf16 (gate in the first f columns); y [rows, f] bf16.
/// Bits: as nn::swiglu.
inline void swiglu(cudaStream_t stream, const bf16* gate_up, bf16* y, std::int64_t rows,
                   std::int64_t f) {
  detail::swiglu("ordo::cuda::swiglu", stream, detail::swiglu_octets<detail::swiglu_threads>,
                 detail::swiglu_any<256>, {gate_up, nullptr, y, rows, f});
}

/// The gradients of gate and up.
///
/// Shape: dy [rows, f] bf16; gate_up, d_gate_up [rows, 2 f] bf16. Bits: as nn::swiglu_backward.
inline void swiglu_backward(cudaStream_t stream, const bf16* dy, const bf16* gate_up,
                            bf16* d_gate_up, std::int64_t rows, std::int64_t f) {
  detail::swiglu("ordo::cuda::swiglu_backward", stream,
                 detail::swiglu_backward_octets<detail::swiglu_threads>,
                 detail::swiglu_backward_any<256>, {gate_up, dy, d_gate_up, rows, f});
}

} // namespace ordo::cuda
