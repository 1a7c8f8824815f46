// SPDX-License-Identifier: Apache-2.0

// ordo-data: corpora and the canonical stream.

#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>

#include <unistd.h>

#include <ordo/data/stream.hpp>

#include "command_line.hpp"
#include "corpus_builder.hpp"

namespace {

using namespace ordo;
using namespace ordo::program;

/// Progress of a build: a line that is rewritten on a terminal, elsewhere one now and then.
class build_progress {
public:
  void operator()(const std::string& source, std::uint64_t documents, std::uint64_t tokens) {
    if ((++calls_ & 255) != 0)
      return; // documents may be short, and clocks slow
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < (terminal_ ? std::chrono::seconds(1) : std::chrono::seconds(30)))
      return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    std::fprintf(stderr, "%s%s: %llu documents, %.1f M tokens, %.0f s%s", terminal_ ? "\r" : "",
                 source.c_str(), static_cast<unsigned long long>(documents),
                 static_cast<double>(tokens) / 1e6, seconds, terminal_ ? "\033[K" : "\n");
    shown_ = true;
  }
  /// Ends the line on a terminal.
  void finish() const {
    if (shown_ && terminal_)
      std::fputs("\r\033[K", stderr);
  }

private:
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = begin_;
  std::uint64_t calls_ = 0;
  bool shown_ = false;
};

int build(const options::variables_map& given) {
  build_request request;
  for (const auto& text : given["source"].as<std::vector<std::string>>()) {
    request.sources.push_back(parse_source(text));
  }
  if (given.count("text-field") != 0) {
    add_text_fields(given["text-field"].as<std::vector<std::string>>(), request);
  }
  request.split_blank_lines = given.count("split-blank-lines") != 0;
  request.shard_tokens = given["shard-tokens"].as<std::uint64_t>();
  build_progress progress;
  if (given.count("quiet") == 0)
    request.progress = std::ref(progress);
  const auto tokenizer = data::tokenizer::open(given["tokenizer"].as<std::string>());
  const std::string out = given["out"].as<std::string>();
  require(!out.empty(), "--out", "it is empty", "name the folder to make");
  const build_result result = build_corpus(request, tokenizer, out);
  progress.finish();
  io::json manifest = result.contents.to_json();
  const std::string root = digest::hex(digest::sha256_of(io::canonical_json(manifest)));
  if (given.count("json") != 0) {
    manifest["digest"] = root;
    manifest["empty_documents"] = result.empty_documents;
    std::cout << io::canonical_json(manifest) << "\n";
  } else if (given.count("quiet") == 0) {
    for (const auto& s : result.contents.sources) {
      std::cout << s.name << ": " << s.documents << " documents, " << s.tokens << " tokens, "
                << s.shards.size() << " shard(s)\n";
    }
    if (result.empty_documents > 0) {
      std::cout << result.empty_documents << " empty documents left out\n";
    }
    std::cout << out << ": " << root << "\n";
  }
  return same_or_done;
}

int inspect(const options::variables_map& given) {
  const data::corpus corpus(given["corpus"].as<std::string>());
  if (given.count("verify") != 0) {
    try {
      corpus.verify();
    } catch (const mismatch& difference) {
      if (given.count("json") != 0) {
        std::cout << io::canonical_json({{"verdict", "DIFFERS"},
                                         {"why", difference.what()},
                                         {"expected", difference.expected},
                                         {"got", difference.found}})
                  << "\n";
      } else {
        std::cout << "DIFFERS " << difference.what() << "\n";
      }
      return differs;
    }
  }
  const data::manifest& m = corpus.contents();
  if (given.count("json") != 0) {
    io::json text = m.to_json();
    text["digest"] = digest::hex(corpus.hash());
    std::cout << io::canonical_json(text) << "\n";
    return same_or_done;
  }
  std::printf("%-24s %12s %12s %14s %7s\n", "source", "share", "documents", "tokens", "shards");
  for (const auto& s : m.sources) {
    std::printf("%-24s %12llu %12llu %14llu %7zu\n", s.name.c_str(),
                static_cast<unsigned long long>(s.share),
                static_cast<unsigned long long>(s.documents),
                static_cast<unsigned long long>(s.tokens), s.shards.size());
  }
  std::printf("tokenizer %s (vocabulary %u)\ncorpus    %s%s\n", digest::hex(m.tokenizer).c_str(),
              m.vocabulary, digest::hex(corpus.hash()).c_str(),
              given.count("verify") != 0 ? "  all shards verified" : "");
  return same_or_done;
}

/// A:B, B not included.
std::pair<std::uint64_t, std::uint64_t> parse_range(const std::string& range) {
  const auto refuse = [&](const char* why) {
    throw error("--windows " + range, why, "write --windows A:B, B not included");
  };
  const auto number = [&](const std::string& text) {
    std::uint64_t n = 0;
    const auto [stop, failure] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (failure != std::errc() || stop != text.data() + text.size())
      refuse("it is not understood");
    return n;
  };
  const std::size_t colon = range.find(':');
  if (colon == std::string::npos)
    refuse("it is not understood");
  const std::uint64_t first = number(range.substr(0, colon));
  const std::uint64_t last = number(range.substr(colon + 1));
  if (first > last)
    refuse("it ends before it begins");
  if (last > data::window_limit)
    refuse("it goes beyond 2^48 windows");
  return {first, last};
}

void print(const std::vector<std::uint32_t>& ids, const char* between) {
  std::string text;
  for (const std::uint32_t id : ids) {
    if (!text.empty())
      text += between;
    text += std::to_string(id);
  }
  std::cout << text;
}

int stream(const options::variables_map& given) {
  const auto [first, last] = parse_range(given["windows"].as<std::string>());
  const data::corpus corpus(given["corpus"].as<std::string>());
  data::window_stream windows(corpus, given["seed"].as<std::uint64_t>(),
                              given["seq"].as<std::uint64_t>());
  windows.seek(first);
  const bool json = given.count("json") != 0, digest_only = given.count("digest") != 0;
  std::vector<std::uint32_t> tokens(static_cast<std::size_t>(windows.window_tokens()));
  digest::merkle_accumulator tree;
  for (std::uint64_t w = first; w < last && std::cout.good(); ++w) {
    const std::size_t source = windows.source_of(w);
    windows.next(tokens);
    if (digest_only) {
      tree.append(data::window_leaf(w, tokens));
    } else if (json) {
      std::cout << "{\"source\":\"" << corpus.contents().sources[source].name << "\",\"tokens\":[";
      print(tokens, ",");
      std::cout << "],\"window\":" << w << "}\n";
    } else {
      print(tokens, " ");
      std::cout << "\n";
    }
  }
  if (!digest_only)
    return same_or_done;
  const std::string root = digest::hex(tree.root());
  if (json) {
    std::cout << io::canonical_json({{"root", root}, {"windows", {first, last}}}) << "\n";
  } else {
    std::cout << root << "\n";
  }
  return same_or_done;
}

/// Ids in decimal, separated by white space or, as --json writes them, by commas in brackets.
std::vector<std::uint32_t> parse_ids(const std::string& text, std::uint32_t vocabulary) {
  std::vector<std::uint32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    while (at < end && std::strchr(" \t\r\n,[]", *at) != nullptr)
      ++at;
    if (at == end)
      return ids;
    std::uint32_t id = 0;
    const auto [stop, failure] = std::from_chars(at, end, id);
    const std::string place = "standard input, byte " + std::to_string(at - text.data() + 1);
    require(failure != std::errc::invalid_argument, place, "it is no list of ids",
            "whole numbers and spaces are expected");
    require(failure == std::errc() && id < vocabulary, place,
            "the id " + std::string(at, stop) + " is outside the vocabulary of " +
                std::to_string(vocabulary),
            "decode with the tokenizer that encoded");
    ids.push_back(id);
    at = stop;
  }
}

int tokenize(const options::variables_map& given) {
  const std::string what = given["action"].as<std::string>();
  require(what != "train", "ordo-data tokenizer train", "this release has the byte tokenizer only",
          "write --tokenizer byte, which needs no training; train comes with BPE");
  require(what == "encode" || what == "decode", "ordo-data tokenizer " + io::printable(what),
          "unknown action", "write encode or decode");
  for (const char* of_train : {"input", "vocab", "out"}) {
    require(given.count(of_train) == 0, "ordo-data tokenizer " + what,
            std::string("--") + of_train + " is an option of train",
            "it reads standard input and writes standard output");
  }
  const auto tokenizer = data::tokenizer::open(given["tokenizer"].as<std::string>());
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  require(!std::cin.bad(), "standard input", "it cannot be read", "check where it comes from");
  if (what == "encode") {
    std::vector<std::uint32_t> ids;
    tokenizer.encode(text, ids);
    const bool json = given.count("json") != 0;
    if (json)
      std::cout << "[";
    print(ids, json ? "," : " ");
    std::cout << (json ? "]\n" : "\n");
  } else {
    std::cout << tokenizer.decode(parse_ids(text, tokenizer.vocabulary()));
  }
  return same_or_done;
}

} // namespace

int main(int argc, char** argv) {
  using options::value;
  std::vector<command> commands{
      command("tokenizer", "tokenizer encode|decode --tokenizer byte",
              "ids of standard input, and back", tokenize),
      command("build", "build --tokenizer byte --source NAME=SHARE:FILE[,FILE...]... --out CORPUS",
              "shards and manifest from .txt, .jsonl, .jsonl.gz, .jsonl.zst", build),
      command("inspect", "inspect CORPUS", "sources, documents, tokens, digests", inspect),
      command("stream", "stream CORPUS --seed S --seq T --windows A:B [--digest]",
              "the canonical windows", stream)};
  commands[0].described.add_options()("action", value<std::string>()->required(),
                                      "encode or decode")(
      "tokenizer", value<std::string>()->default_value("byte"), "byte, or a tokenizer file")(
      "input", value<std::vector<std::string>>()->multitoken(), "of train (not in this release)")(
      "vocab", value<std::uint64_t>(), "of train")("out", value<std::string>(), "of train");
  commands[0].positional.add("action", 1);
  commands[1].described.add_options()("tokenizer", value<std::string>()->required(),
                                      "byte, or a tokenizer file")(
      "source", value<std::vector<std::string>>()->required(),
      "NAME=SHARE:FILE[,FILE...], once a source, files in reading order")(
      "out", value<std::string>()->required(), "the corpus, which must not exist")(
      "text-field", value<std::vector<std::string>>(),
      "FIELD[,FIELD...] of JSON lines with the text (default text), or SOURCE:FIELD[,FIELD...]; "
      "several are joined by line breaks")("split-blank-lines",
                                           "plain text: a document a paragraph instead of a file")(
      "shard-tokens", value<std::uint64_t>()->default_value(std::uint64_t{1} << 27),
      "tokens after which a shard ends");
  for (const std::size_t i : {2u, 3u}) {
    commands[i].described.add_options()("corpus", value<std::string>()->required(), "the corpus");
    commands[i].positional.add("corpus", 1);
  }
  commands[2].described.add_options()("verify", "check the digest of every shard");
  commands[3].described.add_options()("seed", value<std::uint64_t>()->required(),
                                      "seed of the run")("seq", value<std::uint64_t>()->required(),
                                                         "tokens a window trains on")(
      "windows", value<std::string>()->required(),
      "A:B, B not included")("digest", "one Merkle root instead of the windows");
  return run_program("ordo-data", std::move(commands), argc, argv);
}
