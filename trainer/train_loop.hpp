// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The training loop: steps, records, checkpoints, progress, and stopping without loss.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include <unistd.h>

#include <ordo/train/run_directory.hpp>

#include "command_line.hpp"
#include "devices.hpp"
#include "job.hpp"

namespace ordo::program {

struct loop_options {
  std::string device, corpus;
  std::optional<std::uint64_t> until;
  bool quiet = false, json = false;
  bool past_halt = false; ///< go on from a step at which the spike rule halted
  std::shared_ptr<comm::communicator> processes = std::make_shared<comm::self_communicator>();
};

/// Keeps a second trainer out of a run for as long as it lives. Taken before anything is read: what
/// was read without it may be behind what another trainer has written since.
class run_lock {
public:
  explicit run_lock(const std::filesystem::path& run) {
    train::run_directory::require_run(run);
    file_ = io::file(run / "lock", O_RDWR | O_CREAT);
    require(file_.lock(), run.string(), "another program is training this run",
            "wait for it, or stop it");
  }

private:
  io::file file_;
};

/// Whether SIGINT, SIGTERM or SIGUSR1 has asked to stop. A second signal ends the program at once;
/// the run survives that too, at its last checkpoint.
class stop_request {
public:
  stop_request() {
    // Launchers of MPI hand on SIGUSR1; what they do on the others ends the processes.
    for (const int number : {SIGINT, SIGTERM, SIGUSR1})
      std::signal(number, &on_signal);
  }
  static bool seen() { return seen_; }

private:
  static void on_signal(int number) {
    seen_ = 1;
    std::signal(number, SIG_DFL);
  }
  static inline volatile std::sig_atomic_t seen_ = 0;
};

/// "1:02:03" or "2:03".
inline std::string duration(double seconds) {
  const auto s = static_cast<unsigned long long>(seconds);
  char text[32];
  if (s >= 3600) {
    std::snprintf(text, sizeof text, "%llu:%02llu:%02llu", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(text, sizeof text, "%llu:%02llu", s / 60, s % 60);
  }
  return text;
}

/// The progress line: rewritten in place on a terminal, one line every ten seconds elsewhere.
class progress_line {
public:
  explicit progress_line(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}

  void show(const train::advanced& step, std::uint64_t last_step, double seconds, bool final) {
    rate_ = rate_ == 0 ? static_cast<double>(step.tokens) / seconds
                       : 0.9 * rate_ + 0.1 * static_cast<double>(step.tokens) / seconds;
    per_step_ = per_step_ == 0 ? seconds : 0.9 * per_step_ + 0.1 * seconds;
    const auto now = std::chrono::steady_clock::now();
    if (quiet_ || (!terminal_ && !final && now - shown_ < std::chrono::seconds(10)))
      return;
    shown_ = now;
    const std::uint64_t at = step.record.at("step").get<std::uint64_t>();
    std::fprintf(stderr, "%sstep %llu/%llu  loss %.4f  norm %.3f  %.0f tokens/s  %s left%s%s",
                 terminal_ ? "\r\033[K" : "", static_cast<unsigned long long>(at),
                 static_cast<unsigned long long>(last_step), static_cast<double>(step.result.loss),
                 static_cast<double>(step.result.norm), rate_,
                 duration(per_step_ * static_cast<double>(last_step - at)).c_str(),
                 step.result.spike.skip ? "  (update skipped)" : "",
                 terminal_ && !final ? "" : "\n");
    std::fflush(stderr);
  }

private:
  bool quiet_, terminal_;
  double rate_ = 0, per_step_ = 0;
  std::chrono::steady_clock::time_point shown_{};
};

/// The number of the run's last step: the first at or past schedule.total_tokens.
inline std::uint64_t last_step_of(const train::run_config& run) {
  std::uint64_t step = 0, tokens = 0;
  for (std::size_t i = 0; i < run.ramp.size(); ++i) {
    const bool last = i + 1 == run.ramp.size();
    const std::uint64_t end =
        last ? run.total_tokens : std::min(run.ramp[i].until_tokens, run.total_tokens);
    if (tokens >= end)
      continue;
    const std::uint64_t stride = run.windows_at(tokens) * run.sequence;
    const std::uint64_t steps = (end - tokens + stride - 1) / stride;
    step += steps;
    tokens += steps * stride;
  }
  return step;
}

inline train::json metrics_of(const train::advanced& step, double seconds) {
  return {{"step", step.record.at("step")},
          {"tokens", step.record.at("tokens")},
          {"loss", step.result.loss},
          {"norm", step.result.norm},
          {"learning_rate", step.result.learning_rate},
          {"seconds", seconds},
          {"tokens_per_second", static_cast<double>(step.tokens) / seconds},
          {"bytes_sent", step.exchanged.bytes_sent},
          {"bytes_received", step.exchanged.bytes_received},
          {"messages_sent", step.exchanged.messages_sent},
          {"seconds_waiting", step.exchanged.seconds_waiting}};
}

/// Loads the checkpoint of `step`, the run's last one.
inline void load_last(const train::run_directory& run, train::driver& driver, std::uint64_t step) {
  const std::filesystem::path checkpoint = run.checkpoints() / train::step_name(step);
  try {
    const auto info = driver.load(run.checkpoints(), step, run.genesis_root());
    train::json claimed;
    const std::string field = run.disagreement(info, claimed);
    require(field.empty(), checkpoint.string(),
            "its '" + field + "' is not that of the record of step " + std::to_string(step));
  } catch (const error& failure) {
    throw error("the last checkpoint cannot be used", failure.what(),
                "remove " + checkpoint.string() +
                    ", and training goes on from the one before or from the seed, or restore it");
  }
}

/// A corpus, if it is the one that the run was made for.
inline std::shared_ptr<const data::corpus>
open_corpus(const std::filesystem::path& path, const train::json& genesis, const std::string& run) {
  const auto corpus = std::make_shared<const data::corpus>(path);
  require(digest::hex(corpus->hash()) == io::get_string(genesis, "corpus", run),
          corpus->path().string(), "it is not the corpus this run was made for",
          "give the right one with --corpus");
  return corpus;
}

/// "8 virtual ranks on 3 processes: 3, 3 and 2 each".
inline std::string division_of(const train::run_config& run, int processes) {
  const auto count = static_cast<std::uint64_t>(processes);
  const std::uint64_t each = run.ranks() / count, rest = run.ranks() % count;
  std::string text =
      std::to_string(run.ranks()) + " virtual ranks on " + std::to_string(count) + " processes: ";
  if (rest == 0)
    return text + std::to_string(each) + " each";
  text += std::to_string(rest) + " have " + std::to_string(each + 1) + ", " +
          std::to_string(count - rest) + (each == 0 ? " idle" : " have " + std::to_string(each));
  return text;
}

/// What all processes but the first do: everything that process 0 does with its driver.
inline int follow_loop(const std::filesystem::path& path, const loop_options& given) {
  comm::communicator& processes = *given.processes;
  processes.enter("waiting for process 0 to open the run");
  std::string genesis, hint;
  comm::broadcast(processes, genesis);
  comm::broadcast(processes, hint);
  const std::string where = "the run that process 0 opened";
  const train::json shared = io::parse_json(genesis, where);
  const train::run_config run = train::config_of(shared, where);
  const auto corpus = std::make_shared<const data::corpus>(
      given.corpus.empty() ? std::filesystem::path(hint) : std::filesystem::path(given.corpus));
  // A run that lies here too must be the same: this machine's files may be its own.
  std::error_code ignored;
  const std::filesystem::path local = path / "run.json";
  if (std::filesystem::is_regular_file(local, ignored))
    genesis = io::read_file(local, 1 << 22);
  require_same_inputs(processes,
                      inputs_of(digest::sha256_of(std::string_view(genesis)), corpus->hash()));
  const auto driver =
      instances::find_device(given.device).make_driver(run, corpus, given.processes);
  follow(*driver, processes);
  return same_or_done;
}

/// Trains until the end of the schedule, `until`, a halt or a signal. Everything that is done is on
/// disk when it returns, and the same call goes on.
inline int train_loop(const std::filesystem::path& path, const loop_options& given) {
  const run_lock lock(path);
  train::run_directory run(path);
  run.clean();
  const auto corpus =
      open_corpus(given.corpus.empty() ? run.corpus_hint() : std::filesystem::path(given.corpus),
                  run.genesis(), path.string());
  const std::uint64_t end = last_step_of(run.config());
  const std::uint64_t last = given.until ? std::min(*given.until, end) : end;
  const int processes = given.processes->size();
  if (processes > 1) {
    std::string genesis = io::canonical_json(run.genesis()), hint = corpus->path().string();
    comm::broadcast(*given.processes, genesis);
    comm::broadcast(*given.processes, hint);
    require_same_inputs(*given.processes, inputs_of(run.genesis_root(), corpus->hash()));
    if (!given.quiet && !given.json)
      std::cerr << division_of(run.config(), processes) << "\n";
  }
  const auto driver = std::make_unique<conducting_driver>(
      instances::find_device(given.device).make_driver(run.config(), corpus, given.processes),
      given.processes);

  const auto steps = train::checkpoint_steps(run.checkpoints());
  if (steps.empty()) {
    driver->initialise();
  } else {
    require(steps.back() <= run.steps(), run.checkpoints().string(),
            "there is a checkpoint of step " + std::to_string(steps.back()) + ", but only " +
                std::to_string(run.steps()) + " records",
            "restore records.jsonl, or remove that checkpoint");
    load_last(run, *driver, steps.back());
    const train::json halting = (steps.back() == 0 ? run.genesis() : run.record(steps.back()))
                                    .value("spike", train::json());
    require(given.past_halt || !halting.is_object() || halting.value("halt", false) == false,
            path.string(),
            "the spike rule halted the run after step " + std::to_string(steps.back()),
            "look at metrics.jsonl; to go on all the same, add --past-halt");
  }
  progress_line progress(given.quiet || given.json);
  bool halted = false;
  const auto save = [&] {
    const std::uint64_t at = driver->at().step;
    driver->save(run.checkpoints(), run.genesis_root(), run.root(at));
  };
  while (driver->at().step < last && !stop_request::seen() && !halted) {
    const auto begin = std::chrono::steady_clock::now();
    const train::advanced step = driver->advance(run.root(driver->at().step));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const std::uint64_t at = driver->at().step;
    const bool fresh = at > run.steps();
    run.put(at, step.record, step.commitments);
    if (fresh)
      run.append_metrics(metrics_of(step, seconds.count()));
    halted = step.result.spike.halt && (fresh || !given.past_halt);
    if (at % run.config().checkpoint_every == 0)
      save();
    progress.show(step, last, seconds.count(), at == last || halted || stop_request::seen());
  }
  // Whatever ended it, and also when a signal came after the last look at `seen`.
  const std::uint64_t at = driver->at().step;
  if (at > 0)
    save();
  if (given.json) {
    std::cout << io::canonical_json({{"step", at}, {"root", digest::hex(run.root(at))}}) << "\n";
  }
  if (halted) {
    std::cerr << "ordo-train: halted by the spike rule after step " << at
              << "; record and checkpoint "
              << "are written\n";
    return not_done;
  }
  if (at < last) {
    std::cerr << "ordo-train: stopped after step " << at
              << "; everything is saved, the same command goes on\n";
    return not_done;
  }
  if (!given.quiet && !given.json)
    std::cout << "step " << at << " " << digest::hex(run.root(at)) << "\n";
  return same_or_done;
}

} // namespace ordo::program
