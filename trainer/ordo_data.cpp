// SPDX-License-Identifier: Apache-2.0

// ordo-data: corpora and the canonical stream.

#include <charconv>
#include <iterator>

#include <ordo/data/stream.hpp>

#include "command_line.hpp"
#include "corpus_builder.hpp"

namespace {

using namespace ordo;
using namespace ordo::program;

int build(const options::variables_map& given) {
  build_request request;
  for (const auto& text : given["source"].as<std::vector<std::string>>()) {
    request.sources.push_back(parse_source(text));
  }
  if (given.count("text-field") != 0) {
    request.text_fields = given["text-field"].as<std::vector<std::string>>();
  }
  request.split_blank_lines = given.count("split-blank-lines") != 0;
  request.shard_tokens = given["shard-tokens"].as<std::uint64_t>();
  require(request.shard_tokens > 0, "--shard-tokens", "0 tokens make no shard");
  const auto tokenizer = data::tokenizer::open(given["tokenizer"].as<std::string>());
  const std::string out = given["out"].as<std::string>();
  const build_result result = build_corpus(request, tokenizer, out);
  if (given.count("json") != 0) {
    std::cout << io::canonical_json(result.contents.to_json()) << "\n";
  } else if (given.count("quiet") == 0) {
    for (const auto& s : result.contents.sources) {
      std::cout << s.name << ": " << s.documents << " documents, " << s.tokens << " tokens, "
                << s.shards.size() << " shard(s)\n";
    }
    if (result.empty_documents > 0) {
      std::cout << result.empty_documents << " empty documents left out\n";
    }
    std::cout << out << ": "
              << digest::hex(digest::sha256_of(
                     std::string_view(io::canonical_json(result.contents.to_json()))))
              << "\n";
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

int stream(const options::variables_map& given) {
  const data::corpus corpus(given["corpus"].as<std::string>());
  const std::string range = given["windows"].as<std::string>();
  std::uint64_t first = 0, last = 0;
  const std::size_t colon = range.find(':');
  const auto number = [&](const std::string& text) {
    std::uint64_t n = 0;
    const auto [stop, failure] = std::from_chars(text.data(), text.data() + text.size(), n);
    require(failure == std::errc() && stop == text.data() + text.size() && !text.empty(),
            "--windows " + range, "it is not understood", "write --windows A:B, B not included");
    return n;
  };
  require(colon != std::string::npos, "--windows " + range, "it is not understood",
          "write --windows A:B, B not included");
  first = number(range.substr(0, colon));
  last = number(range.substr(colon + 1));
  require(first <= last, "--windows " + range, "it ends before it begins");
  data::window_stream windows(corpus, given["seed"].as<std::uint64_t>(),
                              given["seq"].as<std::uint64_t>());
  windows.seek(first);
  std::vector<std::uint32_t> tokens(static_cast<std::size_t>(windows.window_tokens()));
  digest::merkle_accumulator tree;
  for (std::uint64_t w = first; w < last; ++w) {
    windows.next(tokens);
    if (given.count("digest") != 0) {
      tree.append(data::window_leaf(w, tokens));
      continue;
    }
    for (std::size_t i = 0; i < tokens.size(); ++i)
      std::cout << (i > 0 ? " " : "") << tokens[i];
    std::cout << "\n";
  }
  if (given.count("digest") != 0)
    std::cout << digest::hex(tree.root()) << "\n";
  return same_or_done;
}

int tokenize(const options::variables_map& given) {
  const std::string what = given["action"].as<std::string>();
  if (what == "train") {
    throw error("ordo-data tokenizer train", "this release has the byte tokenizer only",
                "write --tokenizer byte; it needs no training");
  }
  require(what == "encode" || what == "decode", "ordo-data tokenizer " + what, "unknown action",
          "train, encode or decode");
  const auto tokenizer = data::tokenizer::open(given["tokenizer"].as<std::string>());
  if (what == "encode") {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    std::vector<std::uint32_t> ids;
    tokenizer.encode(text, ids);
    for (std::size_t i = 0; i < ids.size(); ++i)
      std::cout << (i > 0 ? " " : "") << ids[i];
    std::cout << "\n";
  } else {
    std::vector<std::uint32_t> ids;
    for (std::uint64_t id; std::cin >> id;) {
      require(id < tokenizer.vocabulary(), "standard input",
              "the id " + std::to_string(id) + " is outside the vocabulary");
      ids.push_back(static_cast<std::uint32_t>(id));
    }
    require(std::cin.eof(), "standard input", "it is no list of ids", "whole numbers and spaces");
    std::cout << tokenizer.decode(ids);
  }
  return same_or_done;
}

command make(const char* name, const char* synopsis, const char* meaning,
             int (*run)(const options::variables_map&)) {
  command c;
  c.name = name;
  c.synopsis = synopsis;
  c.meaning = meaning;
  c.run = run;
  return c;
}

} // namespace

int main(int argc, char** argv) {
  using options::value;
  std::vector<command> commands{
      make("tokenizer", "tokenizer encode|decode --tokenizer byte",
           "ids of standard input, and back", tokenize),
      make("build", "build --tokenizer byte --source NAME=SHARE:FILE[,FILE...]... --out CORPUS",
           "shards and manifest from .txt, .jsonl, .jsonl.gz, .jsonl.zst", build),
      make("inspect", "inspect CORPUS", "sources, documents, tokens, digests", inspect),
      make("stream", "stream CORPUS --seed S --seq T --windows A:B [--digest]",
           "the canonical windows", stream)};
  commands[0].described.add_options()("action", value<std::string>()->required(),
                                      "encode or decode")(
      "tokenizer", value<std::string>()->default_value("byte"), "byte, or a tokenizer file");
  commands[0].positional.add("action", 1);
  commands[1].described.add_options()("tokenizer", value<std::string>()->required(),
                                      "byte, or a tokenizer file")(
      "source", value<std::vector<std::string>>()->required(),
      "NAME=SHARE:FILE[,FILE...], once a source, files in reading order")(
      "out", value<std::string>()->required(), "the corpus, which must not exist")(
      "text-field", value<std::vector<std::string>>(),
      "field of JSON lines that holds the text (default text); several are joined by line breaks")(
      "split-blank-lines", "plain text: a document a paragraph instead of a file")(
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
