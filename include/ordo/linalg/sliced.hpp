// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Rows as fixed-point integers, cut into int8 slices.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/error.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/cpu/isa.hpp>
#include <ordo/cpu/sliced_avx512.hpp>
#include <ordo/linalg/digits.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/slice.hpp>
#endif

namespace ordo {

/// Rows of fixed-point integers v = sum over i of slice[i] * 128^i, where v / 2^shift[row] stands
/// for the entry. Owns its memory.
template <int Slices, class Space>
struct sliced_matrix {
  static_assert(Slices == 2 || Slices == 3, "ordo::sliced_matrix: two or three slices exist");
  static constexpr int slices = Slices;
  using memory_space = typename Space::memory_space;

  Kokkos::View<std::int8_t**, Kokkos::LayoutRight, memory_space> slice[Slices];
  Kokkos::View<std::int32_t*, Kokkos::LayoutRight, memory_space> shift;

  std::int64_t rows() const { return static_cast<std::int64_t>(slice[0].extent(0)); }
  std::int64_t columns() const { return static_cast<std::int64_t>(slice[0].extent(1)); }

  /// Makes the matrix `rows` x `columns` with undefined contents; keeps the memory if it is
  /// already.
  void resize(std::int64_t rows, std::int64_t columns) {
    if (shift.is_allocated() && rows == this->rows() && columns == this->columns())
      return;
    const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(columns);
    const auto bare = [](const char* label) {
      return Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(label));
    };
    for (auto& s : slice)
      s = std::remove_reference_t<decltype(s)>(bare("ordo::sliced::digits"), m, k);
    shift = decltype(shift)(bare("ordo::sliced::shift"), m);
  }
};

namespace detail {

template <int Slices, execution_space Space, class T>
void slice_rows_plain(const Space& space, matrix_view<const T, Space> x,
                      const sliced_matrix<Slices, Space>& out) {
  const auto columns = static_cast<std::int64_t>(x.extent(1));
  for_each(
      space, "ordo::slice_rows::row", out.rows(), KOKKOS_LAMBDA(std::int64_t r) {
        std::uint32_t amax = 0;
        for (std::int64_t k = 0; k < columns; ++k)
          amax = larger_magnitude(amax, arith::to_f32(x(r, k)));
        const std::int32_t shift = alignment<Slices>(arith::from_bits(amax));
        out.shift(r) = shift;
        for (std::int64_t k = 0; k < columns; ++k) {
          std::int8_t digit[Slices];
          digits<Slices>(arith::to_f32(x(r, k)), shift, digit);
          for (int i = 0; i < Slices; ++i)
            out.slice[i](r, k) = digit[i];
        }
      });
}

template <int Slices, execution_space Space, class T>
void slice_columns_plain(const Space& space, matrix_view<const T, Space> x, std::int64_t r0,
                         std::int64_t r1, const sliced_matrix<Slices, Space>& out) {
  for_each(
      space, "ordo::slice_columns::column", out.rows(), KOKKOS_LAMBDA(std::int64_t c) {
        std::uint32_t amax = 0;
        for (std::int64_t r = r0; r < r1; ++r)
          amax = larger_magnitude(amax, arith::to_f32(x(r, c)));
        const std::int32_t shift = alignment<Slices>(arith::from_bits(amax));
        out.shift(c) = shift;
        for (std::int64_t r = r0; r < r1; ++r) {
          std::int8_t digit[Slices];
          digits<Slices>(arith::to_f32(x(r, c)), shift, digit);
          for (int i = 0; i < Slices; ++i)
            out.slice[i](c, r - r0) = digit[i];
        }
      });
}

#if defined(__x86_64__)
template <int Slices, execution_space Space, class T>
void slice_rows_avx512(const Space& space, matrix_view<const T, Space> x,
                       const sliced_matrix<Slices, Space>& out) {
  const auto n = static_cast<std::int64_t>(x.extent(1));
  const auto stride = static_cast<std::int64_t>(x.stride(0));
  for_blocks(space, "ordo::slice_rows::rows", out.rows(), 1 + (1 << 15) / (n + 1),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t r = begin; r < end; ++r) {
                 const T* row = x.data() + r * stride;
                 const float amax = arith::from_bits(cpu::avx512::largest_magnitude(row, n));
                 const std::int32_t shift = alignment<Slices>(arith::flush(amax));
                 out.shift(static_cast<std::size_t>(r)) = shift;
                 std::int8_t* digit[Slices];
                 for (int i = 0; i < Slices; ++i) {
                   digit[i] = out.slice[i].data() + r * n;
                   if (shift == sliced_non_finite)
                     std::fill_n(digit[i], n, std::int8_t{0});
                 }
                 if (shift != sliced_non_finite)
                   cpu::avx512::slice_row<Slices>(row, n, shift, sliced_limit<Slices>, digit);
               }
             });
}

/// Columns [begin, end) of `rows` rows from `top` on. Sixteen columns at a time, in turns over few
/// enough rows that the pages they lie on stay known to the processor.
template <int Slices, execution_space Space, class T>
void slice_columns_avx512(const T* top, std::int64_t stride, std::int64_t rows, std::int64_t begin,
                          std::int64_t end, const sliced_matrix<Slices, Space>& out) {
  constexpr int groups = 4, turn = 32;
  std::uint32_t amax[groups][16] = {};
  float factors[groups][2][16] = {};
  const auto each_piece = [&](const auto& f) {
    for (std::int64_t r = 0; r < rows; r += turn)
      for (int g = 0; begin + 16 * g < end; ++g)
        f(g, top + r * stride + begin + 16 * g, std::min<std::int64_t>(turn, rows - r),
          static_cast<int>(std::min<std::int64_t>(16, end - begin - 16 * g)), r);
  };
  each_piece([&](int g, const T* x, std::int64_t count, int columns, std::int64_t) {
    cpu::avx512::largest_of_columns(x, stride, count, columns, amax[g]);
  });
  for (std::int64_t c = 0; c < end - begin; ++c) {
    const std::int32_t shift =
        alignment<Slices>(arith::flush(arith::from_bits(amax[c / 16][c % 16])));
    out.shift.data()[begin + c] = shift;
    if (shift == sliced_non_finite)
      continue;
    const auto power = cpu::avx512::powers_of(shift);
    factors[c / 16][0][c % 16] = power.first;
    factors[c / 16][1][c % 16] = power.second;
  }
  each_piece([&](int g, const T* x, std::int64_t count, int columns, std::int64_t r) {
    std::int8_t* digit[Slices];
    for (int i = 0; i < Slices; ++i)
      digit[i] = out.slice[i].data() + (begin + 16 * g) * rows + r;
    cpu::avx512::slice_column_block<Slices>(x, stride, count, columns, factors[g],
                                            sliced_limit<Slices>, digit, rows);
  });
}
#endif

#if defined(ORDO_CUDA)
/// A matrix as the kernels of ordo/cuda take it.
template <int Slices, class Space>
cuda::slices<Slices> device_slices(const sliced_matrix<Slices, Space>& x) {
  cuda::slices<Slices> out{};
  for (int i = 0; i < Slices; ++i)
    out.slice[i] = x.slice[i].data();
  out.shift = x.shift.data();
  out.stride = x.columns();
  return out;
}
#endif

/// float and bf16: what can be sliced and multiplied.
template <class View>
concept real_matrix = Kokkos::is_view<View>::value &&
    (std::is_same_v<std::remove_cv_t<typename View::value_type>, float> ||
     std::is_same_v<std::remove_cv_t<typename View::value_type>, bf16>);

} // namespace detail

/// Aligns each row of `x` and cuts it into slices.
///
/// The shift s of a row is the largest integer, clamped to [-100, 150], such that max|x| * 2^s is
/// at most 16,319 (two slices) or 2,088,895 (three); an entry becomes v = nearest even integer of
/// x * 2^s, clamped to that limit (which matters only for rows that reach 2^114 or 2^121). Digits
/// are balanced: in [-64, 63] but for the top one, so every digit is within [-127, 127]. A row of
/// zeros has shift 0; a row with a NaN or an infinity has shift `sliced_non_finite`, digits 0.
/// Shape: `x` is M x K, of float or bf16; `out` becomes M x K.
/// Bits: depend on the entries only.
/// Error: |entry - v / 2^s| <= 2^-(s + 1), less than the row's largest magnitude divided by 16,319
/// (two slices) or 2,088,895 (three), clamped rows apart.
/// Cost: two passes over `x`. Memory is allocated only when the shape of `out` changes.
/// Sync: returns when `out` is complete; on a device it is in the order of `space`'s stream.
template <int Slices, execution_space Space, detail::real_matrix View>
void slice_rows(const Space& space, const View& x, sliced_matrix<Slices, Space>& out) {
  using T = std::remove_cv_t<typename View::value_type>;
  const matrix_view<const T, Space> in(x);
  out.resize(static_cast<std::int64_t>(in.extent(0)), static_cast<std::int64_t>(in.extent(1)));
#if defined(ORDO_CUDA)
  if constexpr (detail::on_cuda<Space>) {
    cuda::slice_rows(space.cuda_stream(), in.data(), out.rows(), out.columns(),
                     static_cast<std::int64_t>(in.stride(0)), detail::device_slices(out));
    return;
  }
#endif
#if defined(__x86_64__)
  if constexpr (detail::on_host<Space>)
    if (cpu::active_isa() == cpu::isa::avx512)
      return detail::slice_rows_avx512<Slices, Space, T>(space, in, out);
#endif
  detail::slice_rows_plain<Slices, Space, T>(space, in, out);
}

/// Aligns each column of the rows [r0, r1) of `x` and cuts it into slices: `slice_rows` of the
/// transpose of those rows, so that a product contracts over them.
/// Shape: `x` is R x N, of float or bf16; `out` becomes N x (r1 - r0).
/// Throws: unless 0 <= r0 <= r1 <= R.
template <int Slices, execution_space Space, detail::real_matrix View>
void slice_columns(const Space& space, const View& x, std::int64_t r0, std::int64_t r1,
                   sliced_matrix<Slices, Space>& out) {
  using T = std::remove_cv_t<typename View::value_type>;
  const matrix_view<const T, Space> in(x);
  const auto rows = static_cast<std::int64_t>(in.extent(0));
  require(0 <= r0 && r0 <= r1 && r1 <= rows, "ordo::slice_columns",
          "rows " + std::to_string(r0) + " to " + std::to_string(r1) + " of a matrix of " +
              shape(in.extent(0), in.extent(1)),
          "the range must lie within the matrix");
  out.resize(static_cast<std::int64_t>(in.extent(1)), r1 - r0);
#if defined(ORDO_CUDA)
  if constexpr (detail::on_cuda<Space>) {
    const auto stride = static_cast<std::int64_t>(in.stride(0));
    cuda::slice_columns(space.cuda_stream(), in.data() + r0 * stride, r1 - r0, out.rows(), stride,
                        detail::device_slices(out));
    return;
  }
#endif
#if defined(__x86_64__)
  if constexpr (detail::on_host<Space>)
    if (cpu::active_isa() == cpu::isa::avx512)
      return detail::for_blocks(space, "ordo::slice_columns::columns", out.rows(), 64,
                                [&](std::int64_t begin, std::int64_t end) {
                                  const auto stride = static_cast<std::int64_t>(in.stride(0));
                                  detail::slice_columns_avx512(in.data() + r0 * stride, stride,
                                                               r1 - r0, begin, end, out);
                                });
#endif
  detail::slice_columns_plain<Slices, Space, T>(space, in, r0, r1, out);
}

/// All rows of `x`.
template <int Slices, execution_space Space, detail::real_matrix View>
void slice_columns(const Space& space, const View& x, sliced_matrix<Slices, Space>& out) {
  slice_columns(space, x, 0, static_cast<std::int64_t>(x.extent(0)), out);
}

} // namespace ordo
