// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// How a warpgroup hands its sums to the epilogue: piece by piece, or scaled and stored by the copy
/// engine.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <ordo/cuda/epilogue.hpp>
#include <ordo/cuda/hopper.hpp>

namespace ordo::cuda {

/// The operands of a product C[m, n] = sum over k of A[m, k] * B[n, k], rows along k.
struct int8_operands {
  const std::int8_t* a;
  std::int64_t a_stride;
  const std::int8_t* b;
  std::int64_t b_stride, m, n, k;
};

namespace gemm_wgmma {

/// What a block multiplies at a time, and what a warpgroup holds of it: 64 rows, all columns.
inline constexpr int tile_rows = 128, tile_columns = 256, tile_depth = 128, warpgroups = 2;
inline constexpr int sums_per_thread = tile_columns / 2;
/// Rows of 128 bytes of a warpgroup's results on their way out, and how many such buffers.
inline constexpr int finish_buffer = 64 * 128, finish_buffers = 2;

/// Extents, and the tiles that the clusters make: row tiles x column tiles, `steps` along k.
struct problem {
  int m, n, row_tiles, column_tiles, tiles, steps;
};

/// What a warpgroup owns for its epilogue: shared memory, a named barrier, the buffer it uses next.
struct finish_place {
  std::uint32_t buffers, factors;
  int barrier, next;
};

/// Which sums a thread holds: see hopper_wgmma.hpp.
struct fragment {
  int row, column; ///< of d[0], within the warpgroup's 64 rows; d[2] is 8 rows below

  __device__ __forceinline__ fragment()
      : row(static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4),
        column(static_cast<int>(threadIdx.x) % 4 * 2) {}
};

/// Any epilogue: called for one or two columns at a time.
template <class Epilogue>
struct piece_finish {
  Epilogue epilogue;
  struct early {};

  __device__ __forceinline__ early load(int, int, const problem&) const { return {}; }

  __device__ __forceinline__ void store(std::int32_t (&d)[sums_per_thread], early, int row,
                                        int column, const problem& p, const CUtensorMap&,
                                        finish_place&) const {
    const fragment at;
#pragma unroll
    for (int i = 0; i < sums_per_thread / 2; ++i) {
      const int m = row + at.row + 8 * (i % 2), n = column + at.column + 8 * (i / 2);
      const std::int32_t pair[2] = {d[2 * i], d[2 * i + 1]};
      if (m < p.m && n < p.n)
        epilogue(std::int64_t{m}, std::int64_t{n}, min(2, p.n - n),
                 static_cast<const std::int32_t*>(pair));
    }
  }
};

/// `scaled_store`: chunks of 128 bytes by 64 rows go through shared memory, swizzled as the copy
/// engine expects them.
template <class Store>
struct scaled_finish;

template <class Out, row_factor Rows, bool Masked>
struct scaled_finish<scaled_store<Out, Rows, Masked>> {
  using store_type = scaled_store<Out, Rows, Masked>;
  static constexpr bool is_bf16 = std::is_same_v<Out, bf16>;
  static constexpr bool each = Rows == row_factor::each;
  static constexpr int chunk_columns = 128 / static_cast<int>(sizeof(Out));
  static constexpr int chunks = tile_columns / chunk_columns;
  /// Blocks of eight columns, of which a thread holds four sums each.
  static constexpr int chunk_blocks = chunk_columns / 8;
  static_assert(!(is_bf16 && Masked), "ordo::cuda::gemm_int8: masked results are binary32");

  store_type target;

  /// Whether the copy engine can store, and pairs of weights can be read. The engine writes whole
  /// 16 bytes: where a row ends within them it would write what lies between the rows.
  static bool serves(const store_type& s, std::int64_t m, std::int64_t n) {
    return hopper::mappable(s.out, m, n, s.stride) && n * sizeof(Out) % 16 == 0 &&
           (!Masked || reinterpret_cast<std::uintptr_t>(s.weight) % 4 == 0);
  }

  /// Factors of the thread's two rows (of all rows in the first place, if they share one) and of
  /// columns t and t + 128, inverse steps of the two rows; 0 beyond the matrix.
  struct early {
    float row[2], column[2], inverse[2];
  };

  __device__ __forceinline__ early load(int row, int column, const problem& p) const {
    early e;
    const int t = static_cast<int>(threadIdx.x) % 128;
    const fragment at;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int m = row + at.row + 8 * i, n = column + t + 128 * i;
      e.row[i] = each ? (m < p.m ? target.row[m] : 0.0f) : target.row[0];
      e.column[i] = n < p.n ? target.column[n] : 0.0f;
      e.inverse[i] = Masked && m < p.m ? quant::inverse_step(target.step[m]) : 0.0f;
    }
    return e;
  }

  __device__ __forceinline__ void store(std::int32_t (&d)[sums_per_thread], const early& e, int row,
                                        int column, const problem& p, const CUtensorMap& map,
                                        finish_place& place) const {
    const int t = static_cast<int>(threadIdx.x) % 128;
    bool plain = each ? scaling::plain_row(e.row[0]) && scaling::plain_row(e.row[1]) : true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // The row's factor enters here if all rows share it.
      const float f = each ? e.column[i] : arith::mul(e.row[0], e.column[i]);
      plain = plain && (each ? scaling::plain_column(f) : scaling::plain_factor(f));
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(place.factors + (t + 128 * i) * 4), "f"(f)
                   : "memory");
    }
    if (hopper::named_barrier_and(place.barrier, 128, plain))
      store_chunks<true>(d, e, row, column, p, map, place);
    else
      store_chunks<false>(d, e, row, column, p, map, place);
  }

private:
  /// One barrier for each chunk: before it, the issuing thread has waited until the other buffer is
  /// read, and all have written this one.
  template <bool Plain>
  __device__ __forceinline__ void store_chunks(std::int32_t (&d)[sums_per_thread], const early& e,
                                               int row, int column, const problem& p,
                                               const CUtensorMap& map, finish_place& place) const {
    const bool issues = threadIdx.x % 128 == 0;
    chunk_weights weights[2]; // of this chunk and the next, on their way while this one is written
    if constexpr (Masked)
      load_weights(weights[0], row, column, p);
#pragma unroll
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const std::uint32_t buffer = place.buffers + place.next * finish_buffer;
      if constexpr (Masked) {
        if (chunk + 1 < chunks)
          load_weights(weights[(chunk + 1) % 2], row, column + (chunk + 1) * chunk_columns, p);
      }
      if constexpr (is_bf16)
        write_bf16<Plain>(d, chunk, e, place.factors, buffer);
      else
        write_f32<Plain>(d, chunk, e, weights[chunk % 2], place.factors, buffer);
      hopper::fence_async_shared();
      if (issues)
        hopper::store_wait_read<0>();
      hopper::named_barrier(place.barrier, 128);
      if (issues) {
        hopper::store_box(map, row, column + chunk * chunk_columns, buffer);
        hopper::store_commit();
      }
      place.next ^= 1;
    }
  }

  /// Weights of the thread's results in a chunk: pairs of neighbours, for its two rows.
  struct chunk_weights {
    std::uint32_t pair[chunk_blocks][2];
  };

  /// Factors of the thread's two columns in block `block` of eight.
  __device__ __forceinline__ static float2 columns(std::uint32_t factors, int block) {
    float2 f;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(f.x), "=f"(f.y)
                 : "r"(factors + (8 * block + fragment().column) * 4));
    return f;
  }

  /// Result of sum d for row 0 or 1 of the thread and a column.
  template <bool Plain>
  __device__ __forceinline__ static float result(std::int32_t d, float row, float column) {
    const float f = each ? scaling::product<Plain>(row, column) : column;
    return scaling::product<Plain>(arith::from_int(d), f);
  }

  template <bool Plain>
  __device__ __forceinline__ static void write_bf16(std::int32_t (&d)[sums_per_thread], int chunk,
                                                    const early& e, std::uint32_t factors,
                                                    std::uint32_t buffer) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Matrices of a store: rows 0-7 and 8-15 of one block of columns, then of the next.
    const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane % 16;
    const std::uint32_t line = buffer + row * 128;
#pragma unroll
    for (int j = 0; j < chunk_blocks; j += 2) {
      const int block = chunk * chunk_blocks + j;
      const float2 f[2] = {columns(factors, block), columns(factors, block + 1)};
      std::uint32_t pair[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float r = e.row[i % 2];
        const int first = 4 * block + 2 * i;
        pair[i] = scaling::bf16_pair<Plain>(result<Plain>(d[first], r, f[i / 2].x),
                                            result<Plain>(d[first + 1], r, f[i / 2].y));
      }
      const int piece = (j + lane / 16) ^ (row % 8);
      hopper::store_matrices(line + piece * 16, pair[0], pair[1], pair[2], pair[3]);
    }
  }

  template <bool Plain>
  __device__ __forceinline__ static void write_f32(std::int32_t (&d)[sums_per_thread], int chunk,
                                                   const early& e, const chunk_weights& weights,
                                                   std::uint32_t factors, std::uint32_t buffer) {
    const fragment at;
#pragma unroll
    for (int j = 0; j < chunk_blocks; ++j) {
      const int block = chunk * chunk_blocks + j;
      const float2 f = columns(factors, block);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int first = 4 * block + 2 * h, r = at.row + 8 * h;
        float x = result<Plain>(d[first], e.row[h], f.x);
        float y = result<Plain>(d[first + 1], e.row[h], f.y);
        if constexpr (Masked) {
          const std::uint32_t pair = weights.pair[j][h];
          x = store_type::masked(x, bf16{static_cast<std::uint16_t>(pair & 0xffffu)}, e.inverse[h]);
          y = store_type::masked(y, bf16{static_cast<std::uint16_t>(pair >> 16)}, e.inverse[h]);
        }
        const int piece = (2 * j + at.column / 4) ^ (r % 8);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(buffer + r * 128 + piece * 16 +
                                                              at.column % 4 * 4),
                     "f"(x), "f"(y)
                     : "memory");
      }
    }
  }

  /// The weights of the thread's results in the chunk whose first row and column these are. Rows
  /// are a multiple of 16 bytes apart, so that pairs lie at words. Entries beyond the matrix count
  /// as 0; they are not stored.
  __device__ __forceinline__ void load_weights(chunk_weights& weights, int row, int column,
                                               const problem& p) const {
    const fragment at;
#pragma unroll
    for (int j = 0; j < chunk_blocks; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int m = row + at.row + 8 * h, n = column + 8 * j + at.column;
        const bf16* const w = target.weight + std::int64_t{m} * target.stride + n;
        std::uint32_t pair = 0;
        if (m < p.m && n + 1 < p.n)
          pair = __ldg(reinterpret_cast<const std::uint32_t*>(w));
        else if (m < p.m && n < p.n)
          pair = w->bits;
        weights.pair[j][h] = pair;
      }
    }
  }
};

} // namespace gemm_wgmma
} // namespace ordo::cuda
