// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What the programs share: subcommands, options, exit statuses, errors.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iostream>
#include <new>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <boost/program_options.hpp>

#include <ordo/core/error.hpp>
#include <ordo/core/version.hpp>

namespace ordo::program {

namespace options = boost::program_options;

/// Exit statuses of every command.
enum status : int {
  same_or_done = 0, ///< the same, or done
  differs = 1,      ///< checked, and different
  not_done = 2,     ///< could not be checked or done
};

/// One subcommand. `run` gets the parsed options and returns an exit status.
struct command {
  command(std::string named, std::string form, std::string does,
          std::function<int(const options::variables_map&)> runs)
      : name(std::move(named)), synopsis(std::move(form)), meaning(std::move(does)),
        run(std::move(runs)) {}

  std::string name, synopsis, meaning;
  options::options_description described;
  options::positional_options_description positional;
  std::function<int(const options::variables_map&)> run;
};

/// The text given for an option; empty where it was not given.
inline std::string text_of(const options::variables_map& given, const char* name) {
  return given.count(name) != 0 ? given[name].as<std::string>() : std::string();
}

/// The options every command has.
inline void add_shared_options(options::options_description& described) {
  described.add_options()("help", "show this help")("json", "write results as JSON")(
      "quiet", "write results and errors only");
}

/// The smallest number of single-character edits between two words.
inline std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

inline std::string closest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = std::min<std::size_t>(word.size() / 2 + 2, 4);
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best.empty() ? "see --help" : "did you mean '" + best + "'?";
}

inline int run_command(const std::string& program, command& c,
                       const std::vector<std::string>& words) {
  add_shared_options(c.described);
  options::variables_map given;
  try {
    const auto parsed = options::command_line_parser(words)
                            .options(c.described)
                            .positional(c.positional)
                            .style(options::command_line_style::unix_style &
                                   ~options::command_line_style::allow_guessing)
                            .run();
    options::store(parsed, given);
    // The conversion behind value<> would take -1 for 2^64 - 1.
    for (const auto& option : parsed.options) {
      if (given[option.string_key].value().type() != typeid(std::uint64_t))
        continue;
      for (const std::string& text : option.value) {
        require(text.find_first_not_of("0123456789") == std::string::npos, program + " " + c.name,
                "--" + option.string_key + " is '" + text + "'", "a whole number is expected");
      }
    }
    if (given.count("help") != 0) {
      std::cout << program << " " << c.synopsis << "\n" << c.meaning << "\n\n" << c.described;
      return same_or_done;
    }
    options::notify(given);
  } catch (const options::unknown_option& unknown) {
    std::vector<std::string> known;
    for (const auto& option : c.described.options())
      known.push_back("--" + option->long_name());
    throw error(program + " " + c.name, "unknown option '" + unknown.get_option_name() + "'",
                closest(unknown.get_option_name(), known));
  } catch (const options::error& wrong) {
    throw error(program + " " + c.name, wrong.what(),
                "see '" + program + " " + c.name + " --help'");
  }
  return c.run(given);
}

/// Runs the subcommand that `argv` names. Errors go to standard error, with exit status 2.
inline int run_program(const std::string& program, std::vector<command> commands, int argc,
                       char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.empty() || words[0] == "--help" || words[0] == "help") {
      std::cout << program << " " << version << ", numeric contract " << contract_version << "\n\n";
      for (const command& c : commands) {
        std::cout << "  " << program << " " << c.synopsis << "\n      " << c.meaning << "\n";
      }
      std::cout << "\nExit status: 0 the same or done, 1 differs, 2 could not be done.\n"
                   "Every command has --help, --json and --quiet.\n";
      return words.empty() ? not_done : same_or_done;
    }
    if (words[0] == "--version") {
      std::cout << program << " " << version << ", numeric contract " << contract_version << "\n";
      return same_or_done;
    }
    std::vector<std::string> names;
    for (command& c : commands) {
      names.push_back(c.name);
      if (c.name != words[0])
        continue;
      const int result = run_command(program, c, {words.begin() + 1, words.end()});
      std::fflush(stdout);
      require(std::cout.flush().good() && std::ferror(stdout) == 0, "standard output",
              "it cannot be written", "the disk is full, or the reader went away");
      return result;
    }
    throw error(program, "unknown command '" + words[0] + "'", closest(words[0], names));
  } catch (const std::bad_alloc&) {
    std::cerr << program
              << ": there is not enough memory; a smaller model, micro-batch or sequence "
              << "needs less\n";
    return not_done;
  } catch (const std::exception& failure) {
    std::cout.flush();
    std::cerr << program << ": " << failure.what() << "\n";
    return not_done;
  }
}

} // namespace ordo::program
