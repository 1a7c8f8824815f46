// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Attention on CUDA, before its products: rows of q and k as two int8 digits an entry, blocks of v
/// as codes, and which keys are bad. Definition: reference/attention.hpp.

#include <cstddef>
#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/cuda/attention_mma.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/nn/attention_shape.hpp>
#include <ordo/nn/attention_tiles.hpp>

namespace ordo::cuda {

/// Queries and keys of a block. Other blocks have other bits and no kernels here.
inline constexpr int attention_block = 64;

/// What the kernels read. The window is at most `seq`.
struct attention_inputs {
  nn::attention_shape s;
  nn::attention_scales scales;
  const float *cosine, *sine; ///< [positions >= seq, hd / 2]
  float eps;
  const bf16* qkv; ///< [batch * seq, (heads + 2 kv_heads) hd], 16-byte aligned

  __host__ __device__ std::int64_t blocks() const {
    return pieces<std::int64_t>(s.seq, attention_block);
  }
};

inline attention_inputs make_attention_inputs(nn::attention_shape s, const float* cosine,
                                              const float* sine, float eps, const bf16* qkv) {
  s.window = s.window < s.seq ? s.window : s.seq;
  require(reinterpret_cast<std::uintptr_t>(qkv) % 16 == 0 &&
              reinterpret_cast<std::uintptr_t>(cosine) % 8 == 0 &&
              reinterpret_cast<std::uintptr_t>(sine) % 8 == 0,
          "ordo::cuda::attention", "qkv or the rope table is not aligned",
          "qkv needs 16 bytes, the table 8; whole allocations have that");
  // Without it, squares of tiny entries flush and a normalised row may exceed what its integers
  // hold.
  require(eps > 0.0f, "ordo::cuda::attention", "the epsilon of QK-norm is not positive",
          "use a positive epsilon; 1e-5 is usual");
  return {s, nn::make_attention_scales(s), cosine, sine, eps, qkv};
}

/// The head dimension that tiles have in memory; entries from hd on are zero.
inline int attention_padded_dim(std::int64_t head_dim) {
  return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

/// Integer forms, in scratch. Blocks of 64 rows, zeros beyond the sequence. Digits of
/// v = low + 128 high, low in [-64, 63]; Dim is the padded head dimension. Pieces of 16 bytes of
/// all rows follow each other (core matrices, attention_bytes.hpp).
struct attention_planes {
  std::int8_t* q;         ///< [batch, heads, block][low, high][Dim / 16][64][16]
  std::int8_t* k;         ///< [batch, kv_heads, block][low, high][Dim / 16][64][16]
  std::int8_t* v;         ///< [batch, kv_heads, block][4][Dim][16]: codes, keys by attention_place
  float* v_weight;        ///< [batch, kv_heads, block]: step * (1/127)
  std::uint64_t* bad_key; ///< [batch, kv_heads, block]: bit j: key or value row j is not finite
  std::uint8_t* bad_row;  ///< [batch, heads + kv_heads, block * 64]: q and k rows
};

namespace detail {

/// Hands out pieces of scratch, multiples of 256 bytes; counts bytes where `memory` is null.
class scratch_layout {
public:
  explicit scratch_layout(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  template <class T>
  void take(T*& pointer, std::int64_t count) {
    pointer = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
  }
  std::size_t used() const { return used_; }

private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

inline attention_planes place_planes(const nn::attention_shape& s, scratch_layout& layout) {
  const std::int64_t blocks = pieces<std::int64_t>(s.seq, attention_block);
  const std::int64_t heads = s.batch * s.heads * blocks, kv = s.batch * s.kv_heads * blocks;
  const std::int64_t plane = attention_block * attention_padded_dim(s.head_dim);
  attention_planes p{};
  layout.take(p.q, heads * plane * 2);
  layout.take(p.k, kv * plane * 2);
  layout.take(p.v, kv * plane);
  layout.take(p.v_weight, kv);
  layout.take(p.bad_key, kv);
  layout.take(p.bad_row, (heads + kv) * attention_block);
  return p;
}

} // namespace detail

/// Bytes that `attention_planes` of a shape take; the window does not matter.
inline std::size_t attention_planes_bytes(const nn::attention_shape& s) {
  detail::scratch_layout layout(nullptr);
  detail::place_planes(s, layout);
  return layout.used();
}
/// The planes in `scratch`, 128-byte aligned memory of the device.
inline attention_planes make_attention_planes(const nn::attention_shape& s, void* scratch) {
  detail::scratch_layout layout(scratch);
  return detail::place_planes(s, layout);
}

#if defined(__CUDACC__)
namespace detail {

/// x r for two entries, rotated, times `fixed`: the scalar sequence of the definition.
struct fixed_pair {
  float first, second;
};
__device__ __forceinline__ fixed_pair rotate_pair(float x0, float x1, float r, float c, float s,
                                                  float fixed) {
  const float a = arith::mul(arith::to_f32(x0), r), b = arith::mul(arith::to_f32(x1), r);
  return {arith::mul(arith::sub(arith::mul(a, c), arith::mul(b, s)), fixed),
          arith::mul(arith::add(arith::mul(a, s), arith::mul(b, c)), fixed)};
}

/// The same without flushes, for 0 <= r <= 2^44 and |c|, |s| <= 1: with the same integers. A flush
/// changes a product here only where the result is below 2^-81. Added to a number from 2^-50 on,
/// that is less than a quarter of its last place and changes nothing; added to a smaller one, the
/// sum is below 2^-49 either way, and times fixed <= 4072 far below 1/2.
__device__ __forceinline__ fixed_pair rotate_ordinary_pair(float x0, float x1, float r, float c,
                                                           float s, float fixed) {
  using arith::detail::add_rn, arith::detail::mul_rn;
  const float a = mul_rn(x0, r), b = mul_rn(x1, r);
  return {mul_rn(add_rn(mul_rn(a, c), -mul_rn(b, s)), fixed),
          mul_rn(add_rn(mul_rn(a, s), mul_rn(b, c)), fixed)};
}

/// Digits of four integers, |v| <= 16319, given as v + 64 modulo 2^15 in the low bits of each word.
__device__ __forceinline__ void pack_digits(const std::uint32_t (&raised)[4], std::uint32_t& low,
                                            std::uint32_t& high) {
  // The low digit is ((v + 64) mod 128) - 64: in each byte, from [128, 256), less 64, sign flipped.
  const std::uint32_t x = pack_bytes(raised[0], raised[1], raised[2], raised[3]);
  low = ((x | 0x80808080u) - 0x40404040u) ^ 0x80808080u;
  high = pack_bytes(raised[0] >> 7, raised[1] >> 7, raised[2] >> 7, raised[3] >> 7);
}

/// Rows of q and k as digits. A row of a head is the work of 8 threads: thread t holds the entries
/// 4t + 32s ... 4t + 32s + 3 for all s, which are the whole of four lanes of order::Lanes<32>.
/// Grid: (32 positions of a sequence, `each` heads of q and then of k); 256 threads.
template <int Dim>
__global__ void __launch_bounds__(256)
    attention_fixed_kernel(attention_inputs a, attention_planes planes, int each) {
  constexpr int steps = Dim / 32;
  const std::int64_t halves = 2 * a.blocks(), n = blockIdx.x / halves;
  const std::int64_t position = blockIdx.x % halves * 32 + threadIdx.x / 8;
  const int t = threadIdx.x % 8, hd = static_cast<int>(a.s.head_dim);
  const bool within = position < a.s.seq;
  float2 c[steps], s[steps];
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    const int d = 4 * t + 32 * i;
    c[i] = s[i] = float2{0.0f, 0.0f};
    if (within && d < hd) {
      c[i] = *reinterpret_cast<const float2*>(a.cosine + (position * hd + d) / 2);
      s[i] = *reinterpret_cast<const float2*>(a.sine + (position * hd + d) / 2);
    }
  }
  const std::int64_t all = a.s.heads + a.s.kv_heads, first = std::int64_t{blockIdx.y} * each;
  const std::int64_t last = first + each < all ? first + each : all;
  for (std::int64_t h = first; h < last; ++h) {
    const bf16* x = a.qkv + (n * a.s.seq + position) * a.s.qkv_width() + h * hd;
    float v[steps][4];
    float lane[4] = {};
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const int d = 4 * t + 32 * i;
      uint2 word{0, 0};
      if (within && d < hd)
        word = *reinterpret_cast<const uint2*>(x + d);
      v[i][0] = arith::from_bits(word.x << 16);
      v[i][1] = arith::from_bits(word.x & 0xffff0000u);
      v[i][2] = arith::from_bits(word.y << 16);
      v[i][3] = arith::from_bits(word.y & 0xffff0000u);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        lane[e] = add_flushed(lane[e], mul_exact_flushed(v[i][e], v[i][e]));
    }
    float sum = add_flushed(add_flushed(lane[0], lane[1]), add_flushed(lane[2], lane[3]));
    for (int offset = 1; offset < 8; offset *= 2)
      sum = add_flushed(sum, __shfl_xor_sync(~0u, sum, offset));
    const bool bad = !arith::is_finite(sum);
    const float r = arith::rsqrt(arith::add(arith::mul(sum, a.scales.inverse_dim), a.eps));
    const bool ordinary = a.eps >= 0.0f && r <= 0x1p44f;
    const bool is_key = h >= a.s.heads;
    const std::int64_t head = is_key ? n * a.s.kv_heads + h - a.s.heads : n * a.s.heads + h;
    const std::int64_t block = head * a.blocks() + position / attention_block;
    std::uint32_t* out = reinterpret_cast<std::uint32_t*>(
        (is_key ? planes.k : planes.q) + block * 2 * attention_block * Dim +
        t / 4 * 16 * attention_block + position % attention_block * 16);
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      std::uint32_t raised[4], low, high;
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        const float cosine = e == 0 ? c[i].x : c[i].y, sine = e == 0 ? s[i].x : s[i].y;
        if (ordinary) {
          // Within 16297 (attention_scales): the integer plus 64 appears in the low bits.
          const fixed_pair f =
              rotate_ordinary_pair(v[i][e], v[i][e + 1], r, cosine, sine, a.scales.fixed);
          raised[e] = arith::bits(arith::detail::add_rn(f.first, 0x1.80008p23f));
          raised[e + 1] = arith::bits(arith::detail::add_rn(f.second, 0x1.80008p23f));
        } else {
          const fixed_pair f = rotate_pair(v[i][e], v[i][e + 1], r, cosine, sine, a.scales.fixed);
          raised[e] = arith::to_int(f.first, nn::attention_limit) + 64;
          raised[e + 1] = arith::to_int(f.second, nn::attention_limit) + 64;
        }
      }
      pack_digits(raised, low, high);
      const int at = 8 * i * attention_block + t % 4;
      out[at] = bad ? 0 : low;
      out[at + attention_block * Dim / 4] = bad ? 0 : high;
    }
    if (t == 0)
      planes.bad_row[(n * all + h) * a.blocks() * attention_block + position] = bad;
  }
}

/// Largest magnitude of two bf16 and what was found before; 7f80 and above if not finite.
__device__ __forceinline__ std::uint32_t larger_of_pair(std::uint32_t so_far, std::uint32_t pair) {
  return max(so_far, max(pair & 0x7fffu, pair >> 16 & 0x7fffu));
}

/// Blocks of v as codes. Grid: (sequence, kv head, block); 256 threads, four to a row.
template <int Dim>
__global__ void __launch_bounds__(256)
    attention_values_kernel(attention_inputs a, attention_planes planes) {
  constexpr int chunks = Dim / 32, pitch = attention_block + 4; // 8 entries a chunk, 4 threads
  __shared__ std::uint32_t tile[Dim * pitch / 4];
  __shared__ std::uint32_t largest, bad[2];
  const std::int64_t block = blockIdx.x % a.blocks(), head = blockIdx.x / a.blocks();
  const std::int64_t n = head / a.s.kv_heads, g = head % a.s.kv_heads;
  const int j = threadIdx.x / 4, t = threadIdx.x % 4, hd = static_cast<int>(a.s.head_dim);
  const std::int64_t position = block * attention_block + j;
  if (threadIdx.x == 0)
    largest = bad[0] = bad[1] = 0;
  __syncthreads();
  uint4 v[chunks];
  std::uint32_t most = 0;
  const bf16* x =
      a.qkv + (n * a.s.seq + position) * a.s.qkv_width() + (a.s.heads + a.s.kv_heads + g) * hd;
#pragma unroll
  for (int i = 0; i < chunks; ++i) {
    const int d = 8 * t + 32 * i;
    v[i] = uint4{0, 0, 0, 0};
    if (position < a.s.seq && d < hd)
      v[i] = *reinterpret_cast<const uint4*>(x + d);
    most = larger_of_pair(larger_of_pair(most, v[i].x), v[i].y);
    most = larger_of_pair(larger_of_pair(most, v[i].z), v[i].w);
  }
  most = max(most, __shfl_xor_sync(~0u, most, 1));
  most = max(most, __shfl_xor_sync(~0u, most, 2));
  const bool usable = most < 0x7f80u;
  if (usable && t == 0)
    atomicMax(&largest, most);
  const std::int64_t rows = a.blocks() * attention_block;
  if (t == 0 && position < a.s.seq &&
      (!usable ||
       planes.bad_row[(n * (a.s.heads + a.s.kv_heads) + a.s.heads + g) * rows + position] != 0))
    atomicOr(&bad[j / 32], 1u << j % 32);
  __syncthreads();
  float step = arith::div(arith::to_f32(bf16{static_cast<std::uint16_t>(largest)}), 127.0f);
  step = step > 0x1p-100f ? step : 0.0f;
  const float inverse = step > 0.0f ? arith::div(1.0f, step) : 0.0f;
  std::int8_t* column = reinterpret_cast<std::int8_t*>(tile) + attention_place(j);
#pragma unroll
  for (int i = 0; i < chunks; ++i) {
    const std::uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const std::uint32_t word = words[e / 2];
      const float f = arith::from_bits(e % 2 == 0 ? word << 16 : word & 0xffff0000u);
      // arith::to_int of arith::mul: |f| inverse is below 127.1, and what a flush would make zero
      // is below 2^-26 and becomes 0 anyway.
      const std::int32_t code = nn::detail::nearest(arith::detail::mul_rn(f, inverse));
      column[(8 * t + 32 * i + e) * pitch] = static_cast<std::int8_t>(usable ? code : 0);
    }
  }
  __syncthreads();
  std::uint32_t* out = reinterpret_cast<std::uint32_t*>(planes.v) +
                       std::int64_t{blockIdx.x} * Dim * attention_block / 4;
  for (int e = threadIdx.x; e < Dim * attention_block / 4; e += 256)
    out[e] = tile[e / 4 % Dim * (pitch / 4) + e / (4 * Dim) * 4 + e % 4];
  if (threadIdx.x == 0) {
    planes.v_weight[blockIdx.x] = arith::mul(step, arith::div(1.0f, 127.0f));
    planes.bad_key[blockIdx.x] = std::uint64_t{bad[1]} << 32 | bad[0];
  }
}

template <int Dim>
void prepare_attention(cudaStream_t stream, const attention_inputs& a,
                       const attention_planes& planes) {
  const char* const where = "ordo::cuda::prepare_attention";
  const std::int64_t all = a.s.heads + a.s.kv_heads, halves = a.s.batch * a.blocks() * 2;
  // Threads keep the rope table's entries for `each` heads.
  const int each = halves * pieces<std::int64_t>(all, 4) >= 1024 ? 4 : 1;
  launch(
      where, attention_fixed_kernel<Dim>,
      dim3(static_cast<unsigned>(halves), static_cast<unsigned>(pieces<std::int64_t>(all, each))),
      dim3(256), 0, stream, a, planes, each);
  launch(where, attention_values_kernel<Dim>,
         dim3(static_cast<unsigned>(a.s.batch * a.s.kv_heads * a.blocks())), dim3(256), 0, stream,
         a, planes);
}

} // namespace detail

/// Fills all planes from qkv.
///
/// Bits: those of the definition's fixed-point rows, steps and codes. Cost: qkv is read once, the
/// planes are written once.
inline void prepare_attention(cudaStream_t stream, const attention_inputs& a,
                              const attention_planes& planes) {
  switch (attention_padded_dim(a.s.head_dim)) {
  case 32:
    return detail::prepare_attention<32>(stream, a, planes);
  case 64:
    return detail::prepare_attention<64>(stream, a, planes);
  case 128:
    return detail::prepare_attention<128>(stream, a, planes);
  default:
    return detail::prepare_attention<256>(stream, a, planes);
  }
}

#endif // __CUDACC__

} // namespace ordo::cuda
