// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two binary32 or bf16 matrices with the sums in a stated order.

#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/cpu/gemm_f32.hpp>
#include <ordo/linalg/contraction.hpp>
#include <ordo/linalg/sliced.hpp>
#include <ordo/order/policies.hpp>

namespace ordo {
namespace detail {

/// Number of lanes an order has; 0 if it is none that this product knows.
template <class Order>
inline constexpr int gemm_lanes = 0;
template <>
inline constexpr int gemm_lanes<order::Sequential> = 1;
template <int W>
inline constexpr int gemm_lanes<order::Lanes<W>> = W;

/// Products of two bf16 are exact and follow the rule for exact products, all others `arith::mul`.
template <class TA, class TB>
ORDO_FORCE_FUNCTION float gemm_product(TA a, TB b) {
  if constexpr (std::is_same_v<TA, bf16> && std::is_same_v<TB, bf16>)
    return arith::mul_exact(arith::to_f32(a), arith::to_f32(b));
  else
    return arith::mul(arith::to_f32(a), arith::to_f32(b));
}

template <class T, class View>
cpu::real_rows<T> rows_of(const View& x) {
  return {x.data(), extent(x, 0), extent(x, 1), static_cast<std::int64_t>(x.stride(0))};
}

/// One entry by plain loops.
template <int W, class A, class B>
struct f32_dot {
  A a;
  B b;
  std::int64_t k_total;

  KOKKOS_FUNCTION float operator()(std::int64_t m, std::int64_t n) const {
    float lane[W] = {};
    for (std::int64_t k = 0; k < k_total; ++k) {
      float& sum = lane[k % W];
      sum = arith::add(sum, gemm_product(a(m, k), b(n, k)));
    }
    for (int width = W; width > 1; width /= 2)
      for (int i = 0; i < width / 2; ++i)
        lane[i] = arith::add(lane[2 * i], lane[2 * i + 1]);
    return arith::canonical(lane[0]);
  }
};

/// On any execution space.
template <int W, execution_space Space, class TA, class TB, class Epilogue>
void gemm_f32_plain(const Space& space, matrix_view<const TA, Space> a,
                    matrix_view<const TB, Space> b, const Epilogue& epilogue) {
  const f32_dot<W, matrix_view<const TA, Space>, matrix_view<const TB, Space>> dot{a, b,
                                                                                   extent(a, 1)};
  multiply_plain<float>(space, "ordo::gemm_f32::dot", extent(a, 0), extent(b, 0), dot, epilogue);
}

} // namespace detail

/// C[m, n] = sum over k of A[m, k] * B[n, k], each product rounded before it is added, handed to
/// `epilogue` piece by piece.
///
/// `epilogue(std::int64_t m, std::int64_t n0, int count, const float* c)`: as for `gemm_int8`.
/// Shape: A is M x K, B is N x K, each of float or bf16.
/// Order: over k, `order::Sequential` or `order::Lanes<W>`, W <= 128. Products follow `arith::mul`;
/// of two bf16, whose products are exact, `arith::mul_exact`. K = 0 gives +0. NaN is canonical.
/// Bits: depend on the entries and the order only.
/// Sync: returns after the last call of `epilogue`, which must not throw.
/// Throws: if the K of A and B differ.
template <execution_space Space, class Order, detail::real_matrix A, detail::real_matrix B,
          detail::piece_epilogue Epilogue>
void gemm_f32(const Space& space, Order, const A& a, const B& b, const Epilogue& epilogue) {
  constexpr int lanes = detail::gemm_lanes<Order>;
  static_assert(lanes != 0,
                "ordo::gemm_f32: no such order; use order::Sequential or order::Lanes<W>");
  static_assert(lanes <= 128, "ordo::gemm_f32: too many lanes; use at most order::Lanes<128>");
  using TA = std::remove_cv_t<typename A::value_type>;
  using TB = std::remove_cv_t<typename B::value_type>;
  const matrix_view<const TA, Space> left(a);
  const matrix_view<const TB, Space> right(b);
  detail::require_contraction("ordo::gemm_f32", left, right, detail::unbounded_k);
  if constexpr (detail::on_host<Space>)
    cpu::multiply_f32(space, detail::rows_of<TA>(left), detail::rows_of<TB>(right), lanes,
                      epilogue);
  else
    detail::gemm_f32_plain<lanes, Space, TA, TB>(space, left, right, epilogue);
}

/// As above, into a matrix C of M x N.
template <execution_space Space, class Order, detail::real_matrix A, detail::real_matrix B>
void gemm_f32(const Space& space, Order policy, const A& a, const B& b,
              std::type_identity_t<matrix_view<float, Space>> c) {
  detail::require_output("ordo::gemm_f32", c, a.extent(0), b.extent(0));
  gemm_f32(space, policy, a, b, detail::store_piece<float, Space>{c});
}

} // namespace ordo
