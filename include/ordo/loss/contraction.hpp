// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The two kinds of contraction the head knows: `Sliced<A, B>`, and `order::Lanes<W>` in binary32.
/// Both multiply operands that were taken from rows or columns of a matrix beforehand.

#include <cstdint>
#include <string>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/linalg/gemm_f32.hpp>
#include <ordo/linalg/gemm_sliced.hpp>
#include <ordo/linalg/sliced.hpp>
#include <ordo/order/policies.hpp>

namespace ordo::loss::detail {

/// Allocation without the first write.
inline auto uninitialized(const char* label) {
  return Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(label));
}

/// A row-major matrix over memory that somebody else owns.
template <class Space, class T>
matrix_view<T, Space> over(T* data, std::int64_t rows, std::int64_t columns) {
  return matrix_view<T, Space>(data, static_cast<std::size_t>(rows),
                               static_cast<std::size_t>(columns));
}

/// Rows of fixed-point numbers of any shape that fits into the memory allocated once.
template <int Slices, class Space>
class sliced_operand {
public:
  sliced_operand(std::int64_t rows, std::int64_t columns) { memory_.resize(rows, columns); }

  sliced_matrix<Slices, Space>& shaped(std::int64_t rows, std::int64_t columns) {
    const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(columns);
    for (int i = 0; i < Slices; ++i) {
      matrix_.slice[i] =
          std::remove_reference_t<decltype(memory_.slice[i])>(memory_.slice[i].data(), m, k);
    }
    matrix_.shift = decltype(memory_.shift)(memory_.shift.data(), m);
    return matrix_;
  }
  const sliced_matrix<Slices, Space>& matrix() const { return matrix_; }

private:
  sliced_matrix<Slices, Space> memory_, matrix_;
};

/// Rows of numbers as they are.
template <class T, class Space>
class plain_operand {
public:
  plain_operand(std::int64_t rows, std::int64_t columns)
      : memory_(uninitialized("ordo::cross_entropy::operand"),
                static_cast<std::size_t>(rows * columns)) {}

  matrix_view<T, Space> shaped(std::int64_t rows, std::int64_t columns) {
    return matrix_ = over<Space>(memory_.data(), rows, columns);
  }
  matrix_view<const T, Space> matrix() const { return matrix_; }

private:
  Kokkos::View<T*, Kokkos::LayoutRight, typename Space::memory_space> memory_;
  matrix_view<T, Space> matrix_;
};

template <class Policy, class Space>
struct contraction {
  static_assert(!std::is_same_v<Policy, Policy>,
                "ordo::loss: the head has no such contraction; use Sliced<2, 2> or "
                "order::Lanes<16>");
};

template <int A, int B, class Space>
struct contraction<Sliced<A, B>, Space> {
  template <class T>
  using left = sliced_operand<A, Space>;
  template <class T>
  using right = sliced_operand<B, Space>;
};

template <int W, class Space>
struct contraction<order::Lanes<W>, Space> {
  template <class T>
  using left = plain_operand<T, Space>;
  template <class T>
  using right = plain_operand<T, Space>;
};

/// The operand whose rows are the rows of `x`.
template <execution_space Space, class T, int Slices>
void take_rows(const Space& space, matrix_view<const T, Space> x,
               sliced_operand<Slices, Space>& out) {
  slice_rows(
      space, x,
      out.shaped(static_cast<std::int64_t>(x.extent(0)), static_cast<std::int64_t>(x.extent(1))));
}

/// The operand whose rows are the columns of rows [begin, end) of `x`.
template <execution_space Space, class T, int Slices>
void take_columns(const Space& space, matrix_view<const T, Space> x, std::int64_t begin,
                  std::int64_t end, sliced_operand<Slices, Space>& out) {
  slice_columns(space, x, begin, end,
                out.shaped(static_cast<std::int64_t>(x.extent(1)), end - begin));
}

template <execution_space Space, class T>
void take_rows(const Space& space, matrix_view<const T, Space> x, plain_operand<T, Space>& out) {
  const auto rows = static_cast<std::int64_t>(x.extent(0));
  const auto matrix = out.shaped(rows, static_cast<std::int64_t>(x.extent(1)));
  ordo::detail::for_each(
      space, "ordo::cross_entropy::take_rows", rows, KOKKOS_LAMBDA(std::int64_t i) {
        for (std::size_t j = 0; j < x.extent(1); ++j) {
          matrix(i, j) = x(i, j);
        }
      });
}

template <execution_space Space, class T>
void take_columns(const Space& space, matrix_view<const T, Space> x, std::int64_t begin,
                  std::int64_t end, plain_operand<T, Space>& out) {
  const auto columns = static_cast<std::int64_t>(x.extent(1));
  const auto matrix = out.shaped(columns, end - begin);
  ordo::detail::for_each(
      space, "ordo::cross_entropy::take_columns", columns, KOKKOS_LAMBDA(std::int64_t j) {
        for (std::int64_t i = begin; i < end; ++i) {
          matrix(j, i - begin) = x(i, j);
        }
      });
}

/// Row i of `out` becomes x[0 ... n), as `slice_rows` would make it: for the thread that has the
/// row in its cache.
template <int Slices, class Space>
ORDO_FORCE_FUNCTION void take_row(const float* ORDO_RESTRICT x, std::int64_t n,
                                  const sliced_matrix<Slices, Space>& out, std::int64_t i) {
  std::uint32_t largest = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    largest = ordo::detail::larger_magnitude(largest, x[j]);
  }
  const std::int32_t shift = ordo::detail::alignment<Slices>(arith::from_bits(largest));
  out.shift(i) = shift;
  std::int8_t* plane[Slices];
  for (int s = 0; s < Slices; ++s) {
    plane[s] = &out.slice[s](i, 0);
  }
  for (std::int64_t j = 0; j < n; ++j) {
    std::int8_t digit[Slices];
    ordo::detail::digits<Slices>(x[j], shift, digit);
    for (int s = 0; s < Slices; ++s) {
      plane[s][j] = digit[s];
    }
  }
}

template <class... Traits>
ORDO_FORCE_FUNCTION void take_row(const float* x, std::int64_t n,
                                  const Kokkos::View<float**, Traits...>& out, std::int64_t i) {
  for (std::int64_t j = 0; j < n; ++j) {
    out(i, j) = x[j];
  }
}

/// C[m, n] = sum over k of a[m, k] * b[n, k], handed to the epilogue piece by piece.
template <execution_space Space, int A, int B, class Epilogue>
void multiply(const Space& space, Sliced<A, B> policy, const sliced_operand<A, Space>& a,
              const sliced_operand<B, Space>& b, const Epilogue& epilogue) {
  gemm_sliced(space, policy, a.matrix(), b.matrix(), epilogue);
}

template <execution_space Space, int W, class TA, class TB, class Epilogue>
void multiply(const Space& space, order::Lanes<W> policy, const plain_operand<TA, Space>& a,
              const plain_operand<TB, Space>& b, const Epilogue& epilogue) {
  gemm_f32(space, policy, a.matrix(), b.matrix(), epilogue);
}

} // namespace ordo::loss::detail
