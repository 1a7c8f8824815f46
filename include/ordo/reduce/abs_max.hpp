// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Largest magnitudes. Magnitudes are compared as unsigned integers, where NaN is above infinity:
/// the result has no order.

#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/abs_max.hpp>
#endif

namespace ordo::reduce {

namespace detail {

ORDO_FORCE_FUNCTION std::uint32_t magnitude_bits(float x) {
  return arith::bits(arith::flush(x)) & 0x7fffffffu;
}
ORDO_FORCE_FUNCTION std::uint32_t magnitude_bits(bf16 x) {
  return magnitude_bits(arith::to_f32(x));
}
ORDO_FORCE_FUNCTION std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
  return a > b ? a : b;
}

ORDO_FORCE_FUNCTION float from_magnitude(std::uint32_t u) {
  return arith::canonical(arith::from_bits(u));
}

} // namespace detail

/// The largest |x| of a vector of float or bf16; +0 if it is empty.
///
/// Order: none. Bits: the canonical NaN if any element is NaN.
template <execution_space Space, class View>
float abs_max(const Space& space, const View& x) {
  using T = std::remove_const_t<typename View::value_type>;
  const vector_view<const T, Space> view = x;
  const T* const from = view.data();
  const Kokkos::View<std::uint32_t, typename Space::memory_space> cell("ordo::reduce::abs_max");
  std::uint32_t* const largest = cell.data();
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::largest_bits(space.cuda_stream(), from, static_cast<std::int64_t>(view.extent(0)),
                       largest);
    std::uint32_t found = 0;
    Kokkos::deep_copy(space, found, cell);
    space.fence();
    return detail::from_magnitude(found);
  }
#endif
  ordo::detail::for_blocks(
      space, "ordo::reduce::abs_max", static_cast<std::int64_t>(view.extent(0)), 16384,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        std::uint32_t here = 0;
        for (std::int64_t i = begin; i < end; ++i) {
          here = detail::larger(here, detail::magnitude_bits(from[i]));
        }
        Kokkos::atomic_fetch_max(largest, here);
      });
  std::uint32_t bits = 0;
  Kokkos::deep_copy(bits, cell);
  return detail::from_magnitude(bits);
}

/// The largest magnitude of each row.
///
/// Shape: x rows x columns, out rows. Order: none. Bits: as abs_max.
/// Throws: ordo::error if the shapes disagree.
template <execution_space Space, class View>
void row_abs_max(const Space& space, const View& x, const vector_view<float, Space>& out) {
  using T = std::remove_const_t<typename View::value_type>;
  const matrix_view<const T, Space> view = x;
  const std::int64_t columns = static_cast<std::int64_t>(view.extent(1));
  require(out.extent(0) == view.extent(0), "ordo::reduce::row_abs_max",
          shape(view.extent(0), view.extent(1)) + " has not " + shape(out.extent(0)) + " rows");
  const T* const from = view.data();
  float* const to = out.data();
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::row_largest(space.cuda_stream(), from, static_cast<std::int64_t>(view.extent(0)), columns,
                      to);
    return;
  }
#endif
  ordo::detail::for_blocks(
      space, "ordo::reduce::row_abs_max", static_cast<std::int64_t>(view.extent(0)), 16,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          std::uint32_t here = 0;
          for (std::int64_t c = 0; c < columns; ++c) {
            here = detail::larger(here, detail::magnitude_bits(from[r * columns + c]));
          }
          to[r] = detail::from_magnitude(here);
        }
      });
}

/// The largest magnitude of each column.
///
/// Shape: x rows x columns, out columns. Order: none. Bits: as abs_max.
/// Throws: ordo::error if the shapes disagree.
template <execution_space Space, class View>
void column_abs_max(const Space& space, const View& x, const vector_view<float, Space>& out) {
  using T = std::remove_const_t<typename View::value_type>;
  const matrix_view<const T, Space> view = x;
  const std::int64_t rows = static_cast<std::int64_t>(view.extent(0));
  const std::int64_t columns = static_cast<std::int64_t>(view.extent(1));
  require(out.extent(0) == view.extent(1), "ordo::reduce::column_abs_max",
          shape(view.extent(0), view.extent(1)) + " has not " + shape(out.extent(0)) + " columns");
  constexpr std::int64_t block = 64;
  const T* const from = view.data();
  float* const to = out.data();
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::column_largest(space.cuda_stream(), from, rows, columns, to);
    return;
  }
#endif
  ordo::detail::for_blocks(
      space, "ordo::reduce::column_abs_max", columns, block,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        std::uint32_t here[block] = {};
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = begin; c < end; ++c) {
            here[c - begin] =
                detail::larger(here[c - begin], detail::magnitude_bits(from[r * columns + c]));
          }
        }
        for (std::int64_t c = begin; c < end; ++c)
          to[c] = detail::from_magnitude(here[c - begin]);
      });
}

} // namespace ordo::reduce
