// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What a warp of attention's forward pass on CUDA does with its 16 query rows between the
/// products: softmax of a key block, sums over blocks, the result.

#include <cstdint>

#include <ordo/cuda/attention_bytes.hpp>
#include <ordo/cuda/attention_integers.hpp>
#include <ordo/cuda/bf16_pair.hpp>

namespace ordo::cuda::detail {

#if defined(__CUDACC__)

/// What the query kernel reads and writes.
struct attention_forward_arguments {
  nn::attention_shape s;
  float logit;
  attention_planes planes;
  bf16* out;
  float* log_sum_exp;
};

/// An integer i, |i| < 2^22, is 2^23 * 1.5 + i in these bits: from_int costs one exact addition.
inline constexpr std::int32_t integer_bits = 0x4b400000;
__device__ __forceinline__ float from_integer_bits(std::int32_t u) {
  return arith::detail::add_rn(arith::from_bits(static_cast<std::uint32_t>(u)), -0x1.8p23f);
}

/// 16 query rows of one warp. Lane l holds parts of rows l / 4 and l / 4 + 8, `half` 0 and 1: with
/// t = l % 4, keys 8 j + 2 t, 8 j + 2 t + 1 of a block in s[j][2 half], s[j][2 half + 1], and
/// entries of the head dimension likewise in o.
template <int Dim>
struct attention_rows {
  static constexpr int keys = attention_block, tiles = keys / 8;

  float o[Dim / 8][4];
  float total[2];
  int row[2], first_key[2]; ///< positions; the row sees first_key ... row
  bool sees_bad[2];

  /// `first` is the position of row 0.
  __device__ __forceinline__ void begin(const attention_forward_arguments& a, int first) {
    const int lane = threadIdx.x % 32, window = static_cast<int>(a.s.window);
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
          const float u = exp_fused(arith::detail::add_rn(l, -m));
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

  /// From the dot products with the keys that begin at `first`: codes p as an a fragment, and the
  /// weight w of each row's sum of values; adds to the totals. `weight` is the block's step *
  /// (1/127).
  __device__ __forceinline__ void weigh(int first, float scale, float weight, std::uint64_t bad,
                                        std::int32_t (&s)[tiles][4], std::uint32_t (&p)[2][4],
                                        float (&w)[2]) {
    const int last = first + keys - 1;
    std::int32_t sum[2];
    float largest[2];
    const bool all_seen = __all_sync(~0u, last <= row[0] && first >= first_key[1]);
    if (!all_seen)
      hide(first, s);
    softmax(scale, s, p, largest, sum);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = max(first, first_key[half]), to = min(last, row[half]);
      const float f = exp_fused(largest[half]);
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
        const std::uint32_t pair =
            to_pair(arith::mul(o[d][2 * half], inverse), arith::mul(o[d][2 * half + 1], inverse));
        if (d * 8 < hd)
          *reinterpret_cast<std::uint32_t*>(out + d * 8 + column) = nan ? 0x7fc07fc0u : pair;
      }
      const float lse = empty ? arith::from_bits(0xff800000u) : arith::log(total[half]);
      if (column == 0)
        a.log_sum_exp[(n * a.s.heads + h) * a.s.seq + row[half]] =
            nan ? arith::from_bits(arith::canonical_nan) : lse;
    }
  }
};

#endif // __CUDACC__

} // namespace ordo::cuda::detail
