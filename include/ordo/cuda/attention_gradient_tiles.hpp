// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The second stage of attention's backward pass on CUDA: P and dS of each tile of 64 queries and
/// 64 keys, aligned by rows and by columns, as the left operands of the gradient products.

#include <cstdint>

#include <ordo/cuda/attention_gradient_parts.hpp>

namespace ordo::cuda::detail {

#if defined(__CUDACC__)

/// One block of queries against the key blocks that it sees.
template <int Dim>
class tile_work {
public:
  __device__ __forceinline__ tile_work(const attention_inputs& a,
                                       const attention_gradient& gradient,
                                       const gradient_buffers& b, const tile_pass& pass,
                                       unsigned char* shared)
      : a_(a), b_(b), pass_(pass), q_(reinterpret_cast<uint4*>(shared)), o_(q_ + slab),
        k_(o_ + slab), v_(k_ + slab), rows_(*reinterpret_cast<tile_rows*>(v_ + slab)),
        lane_(threadIdx.x % 32), g_(lane_ / 4), t_(lane_ % 4), piece_(lane_ % 16 + lane_ / 16 * 64),
        key_half_(threadIdx.x / 32 % 2), query_half_(threadIdx.x / 64) {
    head_ = pass.head + static_cast<int>(blockIdx.x) % pass.heads;
    qb_ = pass.end - 1 - static_cast<int>(blockIdx.x) / pass.heads; // long rows first
    group_ = group_of(a.s, head_);
    units_ = group_units(a, b, group_);
    const std::int64_t block = std::int64_t{head_} * a.blocks() + qb_;
    o_shift_ = b.o_shift[block];
    o_most_ = b.o_most[block];
    hidden_ = b.poisoned[block];
    const std::int64_t rest = a.s.seq - std::int64_t{qb_} * 64;
    if (rest < 64)
      hidden_ |= ~std::uint64_t{0} << rest;
    copy(q_, b.q_rows + block * slab);
    copy(o_, b.o_rows + block * slab);
    if (threadIdx.x < 64) {
      const int i = threadIdx.x;
      rows_.lse[i] = i < rest ? gradient.log_sum_exp[head_ * a.s.seq + qb_ * 64 + i] : 0.0f;
      rows_.delta[i] = b.delta[block * 64 + i];
      rows_.o_scale[i] = b.o_scale[block * 64 + i];
    }
  }

  __device__ __forceinline__ void run() {
    if (!units_.representable)
      return;
    const int first = pass_.numbers.first(qb_);
    copy(k_, b_.k_rows + key_slab(first));
    copies_commit();
    copy(v_, b_.v_rows + key_slab(first));
    copies_commit();
    for (int kb = first; kb <= qb_; ++kb)
      tile(kb);
  }

private:
  static constexpr int slab = Dim * 8; ///< words

  __device__ __forceinline__ std::int64_t key_slab(int kb) const {
    return (group_ * a_.blocks() + kb) * slab;
  }
  __device__ __forceinline__ static void copy(uint4* to, const uint4* from) {
#pragma unroll
    for (int i = threadIdx.x; i < slab; i += 128)
      copy_16(to + i, from + i);
  }

  __device__ __forceinline__ void tile(int kb) {
    tile_part p, ds;
    float v_scale[2][2];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      v_scale[r / 2][r % 2] =
          b_.v_scale[(group_ * a_.blocks() + kb) * 64 + 32 * key_half_ + 8 * r + g_];
    }
    copies_wait<1>();
    __syncthreads();
    probabilities(p);
    hide(kb, p);
    copies_wait<0>();
    __syncthreads();
    if (kb < qb_)
      copy(k_, b_.k_rows + key_slab(kb + 1));
    copies_commit();
    gradients(kb, v_scale, p, ds);
    note_largest(p, ds);
    __syncthreads();
    if (kb < qb_)
      copy(v_, b_.v_rows + key_slab(kb + 1));
    copies_commit();
    const std::int64_t place = pass_.place(head_, qb_, kb);
    choose_shifts(place);
    __syncthreads();
    write(place, p, ds);
  }

  /// P = exp(l - lse), of pairs that see each other or not: l is within 16.1, and lse of a row that
  /// is not poisoned between -16.1 and 16.1 + log(seq).
  __device__ __forceinline__ void probabilities(tile_part& p) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::int32_t x[2][2][4];
      dot_rows<Dim>(k_ + 32 * key_half_ + piece_, q_ + 32 * query_half_ + 16 * half + piece_, x);
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const float2 lse = pair(rows_.lse, 2 * half + u);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float l = nn::detail::logit(x[m][u][e], a_.scales.logit);
            p[m][2 * half + u][e] =
                exp_fused(arith::detail::add_rn(l, e % 2 == 0 ? -lse.x : -lse.y));
          }
        }
      }
    }
  }

  /// P of pairs that do not see each other, or whose query is poisoned or absent, becomes 0.
  __device__ __forceinline__ void hide(int kb, tile_part& p) const {
    const int ahead = (qb_ - kb) * 64; // of key 0 of the tile, where query 0 is
    const std::int64_t window = a_.s.window;
    if (kb < qb_ && ahead + 63 < window && hidden_ == 0)
      return;
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = 32 * query_half_ + 8 * u + 2 * t_ + c;
        const bool hidden = (hidden_ >> i & 1) != 0;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int distance = ahead + i - (32 * key_half_ + 8 * r + g_);
          if (hidden || distance < 0 || distance >= window)
            p[r / 2][u][r % 2 * 2 + c] = 0.0f;
        }
      }
    }
  }

  /// dS = P (dP - D).
  __device__ __forceinline__ void gradients(int kb, const float (&v_scale)[2][2],
                                            const tile_part& p, tile_part& ds) const {
    // Without flushes where none can act on an integer: dP is 0 or at least 2^-125. A difference or
    // a product below 2^-126 is less than 1/2 in units of 2^-124, and as a row's largest magnitude
    // it leaves the shift at its cap, as 0 does.
    const std::int32_t v_most = b_.v_most[group_ * a_.blocks() + kb];
    const bool plain = units_.query <= 124 && o_most_ <= 125 && o_most_ + v_most <= 125;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::int32_t x[2][2][4];
      dot_rows<Dim>(v_ + 32 * key_half_ + piece_, o_ + 32 * query_half_ + 16 * half + piece_, x);
      if (plain) {
        differences(half, x, v_scale, p, ds, [](float dot, float os, float vs, float d, float pij) {
          using namespace arith::detail;
          return mul_rn(pij, add_rn(mul_rn(mul_rn(dot, os), vs), -d));
        });
      } else {
        differences(half, x, v_scale, p, ds, [](float dot, float os, float vs, float d, float pij) {
          return arith::mul(pij, arith::sub(arith::mul(arith::mul(dot, os), vs), d));
        });
      }
    }
  }
  template <class F>
  __device__ __forceinline__ void differences(int half, const std::int32_t (&x)[2][2][4],
                                              const float (&v_scale)[2][2], const tile_part& p,
                                              tile_part& ds, const F& f) const {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int u = 2 * half + v;
      const float2 o_scale = pair(rows_.o_scale, u), delta = pair(rows_.delta, u);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          ds[m][u][e] = f(arith::from_int(x[m][v][e]), e % 2 == 0 ? o_scale.x : o_scale.y,
                          v_scale[m][e / 2], e % 2 == 0 ? delta.x : delta.y, p[m][u][e]);
        }
      }
    }
  }

  /// Entries of queries 8u + 2t, 8u + 2t + 1 of the warp's half.
  __device__ __forceinline__ float2 pair(const float (&x)[64], int u) const {
    return *reinterpret_cast<const float2*>(x + 32 * query_half_ + 8 * u + 2 * t_);
  }

  /// The largest magnitudes of the warp's part, by key and by query. Lanes halve what they hold as
  /// they exchange it, so that each ends with one key and one query.
  __device__ __forceinline__ void note_largest(const tile_part& p, const tile_part& ds) const {
    float key[4], key_p[4], query[8];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      key[r] = key_p[r] = 0.0f;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          key[r] = fmaxf(key[r], fabsf(ds[r / 2][u][r % 2 * 2 + c]));
          key_p[r] = fmaxf(key_p[r], p[r / 2][u][r % 2 * 2 + c]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      query[i] = 0.0f;
#pragma unroll
      for (int r = 0; r < 4; ++r)
        query[i] = fmaxf(query[i], fabsf(ds[r / 2][i / 2][r % 2 * 2 + i % 2]));
    }
    halve<4>(key, 2), halve<2>(key, 1);
    halve<4>(key_p, 2), halve<2>(key_p, 1);
    halve<8>(query, 16), halve<4>(query, 8), halve<2>(query, 4);
    const int j = 32 * key_half_ + 8 * t_ + g_;
    const int i = 32 * query_half_ + 8 * (g_ / 2) + 2 * t_ + g_ % 2;
    tile_rows& rows = rows_;
    rows.key_part[query_half_][j] = key[0];
    rows.p_part[query_half_][j] = key_p[0];
    rows.query_part[key_half_][i] = query[0];
  }
  /// Of x[0 ... N-1], lanes with `bit` clear keep the first half, the others the second.
  template <int N, int M>
  __device__ __forceinline__ void halve(float (&x)[M], int bit) const {
    const bool upper = (lane_ & bit) != 0;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const float other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + N / 2], bit);
      x[i] = fmaxf(upper ? x[i + N / 2] : x[i], other);
    }
  }

  /// Shifts of the tile's rows and columns: 2^shift to shared memory, the rest of the way into the
  /// units to scratch.
  __device__ __forceinline__ void choose_shifts(std::int64_t place) const {
    tile_rows& rows = rows_;
    std::uint8_t* rest = b_.rest + place * (3 * 64);
    const int i = threadIdx.x % 64;
    const auto choose = [&](const float(&part)[2][64], std::int32_t unit, float(&scale)[64],
                            std::uint8_t* to) {
      const float largest = fmaxf(part[0][i], part[1][i]);
      const std::int32_t shift = nn::detail::tile_shift(arith::bits(largest), unit);
      scale[i] = arith::pow2(shift);
      to[i] = static_cast<std::uint8_t>(nn::detail::rest_of_unit(unit, shift));
    };
    if (threadIdx.x < 64) {
      choose(rows.query_part, units_.query, rows.query_scale, rest);
    } else {
      choose(rows.key_part, units_.key, rows.key_scale, rest + 64);
    }
    if (threadIdx.x < 64)
      choose(rows.p_part, units_.value - o_shift_, rows.p_scale, rest + 128);
  }

  /// The tile's integers to scratch, in fragment order.
  __device__ __forceinline__ void write(std::int64_t place, const tile_part& p,
                                        const tile_part& ds) const {
    uint4* at = b_.p_columns + place * tile_words + lane_;
    write_by_key(at, p, rows_.p_scale);
    at = b_.ds_columns + place * tile_words + lane_;
    write_by_key(at, ds, rows_.key_scale);
    write_by_query(b_.ds_rows + place * tile_words, ds);
  }
  __device__ __forceinline__ void write_by_key(uint4* tile, const tile_part& x,
                                               const float (&scales)[64]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint4 low, high;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float scale = scales[32 * key_half_ + 16 * m + 8 * r + g_];
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const float(&first)[4] = x[m][2 * w], (&second)[4] = x[m][2 * w + 1];
          const std::uint32_t a =
              pair_of(low_integer(first[2 * r], scale), low_integer(first[2 * r + 1], scale));
          const std::uint32_t b =
              pair_of(low_integer(second[2 * r], scale), low_integer(second[2 * r + 1], scale));
          word(low, 2 * w + r) = low_bytes(a, b);
          word(high, 2 * w + r) = high_bytes(a, b);
        }
      }
      uint4* to = tile + ((2 * key_half_ + m) * 2 + query_half_) * piece_words;
      __stcs(to, low);
      __stcs(to + 32, high);
    }
  }
  __device__ __forceinline__ void write_by_query(uint4* tile, const tile_part& x) const {
#pragma unroll
    for (int m = 0; m < 2; ++m) { // 16 queries
      uint4 low, high;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int u = 2 * m + r;
        const float2 scale = pair(rows_.query_scale, u);
        std::uint32_t pairs[4]; // of keys, once the tile of 8 x 8 is transposed
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const float(&e)[4] = x[v / 2][u];
          pairs[v] = transpose_tile(
              pair_of(low_integer(e[v % 2 * 2], scale.x), low_integer(e[v % 2 * 2 + 1], scale.y)));
        }
        word(low, r) = low_bytes(pairs[0], pairs[1]);
        word(high, r) = high_bytes(pairs[0], pairs[1]);
        word(low, 2 + r) = low_bytes(pairs[2], pairs[3]);
        word(high, 2 + r) = high_bytes(pairs[2], pairs[3]);
      }
      uint2* to =
          reinterpret_cast<uint2*>(tile + ((2 * query_half_ + m) * 2 + key_half_) * piece_words) +
          lane_;
      __stcs(to, uint2{low.x, low.y});
      __stcs(to + 32, uint2{low.z, low.w});
      __stcs(to + 64, uint2{high.x, high.y});
      __stcs(to + 96, uint2{high.z, high.w});
    }
  }

  const attention_inputs& a_;
  const gradient_buffers& b_;
  const tile_pass& pass_;
  uint4 *q_, *o_, *k_, *v_;
  tile_rows& rows_;
  int lane_, g_, t_, piece_, key_half_, query_half_, head_, qb_;
  std::int64_t group_;
  nn::attention_units units_;
  std::int32_t o_shift_, o_most_;
  std::uint64_t hidden_;
};

/// Item: (query block, longest rows first; head of the pass). 128 threads.
template <int Dim>
__global__ void __launch_bounds__(128, Dim <= 128 ? 3 : 1)
    gradient_tiles_kernel(__grid_constant__ const attention_inputs a,
                          __grid_constant__ const attention_gradient gradient,
                          __grid_constant__ const gradient_buffers b,
                          __grid_constant__ const tile_pass pass) {
  extern __shared__ __align__(16) unsigned char shared[];
  tile_work<Dim>(a, gradient, b, pass, shared).run();
}

template <int Dim>
void gradient_tiles_mma(cudaStream_t stream, const attention_inputs& a,
                        const attention_gradient& gradient, const gradient_buffers& b,
                        const tile_pass& pass) {
  launch("ordo::cuda::attention_backward", gradient_tiles_kernel<Dim>,
         dim3(static_cast<unsigned>(pass.heads) * static_cast<unsigned>(pass.end - pass.begin)),
         dim3(128), tile_shared_bytes<Dim>, stream, a, gradient, b, pass);
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
