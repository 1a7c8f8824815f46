// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What the kernels of the loss work on: the arguments of a call, and the memory of a chunk.

#include <cstddef>
#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/cuda/slice.hpp>
#include <ordo/loss/loss_sum.hpp>

namespace ordo::cuda {

/// A call of the loss in device memory, shapes checked. All matrices are row-major and contiguous.
struct loss_task {
  std::int64_t tokens, width, vocabulary, padded;
  const bf16* h;               ///< [tokens, width]
  const bf16* words;           ///< [padded, width]
  slices<2> by_word;           ///< the rows of `words`, [vocabulary, width]
  slices<2> by_feature;        ///< the columns of `words`, [width, vocabulary]
  const std::uint32_t* labels; ///< [tokens]
  float token_scale, z;
  float* token_losses = nullptr; ///< [tokens] or null
  bf16* d_h = nullptr;           ///< [tokens, width]
  float* d_w = nullptr;          ///< [padded, width]
};

namespace head {

/// What a row of logits leaves behind for its probabilities, one entry a row; `inverse` is 0 for
/// rows that take no part. `power` is 2^shift where the row's digits need no special case
/// (loss_rows.hpp), otherwise 0.
struct row_terms {
  float *largest, *inverse, *factor, *power;
  std::int32_t* shift;
  std::uint32_t* label;
};

/// The memory of a chunk of at most `rows` rows, `pitch` words and `width` features; rows are a
/// multiple of 256, pitches of 32 and 16.
struct chunk_memory {
  std::int64_t rows, pitch, width_pitch;
  float* logits;               ///< [rows, pitch]
  std::int32_t* largest_key;   ///< [rows], of the logits
  row_terms terms;             ///< [rows]
  slices<2> hidden_by_row;     ///< [rows, width]
  slices<2> hidden_by_feature; ///< [width, rows]; shifts [block, width]
  std::int32_t* feature_range; ///< [block, 2]: the least and the largest of these shifts
  slices<2> by_row;            ///< [rows, words]: probabilities
  slices<2> by_word;           ///< [words, rows]: weighted ones; shifts [block, pitch]
  float* pulls;                ///< [max_tokens]
  std::int64_t* totals;        ///< loss::detail::loss_totals
};

/// Hands out pieces of one allocation, each at a multiple of 256 bytes; counts where there is none.
struct carver {
  unsigned char* base;
  std::size_t used = 0;

  template <class T>
  T* take(std::int64_t count) {
    T* const p = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return p;
  }
  slices<2> take_slices(std::int64_t rows, std::int64_t stride, std::int64_t shifts) {
    slices<2> x{};
    x.slice[0] = take<std::int8_t>(rows * stride);
    x.slice[1] = take<std::int8_t>(rows * stride);
    x.shift = take<std::int32_t>(shifts);
    x.stride = stride;
    return x;
  }
};

inline chunk_memory carve(carver& from, std::int64_t chunk_rows, std::int64_t max_tokens,
                          std::int64_t vocabulary, std::int64_t width) {
  const std::int64_t blocks = pieces(chunk_rows, loss::block_rows);
  chunk_memory m{};
  m.rows = blocks * loss::block_rows;
  m.pitch = pieces<std::int64_t>(vocabulary, 32) * 32;
  m.width_pitch = pieces<std::int64_t>(width, 16) * 16;
  m.logits = from.take<float>(m.rows * m.pitch);
  m.largest_key = from.take<std::int32_t>(m.rows);
  for (float** term : {&m.terms.largest, &m.terms.inverse, &m.terms.factor, &m.terms.power})
    *term = from.take<float>(m.rows);
  m.terms.shift = from.take<std::int32_t>(m.rows);
  m.terms.label = from.take<std::uint32_t>(m.rows);
  m.hidden_by_row = from.take_slices(m.rows, m.width_pitch, m.rows);
  m.hidden_by_feature = from.take_slices(width, m.rows, blocks * m.width_pitch);
  m.feature_range = from.take<std::int32_t>(2 * blocks);
  m.by_row = from.take_slices(m.rows, m.pitch, 0);
  m.by_row.shift = m.terms.shift;
  m.by_word = from.take_slices(vocabulary, m.rows, blocks * m.pitch);
  m.pulls = from.take<float>(max_tokens);
  m.totals = from.take<std::int64_t>(loss::detail::loss_totals);
  return m;
}

} // namespace head

/// Bytes of scratch for chunks of `chunk_rows` rows of micro-batches of at most `max_tokens`.
inline std::size_t cross_entropy_scratch_bytes(std::int64_t chunk_rows, std::int64_t max_tokens,
                                               std::int64_t vocabulary, std::int64_t width) {
  head::carver counter{nullptr};
  head::carve(counter, chunk_rows, max_tokens, vocabulary, width);
  return counter.used;
}

} // namespace ordo::cuda
