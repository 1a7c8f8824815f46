// SPDX-License-Identifier: Apache-2.0

// Every test program's main function: Kokkos starts before the first test and stops after the last.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <Kokkos_Core.hpp>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (context.shouldExit()) { // --help, --version
    return context.run();
  }
  Kokkos::initialize(argc, argv);
  const int status = context.run();
  Kokkos::finalize();
  return status;
}
