// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// order::Tree over long vectors on CUDA.
///
/// Every power-of-two block of at least 2048 begins at a multiple of 2048, so each whole run of
/// 2048 addends is a subtree: one kernel turns the runs into one number each and keeps what is left
/// over. That goes on with the numbers until fewer than 2048 are left. Then the power-of-two blocks
/// of these, and of all that was left over, from the last level to the first, are the blocks of the
/// whole sum, largest first.

#include <cstdint>

#include <ordo/arith/value.hpp>
#include <ordo/cuda/lanes.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda {

namespace detail {

inline constexpr int tree_run = 2048, tree_threads = 256, tree_levels = 6;

/// The addend itself.
struct addend {
  __device__ float operator()(float x) const { return x; }
};

/// out[b] = the tree over the b-th whole run; the addends behind the last one go to `left`.
template <class T, class Term>
__global__ void __launch_bounds__(tree_threads)
    tree_runs(const T* x, std::int64_t n, Term term, float* out, float* left) {
  constexpr int own = tree_run / tree_threads;
  __shared__ float warp_sum[tree_threads / 32];
  const std::int64_t begin = std::int64_t{blockIdx.x} * tree_run;
  if (begin + tree_run > n) {
    for (std::int64_t i = threadIdx.x; begin + i < n; i += tree_threads)
      left[i] = term(x[begin + i]);
    return;
  }
  float sum[own];
#pragma unroll
  for (int i = 0; i < own; ++i)
    sum[i] = term(x[begin + threadIdx.x * own + i]);
#pragma unroll
  for (int half = own / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i)
      sum[i] = arith::add(sum[2 * i], sum[2 * i + 1]);
  }
  const float whole = join_adjacent(sum[0]);
  if (threadIdx.x % 32 == 0)
    warp_sum[threadIdx.x / 32] = whole;
  __syncthreads();
  if (threadIdx.x < 32) {
    const float joined = join_adjacent<tree_threads / 32>(
        threadIdx.x < tree_threads / 32 ? warp_sum[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0)
      out[blockIdx.x] = joined;
  }
}

/// What is left over of each level, last level first.
struct tree_rest {
  int levels;
  const float* from[tree_levels];
  int n[tree_levels]; ///< below 2048
};

/// The tree over `n` neighbouring numbers, a power of two of at most 1024, by a warp; thread 0 gets
/// the result.
__device__ __forceinline__ float tree_of(const float* from, int n) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto join = [](float x, int width) {
    for (int distance = 1; distance < width; distance *= 2)
      x = arith::add(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
  };
  if (n <= 32)
    return join(lane < n ? from[lane] : 0.0f, n);
  float of_lane = 0.0f;
#pragma unroll 4
  for (int i = 0; i < n / 32; ++i) {
    const float x = join_adjacent(from[32 * i + lane]);
    of_lane = lane == i ? x : of_lane;
  }
  return join(of_lane, n / 32);
}

/// result[0] = the square root of the sum, result[1] = the sum, both canonical. One block; each
/// warp takes power-of-two blocks in turn.
template <int Threads>
__global__ void __launch_bounds__(Threads) tree_finish(tree_rest rest, float* result) {
  __shared__ float sum[11 * tree_levels];
  const int warp = static_cast<int>(threadIdx.x / 32);
  int count = 0;
  for (int level = 0; level < rest.levels; ++level) {
    int begin = 0;
    for (int size = tree_run / 2; size > 0; size /= 2) {
      if ((rest.n[level] & size) == 0)
        continue;
      if (count % 32 == warp) {
        const float x = tree_of(rest.from[level] + begin, size);
        if (threadIdx.x % 32 == 0)
          sum[count] = x;
      }
      begin += size;
      ++count;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = count > 0 ? sum[0] : 0.0f;
    for (int i = 1; i < count; ++i)
      total = arith::add(total, sum[i]);
    result[0] = arith::canonical(arith::sqrt(total));
    result[1] = arith::canonical(total);
  }
}

} // namespace detail

/// Numbers that tree_sum needs as scratch for n addends.
inline std::int64_t tree_scratch(std::int64_t n) {
  std::int64_t count = 0;
  for (; n >= detail::tree_run; n /= detail::tree_run)
    count += detail::tree_run + n / detail::tree_run;
  return count + detail::tree_run;
}

/// The sum of term(x[0]) ... term(x[n-1]) by order::Tree: result[1]; result[0] is its square root.
/// NaN is canonical.
///
/// Shape: x [n], scratch [tree_scratch(n)], result [2].
/// Bits: of the addends alone.
template <class T, class Term>
void tree_sum(cudaStream_t stream, const T* x, std::int64_t n, const Term& term, float* scratch,
              float* result) {
  using namespace detail;
  const char* const where = "ordo::cuda::tree_sum";
  tree_rest rest{};
  float* const left = scratch;
  float* above = scratch + tree_run;
  const std::int64_t runs = n / tree_run;
  launch(where, tree_runs<T, Term>, dim3(static_cast<unsigned>(pieces<std::int64_t>(n, tree_run))),
         dim3(tree_threads), 0, stream, x, n, term, above, left);
  // Levels from the first to the last, then turned round.
  const float* from[tree_levels] = {left};
  int count[tree_levels] = {static_cast<int>(n % tree_run)};
  int levels = 1;
  std::int64_t here = runs;
  while (here > 0) {
    if (here < tree_run) {
      from[levels] = above;
      count[levels++] = static_cast<int>(here);
      break;
    }
    float* const level_left = above + here;
    float* const next = level_left + tree_run;
    launch(where, tree_runs<float, addend>,
           dim3(static_cast<unsigned>(pieces<std::int64_t>(here, tree_run))), dim3(tree_threads), 0,
           stream, above, here, addend{}, next, level_left);
    from[levels] = level_left;
    count[levels++] = static_cast<int>(here % tree_run);
    above = next;
    here /= tree_run;
  }
  rest.levels = levels;
  for (int l = 0; l < levels; ++l) {
    rest.from[l] = from[levels - 1 - l];
    rest.n[l] = count[levels - 1 - l];
  }
  launch(where, tree_finish<1024>, dim3(1), dim3(1024), 0, stream, rest, result);
}

} // namespace ordo::cuda
