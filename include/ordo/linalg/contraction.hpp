// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What the contractions share: checks of shapes, and the epilogue that stores a matrix.

#include <cstdint>
#include <limits>
#include <string>

#include <ordo/core/error.hpp>
#include <ordo/core/execution.hpp>

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

template <class A, class B>
void require_contraction(const char* where, const A& a, const B& b, std::int64_t max_k) {
  const auto extent = [](const auto& view, int axis) {
    return static_cast<std::int64_t>(view.extent(axis));
  };
  require_contraction(where, extent(a, 0), extent(a, 1), extent(b, 0), extent(b, 1), max_k);
}

template <class C>
void require_output(const char* where, const C& c, std::size_t m, std::size_t n) {
  require(c.extent(0) == m && c.extent(1) == n, where,
          "C is " + shape(c.extent(0), c.extent(1)) + " and the product is " + shape(m, n),
          "allocate C with the shape of the product");
}

/// The epilogue that stores the product.
template <class T, class Space>
struct store_piece {
  matrix_view<T, Space> c;

  KOKKOS_FUNCTION void operator()(std::int64_t m, std::int64_t n0, int count,
                                  const T* piece) const {
    for (int j = 0; j < count; ++j) c(m, n0 + j) = piece[j];
  }
};

}  // namespace ordo::detail
