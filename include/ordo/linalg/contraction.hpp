// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What the contractions share: checks of shapes, and the epilogue that stores a matrix.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include <ordo/core/error.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/core/macros.hpp>

namespace ordo::detail {

inline constexpr std::int64_t unbounded_k = std::numeric_limits<std::int64_t>::max();

/// Throws unless both operands have the same K, of at most `max_k`.
inline void require_contraction(const char* where, std::int64_t m, std::int64_t a_k, std::int64_t n,
                                std::int64_t b_k, std::int64_t max_k) {
  require(a_k == b_k, where, "A is " + shape(m, a_k) + " and B is " + shape(n, b_k),
          "both need the same number of columns, the contraction runs along rows");
  require(a_k <= max_k, where,
          "A is " + shape(m, a_k) + " and B is " + shape(n, b_k) +
              ": K is too long for int32 sums, at most " + std::to_string(max_k) + " fit",
          "split the contraction along K");
}

template <class View>
std::int64_t extent(const View& view, int axis) {
  return static_cast<std::int64_t>(view.extent(axis));
}

template <class A, class B>
void require_contraction(const char* where, const A& a, const B& b, std::int64_t max_k) {
  require_contraction(where, extent(a, 0), extent(a, 1), extent(b, 0), extent(b, 1), max_k);
}

template <class C>
void require_output(const char* where, const C& c, std::size_t m, std::size_t n) {
  require(c.extent(0) == m && c.extent(1) == n, where,
          "C is " + shape(c.extent(0), c.extent(1)) + " and the product is " + shape(m, n),
          "allocate C with the shape of the product");
}

/// Sum of k products. Sixteen sums, of which the compiler makes vectors.
ORDO_FORCE_FUNCTION std::int32_t dot_int8(const std::int8_t* ORDO_RESTRICT x,
                                          const std::int8_t* ORDO_RESTRICT y, std::int64_t k) {
  std::int32_t part[16] = {}, sum = 0;
  std::int64_t i = 0;
  for (; i + 16 <= k; i += 16)
    for (int j = 0; j < 16; ++j)
      part[j] += std::int32_t{x[i + j]} * y[i + j];
  for (; i < k; ++i)
    sum += std::int32_t{x[i]} * y[i];
  for (int j = 0; j < 16; ++j)
    sum += part[j];
  return sum;
}

/// What takes the pieces of a product; a view would be a matrix to store it in.
template <class T>
concept piece_epilogue = !Kokkos::is_view<T>::value;

/// The epilogue that stores the product.
template <class T, class Space>
struct store_piece {
  matrix_view<T, Space> c;

  KOKKOS_FUNCTION void operator()(std::int64_t m, std::int64_t n0, int count,
                                  const T* piece) const {
    std::memcpy(&c(m, n0), piece, static_cast<std::size_t>(count) * sizeof(T));
  }
};

/// A work item of a product by plain loops: neighbouring entries of one row, each by `dot(m, n)`.
///
/// `Dot` and this are functors, not lambdas: nvcc takes no lambda of a kernel in a function whose
/// template argument is a type local to its caller, such as an epilogue that is a lambda.
template <class T, class Dot, class Epilogue>
struct piece_of_row {
  static constexpr std::int64_t width = 16;
  Dot dot;
  Epilogue epilogue;
  std::int64_t n, pieces;

  KOKKOS_FUNCTION void operator()(std::int64_t item) const {
    const std::int64_t m = item / pieces, n0 = item % pieces * width;
    const int count = static_cast<int>(n - n0 < width ? n - n0 : width);
    T c[width];
    for (int j = 0; j < count; ++j)
      c[j] = dot(m, n0 + j);
    epilogue(m, n0, count, static_cast<const T*>(c));
  }
};

/// Hands all of an m x n product to `epilogue`, on any execution space.
template <class T, execution_space Space, class Dot, class Epilogue>
void multiply_plain(const Space& space, const char* label, std::int64_t m, std::int64_t n,
                    const Dot& dot, const Epilogue& epilogue) {
  using item = piece_of_row<T, Dot, Epilogue>;
  const std::int64_t pieces = (n + item::width - 1) / item::width;
  for_each(space, label, m * pieces, item{dot, epilogue, n, pieces});
}

} // namespace ordo::detail
