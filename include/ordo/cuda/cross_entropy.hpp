// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Output head, cross-entropy and z-loss on the device, under Sliced<2, 2>: what
/// loss/cross_entropy.hpp documents, in chunks of rows whose logits exist at one time.
///
/// Passes over the logits of a chunk: the product writes them and their largest; rows_kernel reads
/// them for the sums of exponentials; digits_kernel reads them for both forms of the probabilities.

#include <algorithm>
#include <cstdint>
#include <limits>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/cuda/gemm_sliced.hpp>
#include <ordo/cuda/gemm_sliced_blocks.hpp>
#include <ordo/cuda/loss_digits.hpp>
#include <ordo/cuda/loss_labels.hpp>
#include <ordo/cuda/loss_rows.hpp>
#include <ordo/cuda/loss_task.hpp>

namespace ordo::cuda {
namespace head {

/// Stores logits and finds each row's largest, as a key that orders like the values; `damaged_key`
/// if one is not finite.
struct store_logits {
  float* logits;
  std::int64_t pitch;
  std::int32_t* largest_key;

  struct of_row {
    float largest = -std::numeric_limits<float>::infinity();
    bool damaged = false;

    __device__ __forceinline__ void take(float c) {
      largest = fmaxf(largest, c); // of -0 and +0 the latter, as their keys order
      damaged = damaged || !arith::is_finite(c);
    }
    __device__ __forceinline__ std::int32_t key() const {
      return damaged ? damaged_key
                     : loss::detail::order_key(static_cast<std::int32_t>(arith::bits(largest)));
    }
  };
  struct of_rows {
    of_row row[2];
    __device__ __forceinline__ of_row& operator[](int h) { return row[h]; }
  };

  __device__ __forceinline__ of_rows begin() const { return {}; }
  __device__ __forceinline__ void pair(of_row& row, std::int64_t m, std::int64_t n, int count,
                                       const float (&c)[2]) const {
    float* to = logits + m * pitch + n;
    row.take(c[0]);
    if (count == 2) {
      row.take(c[1]);
      *reinterpret_cast<float2*>(to) = make_float2(c[0], c[1]);
    } else {
      *to = c[0];
    }
  }
  __device__ __forceinline__ void end(const of_row& row, std::int64_t m, bool exists) const {
    std::int32_t key = row.key();
    key = max(key, __shfl_xor_sync(0xffffffffu, key, 1));
    key = max(key, __shfl_xor_sync(0xffffffffu, key, 2));
    if (exists && threadIdx.x % 4 == 0)
      atomicMax(largest_key + m, key);
  }

  /// The same for a piece of the general kernel.
  __device__ void operator()(std::int64_t m, std::int64_t n0, int count, const float* c) const {
    of_row row;
    for (int i = 0; i < count; ++i) {
      row.take(c[i]);
      logits[m * pitch + n0 + i] = c[i];
    }
    atomicMax(largest_key + m, row.key());
  }
};

/// d_h = factor * (probabilities x weight) + pull * weight[label]; +0 where no token counts.
struct hidden_gradient {
  const std::uint32_t* labels;
  const bf16* words;
  const float* factors;
  const float* pulls;
  bf16* d_h;
  std::int64_t width, vocabulary;

  __device__ void operator()(std::int64_t m, std::int64_t n0, int count, const float* c) const {
    const std::uint32_t label = labels[m];
    bf16* out = d_h + m * width + n0;
    if (label >= vocabulary) {
      for (int i = 0; i < count; ++i)
        out[i] = bf16{0};
      return;
    }
    const bf16* word = words + label * width + n0;
    const float factor = factors[m], pull = pulls[m];
    for (int i = 0; i < count; ++i) {
      const float at_label = arith::mul(pull, arith::to_f32(word[i]));
      out[i] = arith::to_bf16(arith::add(arith::mul(factor, c[i]), at_label));
    }
  }
};

inline const char* const loss_name = "ordo::cuda::cross_entropy";

/// Logits of the chunk's rows, from hidden states by row.
inline void logits_chunk(cudaStream_t stream, const loss_task& task, const chunk_memory& memory,
                         std::int64_t first, std::int64_t rows) {
  const counting_rows counts{task.labels + first, task.vocabulary};
  slice_rows(stream, task.h + first * task.width, rows, task.width, task.width,
             memory.hidden_by_row, counts);
  launch(loss_name, start_keys_kernel<>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(rows, 256))), dim3(256), 0, stream,
         memory.largest_key, rows);
  const store_logits store{memory.logits, memory.pitch, memory.largest_key};
  if (sliced::wgmma_takes(memory.hidden_by_row, task.by_word, rows, task.vocabulary, task.width))
    sliced::launch_wgmma(stream, memory.hidden_by_row, task.by_word, rows, task.vocabulary,
                         task.width, store);
  else
    gemm_sliced_general(stream, memory.hidden_by_row, task.by_word, rows, task.vocabulary,
                        task.width, store);
}

template <bool Keep>
void partition_chunk(cudaStream_t stream, const loss_task& task, const chunk_memory& memory,
                     std::int64_t first, std::int64_t rows) {
  const rows_task work{memory.logits,
                       memory.pitch,
                       rows,
                       task.vocabulary,
                       memory.largest_key,
                       task.labels + first,
                       memory.terms,
                       memory.pulls + first,
                       task.token_losses == nullptr ? nullptr : task.token_losses + first,
                       memory.totals,
                       task.token_scale,
                       task.z};
  const std::int64_t all = Keep ? pieces(rows, loss::block_rows) * loss::block_rows : rows;
  launch(loss_name, rows_kernel<Keep>, dim3(static_cast<unsigned>(all)), dim3(row_threads), 0,
         stream, work);
}

/// Both gradients of the chunk but for the one-hot part of d_w.
inline void gradients_chunk(cudaStream_t stream, const loss_task& task, const chunk_memory& memory,
                            std::int64_t first, std::int64_t rows) {
  const auto blocks = static_cast<unsigned>(pieces(rows, loss::block_rows));
  const auto features = static_cast<unsigned>(pieces<std::int64_t>(task.width, 32));
  launch(loss_name, digits_kernel<>, dim3(static_cast<unsigned>(memory.pitch / 32), blocks),
         dim3(256), 0, stream,
         digits_task{memory.logits, memory.pitch, task.vocabulary, memory.terms, memory.by_row,
                     memory.by_word});
  const bf16* h = task.h + first * task.width;
  launch(loss_name, hidden_by_feature_kernel<>, dim3(features, blocks), dim3(256), 0, stream, h,
         rows, task.width, sliced::four_aligned(h, task.width),
         counting_rows{task.labels + first, task.vocabulary}, memory.hidden_by_feature,
         memory.width_pitch);
  launch(loss_name, feature_range_kernel<>, dim3(blocks), dim3(32), 0, stream,
         static_cast<const std::int32_t*>(memory.hidden_by_feature.shift), task.width,
         memory.width_pitch, memory.feature_range);
  gemm_sliced(stream, memory.by_row, task.by_feature, rows, task.width, task.vocabulary,
              hidden_gradient{task.labels + first, task.words, memory.terms.factor,
                              memory.pulls + first, task.d_h + first * task.width, task.width,
                              task.vocabulary});
  add_block_products(stream, block_products{memory.by_word, memory.hidden_by_feature, memory.pitch,
                                            memory.width_pitch, memory.feature_range,
                                            task.vocabulary, task.width, std::int64_t{blocks},
                                            task.d_w, task.width, first == 0});
}

inline void start(cudaStream_t stream, const loss_task& task, const chunk_memory& memory) {
  launch(loss_name, start_totals_kernel<>, dim3(1), dim3(1), 0, stream, memory.totals);
  launch(loss_name, check_labels_kernel<>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(task.tokens, 256))), dim3(256), 0, stream,
         task.labels, task.tokens, task.vocabulary, memory.totals);
}

} // namespace head

/// The working memory of a call: `bytes` from cross_entropy_scratch_bytes with the same sizes.
inline head::chunk_memory cross_entropy_memory(void* scratch, std::int64_t chunk_rows,
                                               std::int64_t max_tokens, std::int64_t vocabulary,
                                               std::int64_t width) {
  head::carver from{static_cast<unsigned char*>(scratch)};
  return head::carve(from, chunk_rows, max_tokens, vocabulary, width);
}

/// Losses of all tokens into memory.totals, and into task.token_losses unless that is null.
///
/// Sync: none. A label that is no word counts as ignored until the caller has read
/// totals[first_bad_row], which is then a row.
inline void cross_entropy_forward(cudaStream_t stream, const loss_task& task,
                                  const head::chunk_memory& memory) {
  head::start(stream, task, memory);
  for (std::int64_t first = 0; first < task.tokens; first += memory.rows) {
    const std::int64_t rows = std::min(memory.rows, task.tokens - first);
    head::logits_chunk(stream, task, memory, first, rows);
    head::partition_chunk<false>(stream, task, memory, first, rows);
  }
}

/// The same, and token_scale times the gradients; d_w is written, not added to.
inline void cross_entropy_forward_backward(cudaStream_t stream, const loss_task& task,
                                           const head::chunk_memory& memory) {
  head::start(stream, task, memory);
  const std::int64_t cleared = task.tokens == 0 ? 0 : task.vocabulary;
  if (task.padded > cleared)
    check(cudaMemsetAsync(task.d_w + cleared * task.width, 0,
                          static_cast<std::size_t>((task.padded - cleared) * task.width) *
                              sizeof(float),
                          stream),
          head::loss_name);
  for (std::int64_t first = 0; first < task.tokens; first += memory.rows) {
    const std::int64_t rows = std::min(memory.rows, task.tokens - first);
    head::logits_chunk(stream, task, memory, first, rows);
    head::partition_chunk<true>(stream, task, memory, first, rows);
    head::gradients_chunk(stream, task, memory, first, rows);
  }
  head::scatter_labels(stream, head::scatter_task{task.h, task.labels, memory.pulls, task.tokens,
                                                  task.width, task.vocabulary, task.d_w});
}

} // namespace ordo::cuda
