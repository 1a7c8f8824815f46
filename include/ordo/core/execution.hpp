// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// How every kernel of the library is launched, and the view types that entry points take.

#include <cstdint>
#include <string>

#include <Kokkos_Core.hpp>

#include <ordo/arith/float_mode.hpp>
#include <ordo/core/error.hpp>

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

/// Throws unless the host compiler keeps products and sums apart.
inline void require_unfused() {
  static const bool unfused = [] {
    volatile float x = 0x1.000002p0f;
    const float a = x, square = a * a;
    volatile float rounded = square;
    const float b = x, c = rounded;
    return b * b - c == 0.0f;
  }();
  require(unfused, "ordo", "this program was compiled with products fused into sums",
          "add -ffp-contract=off (the CMake target ordo::ordo does)");
}

/// Calls `f(i)` for i in [0, n), each an independent work item, in no order. `f` is called inside
/// an `arith::float_mode`. Labels are `ordo::op::stage`.
template <execution_space Space, class F>
void for_each(const Space& space, const char* label, std::int64_t n, const F& f) {
  require_unfused();
  if (n <= 0)
    return;
  using policy = Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>,
                                     Kokkos::Schedule<Kokkos::Dynamic>>;
  Kokkos::parallel_for(
      label, policy(space, 0, n, Kokkos::ChunkSize(1)), KOKKOS_LAMBDA(std::int64_t i) {
        const arith::float_mode mode;
        f(i);
      });
  space.fence();
}

/// Calls `f(begin, end)` for the consecutive blocks of `grain` indices of [0, n). The grain is
/// tuning: results must not depend on it.
template <execution_space Space, class F>
void for_blocks(const Space& space, const char* label, std::int64_t n, std::int64_t grain,
                const F& f) {
  for_each(
      space, label, (n + grain - 1) / grain, KOKKOS_LAMBDA(std::int64_t block) {
        const std::int64_t begin = block * grain;
        f(begin, begin + grain < n ? begin + grain : n);
      });
}

} // namespace detail

// For kernels of one's own: the same launch that the library's kernels have.
using detail::for_blocks;
using detail::for_each;
} // namespace ordo
