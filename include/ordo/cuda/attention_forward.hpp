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

#include <ordo/cuda/attention_integers.hpp>

namespace ordo::cuda {

/// Bytes of scratch that `attention_forward` needs, whatever the window.
inline std::size_t attention_forward_scratch_bytes(const nn::attention_shape& s) {
  return attention_planes_bytes(s);
}

#if defined(__CUDACC__)
namespace detail {

/// What the query kernel reads and writes.
struct attention_forward_arguments {
  nn::attention_shape s;
  float logit;
  attention_planes planes;
  bf16* out;
  float* log_sum_exp;
};

/// One key block in shared memory. Rows are 16 bytes longer than their content, an odd number of
/// 16-byte units, so that eight rows of one column lie in different banks.
template <int Dim>
struct key_tile {
  static constexpr int keys = attention_block, k_pitch = Dim + 16, v_pitch = keys + 16;
  static constexpr int k_bytes = 2 * keys * k_pitch, bytes = k_bytes + Dim * v_pitch;

  /// Starts the copies of block `block` of all (sequence, kv head) blocks.
  template <int Threads>
  static __device__ __forceinline__ void load(char* tile, const attention_planes& p,
                                              std::int64_t block) {
    constexpr int row_chunks = Dim / 16, k_chunks = 2 * keys * row_chunks,
                  v_chunks = Dim * keys / 16;
    const std::int8_t* k = p.k + block * 2 * keys * Dim;
    const std::int8_t* v = p.v + block * keys * Dim;
#pragma unroll
    for (int i = 0; i < pieces(k_chunks, Threads); ++i) {
      const int e = threadIdx.x + i * Threads;
      if (k_chunks % Threads == 0 || e < k_chunks)
        copy_16(tile + e / row_chunks * k_pitch + e % row_chunks * 16, k + e * 16);
    }
#pragma unroll
    for (int i = 0; i < pieces(v_chunks, Threads); ++i) {
      const int e = threadIdx.x + i * Threads;
      if (v_chunks % Threads == 0 || e < v_chunks)
        copy_16(tile + k_bytes + e / (keys / 16) * v_pitch + e % (keys / 16) * 16, v + e * 16);
    }
  }
};

/// An integer i, |i| < 2^22, is 2^23 * 1.5 + i in these bits: from_int costs one exact addition.
inline constexpr std::int32_t integer_bits = 0x4b400000;
__device__ __forceinline__ float from_integer_bits(std::int32_t u) {
  return arith::detail::add_rn(arith::from_bits(static_cast<std::uint32_t>(u)), -0x1.8p23f);
}

/// 16 query rows of one warp. Lane l holds parts of rows l / 4 and l / 4 + 8, `half` 0 and 1.
template <int Dim>
struct query_rows {
  static constexpr int keys = attention_block, steps = Dim / 32, tiles = keys / 8;
  /// Digits of q stay in registers where there is room.
  static constexpr bool keeps_q = Dim <= 128;

  const std::uint32_t* source; ///< the low plane of this lane's first row, from its first entry on
  std::uint32_t q[2][keeps_q ? steps : 1][4];
  float o[Dim / 8][4];
  float total[2];
  int row[2], first_key[2]; ///< positions; the row sees first_key ... row
  bool sees_bad[2];

  __device__ __forceinline__ void fragment(std::uint32_t (&a)[4], int plane, int step) const {
    const std::uint32_t* from = source + (plane * keys * Dim + step * 32) / 4;
    a[0] = from[0];
    a[1] = from[8 * Dim / 4];
    a[2] = from[4];
    a[3] = from[8 * Dim / 4 + 4];
  }

  __device__ __forceinline__ void begin(const attention_forward_arguments& a, std::int64_t head,
                                        int first) {
    const int lane = threadIdx.x % 32, window = static_cast<int>(a.s.window);
    const std::int64_t blocks = pieces<std::int64_t>(a.s.seq, keys);
    source = reinterpret_cast<const std::uint32_t*>(
                 a.planes.q +
                 ((head * blocks + first / keys) * 2 * keys + first % keys + lane / 4) * Dim) +
             lane % 4;
    if constexpr (keeps_q) {
#pragma unroll
      for (int i = 0; i < 2 * steps; ++i)
        fragment(q[i / steps][i % steps], i / steps, i % steps);
    }
#pragma unroll
    for (int i = 0; i < Dim / 8; ++i)
      o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row[half] = first + lane / 4 + 8 * half;
      first_key[half] = max(row[half] - window + 1, 0);
      total[half] = 0.0f;
      sees_bad[half] = false;
    }
  }

  /// s = q k for the block's keys, exact: |s| < 2^28 (attention_scales). The sum of products of
  /// high digits is below 2^15 in magnitude, that of mixed ones below 2^20, that of low ones at
  /// most 2^20.
  __device__ __forceinline__ void dots(const char* tile, std::int32_t (&s)[tiles][4]) const {
    constexpr int pitch = key_tile<Dim>::k_pitch;
    const int lane = threadIdx.x % 32;
    const char* from = tile + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int j = 0; j < tiles; j += 2) {
      std::int32_t high[2][4] = {}, mixed[2][4] = {}, low[2][4] = {};
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        std::uint32_t k_low[4], k_high[4], q_low[4], q_high[4];
        load_tiles(k_low, from + j * 8 * pitch + i * 32);
        load_tiles(k_high, from + (keys + j * 8) * pitch + i * 32);
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

  /// Hides the keys that a row does not see. A visible logit is within 1.001 sqrt(hd), that of a
  /// visible |s| of 2^28 would be 1.012 sqrt(hd); a hidden key gets -6 or -3 times that. Its
  /// distance from the largest visible one is within [-57, -20] for hd from 16 to 64, within
  /// [-65, -18] for hd from 80 to 256: its p and its part of S are zero.
  static constexpr std::int32_t hidden = (Dim <= 64 ? -6 : -3) * (1 << 28);
  __device__ __forceinline__ void hide(int first, std::int32_t (&s)[tiles][4]) const {
    const int column = first + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < tiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, from_first = column + 8 * j + e % 2 - first_key[half];
        const bool seen =
            static_cast<unsigned>(from_first) <= static_cast<unsigned>(row[half] - first_key[half]);
        s[j][e] = seen ? s[j][e] : hidden;
      }
    }
  }

  /// p as an a fragment, the block's largest logit and S.
  ///
  /// The largest logit is that of the largest dot product: both roundings are monotone. u is in
  /// [2^-94, 1]: u 2^22 is exact, so that one rounding gives its nearest integer; nothing is
  /// clamped.
  __device__ __forceinline__ void softmax(float scale, const std::int32_t (&s)[tiles][4],
                                          std::uint32_t (&p)[2][4], float (&largest)[2],
                                          std::int32_t (&sum)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::int32_t most = max(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
      for (int j = 1; j < tiles; ++j)
        most = max(most, max(s[j][2 * half], s[j][2 * half + 1]));
      most = max(most, __shfl_xor_sync(~0u, most, 1));
      most = max(most, __shfl_xor_sync(~0u, most, 2));
      const float m = nn::detail::logit(most, scale);
      std::uint32_t parts = 0;
#pragma unroll
      for (int j = 0; j < tiles; j += 2) {
        std::uint32_t code[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float l = nn::detail::logit(s[j + e / 2][2 * half + e % 2], scale);
          const float u = arith::detail::exp_bounded(arith::detail::add_rn(l, -m));
          code[e] = arith::bits(arith::detail::add_rn(arith::detail::mul_rn(u, 127.0f), 0x1.8p23f));
          parts += arith::bits(arith::detail::fma_rn(u, 0x1p22f, 0x1.8p23f));
        }
        p[j / 4][j / 2 % 2 * 2 + half] = pack_bytes(code[0], code[1], code[2], code[3]);
      }
      parts -= 2u * tiles * static_cast<std::uint32_t>(integer_bits); // modulo 2^32
      parts += __shfl_xor_sync(~0u, parts, 1);
      parts += __shfl_xor_sync(~0u, parts, 2);
      sum[half] = static_cast<std::int32_t>(parts);
      largest[half] = m;
    }
  }

  /// o = o + w I with I = p codes. w is 0 or above 2^-126 and I an integer, |I| < 2^21: no product
  /// is to be flushed. A w of -0 with p = 0 leaves o as it is.
  __device__ __forceinline__ void add_values(const char* tile, const std::uint32_t (&p)[2][4],
                                             const float (&w)[2]) {
    constexpr int pitch = key_tile<Dim>::v_pitch;
    const int lane = threadIdx.x % 32;
    const char* from = tile + key_tile<Dim>::k_bytes + lane % 8 * pitch + lane / 8 * 16;
    const std::int32_t zero[4] = {integer_bits, integer_bits, integer_bits, integer_bits};
#pragma unroll
    for (int d = 0; d < Dim / 8; ++d) {
      std::uint32_t v[4];
      std::int32_t product[4];
      load_tiles(v, from + d * 8 * pitch);
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
    const int last = first + keys - 1;
    std::int32_t s[tiles][4], sum[2];
    std::uint32_t p[2][4];
    float largest[2], w[2];
    dots(tile, s);
    const bool all_seen = __all_sync(~0u, last <= row[0] && first >= first_key[1]);
    if (!all_seen)
      hide(first, s);
    softmax(scale, s, p, largest, sum);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = max(first, first_key[half]), to = min(last, row[half]);
      const float f = arith::detail::exp_bounded(largest[half]);
      w[half] = arith::mul(f, weight);
      const float part = arith::mul(f, arith::mul(arith::from_int(sum[half]), 0x1p-22f));
      if (from <= to) {
        total[half] = arith::add(total[half], part);
        if (bad != 0)
          sees_bad[half] |= bad >> (from - first) << (from - first + last - to) != 0;
      } else {
        w[half] = -0.0f;
        p[0][half] = p[0][half + 2] = p[1][half] = p[1][half + 2] = 0;
      }
    }
    add_values(tile, p, w);
  }

  /// Writes the rows that exist.
  __device__ __forceinline__ void finish(const attention_forward_arguments& a, std::int64_t n,
                                         std::int64_t h) const {
    const std::int64_t rows = pieces<std::int64_t>(a.s.seq, keys) * keys;
    const int hd = static_cast<int>(a.s.head_dim), column = threadIdx.x % 4 * 2;
    const bool empty = a.s.window == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row[half] >= a.s.seq)
        continue;
      const bool nan =
          sees_bad[half] ||
          a.planes.bad_row[(n * (a.s.heads + a.s.kv_heads) + h) * rows + row[half]] != 0;
      const float inverse = empty ? 0.0f : arith::div(1.0f, total[half]);
      bf16* out = a.out + (n * a.s.seq + row[half]) * a.s.out_width() + h * hd;
#pragma unroll
      for (int d = 0; d < Dim / 8; ++d) {
        const std::uint32_t x = arith::to_bf16(arith::mul(o[d][2 * half], inverse)).bits;
        const std::uint32_t y = arith::to_bf16(arith::mul(o[d][2 * half + 1], inverse)).bits;
        if (d * 8 < hd)
          *reinterpret_cast<std::uint32_t*>(out + d * 8 + column) = nan ? 0x7fc07fc0u : x | y << 16;
      }
      const float lse = empty ? arith::from_bits(0xff800000u) : arith::log(total[half]);
      if (column == 0)
        a.log_sum_exp[(n * a.s.heads + h) * a.s.seq + row[half]] =
            nan ? arith::from_bits(arith::canonical_nan) : lse;
    }
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
/// log_sum_exp [batch, heads, seq]; scratch of attention_forward_scratch_bytes, 128-byte aligned.
/// Order: a row's key blocks ascending; everything else is integers.
/// Bits: those of reference::attention_forward with blocks of 64. Sync: none.
inline void attention_forward(cudaStream_t stream, const attention_inputs& a, bf16* out,
                              float* log_sum_exp, void* scratch) {
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
    return detail::attend<128>(stream, arguments);
  default:
    return detail::attend<256>(stream, arguments);
  }
}

#endif // __CUDACC__

} // namespace ordo::cuda
