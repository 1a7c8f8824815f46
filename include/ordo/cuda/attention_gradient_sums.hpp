// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The third stage of attention's backward pass on CUDA: the products of the tiles' integers with
/// k, q and dO, summed in 64-bit units. Integer sums: tiles come in any order.

#include <cstdint>

#include <ordo/cuda/attention_gradient.hpp>

namespace ordo::cuda::detail {

/// Columns of one warp.
template <int Dim>
inline constexpr int warp_columns = sum_columns<Dim> / 2;

/// A stage of shared memory: a tile of the left operand, a part of a slab of the right one, the
/// shifts of the tile's rows.
inline constexpr int sum_stages = 4;
template <int Dim>
inline constexpr int sum_stage_bytes = tile_bytes + sum_columns<Dim> * 128 + attention_block;

/// A pass's sums: how many work items, and whether d_k and d_v hold sums of earlier passes.
struct sum_plan {
  std::int32_t key_items, query_items; ///< d_k and d_v of a block of keys, d_q of one of queries
  std::int32_t first_group, groups;    ///< the pass's groups of heads, over all sequences
  std::int32_t group, blocks;          ///< heads of a group, blocks of a sequence
  bool add;
};

inline sum_plan make_sum_plan(const attention_inputs& a, const tile_pass& pass) {
  const std::int32_t group = static_cast<std::int32_t>(a.s.group());
  const std::int32_t blocks = static_cast<std::int32_t>(a.blocks()), first = pass.head / group;
  const std::int32_t groups = (pass.head + pass.heads - 1) / group - first + 1;
  const bool first_of_group = pass.head % group == 0 && pass.begin == 0;
  return {groups * blocks, pass.heads * (pass.end - pass.begin), first, groups, group, blocks,
          !first_of_group};
}

#if defined(__CUDACC__)

/// The tiles of one work item in turn.
struct tile_walk {
  const uint4 *left, *right;                 ///< of all tiles, of all slabs
  const std::uint8_t* rest;                  ///< of all tiles
  std::int64_t* sums;                        ///< [64, Dim], by key
  float* gradients;                          ///< [64, Dim], by query
  std::int64_t tile, first_tile, head_tiles; ///< present one, first of the head, from head to head
  std::int32_t slab, first_slab;             ///< likewise, `blocks` from head to head
  std::int32_t qb, qb_begin, qb_end, count, blocks;
  std::int32_t unit; ///< of queries
  bool by_key, add;

  __device__ __forceinline__ void advance(const tile_numbers& numbers) {
    ++slab;
    if (!by_key) {
      ++tile;
      return;
    }
    tile += numbers.count(qb) - (numbers.first(qb + 1) - numbers.first(qb));
    if (++qb == qb_end) {
      qb = qb_begin;
      tile = first_tile += head_tiles;
      slab = first_slab += blocks;
    }
  }
};

template <int Dim>
__device__ __forceinline__ tile_walk start_walk(const attention_inputs& a,
                                                const gradient_buffers& b, const tile_pass& pass,
                                                const sum_plan& plan, int item) {
  const std::int64_t entries = attention_block * Dim;
  tile_walk w{};
  w.blocks = plan.blocks;
  int group = 0;
  if (item < 2 * plan.key_items) {
    // Blocks of keys with the most queries first.
    const bool is_value = item % 2 != 0;
    item /= 2;
    const int kb = item / plan.groups;
    group = plan.first_group + item % plan.groups;
    const int first = max(group * plan.group, pass.head);
    const int heads = min((group + 1) * plan.group, pass.head + pass.heads) - first;
    w.qb = w.qb_begin = max(kb, pass.begin);
    w.qb_end = min(pass.numbers.end(kb), pass.end);
    w.count = w.qb_end > w.qb_begin ? heads * (w.qb_end - w.qb_begin) : 0;
    w.tile = w.first_tile = pass.place(first, w.qb, kb);
    w.head_tiles = pass.tiles_per_head();
    w.slab = w.first_slab = first * plan.blocks + w.qb;
    w.by_key = true;
    w.add = plan.add;
    w.left = is_value ? b.p_columns : b.ds_columns;
    w.right = is_value ? b.o_columns : b.q_columns;
    w.rest = b.rest + (is_value ? 128 : 64);
    w.sums = (is_value ? b.d_v : b.d_k) + (std::int64_t{group} * plan.blocks + kb) * entries;
  } else {
    item -= 2 * plan.key_items;
    const int head = pass.head + item % pass.heads, qb = pass.end - 1 - item / pass.heads;
    const int kb = pass.numbers.first(qb);
    group = head / plan.group;
    w.count = pass.numbers.count(qb);
    w.tile = pass.place(head, qb, kb);
    w.slab = group * plan.blocks + kb;
    w.left = b.ds_rows;
    w.right = b.k_columns;
    w.rest = b.rest;
    w.gradients = b.d_q + (std::int64_t{head} * plan.blocks + qb) * entries;
  }
  const nn::attention_units units = group_units(a, b, group);
  w.unit = units.query;
  if (!units.representable)
    w.count = 0;
  return w;
}

/// Two neighbouring sums to entries `at`, `at` + 1 of the walk's result.
__device__ __forceinline__ void store_pair(const attention_inputs& a, const tile_walk& w,
                                           std::int64_t at, std::int64_t first,
                                           std::int64_t second) {
  if (!w.by_key) {
    *reinterpret_cast<float2*>(w.gradients + at) = {gradient_of(a, first, w.unit),
                                                    gradient_of(a, second, w.unit)};
    return;
  }
  longlong2* to = reinterpret_cast<longlong2*>(w.sums + at);
  const longlong2 before = w.add ? *to : longlong2{0, 0};
  *to = {first + before.x, second + before.y};
}

/// One item: a block of 64 rows by `sum_columns` of the head dimension. Warp w: rows 16 (w % 4)
/// ..., half w / 4 of the columns.
template <int Dim>
class sum_work {
public:
  __device__ __forceinline__ sum_work(const attention_inputs& a, const gradient_buffers& b,
                                      const tile_pass& pass, const sum_plan& plan,
                                      unsigned char* shared)
      : a_(a), pass_(pass), walk_(start_walk<Dim>(a, b, pass, plan, static_cast<int>(blockIdx.x))),
        shared_(shared), lane_(threadIdx.x % 32), strip_(threadIdx.x / 32 % 4),
        half_(threadIdx.x / 128) {}

  __device__ __forceinline__ void run() {
    const int count = walk_.count;
    for (int i = 0; i < sum_stages - 1; ++i) {
      if (i < count)
        load(i);
      copies_commit();
    }
    for (int i = 0; i < count; ++i) {
      copies_wait<sum_stages - 2>();
      __syncthreads();
      if (i + sum_stages - 1 < count)
        load((i + sum_stages - 1) % sum_stages);
      copies_commit();
      add_tile(i % sum_stages);
    }
    store();
  }

private:
  static constexpr int columns = sum_columns<Dim>, pieces16 = warp_columns<Dim> / 16;

  /// Copies the walk's next tile to a stage.
  __device__ __forceinline__ void load(int stage) {
    tile_walk& w = walk_;
    unsigned char* to = shared_ + stage * sum_stage_bytes<Dim>;
    const uint4* left = w.left + w.tile * tile_words;
    const uint4* right = w.right + std::int64_t{w.slab} * (Dim * 8) + blockIdx.y * (columns * 8);
    for (int i = threadIdx.x; i < tile_words; i += 256)
      copy_16(to + 16 * i, left + i);
    for (int i = threadIdx.x; i < columns * 8; i += 256)
      copy_16(to + tile_bytes + 16 * i, right + i);
    if (threadIdx.x < 4) {
      copy_16(to + tile_bytes + columns * 128 + 16 * threadIdx.x,
              w.rest + w.tile * (3 * 64) + 16 * threadIdx.x);
    }
    w.advance(pass_.numbers);
  }

  /// Adds the product of a stage. With the bytes' products hh, hl, lh, ll, the sum of a row is
  /// y 2^8 + ll where y = hh 2^8 + hl + lh is below 2^27.
  __device__ __forceinline__ void add_tile(int stage) {
    const unsigned char* from = shared_ + stage * sum_stage_bytes<Dim>;
    const uint4* left = reinterpret_cast<const uint4*>(from) + strip_ * 2 * piece_words;
    const bool half_order = !walk_.by_key;
    const uint4* right = reinterpret_cast<const uint4*>(from + tile_bytes) + half_ * (columns / 2) +
                         lane_ % 16 + lane_ / 16 * columns;
    const unsigned char* rest = from + tile_bytes + columns * 128 + 16 * strip_ + lane_ / 4;
    const int shift[2] = {rest[0], rest[8]};
    const bool narrow = __all_sync(~0u, shift[0] <= 22 && shift[1] <= 22) != 0;
    const uint4 a_low[2] = {load_fragment(left, lane_, half_order),
                            load_fragment(left + piece_words, lane_, half_order)};
    const uint4 a_high[2] = {load_fragment(left + 32, lane_, half_order),
                             load_fragment(left + piece_words + 32, lane_, half_order)};
#pragma unroll
    for (int j = 0; j < pieces16; ++j) {
      std::int32_t y[2][4] = {}, low[2][4] = {};
      uint4 b_low[2], b_high[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint4* piece = right + 16 * j + 2 * k * columns;
        load_piece(b_low[k], piece);
        load_piece(b_high[k], piece + column_digit<Dim>);
        multiply<byte_kind::high, byte_kind::high>(y, a_high[k], b_high[k]);
        multiply<byte_kind::low, byte_kind::low>(low, a_low[k], b_low[k]);
      }
#pragma unroll
      for (int e = 0; e < 8; ++e)
        y[e / 4][e % 4] *= 256;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        multiply<byte_kind::high, byte_kind::low>(y, a_high[k], b_low[k]);
        multiply<byte_kind::low, byte_kind::high>(y, a_low[k], b_high[k]);
      }
      accumulate(y, low, shift, narrow, sum_[j]);
    }
  }
  template <byte_kind A, byte_kind B>
  __device__ __forceinline__ static void multiply(std::int32_t (&c)[2][4], const uint4& a,
                                                  const uint4& b) {
    mma_bytes<A, B>(c[0], a, b.x, b.z);
    mma_bytes<A, B>(c[1], a, b.y, b.w);
  }
  __device__ __forceinline__ static void accumulate(const std::int32_t (&y)[2][4],
                                                    const std::int32_t (&low)[2][4],
                                                    const int (&shift)[2], bool narrow,
                                                    std::int64_t (&sum)[2][4]) {
    if (narrow) {
      const std::int32_t scale[2] = {1 << shift[0], 1 << shift[1]};
      const std::int32_t scale_y[2] = {scale[0] * 256, scale[1] * 256};
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        std::int64_t& s = sum[e / 4][e % 4];
        s = add_product(s, y[e / 4][e % 4], scale_y[e % 4 / 2]);
        s = add_product(s, low[e / 4][e % 4], scale[e % 4 / 2]);
      }
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const std::int64_t i = std::int64_t{y[e / 4][e % 4]} * 256 + low[e / 4][e % 4];
        sum[e / 4][e % 4] += nn::in_units(i, shift[e % 4 / 2]);
      }
    }
  }

  __device__ __forceinline__ void store() const {
    const std::int64_t at = (16 * strip_ + lane_ / 4) * Dim + blockIdx.y * columns +
                            half_ * (columns / 2) + 2 * (lane_ % 4);
#pragma unroll
    for (int j = 0; j < 2 * pieces16; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        store_pair(a_, walk_, at + 8 * j + 8 * r * Dim, sum_[j / 2][j % 2][2 * r],
                   sum_[j / 2][j % 2][2 * r + 1]);
      }
    }
  }

  const attention_inputs& a_;
  const tile_pass& pass_;
  tile_walk walk_;
  unsigned char* shared_;
  int lane_, strip_, half_;
  std::int64_t sum_[pieces16][2][4] = {};
};

/// Items: d_k and d_v of blocks of keys, then d_q of blocks of queries; parts of the head
/// dimension. 256 threads.
template <int Dim>
__global__ void __launch_bounds__(256, 2)
    gradient_sums_kernel(__grid_constant__ const attention_inputs a,
                         __grid_constant__ const gradient_buffers b,
                         __grid_constant__ const tile_pass pass,
                         __grid_constant__ const sum_plan plan) {
  extern __shared__ __align__(16) unsigned char shared[];
  sum_work<Dim>(a, b, pass, plan, shared).run();
}

template <int Dim>
void gradient_sums_mma(cudaStream_t stream, const attention_inputs& a, const gradient_buffers& b,
                       const tile_pass& pass) {
  const sum_plan plan = make_sum_plan(a, pass);
  launch("ordo::cuda::attention_backward", gradient_sums_kernel<Dim>,
         dim3(static_cast<unsigned>(2 * plan.key_items) + static_cast<unsigned>(plan.query_items),
              Dim / sum_columns<Dim>),
         dim3(256), sum_stages * sum_stage_bytes<Dim>, stream, a, b, pass, plan);
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
