// SPDX-License-Identifier: Apache-2.0

// ordo-audit: checks this machine, replays steps of a run, names what differs.

#include <iostream>

#include <ordo/audit/conformance_expected.hpp>
#include <ordo/audit/replay.hpp>

#include "../trainer/command_line.hpp"
#include "devices.hpp"

namespace {

using namespace ordo;
using namespace ordo::program;
using train::json;

/// How a command speaks: sentences on standard output unless --quiet or --json, a last line of
/// verdict always.
struct voice {
  bool quiet, json_only;

  explicit voice(const options::variables_map& given)
      : quiet(given.count("quiet") != 0), json_only(given.count("json") != 0) {}

  void say(const std::string& text) const {
    if (!quiet && !json_only)
      std::cout << text << std::endl;
  }
  void verdict(const std::string& line, const json& details) const {
    if (json_only) {
      std::cout << io::canonical_json(details) << "\n";
    } else {
      std::cout << line << "\n";
    }
  }
  int inconclusive(const std::string& why) const {
    verdict("INCONCLUSIVE " + why, {{"verdict", "INCONCLUSIVE"}, {"why", why}});
    return not_done;
  }
};

/// Whether this machine computes the contract; says the first line that it does not.
std::string nonconformance(const instances::device& device) {
  const auto lines = device.conformance();
  const auto& expected = audit::expected_conformance();
  for (std::size_t i = 0; i < std::min(lines.size(), expected.size()); ++i) {
    if (lines[i] != expected[i])
      return lines[i].name + " " + lines[i].sizes;
  }
  return lines.size() == expected.size() ? "" : "the number of lines";
}

int selftest(const options::variables_map& given) {
  const voice out(given);
  const instances::device& device = instances::find_device(text_of(given, "device"));
  const auto lines = device.conformance();
  const auto& expected = audit::expected_conformance();
  json list = json::array();
  std::string first;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool same = i < expected.size() && lines[i] == expected[i];
    if (!same && first.empty())
      first = lines[i].name;
    list.push_back({{"name", lines[i].name},
                    {"sizes", lines[i].sizes},
                    {"digest", digest::hex(lines[i].hash)},
                    {"same", same}});
    out.say(lines[i].name + " | " + lines[i].sizes + " | " + digest::hex(lines[i].hash) +
            (same ? "" : "  DIFFERS"));
  }
  if (lines.size() < expected.size() && first.empty())
    first = expected[lines.size()].name;
  const std::string got = digest::hex(audit::conformance_digest(lines));
  const std::string wanted = digest::hex(audit::conformance_digest(expected));
  out.verdict(first.empty() ? "MATCH conformance " + got
                            : "DIFFERS conformance expected " + wanted + " got " + got,
              {{"device", device.name},
               {"contract", contract_version},
               {"lines", list},
               {"digest", got},
               {"expected", wanted},
               {"verdict", first.empty() ? "MATCH" : "DIFFERS"},
               {"first_difference", first}});
  return first.empty() ? same_or_done : differs;
}

json to_json(const audit::difference& d) {
  return {{"verdict", "DIFFERS"},   {"step", d.step}, {"field", d.field},    {"tensors", d.tensors},
          {"expected", d.expected}, {"got", d.found}, {"meaning", d.meaning}};
}

int report(const voice& out, const audit::difference& d) {
  out.say("step " + std::to_string(d.step) + ", " + d.field + ": " + d.meaning);
  for (const std::string& name : d.tensors)
    out.say("  " + name);
  out.verdict("DIFFERS step " + std::to_string(d.step) + " expected " + d.expected + " got " +
                  d.found,
              to_json(d));
  return differs;
}

int report_match(const voice& out, std::uint64_t step, const digest::hash256& root) {
  out.verdict("MATCH step " + std::to_string(step) + " " + digest::hex(root),
              {{"verdict", "MATCH"}, {"step", step}, {"root", digest::hex(root)}});
  return same_or_done;
}

/// Replays steps [from, to] after everything that an audit checks before.
int replay_steps(const options::variables_map& given, std::uint64_t from, std::uint64_t to) {
  const voice out(given);
  const instances::device& device = instances::find_device(text_of(given, "device"));
  const std::string path = text_of(given, "run");
  try {
    const std::string wrong = nonconformance(device);
    if (!wrong.empty()) {
      return out.inconclusive("this machine does not conform (" + wrong +
                              "); see ordo-audit selftest");
    }
    out.say("machine conforms");
    const train::run_directory run(path);
    out.say("genesis and the chain of " + std::to_string(run.steps()) + " records are consistent");
    const auto corpus = std::make_shared<const data::corpus>(
        given.count("corpus") != 0 ? std::filesystem::path(text_of(given, "corpus"))
                                   : run.corpus_hint());
    const std::string said = digest::hex(io::get_hash(run.genesis(), "corpus", path));
    if (digest::hex(corpus->hash()) != said) {
      return report(out, {0,
                          "corpus",
                          {},
                          said,
                          digest::hex(corpus->hash()),
                          "the corpus is not the one the genesis names"});
    }
    const std::string words = digest::hex(io::get_hash(run.genesis(), "tokenizer", path));
    if (digest::hex(corpus->contents().tokenizer) != words) {
      return report(out, {0,
                          "tokenizer",
                          {},
                          words,
                          digest::hex(corpus->contents().tokenizer),
                          "the corpus was made with another tokenizer than the genesis names"});
    }
    corpus->verify();
    out.say("corpus equals its manifest");
    const auto driver = device.make_driver(run.config(), corpus);
    const auto result =
        audit::replay(run, *driver, from, to, [&](std::uint64_t step, const digest::hash256& root) {
          out.say("step " + std::to_string(step) + " " + digest::hex(root));
        });
    return result.differs ? report(out, *result.differs)
                          : report_match(out, result.step, result.root);
  } catch (const mismatch& m) {
    return report(out, {m.step, "file", {}, m.expected, m.found, m.what()});
  } catch (const std::exception& failure) {
    return out.inconclusive(failure.what());
  }
}

int replay(const options::variables_map& given) {
  std::uint64_t from = 0, to = 0;
  if (given.count("step") != 0) {
    require(given.count("from") == 0 && given.count("to") == 0, "ordo-audit replay",
            "--step goes without --from and --to");
    from = to = given["step"].as<std::uint64_t>();
  } else {
    require(given.count("from") != 0 && given.count("to") != 0, "ordo-audit replay",
            "which steps is missing", "give --from A --to B, or --step N");
    from = given["from"].as<std::uint64_t>();
    to = given["to"].as<std::uint64_t>();
  }
  return replay_steps(given, from, to);
}

int explain(const options::variables_map& given) {
  const voice out(given);
  const auto step = given["step"].as<std::uint64_t>();
  if (given.count("against") == 0)
    return replay_steps(given, step, step);
  try {
    const train::run_directory a(text_of(given, "run")), b(text_of(given, "against"));
    require(step >= 1 && step <= std::min(a.steps(), b.steps()), "ordo-audit explain",
            "step " + std::to_string(step) + " is not recorded in both runs");
    if (const auto d = audit::compare_runs(a, b, step))
      return report(out, *d);
    return report_match(out, step, a.root(step));
  } catch (const mismatch& m) {
    return report(out, {m.step, "file", {}, m.expected, m.found, m.what()});
  } catch (const std::exception& failure) {
    return out.inconclusive(failure.what());
  }
}

} // namespace

int main(int argc, char** argv) {
  using options::value;
  std::vector<command> commands{
      command("selftest", "selftest [--device serial|openmp|cuda]",
              "one digest an operation: does this machine compute the contract?", selftest),
      command("replay", "replay --run RUN --from A --to B [--device serial|openmp|cuda]",
              "run recorded steps again and compare every root", replay),
      command("explain", "explain --run RUN --step N [--against RUN2]",
              "the first field and tensor in which a step differs", explain)};
  for (command& c : commands) {
    c.described.add_options()("device", value<std::string>(), "where to compute");
  }
  for (const std::size_t i : {1u, 2u}) {
    commands[i].described.add_options()("run", value<std::string>()->required(),
                                        "folder of the run")(
        "corpus", value<std::string>(), "where the corpus lies on this machine");
  }
  commands[1].described.add_options()("from", value<std::uint64_t>(), "first step")(
      "to", value<std::uint64_t>(), "last step")("step", value<std::uint64_t>(), "a single step");
  commands[2].described.add_options()("step", value<std::uint64_t>()->required(), "the step")(
      "against", value<std::string>(), "another run to compare with, instead of a replay");
  const instances::kokkos_scope kokkos;
  return run_program("ordo-audit", std::move(commands), argc, argv);
}
