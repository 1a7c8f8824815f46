// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What the stages of attention's backward pass share: buffers in scratch, the numbering of tiles,
/// and the division of the work into passes.

#include <cstddef>
#include <cstdint>

#include <ordo/cuda/attention_bytes.hpp>
#include <ordo/cuda/attention_integers.hpp>
#include <ordo/nn/attention_alignment.hpp>

namespace ordo::cuda {

/// What the backward pass reads and writes besides `attention_inputs`. All but log_sum_exp are
/// 16-byte aligned.
struct attention_gradient {
  const bf16 *out, *d_out;  ///< [batch * seq, heads hd]
  const float* log_sum_exp; ///< [batch, heads, seq]
  bf16* d_qkv;              ///< like qkv
};

namespace detail {

/// Tiles of one head: block of queries qb sees the key blocks first(qb) ... qb. They are numbered
/// in ascending order of qb, then of the key block.
struct tile_numbers {
  std::int32_t blocks; ///< of 64 rows
  std::int32_t back;   ///< key blocks before its own that a block of queries may see

  __host__ __device__ std::int32_t first(std::int32_t qb) const {
    return qb > back ? qb - back : 0;
  }
  __host__ __device__ std::int32_t count(std::int32_t qb) const {
    return (qb > back ? back : qb) + 1;
  }
  /// Tiles of the query blocks before qb.
  __host__ __device__ std::int64_t before(std::int32_t qb) const {
    const std::int64_t n = qb, full = back + std::int64_t{1};
    return n <= full ? n * (n + 1) / 2 : full * (full + 1) / 2 + (n - full) * full;
  }
  /// One more than the last block of queries that sees a key of block kb.
  __host__ __device__ std::int32_t end(std::int32_t kb) const {
    return kb + back + 1 < blocks ? kb + back + 1 : blocks;
  }
};

inline tile_numbers make_tile_numbers(const nn::attention_shape& s) {
  const std::int64_t window = s.window < s.seq ? s.window : s.seq;
  return {static_cast<std::int32_t>(pieces<std::int64_t>(s.seq, attention_block)),
          static_cast<std::int32_t>(
              pieces<std::int64_t>(window > 0 ? window - 1 : 0, attention_block))};
}

/// One pass: the tiles of heads [head, head + heads) of all sequences' heads and query blocks
/// [begin, end). A pass of several groups has whole groups and all query blocks; one of a single
/// group has any of its heads, and parts of their query blocks only if it has one head.
struct tile_pass {
  tile_numbers numbers;
  std::int32_t head, heads, begin, end;

  __host__ __device__ std::int64_t tiles_per_head() const {
    return numbers.before(end) - numbers.before(begin);
  }
  /// The place in scratch of the tile (head, qb, kb), both within the pass.
  __host__ __device__ std::int64_t place(std::int32_t h, std::int32_t qb, std::int32_t kb) const {
    return (h - head) * tiles_per_head() + numbers.before(qb) - numbers.before(begin) + kb -
           numbers.first(qb);
  }
};

/// Bytes of a tile's integers of one kind: [16 rows][32 k][low, high][lane], rows and k being
/// queries and keys or the reverse; k in the order of `attention_place`. dS by queries is in half
/// order, dS and P by keys in fragment order.
inline constexpr int tile_bytes = 2 * attention_block * attention_block;
inline constexpr int tile_words = tile_bytes / 16;

/// Tiles that scratch holds at once: 24.2 KB each.
inline constexpr std::int64_t most_tiles = 34816;

/// Entries of the head dimension that one item of the last products sums.
template <int Dim>
inline constexpr int sum_columns = Dim < 128 ? Dim : 128;

/// A slab [Dim, 64] of bytes: parts of sum_columns of Dim, in each [low, high][k / 16][Dim] pieces
/// of 16 bytes along k (core matrices). The place of the low piece of column d
/// with k from 16 `step` on, in pieces; the high one follows after column_digit.
template <int Dim>
inline constexpr int column_digit = 4 * sum_columns<Dim>;
template <int Dim>
__host__ __device__ constexpr int column_word(int d, int step) {
  constexpr int columns = sum_columns<Dim>;
  return d / columns * (8 * columns) + step * columns + d % columns;
}

/// Pointers into scratch.
struct gradient_buffers {
  uint4 *q_rows, *o_rows; ///< [batch, heads, block], slabs [64 queries, Dim], balanced digits; dO
                          ///< with one shift a row, 0 for poisoned queries
  uint4 *k_rows, *v_rows; ///< [batch, kv_heads, block], slabs [64 keys, Dim], likewise
  uint4 *q_columns, *o_columns;  ///< [batch, heads, block], slabs [Dim, 64 queries]; dO with
                                 ///< one shift a block; queries in the order of attention_place
  uint4* k_columns;              ///< [batch, kv_heads, block], slabs [Dim, 64 keys]
  float *delta, *o_scale;        ///< [batch, heads, block * 64]; o_scale is 2^-shift, 1 for zeros
  float* v_scale;                ///< [batch, kv_heads, block * 64]
  std::uint64_t* poisoned;       ///< [batch, heads, block], a bit for each query
  std::uint64_t* bad_key;        ///< [batch, kv_heads, block], a bit for each key
  std::int32_t* o_shift;         ///< [batch, heads, block]: shift of o_columns
  std::int32_t *o_most, *v_most; ///< by block: the largest shift of a row that is not zero
  std::uint32_t *largest_o, *largest_v, *any_poisoned; ///< [batch, kv_heads]
  float* d_q; ///< [batch, heads, block, 64, Dim]: gradients of the rotated, normalised q
  std::int64_t *d_k, *d_v;                 ///< [batch, kv_heads, block, 64, Dim]
  uint4 *ds_rows, *ds_columns, *p_columns; ///< [tile of the pass], dS [queries, keys], dS and P
                                           ///< [keys, queries], aligned by their rows
  std::uint8_t* rest; ///< [tile of the pass][3][64]: left shifts into the units, for each of these
};

inline std::int64_t tiles_at_once(const nn::attention_shape& s) {
  nn::attention_shape full = s;
  full.window = s.seq;
  const tile_numbers n = make_tile_numbers(full);
  const std::int64_t all = s.batch * s.heads * n.before(n.blocks);
  const std::int64_t most = most_tiles > n.blocks ? most_tiles : n.blocks;
  return all < most ? all : most;
}

inline gradient_buffers place_gradient(const nn::attention_shape& s, scratch_layout& layout) {
  const std::int64_t blocks = pieces<std::int64_t>(s.seq, attention_block);
  const std::int64_t heads = s.batch * s.heads * blocks, kv = s.batch * s.kv_heads * blocks;
  const std::int64_t entries = attention_block * attention_padded_dim(s.head_dim);
  const std::int64_t slab = entries / 8, tiles = tiles_at_once(s), groups = s.batch * s.kv_heads;
  gradient_buffers b{};
  layout.take(b.q_rows, heads * slab);
  layout.take(b.o_rows, heads * slab);
  layout.take(b.k_rows, kv * slab);
  layout.take(b.v_rows, kv * slab);
  layout.take(b.q_columns, heads * slab);
  layout.take(b.o_columns, heads * slab);
  layout.take(b.k_columns, kv * slab);
  layout.take(b.delta, heads * attention_block);
  layout.take(b.o_scale, heads * attention_block);
  layout.take(b.v_scale, kv * attention_block);
  layout.take(b.poisoned, heads);
  layout.take(b.bad_key, kv);
  layout.take(b.o_shift, heads);
  layout.take(b.o_most, heads);
  layout.take(b.v_most, kv);
  layout.take(b.largest_o, 3 * groups);
  b.largest_v = b.largest_o == nullptr ? nullptr : b.largest_o + groups;
  b.any_poisoned = b.largest_o == nullptr ? nullptr : b.largest_o + 2 * groups;
  layout.take(b.d_q, heads * entries);
  layout.take(b.d_k, kv * entries);
  layout.take(b.d_v, kv * entries);
  layout.take(b.ds_rows, tiles * tile_words);
  layout.take(b.ds_columns, tiles * tile_words);
  layout.take(b.p_columns, tiles * tile_words);
  layout.take(b.rest, tiles * 3 * attention_block);
  return b;
}

#if defined(__CUDACC__)

/// The units of one (sequence, kv head).
__device__ __forceinline__ nn::attention_units
group_units(const attention_inputs& a, const gradient_buffers& b, std::int64_t group) {
  return nn::make_attention_units(a.scales, b.largest_o[group], b.largest_v[group]);
}
/// A sum in units of 2^-unit as a gradient of rotated, normalised q or k.
__device__ __forceinline__ float gradient_of(const attention_inputs& a, std::int64_t sum,
                                             std::int32_t unit) {
  return arith::mul(arith::scale_pow2(arith::from_int(sum), -unit), a.scales.gradient);
}
/// The (sequence, kv head) of a query head, numbered over all sequences.
__device__ __forceinline__ std::int64_t group_of(const nn::attention_shape& s, std::int64_t head) {
  return head / s.group(); // heads is kv_heads times the group
}

#endif // __CUDACC__

} // namespace detail

/// Bytes of scratch that the backward pass of a shape takes, whatever the window: 1.45 GB for 4
/// sequences of 4096 tokens with 16 heads and 4 key-value heads of 128, of which 0.86 GB hold
/// tiles.
inline std::size_t attention_backward_scratch_bytes(const nn::attention_shape& s) {
  detail::scratch_layout layout(nullptr);
  detail::place_gradient(s, layout);
  return layout.used();
}

} // namespace ordo::cuda
