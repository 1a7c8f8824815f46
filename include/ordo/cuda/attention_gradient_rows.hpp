// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The first stage of attention's backward pass on CUDA: integer forms of q, k, v and dO by rows
/// and by columns, which rows are bad or poisoned, and the magnitudes that the units follow.

#include <cstdint>

#include <ordo/cuda/attention_gradient.hpp>

namespace ordo::cuda::detail {

/// Entries between rows of a block of 64 rows in shared memory: 4 words modulo the 32 banks.
template <int Dim>
inline constexpr int row_pitch = Dim + 8;

#if defined(__CUDACC__)

/// A row of a head is the work of 8 threads: thread t holds the entries 4t + 32i ... 4t + 32i + 3
/// for all i, which are the whole of four lanes of order::Lanes<32>. This joins the lanes.
__device__ __forceinline__ float join_row(const float (&lane)[4]) {
  float sum = add_flushed(add_flushed(lane[0], lane[1]), add_flushed(lane[2], lane[3]));
  for (int offset = 1; offset < 8; offset *= 2)
    sum = add_flushed(sum, __shfl_xor_sync(~0u, sum, offset));
  return sum;
}

/// Four bf16 as binary32; subnormals stay, the flushing operations that read them flush.
__device__ __forceinline__ void widen(uint2 x, float* v) {
  v[0] = arith::from_bits(x.x << 16);
  v[1] = arith::from_bits(x.x & 0xffff0000u);
  v[2] = arith::from_bits(x.y << 16);
  v[3] = arith::from_bits(x.y & 0xffff0000u);
}

/// The largest magnitude of a row from each thread's, as the bits of a binary32 value; 7f800000 and
/// above if the row is not finite.
__device__ __forceinline__ std::uint32_t join_magnitude(std::uint32_t most) {
  for (int offset = 1; offset < 8; offset *= 2)
    most = max(most, __shfl_xor_sync(~0u, most, offset));
  return most < 0x0080u ? 0 : most << 16;
}

/// Two bf16 with subnormals as zeros.
__device__ __forceinline__ std::uint32_t flush_pair(std::uint32_t pair) {
  return ((pair & 0x00007f80u) != 0 ? pair & 0x0000ffffu : 0) |
         ((pair & 0x7f800000u) != 0 ? pair & 0xffff0000u : 0);
}

/// A thread's part of a row of bf16, zeros where there is none.
template <int Dim>
using row_part = uint2[Dim / 32];
template <int Dim>
__device__ __forceinline__ void read_part(row_part<Dim>& part, const bf16* row, bool present, int t,
                                          int hd) {
#pragma unroll
  for (int i = 0; i < Dim / 32; ++i) {
    const int d = 4 * t + 32 * i;
    part[i] = present && d < hd ? *reinterpret_cast<const uint2*>(row + d) : uint2{0, 0};
  }
}

/// The fixed-point row of q or k, by its 8 threads, to `out` in shared memory; zeros for a bad row.
/// Returns whether it is bad.
template <int Dim>
__device__ __forceinline__ bool fixed_row(const attention_inputs& a, const row_part<Dim>& x,
                                          std::int64_t position, bool present, int t,
                                          std::int16_t* out) {
  constexpr int steps = Dim / 32;
  const int hd = static_cast<int>(a.s.head_dim);
  float v[steps][4], lane[4] = {};
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    widen(x[i], v[i]);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      lane[e] = add_flushed(lane[e], mul_exact_flushed(v[i][e], v[i][e]));
  }
  const float sum = join_row(lane);
  const bool bad = !arith::is_finite(sum);
  const float r = arith::rsqrt(arith::add(arith::mul(sum, a.scales.inverse_dim), a.eps));
  const bool ordinary = a.eps >= 0.0f && r <= 0x1p44f;
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    const int d = 4 * t + 32 * i;
    uint2 pairs{0, 0};
    if (present && d < hd && !bad) {
      const std::int64_t at = (position * hd + d) / 2;
      const float2 c = *reinterpret_cast<const float2*>(a.cosine + at);
      const float2 s = *reinterpret_cast<const float2*>(a.sine + at);
      const auto integers = [&](float x0, float x1, float cosine, float sine) {
        if (ordinary) {
          const fixed_pair f = rotate_ordinary_pair(x0, x1, r, cosine, sine, a.scales.fixed);
          return pair_of(nn::detail::nearest(f.first), nn::detail::nearest(f.second));
        }
        const fixed_pair f = rotate_pair(x0, x1, r, cosine, sine, a.scales.fixed);
        return pair_of(arith::to_int(f.first, nn::attention_limit),
                       arith::to_int(f.second, nn::attention_limit));
      };
      pairs.x = integers(v[i][0], v[i][1], c.x, s.x);
      pairs.y = integers(v[i][2], v[i][3], c.y, s.y);
    }
    *reinterpret_cast<uint2*>(out + d) = pairs;
  }
  return bad;
}

/// A block of 64 rows as a slab [64, Dim] of balanced digits. `entries(row, d, v)` gives the
/// integers at d ... d + 7 of a row. 256 threads.
template <int Dim, class Entries>
__device__ __forceinline__ void write_rows(uint4* slab, const Entries& entries) {
  for (int f = threadIdx.x; f < Dim * 4; f += 256) {
    const int row = f % 64, step = f / 64;
    uint4 low, high;
#pragma unroll
    for (int w = 0; w < 4; w += 2) {
      std::int32_t v[8];
      entries(row, 16 * step + 4 * w, v);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const std::uint32_t raised[4] = {v[4 * e] + 64u, v[4 * e + 1] + 64u, v[4 * e + 2] + 64u,
                                         v[4 * e + 3] + 64u};
        pack_digits(raised, word(low, w + e), word(high, w + e));
      }
    }
    slab[f] = low;
    slab[f + row_digit<Dim>] = high;
  }
}

/// A block of 64 rows as a slab [Dim, 64] of bytes. `entry(row, d)` gives an integer.
template <int Dim, class Entry>
__device__ __forceinline__ void write_columns(uint4* slab, const Entry& entry) {
  for (int f = threadIdx.x; f < Dim * 4; f += 256) {
    const int d = f % Dim, step = f / Dim, row = step * 16;
    uint4 low, high;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const std::uint32_t first = pair_of(entry(row + 2 * w, d), entry(row + 2 * w + 1, d));
      const std::uint32_t second = pair_of(entry(row + 2 * w + 8, d), entry(row + 2 * w + 9, d));
      word(low, w) = low_bytes(first, second);
      word(high, w) = high_bytes(first, second);
    }
    uint4* to = slab + column_word<Dim>(d, step);
    to[0] = low;
    to[column_digit<Dim>] = high;
  }
}

/// Eight integers of 16 bits in shared memory.
__device__ __forceinline__ void read_integers(const std::int16_t* x, std::int32_t (&v)[8]) {
  const uint4 words = *reinterpret_cast<const uint4*>(x);
  const std::uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    v[2 * e] = static_cast<std::int16_t>(pairs[e]);
    v[2 * e + 1] = static_cast<std::int32_t>(pairs[e]) >> 16;
  }
}
/// Eight values times a power of two; they are within the limit by the choice of the shift, and
/// what a flush would make zero becomes 0 anyway.
__device__ __forceinline__ void read_values(const bf16* x, float scale, std::int32_t (&v)[8]) {
  const uint4 words = *reinterpret_cast<const uint4*>(x);
  float f[8];
  widen(uint2{words.x, words.y}, f);
  widen(uint2{words.z, words.w}, f + 4);
#pragma unroll
  for (int e = 0; e < 8; ++e)
    v[e] = nn::detail::nearest(arith::detail::mul_rn(f[e], scale));
}

/// What the 8 threads of each row find out, in shared memory.
struct block_facts {
  float scale[64];       ///< 2^shift of the row of values
  std::uint32_t rows[2]; ///< a bit for each poisoned or bad row
  std::uint32_t largest; ///< magnitude
  std::int32_t most;     ///< shift
};
__device__ __forceinline__ void start_facts(block_facts& facts) {
  if (threadIdx.x == 0) {
    facts.rows[0] = facts.rows[1] = facts.largest = 0;
    facts.most = -127;
  }
  __syncthreads();
}
/// Notes the alignment of one row of values, whose largest magnitude is `largest`; returns
/// 2^-shift.
__device__ __forceinline__ float note_row(block_facts& facts, int row, bool first_thread,
                                          std::uint32_t largest, std::int32_t limit) {
  const std::int32_t shift = largest == 0 ? 0 : nn::aligned_shift(largest, limit, 126);
  if (first_thread) {
    facts.scale[row] = arith::pow2(shift);
    if (largest != 0) {
      atomicMax(&facts.largest, largest);
      atomicMax(&facts.most, shift);
    }
  }
  return arith::pow2(-shift);
}

/// Block `item` of k and v, of (sequence, kv head, block). 256 threads, 32 rows at a time.
template <int Dim>
__device__ __forceinline__ void prepare_keys(const attention_inputs& a, const gradient_buffers& b,
                                             std::int64_t item) {
  constexpr int pitch = row_pitch<Dim>;
  extern __shared__ __align__(16) unsigned char shared[];
  std::int16_t* fixed = reinterpret_cast<std::int16_t*>(shared);
  bf16* values = reinterpret_cast<bf16*>(fixed + 64 * pitch);
  __shared__ block_facts facts;
  start_facts(facts);
  const std::int64_t block = item % a.blocks(), head = item / a.blocks();
  const std::int64_t n = head / a.s.kv_heads, g = head % a.s.kv_heads;
  const int t = threadIdx.x % 8, hd = static_cast<int>(a.s.head_dim);
  row_part<Dim> keys[2], parts[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t position = block * 64 + 32 * half + threadIdx.x / 8;
    const bf16* k = a.qkv + (n * a.s.seq + position) * a.s.qkv_width() + (a.s.heads + g) * hd;
    read_part<Dim>(keys[half], k, position < a.s.seq, t, hd);
    read_part<Dim>(parts[half], k + a.s.kv_heads * hd, position < a.s.seq, t, hd);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 32 * half + static_cast<int>(threadIdx.x) / 8;
    const std::int64_t position = block * 64 + row;
    const bool present = position < a.s.seq;
    bool bad = fixed_row<Dim>(a, keys[half], position, present, t, fixed + row * pitch);
    const row_part<Dim>& x = parts[half];
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < Dim / 32; ++i)
      most = larger_of_pair(larger_of_pair(most, x[i].x), x[i].y);
    std::uint32_t largest = join_magnitude(most);
    bad = bad || largest >= 0x7f800000u;
    largest = bad ? 0 : largest;
#pragma unroll
    for (int i = 0; i < Dim / 32; ++i) {
      *reinterpret_cast<uint2*>(values + row * pitch + 4 * t + 32 * i) =
          bad ? uint2{0, 0} : uint2{flush_pair(x[i].x), flush_pair(x[i].y)};
    }
    const float scale = note_row(facts, row, t == 0, largest, a.scales.row_limit);
    if (t == 0) {
      b.v_scale[item * 64 + row] = scale;
      if (bad)
        atomicOr(&facts.rows[row / 32], 1u << row % 32);
    }
  }
  __syncthreads();
  const std::int64_t slab = item * (Dim * 8);
  write_rows<Dim>(b.k_rows + slab, [&](int row, int d, std::int32_t(&v)[8]) {
    read_integers(fixed + row * pitch + d, v);
  });
  write_rows<Dim>(b.v_rows + slab, [&](int row, int d, std::int32_t(&v)[8]) {
    read_values(values + row * pitch + d, facts.scale[row], v);
  });
  write_columns<Dim>(b.k_columns + slab, [&](int row, int d) { return fixed[row * pitch + d]; });
  if (threadIdx.x == 0) {
    b.bad_key[item] = std::uint64_t{facts.rows[1]} << 32 | facts.rows[0];
    b.v_most[item] = facts.most;
    atomicMax(b.largest_v + head, facts.largest);
  }
}

/// Block `item` of q and dO, of (sequence, head, block). 256 threads, 32 rows at a time.
template <int Dim>
__device__ __forceinline__ void prepare_queries(const attention_inputs& a,
                                                const attention_gradient& gradient,
                                                const gradient_buffers& b, std::int64_t item) {
  constexpr int pitch = row_pitch<Dim>;
  extern __shared__ __align__(16) unsigned char shared[];
  std::int16_t* fixed = reinterpret_cast<std::int16_t*>(shared);
  bf16* values = reinterpret_cast<bf16*>(fixed + 64 * pitch);
  __shared__ block_facts facts;
  start_facts(facts);
  const std::int64_t block = item % a.blocks(), head = item / a.blocks();
  const std::int64_t n = head / a.s.heads, h = head % a.s.heads;
  const int t = threadIdx.x % 8, hd = static_cast<int>(a.s.head_dim);
  row_part<Dim> queries[2], gradients[2], outputs[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t position = block * 64 + 32 * half + threadIdx.x / 8;
    const std::int64_t token = n * a.s.seq + position, at = token * a.s.out_width() + h * hd;
    const bool present = position < a.s.seq;
    read_part<Dim>(queries[half], a.qkv + token * a.s.qkv_width() + h * hd, present, t, hd);
    read_part<Dim>(gradients[half], gradient.d_out + at, present, t, hd);
    read_part<Dim>(outputs[half], gradient.out + at, present, t, hd);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = 32 * half + static_cast<int>(threadIdx.x) / 8;
    const std::int64_t position = block * 64 + row;
    const bool present = position < a.s.seq;
    fixed_row<Dim>(a, queries[half], position, present, t, fixed + row * pitch);
    const row_part<Dim>& x = gradients[half];
    float lane[4] = {};
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < Dim / 32; ++i) {
      most = larger_of_pair(larger_of_pair(most, x[i].x), x[i].y);
      const bool inside = present && 4 * t + 32 * i < hd;
      float v[4], o[4];
      widen(x[i], v);
      widen(outputs[half][i], o);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        lane[e] = inside ? add_flushed(lane[e], mul_exact_flushed(v[e], o[e])) : lane[e];
    }
    const float delta = join_row(lane);
    std::uint32_t largest = join_magnitude(most);
    const bool poisoned =
        largest >= 0x7f800000u ||
        (present && arith::is_nan(gradient.log_sum_exp[head * a.s.seq + position]));
    largest = poisoned ? 0 : largest;
#pragma unroll
    for (int i = 0; i < Dim / 32; ++i) {
      *reinterpret_cast<uint2*>(values + row * pitch + 4 * t + 32 * i) =
          poisoned ? uint2{0, 0} : uint2{flush_pair(x[i].x), flush_pair(x[i].y)};
    }
    const float scale = note_row(facts, row, t == 0, largest, a.scales.row_limit);
    if (t == 0) {
      b.o_scale[item * 64 + row] = scale;
      b.delta[item * 64 + row] = poisoned ? 0.0f : delta;
      if (poisoned)
        atomicOr(&facts.rows[row / 32], 1u << row % 32);
    }
  }
  __syncthreads();
  const std::int64_t slab = item * (Dim * 8);
  const std::int32_t block_shift = nn::aligned_shift(facts.largest, nn::attention_limit, 126);
  const float block_scale = arith::pow2(block_shift);
  write_rows<Dim>(b.q_rows + slab, [&](int row, int d, std::int32_t(&v)[8]) {
    read_integers(fixed + row * pitch + d, v);
  });
  write_rows<Dim>(b.o_rows + slab, [&](int row, int d, std::int32_t(&v)[8]) {
    read_values(values + row * pitch + d, facts.scale[row], v);
  });
  write_columns<Dim>(b.q_columns + slab, [&](int row, int d) { return fixed[row * pitch + d]; });
  write_columns<Dim>(b.o_columns + slab, [&](int row, int d) {
    const float f = arith::from_bits(std::uint32_t{values[row * pitch + d].bits} << 16);
    return nn::detail::nearest(arith::detail::mul_rn(f, block_scale));
  });
  if (threadIdx.x == 0) {
    b.poisoned[item] = std::uint64_t{facts.rows[1]} << 32 | facts.rows[0];
    b.o_shift[item] = block_shift;
    b.o_most[item] = facts.most;
    atomicMax(b.largest_o + group_of(a.s, head), facts.largest);
    if ((facts.rows[0] | facts.rows[1]) != 0)
      atomicOr(b.any_poisoned + group_of(a.s, head), 1u);
  }
}

/// Grid: the blocks of k and v, then those of q and dO.
template <int Dim>
__global__ void __launch_bounds__(256, Dim <= 128 ? 4 : 2)
    gradient_rows_kernel(__grid_constant__ const attention_inputs a,
                         __grid_constant__ const attention_gradient gradient,
                         __grid_constant__ const gradient_buffers b, std::int64_t keys) {
  const std::int64_t item = blockIdx.x;
  if (item < keys)
    prepare_keys<Dim>(a, b, item);
  else
    prepare_queries<Dim>(a, gradient, b, item - keys);
}

/// Fills the integer forms of all blocks.
template <int Dim>
void prepare_gradient(cudaStream_t stream, const attention_inputs& a,
                      const attention_gradient& gradient, const gradient_buffers& b) {
  const char* const where = "ordo::cuda::attention_backward";
  const std::int64_t groups = a.s.batch * a.s.kv_heads;
  const std::size_t shared = 2 * 64 * row_pitch<Dim> * sizeof(bf16);
  check(cudaMemsetAsync(b.largest_o, 0, static_cast<std::size_t>(3 * groups) * 4, stream), where);
  const std::int64_t keys = groups * a.blocks(), queries = a.s.batch * a.s.heads * a.blocks();
  launch(where, gradient_rows_kernel<Dim>, dim3(static_cast<unsigned>(keys + queries)), dim3(256),
         shared, stream, a, gradient, b, keys);
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
