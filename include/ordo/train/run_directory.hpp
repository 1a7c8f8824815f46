// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The files of a run: genesis, records, commitments, checkpoints, metrics.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>
#include <ordo/train/checkpoint.hpp>
#include <ordo/train/genesis.hpp>

namespace ordo::train {

/// A run on disk. Opening reads and checks the genesis and the chain of records; nothing else is
/// trusted until it is used.
class run_directory {
public:
  /// Makes the directory of a new run, complete or not at all. `corpus` is where the corpus lies on
  /// this machine: a hint beside the run, no part of it.
  static void create(const std::filesystem::path& path, const json& genesis,
                     const std::filesystem::path& corpus) {
    require(!std::filesystem::exists(path), "run", "'" + path.string() + "' exists",
            "choose another folder, or go on with it by 'ordo-train run'");
    io::staged_directory staged(path);
    std::filesystem::create_directory(staged.path() / "checkpoints");
    std::filesystem::create_directory(staged.path() / "commitments");
    io::write_file_atomic(staged.path() / "run.json", io::canonical_json(genesis));
    io::write_file_atomic(staged.path() / "records.jsonl", std::string());
    io::write_file_atomic(
        staged.path() / "local.json",
        io::canonical_json({{"corpus", std::filesystem::absolute(corpus).string()}}));
    staged.commit();
  }

  /// Throws unless `path` looks like a run.
  static void require_run(const std::filesystem::path& path) {
    std::error_code ignored;
    require(std::filesystem::is_regular_file(path / "run.json", ignored), "run",
            "'" + path.string() + "' holds no run (no run.json)",
            "make one with 'ordo-train init', or give the right folder");
  }

  explicit run_directory(std::filesystem::path path) : path_(std::move(path)) {
    const std::string where = (path_ / "run.json").string();
    require_run(path_);
    const std::string text = io::read_file(where, 1 << 22);
    genesis_ = io::parse_json(text, where);
    require(io::canonical_json(genesis_) == text, where, "it is not canonical JSON",
            "the file was changed after 'ordo-train init'; fetch the original");
    genesis_root_ = digest::sha256_of(std::string_view(text));
    config_ = config_of(genesis_, where);
    read_records();
  }

  const std::filesystem::path& path() const { return path_; }
  const json& genesis() const { return genesis_; }
  const digest::hash256& genesis_root() const { return genesis_root_; }
  const run_config& config() const { return config_; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  /// Steps recorded.
  std::uint64_t steps() const { return lines_.size(); }
  /// The record of `step`, from 1.
  json record(std::uint64_t step) const {
    require(step >= 1 && step <= steps(), records_file().string(),
            "it has no step " + std::to_string(step) + ", only 1 to " + std::to_string(steps()));
    return io::parse_json(lines_[step - 1],
                          records_file().string() + ", line " + std::to_string(step));
  }
  /// The root of `step`'s record; of the genesis for step 0.
  digest::hash256 root(std::uint64_t step) const {
    return step == 0 ? genesis_root_ : digest::sha256_of(std::string_view(lines_.at(step - 1)));
  }

  /// Appends the record of the next step, or, for a step that is already recorded, checks that it
  /// came out the same. Throws when it did not.
  void put(std::uint64_t step, const json& record, const json& commitments) {
    const std::string line = io::canonical_json(record);
    if (step <= steps()) {
      require(lines_[step - 1] == line, records_file().string(),
              "step " + std::to_string(step) +
                  " came out different when it was run again (first in '" +
                  first_difference(this->record(step), record) + "')",
              "the machine or the file is faulty; nothing was changed");
      return;
    }
    require(step == steps() + 1, records_file().string(),
            "step " + std::to_string(step) + " cannot follow step " + std::to_string(steps()));
    io::write_file_atomic(commitments_file(step), io::canonical_json(commitments) + "\n");
    io::append_line(records_file(), line);
    lines_.push_back(line);
  }

  /// The commitments of a step, if they are there.
  std::optional<json> commitments(std::uint64_t step) const {
    const std::filesystem::path file = commitments_file(step);
    if (!std::filesystem::is_regular_file(file))
      return std::nullopt;
    return io::parse_json(io::read_file(file, 1 << 26), file.string());
  }

  /// The first field in which a checkpoint says something else than the record of its step (the
  /// genesis for step 0) does; empty if none. `claimed` becomes the record as the checkpoint has
  /// it.
  std::string disagreement(const checkpoint_info& info, json& claimed) const {
    const std::uint64_t step = info.at.step;
    claimed = step == 0 ? genesis_ : record(step);
    const json said = claimed;
    claimed["parameter_root"] = digest::hex(info.parameter_root);
    claimed["optimizer_root"] = digest::hex(info.optimizer_root);
    if (step == 0) {
      if (info.at != progress{})
        return "tokens";
    } else {
      const std::string where = records_file().string() + ", line " + std::to_string(step);
      const json& windows = io::get_array(said, "windows", where);
      require(windows.size() == 2, where, "'windows' are no range");
      claimed["windows"][1] = info.at.windows;
      claimed["tokens"] = info.at.tokens;
      claimed["adam_step"] = info.at.adam_step;
      claimed["cursor"] = info.cursor;
      claimed["spike"] = io::get_object(said, "spike", where);
      claimed["spike"].update(to_json(info.at.spikes));
    }
    const std::string field = first_difference(said, claimed);
    return field.empty() && info.record != root(step) ? "record" : field;
  }

  /// Where the corpus was when the run was made.
  std::filesystem::path corpus_hint() const {
    const std::string where = (path_ / "local.json").string();
    require(std::filesystem::is_regular_file(where), where,
            "it is missing, so that nothing says where the corpus lies", "give --corpus");
    const json local = io::parse_json(io::read_file(where, 1 << 20), where);
    return io::get_string(local, "corpus", where);
  }

  void append_metrics(const json& line) const {
    io::append_line(path_ / "metrics.jsonl", line.dump());
  }

private:
  std::filesystem::path records_file() const { return path_ / "records.jsonl"; }
  std::filesystem::path commitments_file(std::uint64_t step) const {
    return path_ / "commitments" / (step_name(step) + ".json");
  }

  /// Reads the records and checks that each names the one before it. A last line without its end
  /// is what a killed write leaves: it is dropped, here and, before the next append, on disk.
  void read_records() {
    const std::string where = records_file().string();
    const std::string text = io::read_file(where, std::size_t{1} << 32);
    std::size_t begin = 0;
    while (true) {
      const std::size_t end = text.find('\n', begin);
      if (end == std::string::npos)
        break;
      lines_.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    complete_bytes_ = begin;
    for (std::uint64_t step = 1; step <= steps(); ++step) {
      const std::string line = where + ", line " + std::to_string(step);
      const json record = io::parse_json(lines_[step - 1], line);
      require(io::canonical_json(record) == lines_[step - 1], line, "it is not canonical JSON",
              "the file was changed; fetch the original");
      if (io::get_u64(record, "step", line) != step) {
        json corrected = record;
        corrected["step"] = step;
        throw mismatch(line, "its 'step' is another", step, digest::hex(root(step)),
                       digest::hex(root_of(corrected)));
      }
      const digest::hash256 previous = io::get_hash(record, "previous", line);
      if (previous != root(step - 1)) {
        throw mismatch(line,
                       step == 1 ? "its 'previous' is not the root of this run's genesis"
                                 : "its 'previous' is not the root of the record before it",
                       step - 1, digest::hex(previous), digest::hex(root(step - 1)));
      }
    }
  }

public:
  /// Removes what killed writes left: an unfinished last record, unfinished files and checkpoints.
  void clean() const {
    if (std::filesystem::file_size(records_file()) != complete_bytes_) {
      std::filesystem::resize_file(records_file(), complete_bytes_);
    }
    for (const auto& folder : {path_, checkpoints(), path_ / "commitments"}) {
      io::staged_directory::remove_stale(folder);
    }
  }

private:
  std::filesystem::path path_;
  json genesis_;
  digest::hash256 genesis_root_{};
  run_config config_;
  std::vector<std::string> lines_;
  std::uint64_t complete_bytes_ = 0;
};

} // namespace ordo::train
