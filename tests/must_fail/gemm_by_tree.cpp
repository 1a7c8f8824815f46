// SPDX-License-Identifier: Apache-2.0
// expect: ordo::gemm_f32: no such order; use order::Sequential or order::Lanes<W>

#include <ordo/linalg/gemm_f32.hpp>

void product(ordo::matrix_view<const float, Kokkos::Serial> a,
             ordo::matrix_view<const float, Kokkos::Serial> b,
             ordo::matrix_view<float, Kokkos::Serial> c) {
  ordo::gemm_f32(Kokkos::Serial(), ordo::order::Tree{}, a, b, c);
}
