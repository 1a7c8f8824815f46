// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The global norm on CUDA: one read of all tensors, then order::Tree over the chunk sums.

#include <algorithm>
#include <cstdint>

#include <ordo/arith/value.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/lanes.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/cuda/tree_sum.hpp>
#include <ordo/reduce/norm_chunk.hpp>

namespace ordo::cuda {

/// A tensor of the norm: n elements on the device.
struct norm_tensor {
  const float* from;
  std::int64_t n;
};

namespace detail {

/// Tensors that one launch knows, and the number of the first chunk of each.
struct norm_part {
  static constexpr int most = 96;
  int tensors;
  std::int64_t chunks; ///< of all of them
  norm_tensor tensor[most];
  std::int64_t first_chunk[most];
};

inline constexpr int chunk_threads = 256, threads_of_chunk = 8;

/// Eight threads take a chunk: thread e adds lanes 4e to 4e + 3 of Lanes<32>, which lie side by
/// side in memory, so that nothing is exchanged before the lanes are joined.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    norm_chunks(const __grid_constant__ norm_part part, float* sums) {
  const int eighth = static_cast<int>(threadIdx.x % threads_of_chunk);
  const std::int64_t c =
      (std::int64_t{blockIdx.x} * chunk_threads + threadIdx.x) / threads_of_chunk;
  int first = 0, last = part.tensors; // the tensor lies in [first, last)
  while (last - first > 1) {
    const int middle = (first + last) / 2;
    if (part.first_chunk[middle] <= c) {
      first = middle;
    } else {
      last = middle;
    }
  }
  const std::int64_t offset = (c - part.first_chunk[first]) * reduce::norm_chunk;
  const float* const from = part.tensor[first].from + offset;
  const std::int64_t n = c < part.chunks ? part.tensor[first].n - offset : 0;
  float lane[4] = {};
  if (n >= reduce::norm_chunk && reinterpret_cast<std::uintptr_t>(from) % 16 == 0) {
    const float4* const quads = reinterpret_cast<const float4*>(from) + eighth;
#pragma unroll 8
    for (int i = 0; i < static_cast<int>(reduce::norm_chunk) / 32; ++i) {
      const float4 x = __ldcs(quads + i * threads_of_chunk);
      lane[0] = arith::add(lane[0], reduce::norm_term(x.x));
      lane[1] = arith::add(lane[1], reduce::norm_term(x.y));
      lane[2] = arith::add(lane[2], reduce::norm_term(x.z));
      lane[3] = arith::add(lane[3], reduce::norm_term(x.w));
    }
  } else {
    const std::int64_t end = n < reduce::norm_chunk ? n : reduce::norm_chunk;
    for (std::int64_t i = 4 * eighth; i < end; i += 32) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (i + j < end)
          lane[j] = arith::add(lane[j], reduce::norm_term(from[i + j]));
      }
    }
  }
  const float sum = join_adjacent<threads_of_chunk>(
      arith::add(arith::add(lane[0], lane[1]), arith::add(lane[2], lane[3])));
  if (c < part.chunks && eighth == 0)
    sums[c] = sum;
}

inline std::int64_t chunk_count(const norm_tensor* tensors, std::int64_t count) {
  std::int64_t chunks = 0;
  for (std::int64_t t = 0; t < count; ++t)
    chunks += pieces<std::int64_t>(tensors[t].n, reduce::norm_chunk);
  return chunks;
}

} // namespace detail

/// Numbers that global_norm needs as scratch.
inline std::int64_t norm_scratch(const norm_tensor* tensors, std::int64_t count) {
  const std::int64_t chunks = detail::chunk_count(tensors, count);
  return chunks + tree_scratch(chunks);
}

/// result[0] = the square root of the sum of the squares of all elements, result[1] = the sum.
///
/// Shape: `tensors` in host memory, in the order of their names; scratch [norm_scratch(...)] and
/// result [2] on the device.
/// Order: chunks of 4096 elements of each tensor by Lanes<32>, all chunk sums by order::Tree.
/// Bits: as reduce::global_norm; NaN is canonical.
inline void global_norm(cudaStream_t stream, const norm_tensor* tensors, std::int64_t count,
                        float* scratch, float* result) {
  using namespace detail;
  std::int64_t done = 0;
  for (std::int64_t begin = 0; begin < count; begin += norm_part::most) {
    norm_part part{};
    part.tensors = static_cast<int>(std::min<std::int64_t>(norm_part::most, count - begin));
    for (int t = 0; t < part.tensors; ++t) {
      part.tensor[t] = tensors[begin + t];
      part.first_chunk[t] = part.chunks;
      part.chunks += pieces<std::int64_t>(tensors[begin + t].n, reduce::norm_chunk);
    }
    constexpr std::int64_t chunks_of_block = chunk_threads / threads_of_chunk;
    launch("ordo::cuda::global_norm", norm_chunks<chunk_threads>,
           dim3(static_cast<unsigned>(pieces(part.chunks, chunks_of_block))), dim3(chunk_threads),
           0, stream, part, scratch + done);
    done += part.chunks;
  }
  tree_sum(stream, scratch, done, addend{}, scratch + done, result);
}

} // namespace ordo::cuda
