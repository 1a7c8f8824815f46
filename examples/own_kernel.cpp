// SPDX-License-Identifier: Apache-2.0

// A kernel of one's own with the library's pieces: the softmax of every row of a matrix, whose sums
// are in a stated order. The order is a template argument, as it is in the library.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ordo/arith/functions.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/digest/sha256.hpp>
#include <ordo/order/sum.hpp>
#include <ordo/random/initializers.hpp>

template <ordo::execution_space Space, class Order>
void softmax(const Space& space, Order order, ordo::matrix_view<float, Space> x) {
  const auto columns = static_cast<std::int64_t>(x.extent(1));
  float* const data = x.data();
  ordo::for_each(
      space, "example::softmax", static_cast<std::int64_t>(x.extent(0)),
      KOKKOS_LAMBDA(std::int64_t i) {
        float* const row = data + i * columns;
        float top = row[0];
        for (std::int64_t j = 1; j < columns; ++j)
          top = ordo::arith::max(row[j], top);
        for (std::int64_t j = 0; j < columns; ++j) {
          row[j] = ordo::arith::exp(ordo::arith::sub(row[j], top));
        }
        const float sum = ordo::order::sum(order, columns, [=](std::int64_t j) { return row[j]; });
        const float scale = ordo::arith::div(1.0f, sum);
        for (std::int64_t j = 0; j < columns; ++j)
          row[j] = ordo::arith::mul(row[j], scale);
      });
}

template <class Space, class Order>
ordo::digest::hash256 run(Order order) {
  Kokkos::View<float**, Kokkos::LayoutRight, Space> x("x", 300, 1000);
  ordo::random::uniform<Space>(Space(), 1, "example",
                               ordo::vector_view<float, Space>(x.data(), x.size()), -4.0f, 8.0f);
  softmax(Space(), order, ordo::matrix_view<float, Space>(x));
  return ordo::digest::sha256_of(std::as_bytes(std::span(x.data(), x.size())));
}

int main() {
  const Kokkos::ScopeGuard kokkos;
  using host = Kokkos::DefaultHostExecutionSpace;
  const auto lanes = run<host>(ordo::order::Lanes<32>{}),
             again = run<Kokkos::Serial>(ordo::order::Lanes<32>{});
  const auto sequential = run<host>(ordo::order::Sequential{});
  std::printf("Lanes<32>  %s\nSequential %s\n", ordo::digest::hex(lanes).c_str(),
              ordo::digest::hex(sequential).c_str());
  // The same order on another backend: the same bits. Another order: other bits.
  return lanes == again && lanes != sequential ? EXIT_SUCCESS : EXIT_FAILURE;
}
