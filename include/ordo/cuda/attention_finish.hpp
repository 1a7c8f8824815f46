// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The last stage of attention's backward pass on CUDA: from integer sums to dq, dk and dv.

#include <cstdint>

#include <ordo/cuda/attention_gradient.hpp>
#include <ordo/cuda/attention_gradient_rows.hpp>
#include <ordo/cuda/bf16_pair.hpp>

namespace ordo::cuda::detail {

#if defined(__CUDACC__)

/// Whether a poisoned query sees key `position`; asked by the 8 threads of a row.
__device__ __forceinline__ bool sees_poisoned(const attention_inputs& a, const gradient_buffers& b,
                                              std::int64_t group, std::int64_t position, int t) {
  const std::int64_t blocks = a.blocks(), end = position + a.s.window; // of the queries that see it
  const std::int64_t last = (end - 1) / 64 < blocks - 1 ? (end - 1) / 64 : blocks - 1;
  bool found = false;
  for (std::int64_t h = group * a.s.group(); h < (group + 1) * a.s.group(); ++h) {
    for (std::int64_t qb = position / 64 + t; qb <= last; qb += 8) {
      std::uint64_t rows = b.poisoned[h * blocks + qb];
      if (position > qb * 64)
        rows &= ~std::uint64_t{0} << (position - qb * 64);
      if (end < qb * 64 + 64)
        rows &= ~(~std::uint64_t{0} << (end - qb * 64));
      found = found || rows != 0;
    }
  }
  return found && a.s.window > 0;
}

/// Four neighbouring values, or NaN.
__device__ __forceinline__ void write_four(bf16* to, const float (&f)[4], bool nan) {
  const uint2 pairs{to_pair(f[0], f[1]), to_pair(f[2], f[3])};
  *reinterpret_cast<uint2*>(to) = nan ? uint2{0x7fc07fc0u, 0x7fc07fc0u} : pairs;
}

/// dx of one row of q or k by its 8 threads: rotated back and through the normalisation.
/// `gradient(d, g)` gives the gradients of the entries d ... d + 3; `nan` makes all of dx NaN.
template <int Dim, class Gradient>
__device__ __forceinline__ void finish_row(const attention_inputs& a, const Gradient& gradient,
                                           const bf16* x, bf16* dx, std::int64_t position,
                                           bool present, bool nan, int t) {
  constexpr int steps = Dim / 32;
  const int hd = static_cast<int>(a.s.head_dim);
  float v[steps][4], dy[steps][4], squares[4] = {}, products[4] = {};
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    const int d = 4 * t + 32 * i;
    if (!present || d >= hd)
      continue;
    widen(*reinterpret_cast<const uint2*>(x + d), v[i]);
    const std::int64_t at = (position * hd + d) / 2;
    const float2 c = *reinterpret_cast<const float2*>(a.cosine + at);
    const float2 s = *reinterpret_cast<const float2*>(a.sine + at);
    float g[4];
    gradient(d, g);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      squares[e] = add_flushed(squares[e], mul_exact_flushed(v[i][e], v[i][e]));
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const float cosine = e == 0 ? c.x : c.y, sine = e == 0 ? s.x : s.y;
      dy[i][e] = add_flushed(arith::mul(g[e], cosine), arith::mul(g[e + 1], sine));
      dy[i][e + 1] = add_flushed(arith::mul(g[e + 1], cosine), -arith::mul(g[e], sine));
    }
  }
  const float mean_square = arith::mul(join_row(squares), a.scales.inverse_dim);
  const float r = arith::rsqrt(arith::add(mean_square, a.eps));
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    if (!present || 4 * t + 32 * i >= hd)
      continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[i][e] = arith::mul(arith::flush(v[i][e]), r);
      products[e] = add_flushed(products[e], arith::mul(dy[i][e], v[i][e]));
    }
  }
  const float mean = arith::mul(join_row(products), a.scales.inverse_dim);
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    const int d = 4 * t + 32 * i;
    if (!present || d >= hd)
      continue;
    float f[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      f[e] = arith::mul(r, add_flushed(dy[i][e], -arith::mul(v[i][e], mean)));
    write_four(dx + d, f, nan);
  }
}

/// dv of one row by its 8 threads.
template <int Dim>
__device__ __forceinline__ void finish_value(const attention_inputs& a, const std::int64_t* sums,
                                             std::int32_t unit, bf16* dv, bool nan, int t) {
  for (int d = 4 * t; d < a.s.head_dim; d += 32) {
    float f[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      f[e] = arith::scale_pow2(arith::from_int(sums[d + e]), -unit);
    write_four(dv + d, f, nan);
  }
}

/// Grid: (32 positions of a sequence, heads of q and then of k with v); 256 threads, 8 to a row.
template <int Dim>
__global__ void __launch_bounds__(256)
    gradient_finish_kernel(attention_inputs a, gradient_buffers b, bf16* d_qkv) {
  const std::int64_t halves = 2 * a.blocks(), n = blockIdx.x / halves;
  const std::int64_t position = blockIdx.x % halves * 32 + threadIdx.x / 8;
  const int t = threadIdx.x % 8;
  const std::int64_t h = blockIdx.y, hd = a.s.head_dim;
  const bool present = position < a.s.seq;
  const std::int64_t column = h * hd + (n * a.s.seq + position) * a.s.qkv_width();
  const std::int64_t rows = a.blocks() * 64;
  const auto flag = [&](const std::uint64_t* flags, std::int64_t head) {
    return (flags[head * a.blocks() + position / 64] >> (position % 64) & 1) != 0;
  };
  if (h < a.s.heads) {
    const std::int64_t head = n * a.s.heads + h;
    const nn::attention_units units = group_units(a, b, group_of(a.s, head));
    const float* from = b.d_q + (head * rows + position) * Dim;
    const auto gradient = [&](int d, float(&g)[4]) {
      const float4 v = *reinterpret_cast<const float4*>(from + d);
      g[0] = v.x, g[1] = v.y, g[2] = v.z, g[3] = v.w;
    };
    finish_row<Dim>(a, gradient, a.qkv + column, d_qkv + column, position, present,
                    !units.representable || flag(b.poisoned, head), t);
    return;
  }
  const std::int64_t group = n * a.s.kv_heads + h - a.s.heads;
  const nn::attention_units units = group_units(a, b, group);
  bool nan = !units.representable || flag(b.bad_key, group);
  if (b.any_poisoned[group] != 0) {
    int seen = sees_poisoned(a, b, group, position, t) ? 1 : 0;
    for (int offset = 1; offset < 8; offset *= 2)
      seen |= __shfl_xor_sync(~0u, seen, offset);
    nan = nan || seen != 0;
  }
  const std::int64_t from = (group * rows + position) * Dim;
  const auto gradient = [&](int d, float(&g)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      g[e] = gradient_of(a, b.d_k[from + d + e], units.key);
  };
  finish_row<Dim>(a, gradient, a.qkv + column, d_qkv + column, position, present, nan, t);
  if (present)
    finish_value<Dim>(a, b.d_v + from, units.value, d_qkv + column + a.s.kv_heads * hd, nan, t);
}

template <int Dim>
void finish_gradient(cudaStream_t stream, const attention_inputs& a, const gradient_buffers& b,
                     bf16* d_qkv) {
  launch("ordo::cuda::attention_backward", gradient_finish_kernel<Dim>,
         dim3(static_cast<unsigned>(a.s.batch * a.blocks() * 2),
              static_cast<unsigned>(a.s.heads + a.s.kv_heads)),
         dim3(256), 0, stream, a, b, d_qkv);
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
