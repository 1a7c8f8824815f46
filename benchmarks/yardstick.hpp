// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The main function of every benchmark: OpenBLAS at its best as the yardstick, Kokkos, and what
/// the results were measured with.

#include <cstdlib>
#include <string>
#include <string_view>

#include <unistd.h>

#include <benchmark/benchmark.h>
#include <cblas.h>

#include <Kokkos_Core.hpp>

#include <ordo/cpu/isa.hpp>

namespace ordo::benchmarks {

/// OpenBLAS chooses its kernels before main, and takes those for the oldest processors where it
/// does not know the model, which would flatter us. Starts the program again with the right ones.
inline void choose_openblas_kernels(char** argv) {
  const char* wanted = cpu::supported(cpu::isa::avx512) ? "SkylakeX"
                       : cpu::supported(cpu::isa::avx2) ? "Haswell"
                                                        : "";
  const std::string_view core = openblas_get_corename();
  if (*wanted == '\0' || core == wanted || core == "Cooperlake" || core == "SapphireRapids" ||
      std::getenv("ORDO_BENCH_RESTARTED") != nullptr) {
    return;
  }
  setenv("ORDO_BENCH_RESTARTED", "1", 1);
  setenv("OPENBLAS_CORETYPE", wanted, 1);
  unsetenv("OPENBLAS_L2_SIZE");
  execv("/proc/self/exe", argv);
}

/// Runs the benchmarks of the program. Returns its exit status.
inline int run(int argc, char** argv) {
  choose_openblas_kernels(argv);
  ::setenv("OMP_PROC_BIND", "false", 0);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv))
    return 2;
  const Kokkos::ScopeGuard kokkos(argc, argv);
  benchmark::AddCustomContext("ordo", ORDO_BENCH_VERSION);
  benchmark::AddCustomContext("compiler", ORDO_BENCH_COMPILER);
  benchmark::AddCustomContext("flags", ORDO_BENCH_FLAGS);
  benchmark::AddCustomContext("threads",
                              std::to_string(Kokkos::DefaultHostExecutionSpace().concurrency()));
  benchmark::AddCustomContext("openblas", openblas_get_corename());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

} // namespace ordo::benchmarks
