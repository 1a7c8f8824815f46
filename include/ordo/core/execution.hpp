// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// How every kernel of the library is launched, and the view types that entry points take.

#include <cstdint>
#include <string>
#include <type_traits>

#include <Kokkos_Core.hpp>

#include <ordo/arith/float_mode.hpp>
#include <ordo/core/error.hpp>

/// Defined where Kokkos::Cuda exists and this translation unit is compiled for it.
#if defined(KOKKOS_ENABLE_CUDA) && defined(__CUDACC__)
#define ORDO_CUDA 1
#endif

namespace ordo {

template <class Space>
concept execution_space = Kokkos::is_execution_space<Space>::value;

/// Row-major views over memory that somebody else owns; what entry points take. Any Kokkos view of
/// the same rank, LayoutRight and memory space converts to them.
template <class T, class Space>
using vector_view = Kokkos::View<T*, Kokkos::LayoutRight, typename Space::memory_space,
                                 Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T, class Space>
using matrix_view = Kokkos::View<T**, Kokkos::LayoutRight, typename Space::memory_space,
                                 Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

namespace detail {

/// Whether work items run on the host: in its memory and under its floating-point mode.
template <class Space>
inline constexpr bool on_host = std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>;

/// Whether the kernels of ordo/cuda/ serve this space.
template <class Space>
inline constexpr bool on_cuda =
#if defined(ORDO_CUDA)
    std::is_same_v<Space, Kokkos::Cuda>;
#else
    false;
#endif

/// a * b - c, in code of the baseline and in code that may use fused instructions.
inline float product_less(float a, float b, float c) {
  return a * b - c;
}
#if defined(__x86_64__) && !defined(__CUDACC__)
__attribute__((target("fma"))) inline float product_less_by_fma(float a, float b, float c) {
  return a * b - c;
}
#endif

/// Whether the host compiler keeps products, sums and their order as they are written.
inline bool compiled_as_written() {
  volatile float one = 1.0f, large = 1e8f, above_one = 0x1.000002p0f;
  const float a = above_one, small = one, big = large;
  volatile float square = a * a;
  bool kept = product_less(above_one, above_one, square) == 0.0f && (small + big) - big == 0.0f;
#if defined(__x86_64__) && !defined(__CUDACC__)
  if (__builtin_cpu_supports("fma"))
    kept = kept && product_less_by_fma(above_one, above_one, square) == 0.0f;
#endif
  return kept;
}

/// Throws unless the host compiler keeps products and sums apart, and sums in their order. Some
/// flags that reorder them define no macro that core/macros.hpp could refuse.
inline void require_unfused() {
  static const bool kept = compiled_as_written();
  if (!kept) {
    throw error("ordo",
                "this program was compiled with products fused into sums, or sums reordered",
                "add -ffp-contract=off -fno-fast-math (the CMake target ordo::ordo does)");
  }
}

/// What a thread does for one index.
template <class F>
struct work_item {
  F f;

  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    const arith::float_mode mode;
    f(i);
  }
};

/// Calls `f(i)` for i in [0, n), each an independent work item, in no order. `f` is called inside
/// an `arith::float_mode`. Labels are `ordo::op::stage`. On the host the work is done on return; on
/// a device it is in the order of `space`'s stream, as everything is that is launched on `space`.
template <execution_space Space, class F>
void for_each(const Space& space, const char* label, std::int64_t n, const F& f) {
  require_unfused();
  if (n <= 0)
    return;
  using policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>,
                                     Kokkos::Schedule<Kokkos::Dynamic>>;
  Kokkos::parallel_for(label, policy(space, 0, n, Kokkos::ChunkSize(1)), work_item<F>{f});
  if constexpr (on_host<Space>)
    space.fence();
}

/// Work item `block` of for_blocks.
template <class F>
struct block_of_indices {
  F f;
  std::int64_t n, grain;

  KOKKOS_FUNCTION void operator()(std::int64_t block) const {
    const std::int64_t begin = block * grain;
    f(begin, begin + grain < n ? begin + grain : n);
  }
};

/// Calls `f(begin, end)` for the consecutive blocks of `grain` indices of [0, n). The grain is
/// tuning: results must not depend on it. On a GPU it is 1, so that neighbouring threads touch
/// neighbouring entries.
template <execution_space Space, class F>
void for_blocks(const Space& space, const char* label, std::int64_t n, std::int64_t grain,
                const F& f) {
  if (!on_host<Space>)
    grain = 1;
  for_each(space, label, (n + grain - 1) / grain, block_of_indices<F>{f, n, grain});
}

} // namespace detail

// For kernels of one's own: the same launch that the library's kernels have.
using detail::for_blocks;
using detail::for_each;
} // namespace ordo
