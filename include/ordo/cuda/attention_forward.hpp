// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The forward pass of attention on CUDA. Definition: reference/attention.hpp.
///
/// A warp owns 16 query rows of one head and goes through the key blocks in ascending order; the
/// warps of a thread block share each block of keys and values in shared memory. All products are
/// int8 on tensor cores: four products of digits for q k, one of p and the codes of v.

#include <cstddef>
#include <cstdint>

#include <ordo/cuda/attention_forward_wgmma.hpp>
#include <ordo/cuda/attention_softmax.hpp>

namespace ordo::cuda {

/// Bytes of scratch that `attention_forward` needs, whatever the window.
inline std::size_t attention_forward_scratch_bytes(const nn::attention_shape& s) {
  return attention_planes_bytes(s);
}

#if defined(__CUDACC__)
namespace detail {

/// One key block in shared memory, as in `attention_planes`: k, then v.
template <int Dim>
struct key_tile {
  static constexpr int k_bytes = 2 * attention_block * Dim, v_bytes = attention_block * Dim;
  static constexpr int bytes = k_bytes + v_bytes;

  /// Starts the copies of block `block` of all (sequence, kv head) blocks.
  template <int Threads>
  static __device__ __forceinline__ void load(char* tile, const attention_planes& p,
                                              std::int64_t block) {
    const std::int8_t* k = p.k + block * k_bytes;
    const std::int8_t* v = p.v + block * v_bytes;
#pragma unroll
    for (int i = 0; i < pieces(k_bytes / 16, Threads); ++i) {
      const int e = threadIdx.x + i * Threads;
      if (k_bytes / 16 % Threads == 0 || e < k_bytes / 16)
        copy_16(tile + e * 16, k + e * 16);
    }
#pragma unroll
    for (int i = 0; i < pieces(v_bytes / 16, Threads); ++i) {
      const int e = threadIdx.x + i * Threads;
      if (v_bytes / 16 % Threads == 0 || e < v_bytes / 16)
        copy_16(tile + k_bytes + e * 16, v + e * 16);
    }
  }
};

/// The rows of one warp and their products.
template <int Dim>
struct query_rows : attention_rows<Dim> {
  using rows = attention_rows<Dim>;
  using rows::keys, rows::tiles, rows::o;
  static constexpr int steps = Dim / 32;
  /// Digits of q stay in registers where there is room.
  static constexpr bool keeps_q = Dim <= 128;

  const std::uint32_t* source; ///< the lane's word of the low digits of its first row
  std::uint32_t q[2][keeps_q ? steps : 1][4];

  __device__ __forceinline__ void fragment(std::uint32_t (&a)[4], int digit, int step) const {
    const std::uint32_t* from = source + (digit * keys * Dim + step * 32 * keys) / 4;
    a[0] = from[0];
    a[1] = from[8 * 4];
    a[2] = from[keys * 4];
    a[3] = from[keys * 4 + 8 * 4];
  }

  __device__ __forceinline__ void begin(const attention_forward_arguments& a, std::int64_t head,
                                        int first) {
    const int lane = threadIdx.x % 32;
    const std::int64_t blocks = pieces<std::int64_t>(a.s.seq, keys);
    source = reinterpret_cast<const std::uint32_t*>(a.planes.q + (head * blocks + first / keys) *
                                                                     2 * keys * Dim) +
             (first % keys + lane / 4) * 4 + lane % 4;
    if constexpr (keeps_q) {
#pragma unroll
      for (int i = 0; i < 2 * steps; ++i)
        fragment(q[i / steps][i % steps], i / steps, i % steps);
    }
    rows::begin(a, first);
  }

  /// s = q k for the block's keys, exact: |s| < 2^28 (attention_scales). The sum of products of
  /// high digits is below 2^15 in magnitude, that of mixed ones below 2^20, that of low ones at
  /// most 2^20.
  __device__ __forceinline__ void dots(const char* tile, std::int32_t (&s)[tiles][4]) const {
    const int lane = threadIdx.x % 32;
    const char* from = tile + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 16 * keys;
#pragma unroll
    for (int j = 0; j < tiles; j += 2) {
      std::int32_t high[2][4] = {}, mixed[2][4] = {}, low[2][4] = {};
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        std::uint32_t k_low[4], k_high[4], q_low[4], q_high[4];
        load_tiles(k_low, from + j * 8 * 16 + i * 32 * keys);
        load_tiles(k_high, from + keys * Dim + j * 8 * 16 + i * 32 * keys);
        if constexpr (keeps_q) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            q_low[e] = q[0][i][e];
            q_high[e] = q[1][i][e];
          }
        } else {
          fragment(q_low, 0, i);
          fragment(q_high, 1, i);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          mma_s8(low[e], q_low, k_low[2 * e], k_low[2 * e + 1]);
          mma_s8(high[e], q_high, k_high[2 * e], k_high[2 * e + 1]);
          mma_s8(mixed[e], q_high, k_low[2 * e], k_low[2 * e + 1]);
          mma_s8(mixed[e], q_low, k_high[2 * e], k_high[2 * e + 1]);
        }
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        s[j + e / 4][e % 4] =
            (high[e / 4][e % 4] * 128 + mixed[e / 4][e % 4]) * 128 + low[e / 4][e % 4];
      }
    }
  }

  /// o = o + w I with I = p codes. w is 0 or above 2^-126 and I an integer, |I| < 2^21: no product
  /// is to be flushed. A w of -0 with p = 0 leaves o as it is.
  __device__ __forceinline__ void add_values(const char* tile, const std::uint32_t (&p)[2][4],
                                             const float (&w)[2]) {
    const int lane = threadIdx.x % 32;
    const char* from = tile + key_tile<Dim>::k_bytes + lane % 8 * 16 + lane / 8 * 16 * Dim;
    const std::int32_t zero[4] = {integer_bits, integer_bits, integer_bits, integer_bits};
#pragma unroll
    for (int d = 0; d < Dim / 8; ++d) {
      std::uint32_t v[4];
      std::int32_t product[4];
      load_tiles(v, from + d * 8 * 16);
      mma_s8(product, p[0], v[0], v[1], zero);
      mma_s8(product, p[1], v[2], v[3]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float term = arith::detail::mul_rn(w[e / 2], from_integer_bits(product[e]));
        o[d][e] = add_flushed(o[d][e], term);
      }
    }
  }

  /// Takes in the key block that begins at `first`; `weight` is the block's step * (1/127).
  __device__ __forceinline__ void attend(const char* tile, int first, float scale, float weight,
                                         std::uint64_t bad) {
    std::int32_t s[tiles][4];
    std::uint32_t p[2][4];
    float w[2];
    dots(tile, s);
    rows::weigh(first, scale, weight, bad, s, p, w);
    add_values(tile, p, w);
  }
};

/// Thread block: `Warps` times 16 queries of each of `Heads` heads of one group. Grid: (query tile,
/// the last first since it sees the most; sequence, kv head, heads of the group).
template <int Dim, int Heads, int Warps, int Together>
__global__ void __launch_bounds__(Heads* Warps * 32, Together)
    attention_forward_kernel(attention_forward_arguments a) {
  constexpr int threads = Heads * Warps * 32, queries = 16 * Warps, keys = attention_block;
  constexpr int stages = Dim <= 128 ? 2 : 1;
  using tile = key_tile<Dim>;
  extern __shared__ __align__(16) char memory[];
  const int seq = static_cast<int>(a.s.seq), blocks = pieces(seq, keys);
  const int tiles = pieces(seq, queries), items = static_cast<int>(a.s.batch * a.s.heads) / Heads;
  const int block = static_cast<int>(blockIdx.x), item = block % items;
  const int first = (tiles - 1 - block / items) * queries, warp = threadIdx.x / 32;
  const std::int64_t head = std::int64_t{item} * Heads + warp / Warps;
  const std::int64_t n = head / a.s.heads, h = head % a.s.heads;
  const std::int64_t kv = n * a.s.kv_heads + h / a.s.group();
  const int warp_first = first + warp % Warps * 16;
  query_rows<Dim> rows;
  rows.begin(a, head, min(warp_first, blocks * keys - 16));
  const int window = static_cast<int>(a.s.window);
  const int begin = max(first - window + 1, 0) / keys;
  const int end = window == 0 ? begin : pieces(min(first + queries, seq), keys);
  if (stages > 1 && begin < end) {
    tile::template load<threads>(memory, a.planes, kv * blocks + begin);
    copies_commit();
  }
  for (int b = begin; b < end; ++b) {
    char* current = memory + (stages > 1 ? (b - begin) % 2 * tile::bytes : 0);
    if constexpr (stages == 1) {
      __syncthreads();
      tile::template load<threads>(current, a.planes, kv * blocks + b);
      copies_commit();
    }
    copies_wait<0>();
    __syncthreads();
    if (stages > 1 && b + 1 < end) {
      tile::template load<threads>(memory + (b + 1 - begin) % 2 * tile::bytes, a.planes,
                                   kv * blocks + b + 1);
      copies_commit();
    }
    const int key = b * keys;
    if (key <= warp_first + 15 && key + keys > warp_first - window + 1 && warp_first < seq)
      rows.attend(current, key, a.logit, a.planes.v_weight[kv * blocks + b],
                  a.planes.bad_key[kv * blocks + b]);
  }
  if (warp_first < seq)
    rows.finish(a, n, h);
}

template <int Dim, int Heads, int Warps, int Together>
void launch_attention_forward(cudaStream_t stream, const attention_forward_arguments& a) {
  const std::int64_t grid =
      a.s.batch * a.s.heads / Heads * pieces<std::int64_t>(a.s.seq, 16 * Warps);
  launch("ordo::cuda::attention_forward", attention_forward_kernel<Dim, Heads, Warps, Together>,
         dim3(static_cast<unsigned>(grid)), dim3(Heads * Warps * 32),
         key_tile<Dim>::bytes * (Dim <= 128 ? 2 : 1), stream, a);
}

/// Heads of one group share the tiles of a thread block where the group allows it.
template <int Dim>
void attend(cudaStream_t stream, const attention_forward_arguments& a) {
  if (a.s.group() % 2 == 0)
    launch_attention_forward<Dim, 2, 4, 1>(stream, a);
  else
    launch_attention_forward<Dim, 1, 4, 1>(stream, a);
}

} // namespace detail

/// o_i and log-sum-exp of every query row.
///
/// Shape: qkv of `a` [batch * seq, (heads + 2 kv_heads) hd]; out [batch * seq, heads * hd];
/// log_sum_exp [batch, heads, seq]; scratch of attention_forward_scratch_bytes, 128-byte aligned;
/// `warpgroups`: whether to use their instructions where there are any, tuning.
/// Order: a row's key blocks ascending; everything else is integers.
/// Bits: those of reference::attention_forward with blocks of 64. Sync: none.
inline void attention_forward(cudaStream_t stream, const attention_inputs& a, bf16* out,
                              float* log_sum_exp, void* scratch, bool warpgroups = true) {
  if (a.s.tokens() == 0)
    return;
  const attention_planes planes = make_attention_planes(a.s, scratch);
  prepare_attention(stream, a, planes);
  const detail::attention_forward_arguments arguments{a.s, a.scales.logit, planes, out,
                                                      log_sum_exp};
  switch (attention_padded_dim(a.s.head_dim)) {
  case 32:
    return detail::attend<32>(stream, arguments);
  case 64:
    return detail::attend<64>(stream, arguments);
  case 128:
    if (warpgroups && hopper::available())
      return detail::attend_wgmma(stream, arguments);
    return detail::attend<128>(stream, arguments);
  default:
    return detail::attend<256>(stream, arguments);
  }
}

#endif // __CUDACC__

} // namespace ordo::cuda
