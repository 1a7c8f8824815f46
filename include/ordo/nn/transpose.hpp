// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Matrix transposition: moves bits, rounds nothing.

#include <cstdint>

#include <ordo/core/execution.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/elementwise.hpp>
#endif

namespace ordo::nn {

/// y = x^T. Shape: x [rows, columns], y [columns, rows].
template <class T, execution_space Space>
void transpose(const Space& space, matrix_view<const T, Space> x, matrix_view<T, Space> y) {
  const std::int64_t rows = static_cast<std::int64_t>(x.extent(0));
  const std::int64_t columns = static_cast<std::int64_t>(x.extent(1));
  require(x.extent(0) == y.extent(1) && x.extent(1) == y.extent(0), "ordo::nn::transpose",
          "x is " + shape(rows, columns) + " but y is " + shape(y.extent(0), y.extent(1)));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::transpose(space.cuda_stream(), x.data(), y.data(), rows, columns);
    return;
  }
#endif
  constexpr std::int64_t tile = 32;
  const T* const in = x.data();
  T* const out = y.data();
  ordo::detail::for_each(
      space, "ordo::nn::transpose", (columns + tile - 1) / tile, KOKKOS_LAMBDA(std::int64_t slab) {
        const std::int64_t c0 = slab * tile;
        const std::int64_t c1 = c0 + tile < columns ? c0 + tile : columns;
        for (std::int64_t r0 = 0; r0 < rows; r0 += tile) {
          const std::int64_t r1 = r0 + tile < rows ? r0 + tile : rows;
          for (std::int64_t c = c0; c < c1; ++c) {
            for (std::int64_t r = r0; r < r1; ++r) {
              out[c * rows + r] = in[r * columns + c];
            }
          }
        }
      });
}

} // namespace ordo::nn
