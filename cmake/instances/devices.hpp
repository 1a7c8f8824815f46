// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The devices that this build of the programs can run on, chosen at run time by name. The
/// templates behind them are instantiated once, in the sources beside this file.

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ordo/audit/conformance_line.hpp>
#include <ordo/train/driver.hpp>

namespace ordo::instances {

/// Kokkos for the length of a program. Threads are not bound unless the user asks for it: programs
/// share their machine.
class kokkos_scope {
public:
  kokkos_scope() {
    ::setenv("OMP_PROC_BIND", "false", 0);
#if KOKKOS_VERSION < 30700
    Kokkos::InitArguments settings;
    settings.disable_warnings = true;
#else
    Kokkos::InitializationSettings settings;
    settings.set_disable_warnings(true);
#endif
    Kokkos::initialize(settings);
  }
  kokkos_scope(const kokkos_scope&) = delete;
  ~kokkos_scope() {
    Kokkos::finalize();
  }
};

/// A driver of a run, and the conformance report, on one execution space.
struct device {
  using processes = std::shared_ptr<comm::communicator>;
  using corpus = std::shared_ptr<const data::corpus>;

  const char* name;
  std::unique_ptr<train::driver> (*make)(const train::run_config&, corpus, processes);
  std::vector<audit::conformance_line> (*conformance)();

  /// A driver of this process alone, or of a job's processes, each of which makes one.
  std::unique_ptr<train::driver>
  make_driver(const train::run_config& run, corpus from,
              processes job = std::make_shared<comm::self_communicator>()) const {
    return make(run, std::move(from), std::move(job));
  }
};

const device& serial();
#if defined(KOKKOS_ENABLE_OPENMP)
const device& openmp();
#endif
#if defined(KOKKOS_ENABLE_CUDA)
const device& cuda();
#endif

/// The device called `name`; the first of openmp and serial for an empty name. A GPU is used only
/// when it is named. Throws with the names there are.
inline const device& find_device(const std::string& name) {
  std::vector<const device*> all;
#if defined(KOKKOS_ENABLE_OPENMP)
  all.push_back(&openmp());
#endif
  all.push_back(&serial());
#if defined(KOKKOS_ENABLE_CUDA)
  all.push_back(&cuda());
#endif
  std::string names;
  for (const device* candidate : all) {
    if (name.empty() || name == candidate->name)
      return *candidate;
    names += (names.empty() ? "" : ", ") + std::string(candidate->name);
  }
  throw error("--device " + name, "this build has no such device", "it has: " + names);
}

} // namespace ordo::instances
