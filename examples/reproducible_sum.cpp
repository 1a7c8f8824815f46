// SPDX-License-Identifier: Apache-2.0

// The order of a sum is a choice, and the choice is in the program text. Prints the sum of the same
// million numbers under four orders; each line is the same whatever the number of threads.

#include <cstdio>
#include <cstdlib>

#include <ordo/random/initializers.hpp>
#include <ordo/reduce/sum.hpp>

int main() {
  const Kokkos::ScopeGuard kokkos;
  using space = Kokkos::DefaultHostExecutionSpace;
  using view = ordo::vector_view<const float, space>;

  // The well-known four numbers: what one adds first decides what is left.
  const float probe[] = {1e8f, 1.0f, -1e8f, 1.0f};
  const auto sum = [&](auto order) { return ordo::reduce::sum(space(), order, view(probe, 4)); };
  const float sequential = sum(ordo::order::Sequential{}), tree = sum(ordo::order::Tree{}),
              exact = sum(ordo::order::Exact{});
  std::printf("1e8 + 1 - 1e8 + 1: Sequential %g, Tree %g, Exact %g\n", sequential, tree, exact);

  Kokkos::View<float*, space> x("x", 1000000);
  ordo::random::uniform<space>(space(), 42, "example", x, -1.0f, 2.0f);
  const auto print = [&](const char* name, auto order) {
    std::printf("%-12s %a\n", name, ordo::reduce::sum(space(), order, view(x)));
  };
  print("Sequential", ordo::order::Sequential{});
  print("Lanes<32>", ordo::order::Lanes<32>{});
  print("Tree", ordo::order::Tree{});
  print("Exact", ordo::order::Exact{});
  return sequential == 1 && tree == 0 && exact == 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
