// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The second stage of attention's backward pass by warpgroups, compute capability 9.0a: the tiles
/// of attention_gradient_tiles.hpp for heads of a padded dimension of 128.
///
/// Each warpgroup holds the queries and dO of one block of queries, and they read the key
/// blocks from one ring (attention_gradient_ring.hpp).

#include <cstdint>

#include <ordo/cuda/attention_gradient_parts.hpp>
#include <ordo/cuda/attention_gradient_ring.hpp>

namespace ordo::cuda::detail {

#if defined(__CUDACC__)

/// One warpgroup: a block of queries of one head. Lane (g, t) of warp w holds keys 16 w + 8 h + g
/// and queries 8 i + 2 t + j of a tile in [4 i + 2 h + j].
class tile_group {
public:
  __device__ __forceinline__ tile_group(const attention_inputs& a,
                                        const attention_gradient& gradient,
                                        const gradient_buffers& b, const tile_pass& pass,
                                        const tile_block& of, int number, unsigned char* memory)
      : a_(a), b_(b), pass_(pass), shared_(hopper::shared_address(memory)), memory_(memory),
        rows_(*(reinterpret_cast<tiles_ring::rows*>(memory + tiles_ring::facts) + number)),
        number_(number), lane_(threadIdx.x % 32), g_(lane_ / 4), t_(lane_ % 4),
        warp_(threadIdx.x / 32 % 4), head_(of.head), qb_(of.last - number), group_(of.group),
        units_(group_units(a, b, of.group)) {
    if (qb_ < pass.begin)
      return;
    const std::int64_t block = std::int64_t{head_} * a.blocks() + qb_;
    o_shift_ = b.o_shift[block];
    o_most_ = b.o_most[block];
    hidden_ = b.poisoned[block];
    const std::int64_t rest = a.s.seq - std::int64_t{qb_} * 64;
    if (rest < 64)
      hidden_ |= ~std::uint64_t{0} << rest;
    const int i = threadIdx.x % 128;
    if (i < 64) {
      rows_.lse[i] = i < rest ? gradient.log_sum_exp[head_ * a.s.seq + qb_ * 64 + i] : 0.0f;
      rows_.delta[i] = b.delta[block * 64 + i];
      rows_.o_scale[i] = b.o_scale[block * 64 + i];
    }
    hopper::named_barrier(1 + number_, 128);
    hopper::barrier_wait(shared_ + tiles_ring::ready + 8 * number_, 0);
  }

  __device__ __forceinline__ void run(int lowest, int last) {
    const bool works = qb_ >= pass_.begin;
    const int first = works ? pass_.numbers.first(qb_) : last + 1;
    std::int64_t place = works ? pass_.place(head_, qb_, first) : 0;
    for (int kb = lowest; kb <= last; ++kb) {
      if (works && kb >= first && kb <= qb_) {
        tile(kb, place++);
      } else {
        wait(), release();
        wait(), release();
      }
    }
  }

private:
  __device__ __forceinline__ void wait() const {
    hopper::barrier_wait(shared_ + tiles_ring::full + 8 * ring_.stage, ring_.parity);
  }
  __device__ __forceinline__ void release() {
    if (lane_ == 0)
      hopper::barrier_arrive(shared_ + tiles_ring::empty + 8 * ring_.stage);
    ring_.advance();
  }

  static constexpr int digit = row_digit<128>, step = 128; ///< of operands, in 16 bytes

  /// Starts the products of the high and of the low digits of the stage's rows with a slab.
  __device__ __forceinline__ void start_products(std::uint32_t slab, std::int32_t (&y)[32],
                                                 std::int32_t (&low)[32]) const {
    const std::uint64_t a = stage_operand(), b = core_operand<64>(slab);
    hopper::products_begin();
#pragma unroll
    for (int s = 0; s < 4; ++s)
      hopper::multiply(y, a + digit + step * s, b + digit + step * s, s > 0);
    hopper::products_commit();
#pragma unroll
    for (int s = 0; s < 4; ++s)
      hopper::multiply(low, a + step * s, b + step * s, s > 0);
    hopper::products_commit();
  }
  /// The rest of them: y = 128 high + mixed.
  __device__ __forceinline__ void finish_products(std::uint32_t slab, std::int32_t (&y)[32],
                                                  std::int32_t (&low)[32]) const {
    const std::uint64_t a = stage_operand(), b = core_operand<64>(slab);
    hopper::products_wait<1>();
    hopper::products_settle(y);
#pragma unroll
    for (int e = 0; e < 32; ++e)
      y[e] *= 128;
    hopper::products_begin();
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      hopper::multiply(y, a + digit + step * s, b + step * s, true);
      hopper::multiply(y, a + step * s, b + digit + step * s, true);
    }
    hopper::products_commit();
    hopper::products_wait<0>();
    hopper::products_settle(y);
    hopper::products_settle(low);
  }
  __device__ __forceinline__ std::uint64_t stage_operand() const {
    return core_operand<64>(shared_ + tiles_ring::ring + ring_.stage * tiles_ring::stage);
  }

  __device__ __forceinline__ void tile(int kb, std::int64_t place) {
    const std::int32_t v_most = b_.v_most[group_ * a_.blocks() + kb];
    const std::uint32_t q = shared_ + number_ * 2 * tiles_ring::slab, o = q + tiles_ring::slab;
    float p[32], ds[32];
    {
      std::int32_t y[32], low[32];
      wait();
      start_products(q, y, low);
      finish_products(q, y, low);
      release();
#pragma unroll
      for (int e = 0; e < 32; ++e)
        p[e] = nn::detail::logit(y[e] * 128 + low[e], a_.scales.logit);
    }
    std::int32_t y[32], low[32];
    wait();
    start_products(o, y, low);
    probabilities(p);
    hide(kb, p);
    finish_products(o, y, low);
    const float* scales = reinterpret_cast<const float*>(
        memory_ + tiles_ring::ring + ring_.stage * tiles_ring::stage + tiles_ring::slab);
    const float v_scale[2] = {scales[16 * warp_ + g_], scales[16 * warp_ + 8 + g_]};
    __syncwarp();
    release();
    gradients(v_most, v_scale, y, low, p, ds);
    write_by_key(place, p, ds);
    write_by_query(place, ds);
  }

  /// P = exp(l - lse), of pairs that see each other or not: l is within 16.1, and lse of a row that
  /// is not poisoned between -16.1 and 16.1 + log(seq).
  __device__ __forceinline__ void probabilities(float (&p)[32]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 lse = pair(rows_.lse, i);
#pragma unroll
      for (int e = 4 * i; e < 4 * i + 4; ++e) {
        p[e] = exp_fused(arith::detail::add_rn(p[e], e % 2 == 0 ? -lse.x : -lse.y));
      }
    }
  }

  /// P of pairs that do not see each other, or whose query is poisoned or absent, becomes 0.
  __device__ __forceinline__ void hide(int kb, float (&p)[32]) const {
    const int ahead = (qb_ - kb) * 64; // of key 0 of the tile, where query 0 is
    const std::int64_t window = a_.s.window;
    if (kb < qb_ && ahead + 63 < window && hidden_ == 0)
      return;
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const int i = 8 * (e / 4) + 2 * t_ + e % 2, j = 16 * warp_ + 8 * (e / 2 % 2) + g_;
      const int distance = ahead + i - j;
      if ((hidden_ >> i & 1) != 0 || distance < 0 || distance >= window)
        p[e] = 0.0f;
    }
  }

  /// dS = P (dP - D).
  __device__ __forceinline__ void gradients(std::int32_t v_most, const float (&v_scale)[2],
                                            const std::int32_t (&y)[32],
                                            const std::int32_t (&low)[32], const float (&p)[32],
                                            float (&ds)[32]) const {
    // As in attention_gradient_tiles.hpp: without flushes where none can act on an integer.
    const bool plain = units_.query <= 124 && o_most_ <= 125 && o_most_ + v_most <= 125;
    if (plain) {
      differences(y, low, v_scale, p, ds, [](float dot, float os, float vs, float d, float pij) {
        using namespace arith::detail;
        return mul_rn(pij, add_rn(mul_rn(mul_rn(dot, os), vs), -d));
      });
    } else {
      differences(y, low, v_scale, p, ds, [](float dot, float os, float vs, float d, float pij) {
        return arith::mul(pij, arith::sub(arith::mul(arith::mul(dot, os), vs), d));
      });
    }
  }
  template <class F>
  __device__ __forceinline__ void
  differences(const std::int32_t (&y)[32], const std::int32_t (&low)[32], const float (&v_scale)[2],
              const float (&p)[32], float (&ds)[32], const F& f) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 o_scale = pair(rows_.o_scale, i), delta = pair(rows_.delta, i);
#pragma unroll
      for (int e = 4 * i; e < 4 * i + 4; ++e) {
        ds[e] = f(arith::from_int(y[e] * 128 + low[e]), e % 2 == 0 ? o_scale.x : o_scale.y,
                  v_scale[e / 2 % 2], e % 2 == 0 ? delta.x : delta.y, p[e]);
      }
    }
  }

  /// Entries of queries 8 i + 2 t, 8 i + 2 t + 1.
  __device__ __forceinline__ float2 pair(const float* x, int i) const {
    return *reinterpret_cast<const float2*>(x + 8 * i + 2 * t_);
  }

  /// P and dS by keys, each row with its shift, in fragment order.
  __device__ __forceinline__ void write_by_key(std::int64_t place, const float (&p)[32],
                                               const float (&ds)[32]) const {
    std::uint8_t* rest = b_.rest + place * (3 * 64) + 16 * warp_ + g_;
    const std::int64_t tile = place * tile_words + warp_ * 2 * piece_words + lane_;
    write_rows(b_.ds_columns + tile, rest + 64, units_.key, ds);
    write_rows(b_.p_columns + tile, rest + 128, units_.value - o_shift_, p);
  }
  __device__ __forceinline__ void write_rows(uint4* to, std::uint8_t* rest, std::int32_t unit,
                                             const float (&x)[32]) const {
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        most = fmaxf(most, fmaxf(fabsf(x[4 * i + 2 * h]), fabsf(x[4 * i + 2 * h + 1])));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const std::int32_t shift = nn::detail::tile_shift(arith::bits(most), unit);
      scale[h] = arith::pow2(shift);
      if (t_ == 0)
        rest[8 * h] = static_cast<std::uint8_t>(nn::detail::rest_of_unit(unit, shift));
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint4 low, high;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int h = w % 2, e = 16 * k + 8 * (w / 2) + 2 * h;
        const std::uint32_t first =
            pair_of(low_integer(x[e], scale[h]), low_integer(x[e + 1], scale[h]));
        const std::uint32_t second =
            pair_of(low_integer(x[e + 4], scale[h]), low_integer(x[e + 5], scale[h]));
        word(low, w) = low_bytes(first, second);
        word(high, w) = high_bytes(first, second);
      }
      __stcs(to + k * piece_words, low);
      __stcs(to + k * piece_words + 32, high);
    }
  }

  /// dS by queries, each with its shift, in half order.
  __device__ __forceinline__ void write_by_query(std::int64_t place, const float (&ds)[32]) const {
    tiles_ring::rows& rows = rows_;
    float most[16];
#pragma unroll
    for (int i = 0; i < 16; ++i)
      most[i] = fmaxf(fabsf(ds[i / 2 * 4 + i % 2]), fabsf(ds[i / 2 * 4 + 2 + i % 2]));
    halve<16>(most, 16), halve<8>(most, 8), halve<4>(most, 4);
    *reinterpret_cast<float2*>(&rows.query_part[warp_][8 * g_ + 2 * t_]) = {most[0], most[1]};
    hopper::named_barrier(1 + number_, 128);
    const int i = threadIdx.x % 128;
    if (i < 64) {
      const float largest = fmaxf(fmaxf(rows.query_part[0][i], rows.query_part[1][i]),
                                  fmaxf(rows.query_part[2][i], rows.query_part[3][i]));
      const std::int32_t shift = nn::detail::tile_shift(arith::bits(largest), units_.query);
      rows.query_scale[i] = arith::pow2(shift);
      b_.rest[place * (3 * 64) + i] =
          static_cast<std::uint8_t>(nn::detail::rest_of_unit(units_.query, shift));
    }
    hopper::named_barrier(1 + number_, 128);
    uint2* to =
        reinterpret_cast<uint2*>(b_.ds_rows + place * tile_words + warp_ / 2 * piece_words) +
        warp_ % 2 * 32 + lane_;
#pragma unroll
    for (int s = 0; s < 4; ++s) { // 16 queries
      uint2 low, high;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i8 = 2 * s + r;
        const float2 scale = pair(rows.query_scale, i8);
        const std::uint32_t first = transpose_tile(
            pair_of(low_integer(ds[4 * i8], scale.x), low_integer(ds[4 * i8 + 1], scale.y)));
        const std::uint32_t second = transpose_tile(
            pair_of(low_integer(ds[4 * i8 + 2], scale.x), low_integer(ds[4 * i8 + 3], scale.y)));
        (r == 0 ? low.x : low.y) = low_bytes(first, second);
        (r == 0 ? high.x : high.y) = high_bytes(first, second);
      }
      __stcs(to + s * 4 * piece_words, low);
      __stcs(to + s * 4 * piece_words + 64, high);
    }
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

  const attention_inputs& a_;
  const gradient_buffers& b_;
  const tile_pass& pass_;
  std::uint32_t shared_;
  const unsigned char* memory_;
  tiles_ring::rows& rows_;
  int number_, lane_, g_, t_, warp_, head_, qb_;
  std::int64_t group_;
  nn::attention_units units_;
  std::int32_t o_shift_ = 0, o_most_ = 0;
  std::uint64_t hidden_ = 0;
  hopper::ring_place<tiles_ring::stages> ring_;
};

/// Item: (blocks of queries, longest rows first; head of the pass). `heads`: of a group.
template <int Dim>
__global__ void __launch_bounds__(tiles_ring::threads, 1)
    gradient_tiles_wgmma_kernel(__grid_constant__ const attention_inputs a,
                                __grid_constant__ const attention_gradient gradient,
                                __grid_constant__ const gradient_buffers b,
                                __grid_constant__ const tile_pass pass, int heads) {
  static_assert(Dim == 128);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(16) unsigned char shared[];
  const std::uint32_t base = hopper::shared_address(shared);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < tiles_ring::stages; ++s) {
      hopper::barrier_init(base + tiles_ring::full + 8 * s, 1);
      hopper::barrier_init(base + tiles_ring::empty + 8 * s, 4 * tiles_ring::groups);
    }
    for (int w = 0; w < tiles_ring::groups; ++w)
      hopper::barrier_init(base + tiles_ring::ready + 8 * w, 1);
    hopper::barrier_init_done();
  }
  __syncthreads();
  const tile_block of(pass, heads);
  if (!group_units(a, b, of.group).representable)
    return;
  if (group == tiles_ring::groups) {
    hopper::registers_down_to<24>();
    if (threadIdx.x % 128 == 0)
      copy_slabs(a, b, pass, of, base);
  } else {
    hopper::registers_up_to<160>();
    tile_group(a, gradient, b, pass, of, group, shared).run(of.lowest, of.last);
  }
#endif
}

inline void gradient_tiles_wgmma(cudaStream_t stream, const attention_inputs& a,
                                 const attention_gradient& gradient, const gradient_buffers& b,
                                 const tile_pass& pass) {
  const std::int32_t items = pass.heads * pieces(pass.end - pass.begin, tiles_ring::groups);
  launch("ordo::cuda::attention_backward", gradient_tiles_wgmma_kernel<128>,
         dim3(static_cast<unsigned>(items)), dim3(tiles_ring::threads), tiles_ring::size, stream, a,
         gradient, b, pass, static_cast<int>(a.s.group()));
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
