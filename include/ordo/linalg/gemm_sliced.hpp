// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two sliced matrices: exact integers, one rounding to binary32.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/cpu/gemm_slices.hpp>
#include <ordo/cpu/sliced_avx512.hpp>
#include <ordo/linalg/contraction.hpp>
#include <ordo/linalg/sliced.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/gemm_sliced.hpp>
#endif

namespace ordo {

/// A contraction with A slices on the left and B on the right.
template <int A, int B>
struct Sliced {
  static_assert((A == 2 || A == 3) && (B == 2 || B == 3),
                "ordo::Sliced: two or three slices on each side exist");
};

namespace detail {

/// One entry by plain loops.
template <int A, int B, execution_space Space>
struct sliced_dot {
  sliced_matrix<A, Space> a;
  sliced_matrix<B, Space> b;
  std::int64_t k;

  KOKKOS_FUNCTION float operator()(std::int64_t m, std::int64_t n) const {
    constexpr int weights = A + B - 1;
    std::int32_t sum[weights] = {};
    for (int i = 0; i < A; ++i)
      for (int j = 0; j < B; ++j)
        sum[i + j] += dot_int8(a.slice[i].data() + m * k, b.slice[j].data() + n * k, k);
    std::int64_t v = 0;
    for (int w = weights - 1; w >= 0; --w)
      v = v * 128 + sum[w];
    return sliced_value(v, a.shift(m), b.shift(n));
  }
};

#if defined(__x86_64__)
/// Rounds and scales one piece of a row, and hands it on.
template <int Weights, class Epilogue>
struct round_piece {
  const std::int32_t* a_shift;
  const std::int32_t* b_shift;
  const Epilogue& epilogue;

  void operator()(std::int64_t m, std::int64_t n0, int count, const std::int32_t* sums,
                  std::int64_t plane) const {
    alignas(64) float c[cpu::most_piece];
    if (cpu::active_isa() == cpu::isa::avx512) {
      cpu::avx512::round_sums<Weights>(sums, plane, count, a_shift[m], b_shift + n0,
                                       sliced_non_finite, c);
    } else {
      for (int j = 0; j < count; ++j) {
        std::int64_t v = 0;
        for (int w = Weights - 1; w >= 0; --w)
          v = v * 128 + sums[w * plane + j];
        c[j] = sliced_value(v, a_shift[m], b_shift[n0 + j]);
      }
    }
    epilogue(m, n0, count, static_cast<const float*>(c));
  }
};
#endif

/// On the host: with the instructions this processor has. False if there is only the plain way.
template <int A, int B, execution_space Space, class Epilogue>
bool gemm_sliced_host([[maybe_unused]] const Space& space,
                      [[maybe_unused]] const sliced_matrix<A, Space>& a,
                      [[maybe_unused]] const sliced_matrix<B, Space>& b,
                      [[maybe_unused]] const Epilogue& epilogue) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>) {
    const auto slices = [](const auto& x) {
      cpu::int8_slices<std::remove_cvref_t<decltype(x)>::slices> out{
          {}, x.rows(), x.columns(), x.columns()};
      for (int i = 0; i < std::remove_cvref_t<decltype(x)>::slices; ++i)
        out.slice[i] = x.slice[i].data();
      return out;
    };
    return cpu::multiply_slices(
        space, slices(a), slices(b),
        round_piece<A + B - 1, Epilogue>{a.shift.data(), b.shift.data(), epilogue});
  }
#endif
  return false;
}

} // namespace detail

/// Longest contraction whose int32 sums cannot overflow. Products of equal weight share a sum:
/// 132,104 for two and two slices (hi * lo + lo * hi is at most 2 * 127 * 64 a term), 132,104 for
/// two and three, 105,517 for three and three (2 * 127 * 64 + 64^2).
template <int A, int B>
inline constexpr std::int64_t gemm_sliced_max_k = detail::sliced_max_k<A, B>();

/// C[m, n] = sum over k of A[m, k] * B[n, k] of the fixed-point entries, handed to `epilogue` piece
/// by piece.
///
/// `epilogue(std::int64_t m, std::int64_t n0, int count, const float* c)`: as for `gemm_int8`.
/// The products of slices are exact; the sum of all of them, weighted by powers of 128, is one
/// integer; it is rounded once to binary32 and scaled by 2^-(s_a + s_b), whose result is zero of
/// its sign if its magnitude is at most 2^-126. A row with shift `sliced_non_finite` gives NaN
/// (7fc00000). K = 0 gives +0.
/// Shape: A is M x K, B is N x K.
/// Order: none; the sum is an integer.
/// Bits: depend on the slices and shifts only.
/// Error: against the product of the entries before slicing, at most
/// sum over k of (|a_k| e_b + |b_k| e_a + e_a e_b) + 2^-24 |C|, e = 2^-(s + 1) of each row.
/// Sync: returns after the last call of `epilogue`, which must not throw; on a device the calls are
/// in the order of `space`'s stream.
/// Throws: if the K of A and B differ or K exceeds `gemm_sliced_max_k`.
template <int A, int B, execution_space Space, detail::piece_epilogue Epilogue>
void gemm_sliced(const Space& space, Sliced<A, B>, const sliced_matrix<A, Space>& a,
                 const sliced_matrix<B, Space>& b, const Epilogue& epilogue) {
  detail::require_contraction("ordo::gemm_sliced", a.rows(), a.columns(), b.rows(), b.columns(),
                              gemm_sliced_max_k<A, B>);
#if defined(ORDO_CUDA)
  if constexpr (detail::on_cuda<Space>) {
    cuda::gemm_sliced(space.cuda_stream(), detail::device_slices(a), detail::device_slices(b),
                      a.rows(), b.rows(), a.columns(), epilogue);
    return;
  }
#endif
  if (!detail::gemm_sliced_host(space, a, b, epilogue))
    detail::multiply_plain<float>(space, "ordo::gemm_sliced::dot", a.rows(), b.rows(),
                                  detail::sliced_dot<A, B, Space>{a, b, a.columns()}, epilogue);
}

/// As above, into a matrix C of M x N.
template <int A, int B, execution_space Space>
void gemm_sliced(const Space& space, Sliced<A, B> policy, const sliced_matrix<A, Space>& a,
                 const sliced_matrix<B, Space>& b, matrix_view<float, Space> c) {
  detail::require_output("ordo::gemm_sliced", c, a.slice[0].extent(0), b.slice[0].extent(0));
  gemm_sliced(space, policy, a, b, detail::store_piece<float, Space>{c});
}

} // namespace ordo
