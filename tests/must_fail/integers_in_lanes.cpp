// SPDX-License-Identifier: Apache-2.0
// expect: ordo::reduce::sum: integers have no rounding to order; use order::Exact

#include <ordo/reduce/sum.hpp>

auto total(ordo::vector_view<const std::int32_t, Kokkos::Serial> x) {
  return ordo::reduce::sum(Kokkos::Serial(), ordo::order::Lanes<16>{}, x);
}
