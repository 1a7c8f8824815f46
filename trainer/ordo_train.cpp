// SPDX-License-Identifier: Apache-2.0

// ordo-train: makes runs, runs them, shows them, speaks with their models.

#include <optional>
#include <string_view>

#include <ordo/data/tokenizer.hpp>
#include <ordo/train/run_directory.hpp>

#include "command_line.hpp"
#include "devices.hpp"
#include "generate.hpp"
#include "ini_file.hpp"
#include "inspect.hpp"
#include "job.hpp"
#include "train_loop.hpp"

namespace {

using namespace ordo;
using namespace ordo::program;

const mpi_scope* job = nullptr; // of this program, set by main
bool left_together = false;     // every process of the job knows that it is over

int init(const options::variables_map& given) {
  const std::filesystem::path path = text_of(given, "run");
  require(!std::filesystem::exists(path), path.string(), "it exists",
          "choose another --run, or go on with it: ordo-train run --run " + path.string());
  const train::run_config run = read_config(text_of(given, "config"));
  const auto corpus = std::make_shared<const data::corpus>(text_of(given, "corpus"));
  const auto driver = instances::find_device(text_of(given, "device")).make_driver(run, corpus);
  driver->initialise();
  const train::json genesis = train::make_genesis(
      run, digest::hex(corpus->contents().tokenizer), digest::hex(corpus->hash()),
      digest::state_root(driver->parameter_roots()), digest::state_root(driver->optimizer_roots()));
  train::run_directory::create(path, genesis, corpus->path());
  if (given.count("json") != 0) {
    std::cout << io::canonical_json({{"genesis", digest::hex(train::root_of(genesis))},
                                     {"parameters", model::parameter_count(run.model)}})
              << "\n";
  } else if (given.count("quiet") == 0) {
    std::cout << path.string() << ": " << model::parameter_count(run.model)
              << " parameters, genesis " << digest::hex(train::root_of(genesis)) << "\n";
  }
  return same_or_done;
}

int run(const options::variables_map& given) {
  loop_options settings;
  settings.device = text_of(given, "device");
  settings.corpus = text_of(given, "corpus");
  settings.quiet = given.count("quiet") != 0;
  settings.json = given.count("json") != 0;
  settings.past_halt = given.count("past-halt") != 0;
  if (given.count("until") != 0)
    settings.until = given["until"].as<std::uint64_t>();
  settings.processes = job->processes(static_cast<double>(given["patience"].as<std::uint64_t>()));
  const int status = settings.processes->rank() == 0 ? train_loop(text_of(given, "run"), settings)
                                                     : follow_loop(text_of(given, "run"), settings);
  left_together = true;
  return status;
}

int show(const options::variables_map& given) {
  return inspect(text_of(given, "path"), given.count("json") != 0);
}

int speak(const options::variables_map& given) {
  generate_options settings;
  settings.device = text_of(given, "device");
  settings.prompt = text_of(given, "prompt");
  settings.step = given["step"].as<std::uint64_t>();
  settings.tokens = given["tokens"].as<std::uint64_t>();
  settings.temperature = given["temperature"].as<float>();
  settings.seed = given["seed"].as<std::uint64_t>();
  const std::string text = generate(text_of(given, "run"), settings);
  if (given.count("json") != 0) {
    // Bytes of a model need not be UTF-8: what is not is replaced.
    std::cout << train::json{{"prompt", settings.prompt}, {"text", text}}.dump(
                     -1, ' ', false, train::json::error_handler_t::replace)
              << "\n";
  } else {
    std::cout << settings.prompt << text << "\n";
  }
  return same_or_done;
}

} // namespace

int main(int argc, char** argv) {
  using options::value;
  const auto text = [] { return value<std::string>(); };
  std::vector<command> commands{
      command("init", "init --config run.ini --corpus CORPUS --run RUN",
              "a new run: its genesis record; nothing is trained yet", init),
      command(
          "run", "run --run RUN [--until STEP] [--device serial|openmp|cuda]",
          "start or go on, alone or under mpirun; Ctrl-C or SIGTERM (under mpirun SIGUSR1) stops "
          "after the step, with everything saved",
          run),
      command("inspect", "inspect RUN|CHECKPOINT", "what a run or a checkpoint holds", show),
      command("generate", "generate --run RUN --step N --prompt TEXT",
              "text that the model of step N goes on with", speak)};
  commands[0].described.add_options()("config", text()->required(),
                                      "configuration (trainer/configs)")(
      "corpus", text()->required(), "corpus made by ordo-data build")(
      "run", text()->required(), "folder of the run, which must not exist")("device", text(),
                                                                            "where to compute");
  commands[1].described.add_options()("run", text()->required(), "folder of the run")(
      "until", value<std::uint64_t>(), "stop after this step")(
      "past-halt", "go on from a step at which the spike rule halted the run")(
      "device", text(), "where to compute")("corpus", text(),
                                            "where the corpus lies now, if it was moved")(
      "patience", value<std::uint64_t>()->default_value(600),
      "seconds after which a process that does not answer ends the job");
  commands[2].described.add_options()("path", text()->required(), "folder of a run or checkpoint");
  commands[2].positional.add("path", 1);
  commands[3].described.add_options()("run", text()->required(), "folder of the run")(
      "step", value<std::uint64_t>()->required(),
      "a step that has a checkpoint")("prompt", text()->required(), "what the text begins with")(
      "tokens", value<std::uint64_t>()->default_value(200), "tokens to generate")(
      "temperature", value<float>()->default_value(0.0f),
      "0 takes the likeliest token")("seed", value<std::uint64_t>()->default_value(0),
                                     "of the draws")("device", text(), "where to compute");
  // From the very start, so that a signal never ends a run without a word.
  std::optional<stop_request> stop;
  if (argc > 1 && std::string_view(argv[1]) == "run")
    stop.emplace();
  const mpi_scope scope;
  job = &scope;
  if (scope.started() && !stop) {
    if (scope.rank() == 0)
      std::cerr << "ordo-train: only 'run' works on several processes; start the others once\n";
    return not_done;
  }
  int status = not_done;
  {
    const instances::kokkos_scope kokkos;
    status = run_program("ordo-train", std::move(commands), argc, argv);
  }
  // A process that stops alone would leave the others waiting.
  if (status != same_or_done && scope.started() && !left_together)
    scope.abort();
  return status;
}
