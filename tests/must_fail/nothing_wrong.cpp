// SPDX-License-Identifier: Apache-2.0
// expect: nothing

#include <ordo/linalg/gemm_f32.hpp>
#include <ordo/linalg/gemm_sliced.hpp>
#include <ordo/nn/linear.hpp>
#include <ordo/reduce/sum.hpp>

// What the others do wrong, done right: that they fail is not for want of a header or a flag.
float total(ordo::vector_view<const float, Kokkos::Serial> x) {
  return ordo::reduce::sum(Kokkos::Serial(), ordo::order::Lanes<16>{}, x);
}
void product(ordo::matrix_view<const float, Kokkos::Serial> a,
             ordo::matrix_view<const float, Kokkos::Serial> b,
             ordo::matrix_view<float, Kokkos::Serial> c) {
  ordo::gemm_f32(Kokkos::Serial(), ordo::order::Lanes<16>{}, a, b, c);
}
int main() {
  return sizeof(ordo::Sliced<2, 3>) + sizeof(ordo::nn::int8_weights<Kokkos::Serial>);
}
