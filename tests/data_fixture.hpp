// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What tests of corpora share: folders of their own, corpora out of token lists, error texts.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <stdlib.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <ordo/data/corpus.hpp>
#include <ordo/reference/stream.hpp>

#include "../trainer/corpus_builder.hpp"

namespace ordo::test {

namespace fs = std::filesystem;

/// A directory of its own for a test, removed with everything in it.
class scratch {
public:
  scratch() {
    std::string name = (fs::temp_directory_path() / "ordo-data-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  scratch(const scratch&) = delete;
  ~scratch() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

private:
  fs::path path_;
};

template <class F>
std::string failure_of(const F& f) {
  try {
    f();
  } catch (const error& failure) {
    return failure.what();
  }
  return "no error";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(out.good());
}

using sources = std::vector<reference::stream_source>;

/// Documents of 1 ... `longest` tokens by a fixed rule, the last token of each being the separator.
inline reference::stream_source made_source(const std::string& name, std::uint64_t share,
                                            std::size_t documents, std::uint32_t longest,
                                            std::uint32_t vocabulary) {
  reference::stream_source made{name, share, {}};
  std::uint32_t state = static_cast<std::uint32_t>(name.size()) + 77u * name.front() + longest;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (std::size_t d = 0; d < documents; ++d) {
    std::vector<std::uint32_t> tokens(1 + next() % longest);
    for (std::uint32_t& id : tokens)
      id = next() % (vocabulary - 1);
    tokens.back() = vocabulary - 1;
    made.documents.push_back(std::move(tokens));
  }
  return made;
}

/// Two sources of many short documents, a third whose documents are longer than a window.
inline sources three_sources(std::uint32_t vocabulary = 1000) {
  return {made_source("prose", 7, 53, 9, vocabulary), made_source("code", 2, 17, 40, vocabulary),
          made_source("math", 1, 3, 100, vocabulary)};
}

inline std::uint64_t tokens_of(const reference::stream_source& source) {
  std::uint64_t sum = 0;
  for (const auto& document : source.documents)
    sum += document.size();
  return sum;
}

/// Writes the corpus of these sources to `folder`, by the writer that `ordo-data build` uses.
inline data::manifest write_corpus(const fs::path& folder, const sources& from,
                                   std::uint32_t vocabulary = 1000,
                                   std::uint64_t shard_tokens = 64) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  data::manifest m;
  m.vocabulary = vocabulary;
  m.separator = vocabulary - 1;
  for (const reference::stream_source& source : from) {
    program::shard_writer writer(folder / source.name, shard_tokens);
    for (const auto& document : source.documents)
      writer.add(document);
    data::source_info info = writer.finish();
    info.name = source.name;
    info.share = source.share;
    m.sources.push_back(std::move(info));
  }
  io::write_file_atomic(folder / "manifest.json", io::canonical_json(m.to_json()));
  return m;
}

} // namespace ordo::test
