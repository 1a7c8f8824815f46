// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// A corpus on disk: manifest, shards of tokens, indexes of documents.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>

namespace ordo::data {

/// One shard: `NAME/shard-NNNNN.bin` (uint32 little-endian tokens, every document followed by the
/// separator) and `.idx` (uint64 little-endian offsets of the documents' first tokens, and the end).
struct shard_info {
  std::uint64_t tokens = 0, documents = 0;
  digest::hash256 bin{}, idx{};
};

struct source_info {
  std::string name;
  std::uint64_t share = 0;  ///< integer part of the mixture
  std::uint64_t tokens = 0, documents = 0;
  std::vector<shard_info> shards;
};

/// What `manifest.json` says.
struct manifest {
  std::uint32_t vocabulary = 0, separator = 0;
  digest::hash256 tokenizer{};
  std::vector<source_info> sources;

  io::json to_json() const {
    io::json list = io::json::array();
    for (const source_info& s : sources) {
      io::json shards = io::json::array();
      for (const shard_info& shard : s.shards) {
        shards.push_back({{"tokens", shard.tokens},
                          {"documents", shard.documents},
                          {"bin", digest::hex(shard.bin)},
                          {"idx", digest::hex(shard.idx)}});
      }
      list.push_back({{"name", s.name},
                      {"share", s.share},
                      {"tokens", s.tokens},
                      {"documents", s.documents},
                      {"shards", std::move(shards)}});
    }
    return {{"format", "ordo corpus 1"},
            {"vocabulary", vocabulary},
            {"separator", separator},
            {"tokenizer", digest::hex(tokenizer)},
            {"sources", std::move(list)}};
  }
};

/// Whether `name` may name a source: letters, digits, '_' and '-', at most 64.
inline bool valid_source_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
         });
}

inline std::string shard_name(std::size_t number, const char* extension) {
  std::string digits = std::to_string(number);
  if (digits.size() < 5) digits.insert(0, 5 - digits.size(), '0');
  return "shard-" + digits + extension;
}

namespace detail {

inline manifest parse_manifest(const std::string& text, const std::string& where) {
  const io::json json = io::parse_json(text, where);
  require(io::get_string(json, "format", where) == "ordo corpus 1", where,
          "this is no corpus of ordo", "make one with 'ordo-data build'");
  require(io::canonical_json(json) == text, where, "it is not canonical JSON",
          "the file was changed; fetch the original");
  manifest m;
  const std::uint64_t vocabulary = io::get_u64(json, "vocabulary", where);
  const std::uint64_t separator = io::get_u64(json, "separator", where);
  require(vocabulary <= UINT32_MAX && separator < vocabulary, where,
          "the vocabulary or separator is impossible");
  m.vocabulary = static_cast<std::uint32_t>(vocabulary);
  m.separator = static_cast<std::uint32_t>(separator);
  m.tokenizer = io::get_hash(json, "tokenizer", where);
  std::uint64_t total_share = 0;
  for (const io::json& entry : io::get_array(json, "sources", where)) {
    source_info s;
    s.name = io::get_string(entry, "name", where);
    require(valid_source_name(s.name), where, "'" + s.name + "' is no name of a source",
            "letters, digits, '_' and '-', at most 64");
    for (const source_info& other : m.sources) {
      require(other.name != s.name, where, "two sources are called '" + s.name + "'");
    }
    s.share = io::get_u64(entry, "share", where);
    require(s.share >= 1 && s.share <= (std::uint64_t{1} << 32), where,
            "the share of '" + s.name + "' is impossible");
    total_share += s.share;
    for (const io::json& part : io::get_array(entry, "shards", where)) {
      shard_info shard{io::get_u64(part, "tokens", where), io::get_u64(part, "documents", where),
                       io::get_hash(part, "bin", where), io::get_hash(part, "idx", where)};
      constexpr std::uint64_t limit = std::uint64_t{1} << 40;
      require(shard.tokens <= limit && shard.documents <= shard.tokens && shard.documents > 0, where,
              "a shard of '" + s.name + "' has impossible counts");
      s.tokens += shard.tokens;
      s.documents += shard.documents;
      s.shards.push_back(shard);
    }
    require(s.tokens == io::get_u64(entry, "tokens", where) &&
                s.documents == io::get_u64(entry, "documents", where) && s.tokens > 0,
            where, "the counts of '" + s.name + "' do not add up");
    m.sources.push_back(std::move(s));
  }
  require(!m.sources.empty(), where, "it has no source");
  require(total_share <= (std::uint64_t{1} << 40), where, "the shares are too large");
  return m;
}

}  // namespace detail

/// A corpus opened for reading. Sizes are checked on opening, contents where they are read; `verify`
/// checks every digest. Nothing is mapped: a file that shrinks while it is read is an error.
class corpus {
 public:
  explicit corpus(std::filesystem::path path) : path_(std::move(path)) {
    const std::string where = (path_ / "manifest.json").string();
    require(std::filesystem::is_regular_file(where), "corpus",
            "'" + path_.string() + "' holds no corpus (no manifest.json)",
            "make one with 'ordo-data build'");
    const std::string text = io::read_file(where, std::uint64_t{1} << 28);
    manifest_ = detail::parse_manifest(text, where);
    hash_ = digest::sha256_of(std::string_view(text));
    for (const source_info& s : manifest_.sources) {
      std::vector<shard_files> opened;
      for (std::size_t i = 0; i < s.shards.size(); ++i) {
        shard_files files{
            open_checked(path_ / s.name / shard_name(i, ".bin"), 4 * s.shards[i].tokens),
            open_checked(path_ / s.name / shard_name(i, ".idx"), 8 * (s.shards[i].documents + 1))};
        opened.push_back(std::move(files));
      }
      files_.push_back(std::move(opened));
    }
  }

  const std::filesystem::path& path() const { return path_; }
  const manifest& contents() const { return manifest_; }
  const digest::hash256& hash() const { return hash_; }  ///< SHA-256 of manifest.json

  /// Tokens of document `document` of source `source`, its separator included.
  std::uint64_t document_length(std::size_t source, std::uint64_t document) const {
    const place at = find(source, document);
    const auto [begin, end] = bounds(at);
    return end - begin;
  }

  /// Reads tokens [first, first + out.size()) of a document. Throws on ids outside the vocabulary.
  void read(std::size_t source, std::uint64_t document, std::uint64_t first,
            std::span<std::uint32_t> out) const {
    const place at = find(source, document);
    const auto [begin, end] = bounds(at);
    require(first <= end - begin && out.size() <= end - begin - first, where(at),
            "document " + std::to_string(document) + " is shorter than the index says");
    at.files->bin.read_at(4 * (begin + first), std::as_writable_bytes(out));
    for (const std::uint32_t id : out) {
      require(id < manifest_.vocabulary, where(at),
              "it holds the id " + std::to_string(id) + ", the vocabulary has " +
                  std::to_string(manifest_.vocabulary),
              "the shard is damaged; fetch it again");
    }
  }

  /// Checks the SHA-256 of every shard. Throws `mismatch` naming the first file that differs.
  void verify() const {
    for (std::size_t s = 0; s < files_.size(); ++s) {
      for (std::size_t i = 0; i < files_[s].size(); ++i) {
        verify_file(files_[s][i].bin, manifest_.sources[s].shards[i].bin);
        verify_file(files_[s][i].idx, manifest_.sources[s].shards[i].idx);
      }
    }
  }

 private:
  struct shard_files {
    io::file bin, idx;
  };
  struct place {
    const shard_files* files;
    std::uint64_t document, tokens;  ///< within the shard; tokens of the shard
  };

  static io::file open_checked(const std::filesystem::path& path, std::uint64_t expected) {
    io::file file(path, O_RDONLY);
    require(file.size() == expected, path.string(),
            "it has " + std::to_string(file.size()) + " bytes, the manifest says " +
                std::to_string(expected),
            "the shard was cut or belongs to another corpus; fetch it again");
    return file;
  }

  static void verify_file(const io::file& file, const digest::hash256& expected) {
    digest::sha256 hash;
    std::vector<std::byte> buffer(1 << 20);
    const std::uint64_t size = file.size();
    for (std::uint64_t at = 0; at < size; at += buffer.size()) {
      const auto part = std::span(buffer).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), size - at)));
      file.read_at(at, part);
      hash.update(part);
    }
    const digest::hash256 got = hash.finish();
    if (got != expected) {
      throw mismatch(file.path().string(), "it is not the shard of the manifest", 0,
                     digest::hex(expected), digest::hex(got));
    }
  }

  place find(std::size_t source, std::uint64_t document) const {
    const source_info& s = manifest_.sources.at(source);
    for (std::size_t i = 0; i < s.shards.size(); ++i) {
      if (document < s.shards[i].documents) return {&files_[source][i], document, s.shards[i].tokens};
      document -= s.shards[i].documents;
    }
    throw error(path_.string(), "source '" + s.name + "' has no such document");
  }

  std::string where(const place& at) const { return at.files->bin.path().string(); }

  std::pair<std::uint64_t, std::uint64_t> bounds(const place& at) const {
    std::uint64_t both[2];
    at.files->idx.read_at(8 * at.document, std::as_writable_bytes(std::span(both)));
    require(both[0] < both[1] && both[1] <= at.tokens, at.files->idx.path().string(),
            "the offsets of document " + std::to_string(at.document) + " are impossible",
            "the index is damaged; fetch it again");
    return {both[0], both[1]};
  }

  std::filesystem::path path_;
  manifest manifest_;
  digest::hash256 hash_{};
  std::vector<std::vector<shard_files>> files_;
};

}  // namespace ordo::data
