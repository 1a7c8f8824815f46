// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two int8 matrices, accumulated exactly in int32.

#include <cstdint>
#include <type_traits>

#include <ordo/core/error.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/cpu/gemm_slices.hpp>
#include <ordo/linalg/contraction.hpp>
#include <ordo/order/policies.hpp>

#if defined(ORDO_CUDA)
#include <ordo/cuda/gemm_int8.hpp>
#endif

namespace ordo {

/// Longest contraction of entries within [-127, 127] that int32 holds: 133,144 * 127^2 < 2^31.
inline constexpr std::int64_t gemm_int8_max_k = 133144;

namespace detail {

/// One entry by plain loops.
struct int8_dot {
  const std::int8_t *a, *b;
  std::int64_t a_stride, b_stride, k;

  KOKKOS_FUNCTION std::int32_t operator()(std::int64_t m, std::int64_t n) const {
    return dot_int8(a + m * a_stride, b + n * b_stride, k);
  }
};

/// On the host: with the instructions this processor has. False if there is only the plain way.
template <execution_space Space, class Epilogue>
bool gemm_int8_host([[maybe_unused]] const Space& space,
                    [[maybe_unused]] matrix_view<const std::int8_t, Space> a,
                    [[maybe_unused]] matrix_view<const std::int8_t, Space> b,
                    [[maybe_unused]] const Epilogue& epilogue) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>) {
    const auto slices = [](const auto& x) {
      return cpu::int8_slices<1>{
          {x.data()}, extent(x, 0), extent(x, 1), static_cast<std::int64_t>(x.stride(0))};
    };
    return cpu::multiply_slices(space, slices(a), slices(b),
                                [&epilogue](std::int64_t m, std::int64_t n0, int count,
                                            const std::int32_t* c,
                                            std::int64_t) { epilogue(m, n0, count, c); });
  }
#endif
  return false;
}

#if defined(ORDO_CUDA)
/// The operands as the kernels of ordo/cuda take them.
template <class Matrix>
cuda::int8_operands int8_operands_of(const Matrix& a, const Matrix& b) {
  return {a.data(),     static_cast<std::int64_t>(a.stride(0)),
          b.data(),     static_cast<std::int64_t>(b.stride(0)),
          extent(a, 0), extent(b, 0),
          extent(a, 1)};
}
#endif

} // namespace detail

/// C[m, n] = sum over k of A[m, k] * B[n, k], handed to `epilogue` piece by piece.
///
/// `epilogue(std::int64_t m, std::int64_t n0, int count, const std::int32_t* c)` is called once for
/// each piece C[m, n0 .. n0 + count) of each row, from several threads at a time; the pieces are
/// disjoint and cover C. K = 0 gives zeros. On a device it must be callable there; `scaled_store`
/// is stored without going through pieces, with the same bits.
/// Shape: A is M x K, B is N x K (both contiguous along k).
/// Order: Exact; no order exists.
/// Bits: depend on the entries only, not on pieces, threads or instruction set.
/// Sync: returns after the last call of `epilogue`, which must not throw; on a device, when the
/// work is in the stream of `space`.
/// Throws: if the K of A and B differ, or K > 133,144. Quantizers clamp to [-127, 127]; with
/// entries of -128, outside this contract, results are still exact while K <= 131,071.
template <execution_space Space, detail::piece_epilogue Epilogue>
void gemm_int8(const Space& space, order::Exact, matrix_view<const std::int8_t, Space> a,
               matrix_view<const std::int8_t, Space> b, const Epilogue& epilogue) {
  detail::require_contraction("ordo::gemm_int8", a, b, gemm_int8_max_k);
#if defined(ORDO_CUDA)
  if constexpr (detail::on_cuda<Space>) {
    cuda::gemm_int8(space.cuda_stream(), detail::int8_operands_of(a, b), epilogue);
  } else
#endif
  {
    if (!detail::gemm_int8_host(space, a, b, epilogue)) {
      const detail::int8_dot dot{a.data(), b.data(), static_cast<std::int64_t>(a.stride(0)),
                                 static_cast<std::int64_t>(b.stride(0)), detail::extent(a, 1)};
      detail::multiply_plain<std::int32_t>(space, "ordo::gemm_int8::dot", detail::extent(a, 0),
                                           detail::extent(b, 0), dot, epilogue);
    }
  }
}

/// As above, into a matrix C of M x N.
/// Throws: also if C is not M x N.
template <execution_space Space>
void gemm_int8(const Space& space, order::Exact policy, matrix_view<const std::int8_t, Space> a,
               matrix_view<const std::int8_t, Space> b,
               std::type_identity_t<matrix_view<std::int32_t, Space>> c) {
  detail::require_output("ordo::gemm_int8", c, a.extent(0), b.extent(0));
#if defined(ORDO_CUDA)
  if constexpr (detail::on_cuda<Space>) {
    gemm_int8(space, policy, a, b,
              cuda::store_sums{c.data(), static_cast<std::int64_t>(c.stride(0))});
  } else
#endif
  {
    gemm_int8(space, policy, a, b, detail::store_piece<std::int32_t, Space>{c});
  }
}

} // namespace ordo
