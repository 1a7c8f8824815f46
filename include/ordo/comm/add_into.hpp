// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Sums and averages of vectors, entry by entry.

#include <cstdint>
#include <string>

#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/elementwise.hpp>
#endif

namespace ordo::comm {

template <execution_space Space>
using gradient_vector = Kokkos::View<float*, typename Space::memory_space>;

/// a_i = a_i + b_i.
template <execution_space Space>
void add_into(const Space& space, vector_view<float, Space> a, vector_view<const float, Space> b) {
  require(a.extent(0) == b.extent(0), "ordo::comm::add_into",
          "a holds " + std::to_string(a.extent(0)) + " values, b " + std::to_string(b.extent(0)));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::add_into(space.cuda_stream(), a.data(), b.data(), static_cast<std::int64_t>(a.extent(0)));
    return;
  }
#endif
  float* const left = a.data();
  const float* const right = b.data();
  ordo::detail::for_blocks(
      space, "ordo::comm::add_into", static_cast<std::int64_t>(a.extent(0)), 1 << 14,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        float* ORDO_RESTRICT to = left;
        const float* ORDO_RESTRICT from = right;
        for (std::int64_t i = begin; i < end; ++i)
          to[i] = arith::add(to[i], from[i]);
      });
}

/// a_i = a_i * factor: an average multiplies by the reciprocal, rounded beforehand.
template <execution_space Space>
void scale(const Space& space, vector_view<float, Space> a, float factor) {
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::scale(space.cuda_stream(), a.data(), factor, static_cast<std::int64_t>(a.extent(0)));
    return;
  }
#endif
  float* const values = a.data();
  ordo::detail::for_blocks(
      space, "ordo::comm::scale", static_cast<std::int64_t>(a.extent(0)), 1 << 14,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          values[i] = arith::mul(values[i], factor);
        }
      });
}

} // namespace ordo::comm
