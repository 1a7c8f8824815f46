// SPDX-License-Identifier: Apache-2.0
// expect: no matching function for call to .*sum\(

#include <ordo/reduce/sum.hpp>

float total(ordo::vector_view<const float, Kokkos::Serial> x) {
  return ordo::reduce::sum(Kokkos::Serial(), 16, x);
}
