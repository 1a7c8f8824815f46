// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The processes of a training job: those that a launcher of MPI started, or this one alone.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <ordo/audit/conformance_line.hpp>
#include <ordo/comm/communicator.hpp>
#include <ordo/io/file.hpp>
#include <ordo/train/driver.hpp>
#if defined(ORDO_MPI)
#include <ordo/comm/mpi_communicator.hpp>
#endif

#include "command_line.hpp"

namespace ordo::program {

/// How many processes a launcher of MPI started, by the variables that Open MPI, MPICH, Intel MPI
/// and Slurm set; 1 where none did.
inline int launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    if (const char* const text = std::getenv(name))
      return std::max(1, std::atoi(text));
  }
  // srun without a PMI sets this too; what the step asked for counts, not the allocation.
  if (const char* const text = std::getenv("SLURM_STEP_NUM_TASKS"))
    return std::max(1, std::atoi(text));
  return 1;
}

/// MPI for the length of a program, if a launcher started it.
class mpi_scope {
public:
  mpi_scope() {
    if (launched_processes() == 1)
      return;
#if defined(ORDO_MPI)
    MPI_Init(nullptr, nullptr);
    started_ = true;
#else
    std::cerr << "ordo-train: it was started " << launched_processes()
              << " times by a launcher of MPI, but was built without MPI; build with "
              << "ORDO_ENABLE_MPI=ON, or start it once\n";
    std::exit(not_done);
#endif
  }
  mpi_scope(const mpi_scope&) = delete;
  mpi_scope& operator=(const mpi_scope&) = delete;
  ~mpi_scope() {
#if defined(ORDO_MPI)
    if (started_)
      MPI_Finalize();
#endif
  }

  bool started() const {
    return started_;
  }
  int rank() const {
    int own = 0;
#if defined(ORDO_MPI)
    if (started_)
      MPI_Comm_rank(MPI_COMM_WORLD, &own);
#endif
    return own;
  }
  /// Ends all processes: the others could wait for this one for ever.
  void abort() const {
    std::cout.flush();
    std::fflush(nullptr);
#if defined(ORDO_MPI)
    if (started_)
      MPI_Abort(MPI_COMM_WORLD, not_done);
#endif
  }

  std::shared_ptr<comm::communicator> processes([[maybe_unused]] double patience) const {
#if defined(ORDO_MPI)
    if (started_)
      return std::make_shared<comm::mpi_communicator>(std::chrono::duration<double>(patience));
#endif
    return std::make_shared<comm::self_communicator>();
  }

private:
  bool started_ = false;
};

/// What all processes of a job must have in common, as one process knows it.
inline train::json inputs_of(const digest::hash256& genesis, const digest::hash256& corpus) {
  train::json inputs = {{"version", version},
                        {"contract", contract_version},
                        {"configuration", digest::hex(genesis)},
                        {"corpus", digest::hex(corpus)}};
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  if (!none)
    inputs["program"] = digest::hex(
        digest::sha256_of(std::string_view(io::read_file("/proc/self/exe", std::size_t{1} << 31))));
  return inputs;
}

/// The name of this machine.
inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

/// Refuses, on process 0, a job whose processes would not do the same. Collective.
inline void require_same_inputs(comm::communicator& processes, const train::json& own) {
  processes.enter("comparing program, configuration and corpus of all processes");
  const train::json said = {{"inputs", own}, {"host", host_name()}};
  const std::vector<std::string> all = comm::gather(processes, said.dump(), 0);
  if (processes.rank() != 0)
    return;
  for (std::size_t p = 1; p < all.size(); ++p) {
    const std::string where = "process " + std::to_string(p);
    const train::json other = io::parse_json(all[p], where);
    for (const auto& [key, value] : own.items()) {
      const train::json theirs = other.at("inputs").value(key, train::json());
      require(theirs == value, where + " on " + other.at("host").get<std::string>(),
              "its " + key + " is " + theirs.dump() + ", process 0's on " + host_name() + " is " +
                  value.dump(),
              "nothing was trained; give all processes the same program, run and corpus");
    }
  }
}

/// Process 0's driver of a job: tells the others what it does, so that they do it too (`follow`).
class conducting_driver final : public train::driver {
public:
  conducting_driver(std::unique_ptr<train::driver> own,
                    std::shared_ptr<comm::communicator> processes)
      : own_(std::move(own)), processes_(std::move(processes)) {}
  ~conducting_driver() override {
    if (std::uncaught_exceptions() == 0) // otherwise the job is aborted
      tell("end");
  }

  void initialise() override {
    tell("initialise");
    own_->initialise();
  }
  train::checkpoint_info load(const std::filesystem::path& checkpoints, std::uint64_t step,
                              const digest::hash256& genesis) override {
    tell("load " + std::to_string(step));
    return own_->load(checkpoints, step, genesis);
  }
  void save(const std::filesystem::path& checkpoints, const digest::hash256& genesis,
            const digest::hash256& record) override {
    tell("save");
    own_->save(checkpoints, genesis, record);
  }
  train::advanced advance(const digest::hash256& previous) override {
    tell("advance");
    return own_->advance(previous);
  }
  const train::progress& at() const override { return own_->at(); }
  std::vector<digest::named_root> parameter_roots() override {
    tell("parameter roots");
    return own_->parameter_roots();
  }
  std::vector<digest::named_root> optimizer_roots() override {
    tell("optimizer roots");
    return own_->optimizer_roots();
  }
  std::vector<float> next_logits(std::span<const std::uint32_t> ids) override {
    return own_->next_logits(ids);
  }

private:
  void tell(std::string what) {
    if (processes_->size() == 1)
      return;
    processes_->enter("telling the others to '" + what + "'");
    comm::broadcast(*processes_, what);
  }

  std::unique_ptr<train::driver> own_;
  std::shared_ptr<comm::communicator> processes_;
};

/// What all other processes do: what process 0 says.
inline void follow(train::driver& own, comm::communicator& processes) {
  while (true) {
    std::string what;
    processes.enter("waiting for what process 0 says");
    comm::broadcast(processes, what);
    if (what == "end")
      return;
    if (what == "initialise") {
      own.initialise();
    } else if (what == "save") {
      own.save({}, {}, {});
    } else if (what == "advance") {
      own.advance({});
    } else if (what == "parameter roots") {
      own.parameter_roots();
    } else if (what == "optimizer roots") {
      own.optimizer_roots();
    } else if (what.rfind("load ", 0) == 0) {
      own.load({}, std::strtoull(what.c_str() + 5, nullptr, 10), {});
    } else {
      throw error("process " + std::to_string(processes.rank()),
                  "process 0 says '" + what + "', which it does not know",
                  "all processes must be of one build");
    }
  }
}

} // namespace ordo::program
