// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// AdamW on CUDA: the flat parameter vector of a model in one launch.

#include <algorithm>
#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/bf16_pair.hpp>
#include <ordo/cuda/elementwise.hpp>
#include <ordo/cuda/runtime.hpp>
#include <ordo/optim/adamw_entry.hpp>

namespace ordo::cuda {

namespace detail {

/// Ranges without weight decay that one launch knows.
inline constexpr int most_ranges = 128;

struct adamw_operands {
  optim::adamw_scalars scalars;
  const float* grad;
  bf16* parameter;
  float *master, *first, *second;
  flat_cut cut;
  int ranges;
  optim::index_range undecayed[most_ranges];
};

/// The weight decay of entry i.
__device__ __forceinline__ float decay_of(const adamw_operands& at, std::int64_t i) {
  float decay = at.scalars.weight_decay;
  for (int r = 0; r < at.ranges; ++r) {
    if (at.undecayed[r].begin <= i && i < at.undecayed[r].end)
      decay = 0.0f;
  }
  return decay;
}

template <bool Mastered>
__device__ __forceinline__ void adamw_single(const adamw_operands& at, std::int64_t i) {
  optim::moments m{at.first[i], at.second[i]};
  const float p = Mastered ? at.master[i] : arith::to_f32(at.parameter[i]);
  const float next = optim::adamw_entry(at.scalars, decay_of(at, i), at.grad[i], p, m);
  at.first[i] = m.first;
  at.second[i] = m.second;
  if constexpr (Mastered)
    at.master[i] = next;
  at.parameter[i] = arith::to_bf16(next);
}

inline constexpr int adamw_width = 8;

/// Eight neighbouring entries a thread.
template <bool Mastered>
__device__ __forceinline__ void adamw_group(const adamw_operands& at, std::int64_t begin,
                                            bool everywhere) {
  float grad[adamw_width], p[adamw_width];
  optim::moments m[adamw_width];
#pragma unroll
  for (int h = 0; h < adamw_width; h += 4) {
    const float4 g = __ldcs(reinterpret_cast<const float4*>(at.grad + begin + h));
    const float4 f = *reinterpret_cast<const float4*>(at.first + begin + h);
    const float4 s = *reinterpret_cast<const float4*>(at.second + begin + h);
    grad[h] = g.x, grad[h + 1] = g.y, grad[h + 2] = g.z, grad[h + 3] = g.w;
    m[h] = {f.x, s.x}, m[h + 1] = {f.y, s.y}, m[h + 2] = {f.z, s.z}, m[h + 3] = {f.w, s.w};
    if constexpr (Mastered) {
      const float4 v = *reinterpret_cast<const float4*>(at.master + begin + h);
      p[h] = v.x, p[h + 1] = v.y, p[h + 2] = v.z, p[h + 3] = v.w;
    }
  }
  if constexpr (!Mastered) {
    const uint4 v = *reinterpret_cast<const uint4*>(at.parameter + begin);
    p[0] = low(v.x), p[1] = high(v.x), p[2] = low(v.y), p[3] = high(v.y);
    p[4] = low(v.z), p[5] = high(v.z), p[6] = low(v.w), p[7] = high(v.w);
  }
#pragma unroll
  for (int i = 0; i < adamw_width; ++i) {
    const float decay = everywhere ? at.scalars.weight_decay : decay_of(at, begin + i);
    p[i] = optim::adamw_entry(at.scalars, decay, grad[i], p[i], m[i]);
  }
#pragma unroll
  for (int h = 0; h < adamw_width; h += 4) {
    *reinterpret_cast<float4*>(at.first + begin + h) = {m[h].first, m[h + 1].first, m[h + 2].first,
                                                        m[h + 3].first};
    *reinterpret_cast<float4*>(at.second + begin + h) = {m[h].second, m[h + 1].second,
                                                         m[h + 2].second, m[h + 3].second};
    if constexpr (Mastered)
      *reinterpret_cast<float4*>(at.master + begin + h) = {p[h], p[h + 1], p[h + 2], p[h + 3]};
  }
  *reinterpret_cast<uint4*>(at.parameter + begin) = {to_pair(p[0], p[1]), to_pair(p[2], p[3]),
                                                     to_pair(p[4], p[5]), to_pair(p[6], p[7])};
}

/// Each block first asks whether its groups meet a range without decay: hardly any does.
template <bool Mastered>
__global__ void __launch_bounds__(flat_threads) adamw(const __grid_constant__ adamw_operands at) {
  const std::int64_t first = std::int64_t{blockIdx.x} * flat_threads;
  const std::int64_t begin = at.cut.head + first * adamw_width;
  const std::int64_t end = begin + flat_threads * adamw_width;
  const int r = static_cast<int>(threadIdx.x);
  const bool meets = r < at.ranges && at.undecayed[r].begin < end && begin < at.undecayed[r].end;
  const bool everywhere = __syncthreads_or(meets) == 0;
  const std::int64_t i = first + threadIdx.x;
  if (i < at.cut.groups) {
    adamw_group<Mastered>(at, at.cut.head + i * adamw_width, everywhere);
  } else if (i < at.cut.groups + at.cut.rest) {
    adamw_single<Mastered>(at, at.cut.single(i - at.cut.groups, adamw_width));
  }
}

} // namespace detail

/// One AdamW update of n entries; the entries of the `ranges` index ranges at `undecayed` (host
/// memory) have no weight decay. `master` may be null.
///
/// Shape: grad, first, second, master [n] binary32; parameter [n] bf16.
/// Bits: as optim::adamw, entry by entry.
inline void adamw(cudaStream_t stream, const optim::adamw_scalars& scalars, const float* grad,
                  bf16* parameter, float* master, float* first, float* second, std::int64_t n,
                  const optim::index_range* undecayed = nullptr, std::int64_t ranges = 0) {
  if (ranges > detail::most_ranges) {
    // Two halves of the vector, each with the ranges that meet it.
    require(n > 1, "ordo::cuda::adamw", std::to_string(ranges) + " ranges of one entry");
    std::vector<optim::index_range> part[2];
    const std::int64_t half = n / 2;
    for (std::int64_t r = 0; r < ranges; ++r) {
      const optim::index_range at = undecayed[r];
      if (at.begin < half)
        part[0].push_back({at.begin, std::min(at.end, half)});
      if (at.end > half)
        part[1].push_back({std::max(at.begin, half) - half, at.end - half});
    }
    for (int p = 0; p < 2; ++p) {
      const std::int64_t o = p * half;
      adamw(stream, scalars, grad + o, parameter + o, master == nullptr ? nullptr : master + o,
            first + o, second + o, p == 0 ? half : n - half, part[p].data(),
            static_cast<std::int64_t>(part[p].size()));
    }
    return;
  }
  using namespace detail;
  adamw_operands at{scalars, grad, parameter, master, first, second, {}, static_cast<int>(ranges),
                    {}};
  std::copy(undecayed, undecayed + ranges, at.undecayed);
  at.cut = master == nullptr ? cut(n, adamw_width, parameter, grad, first, second)
                             : cut(n, adamw_width, parameter, grad, first, second, master);
  launch("ordo::cuda::adamw", master == nullptr ? detail::adamw<false> : detail::adamw<true>,
         flat_grid(at.cut), dim3(flat_threads), 0, stream, at);
}

} // namespace ordo::cuda
