// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What the labels of a micro-batch do: the check, and their one-hot part of the weight gradient.

#include <cstdint>
#include <limits>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/cuda/loss_task.hpp>
#include <ordo/loss/loss_sum.hpp>

namespace ordo::cuda::head {

template <int Totals = loss::detail::loss_totals>
__global__ void start_totals_kernel(std::int64_t* totals) {
  for (int i = 0; i < Totals; ++i)
    totals[i] = 0;
  totals[loss::detail::first_bad_row] = std::numeric_limits<std::int64_t>::max();
}

/// The first row whose label is neither a word nor `ignore_label`.
template <int Threads = 256>
__global__ void __launch_bounds__(Threads)
    check_labels_kernel(const std::uint32_t* labels, std::int64_t tokens, std::int64_t vocabulary,
                        std::int64_t* totals) {
  const std::int64_t i = std::int64_t{blockIdx.x} * Threads + threadIdx.x;
  if (i < tokens && labels[i] >= vocabulary && labels[i] != loss::ignore_label)
    atomicMin(reinterpret_cast<long long*>(totals + loss::detail::first_bad_row),
              static_cast<long long>(i));
}

/// Largest logits before the first is known.
template <int Threads = 256>
__global__ void __launch_bounds__(Threads)
    start_keys_kernel(std::int32_t* keys, std::int64_t rows) {
  const std::int64_t i = std::int64_t{blockIdx.x} * Threads + threadIdx.x;
  if (i < rows)
    keys[i] = std::numeric_limits<std::int32_t>::min();
}

struct scatter_task {
  const bf16* h;
  const std::uint32_t* labels;
  const float* pulls;
  std::int64_t tokens, width, vocabulary;
  float* d_w;
};

inline constexpr int scatter_threads = 256, features_of_thread = 8;
/// Labels that a block looks at together.
inline constexpr int label_window = 1024;

/// Whether a token before `i` has the label.
__device__ __forceinline__ bool seen_before(const std::uint32_t* labels, std::int64_t i,
                                            std::uint32_t label) {
  bool seen = false;
  for (std::int64_t j = threadIdx.x; j < i; j += scatter_threads)
    seen = seen || labels[j] == label;
  return __syncthreads_or(seen) != 0;
}

/// The tokens of [first, first + label_window) that have the label, ascending; how many.
__device__ __forceinline__ int find_label(const scatter_task& task, std::int64_t first,
                                          std::uint32_t label, int (&found)[label_window],
                                          int (&count_of)[label_window / 32]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int words = label_window / 32, words_of_warp = words / (scatter_threads / 32);
  unsigned match[words_of_warp];
  __syncthreads(); // the last window's matches have been read
#pragma unroll
  for (int i = 0; i < words_of_warp; ++i) {
    const int word = warp * words_of_warp + i;
    const std::int64_t at = first + word * 32 + lane;
    match[i] = __ballot_sync(0xffffffffu, at < task.tokens && task.labels[at] == label);
    if (lane == 0)
      count_of[word] = __popc(match[i]);
  }
  __syncthreads();
  int before = 0, all = 0;
  for (int word = 0; word < words; ++word) {
    before += word < warp * words_of_warp ? count_of[word] : 0;
    all += count_of[word];
  }
#pragma unroll
  for (int i = 0; i < words_of_warp; ++i) {
    const unsigned below = match[i] & ((1u << lane) - 1u);
    if (match[i] >> lane & 1u)
      found[before + __popc(below)] = (warp * words_of_warp + i) * 32 + lane;
    before += __popc(match[i]);
  }
  __syncthreads();
  return all;
}

/// Adds pull * hidden of every token to its label's row of d_w, ascending: the block of a label's
/// first token (blockIdx.x) does all of them, for some of the features (blockIdx.y).
///
/// Cost: each block looks through the labels, so that time grows with the square of the tokens:
/// about 0.1 ms for 16,384.
template <int Threads = scatter_threads>
__global__ void __launch_bounds__(Threads) scatter_kernel(const scatter_task task) {
  __shared__ int found[label_window], count_of[label_window / 32];
  const std::int64_t token = blockIdx.x;
  const std::uint32_t label = task.labels[token];
  if (label >= task.vocabulary || seen_before(task.labels, token, label))
    return;
  const std::int64_t feature =
      std::int64_t{blockIdx.y} * scatter_threads * features_of_thread + threadIdx.x;
  float* out = task.d_w + label * task.width;
  float sum[features_of_thread];
#pragma unroll
  for (int f = 0; f < features_of_thread; ++f) {
    const std::int64_t d = feature + f * scatter_threads;
    sum[f] = d < task.width ? out[d] : 0.0f;
  }
  for (std::int64_t first = token; first < task.tokens; first += label_window) {
    const int count = find_label(task, first, label, found, count_of);
#pragma unroll 4
    for (int c = 0; c < count; ++c) {
      const std::int64_t i = first + found[c];
      const float pull = task.pulls[i];
#pragma unroll
      for (int f = 0; f < features_of_thread; ++f) {
        const std::int64_t d = feature + f * scatter_threads;
        const float x = d < task.width ? arith::to_f32(task.h[i * task.width + d]) : 0.0f;
        sum[f] = arith::canonical(arith::add(sum[f], arith::mul(pull, x)));
      }
    }
  }
#pragma unroll
  for (int f = 0; f < features_of_thread; ++f) {
    const std::int64_t d = feature + f * scatter_threads;
    if (d < task.width)
      out[d] = sum[f];
  }
}

inline void scatter_labels(cudaStream_t stream, const scatter_task& task) {
  launch("ordo::cuda::cross_entropy", scatter_kernel<>,
         dim3(static_cast<unsigned>(task.tokens),
              static_cast<unsigned>(
                  pieces<std::int64_t>(task.width, scatter_threads * features_of_thread))),
         dim3(scatter_threads), 0, stream, task);
}

} // namespace ordo::cuda::head
