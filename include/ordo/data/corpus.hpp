// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// A corpus on disk: manifest, shards of tokens, indexes of documents.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/resource.h>

#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>

namespace ordo::data {

static_assert(std::endian::native == std::endian::little,
              "ordo::data: shards are little-endian and are read as they lie on disk; there is no "
              "version for big-endian machines");

/// One shard: `NAME/shard-NNNNN.bin` (uint32 little-endian tokens, every document followed by the
/// separator) and `.idx` (uint64 little-endian offsets of the documents' first tokens, and the
/// end).
struct shard_info {
  std::uint64_t tokens = 0, documents = 0;
  digest::hash256 bin{}, idx{};
};

/// What a manifest may hold. So many shards of so many tokens have sums that fit, and the writer
/// refuses what the reader would.
inline constexpr std::size_t source_limit = 256, shard_limit = std::size_t{1} << 20;
inline constexpr std::uint64_t shard_token_limit = std::uint64_t{1} << 40;
inline constexpr std::uint64_t manifest_byte_limit = std::uint64_t{1} << 28;

struct source_info {
  std::string name;
  std::uint64_t share = 0; ///< integer part of the mixture
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
  if (digits.size() < 5)
    digits.insert(0, 5 - digits.size(), '0');
  return "shard-" + digits + extension;
}

namespace detail {

/// Whether two names differ in case at most: some file systems hold only one of them.
inline bool same_but_for_case(const std::string& a, const std::string& b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

inline source_info parse_source_info(const io::json& json, const std::string& where) {
  source_info s;
  s.name = io::get_string(json, "name", where);
  require(valid_source_name(s.name), where,
          "'" + io::printable(s.name) + "' is no name of a source",
          "letters, digits, '_' and '-', at most 64");
  const std::string at = where + ", source '" + s.name + "'";
  s.share = io::get_u64(json, "share", at);
  require(s.share >= 1 && s.share <= (std::uint64_t{1} << 32), at, "its share is impossible",
          "1 to 2^32");
  const io::json& shards = io::get_array(json, "shards", at);
  require(shards.size() <= shard_limit, at, "it has more than 2^20 shards");
  for (const io::json& part : shards) {
    const shard_info shard{io::get_u64(part, "tokens", at), io::get_u64(part, "documents", at),
                           io::get_hash(part, "bin", at), io::get_hash(part, "idx", at)};
    require(shard.tokens <= shard_token_limit && shard.documents <= shard.tokens &&
                shard.documents > 0,
            at,
            "shard " + std::to_string(s.shards.size()) +
                " has impossible counts: " + std::to_string(shard.documents) + " documents, " +
                std::to_string(shard.tokens) + " tokens",
            "a document has a token, a shard a document and at most 2^40 tokens");
    s.tokens += shard.tokens;
    s.documents += shard.documents;
    s.shards.push_back(shard);
  }
  require(s.tokens == io::get_u64(json, "tokens", at) &&
              s.documents == io::get_u64(json, "documents", at) && s.tokens > 0,
          at, "its counts do not add up");
  return s;
}

inline manifest parse_manifest(const std::string& text, const std::string& where) {
  const io::json json = io::parse_json(text, where);
  require(io::get_string(json, "format", where) == "ordo corpus 1", where,
          "this is no corpus of ordo", "make one with 'ordo-data build'");
  manifest m;
  const std::uint64_t vocabulary = io::get_u64(json, "vocabulary", where);
  const std::uint64_t separator = io::get_u64(json, "separator", where);
  require(vocabulary <= UINT32_MAX && separator < vocabulary, where,
          "a vocabulary of " + std::to_string(vocabulary) + " with the separator " +
              std::to_string(separator) + " is impossible");
  m.vocabulary = static_cast<std::uint32_t>(vocabulary);
  m.separator = static_cast<std::uint32_t>(separator);
  m.tokenizer = io::get_hash(json, "tokenizer", where);
  const io::json& sources = io::get_array(json, "sources", where);
  require(!sources.empty(), where, "it has no source");
  require(sources.size() <= source_limit, where, "it has more than 256 sources");
  for (const io::json& entry : sources) {
    source_info s = parse_source_info(entry, where);
    for (const source_info& other : m.sources) {
      require(!same_but_for_case(other.name, s.name), where,
              "two sources are called '" + s.name + "' (upper and lower case count as one)");
    }
    m.sources.push_back(std::move(s));
  }
  require(io::canonical_json(m.to_json()) == text, where,
          "it is not the canonical JSON of a corpus, or holds more",
          "the file was changed; fetch the original");
  return m;
}

/// The files of one shard.
struct shard_files {
  io::file bin, idx;
};

/// Shards that are open, at most so many that a process's limit on open files leaves room for
/// others: a corpus may have thousands. The one that was opened first is closed first.
class open_shards {
public:
  open_shards() {
    struct rlimit files;
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
      limit_ = static_cast<std::size_t>(std::clamp<rlim_t>(files.rlim_cur / 4, 8, 2048));
    }
  }

  /// The shard called `key`, opened by `open()` unless it is.
  template <class Open>
  std::shared_ptr<const shard_files> get(std::pair<std::size_t, std::size_t> key,
                                         const Open& open) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = files_.find(key);
    if (found != files_.end())
      return found->second;
    if (files_.size() >= limit_) {
      files_.erase(opened_.front());
      opened_.pop_front();
    }
    auto made = std::make_shared<const shard_files>(open());
    opened_.push_back(key);
    files_.emplace(key, made);
    return made;
  }

private:
  std::mutex mutex_;
  std::size_t limit_ = 64;
  std::map<std::pair<std::size_t, std::size_t>, std::shared_ptr<const shard_files>> files_;
  std::deque<std::pair<std::size_t, std::size_t>> opened_;
};

} // namespace detail

/// Where a document lies: its shard, its first token there and how many it has, the separator
/// included.
struct document_place {
  std::size_t source = 0, shard = 0;
  std::uint64_t begin = 0, tokens = 0;
};

/// A corpus opened for reading. Sizes are checked on opening, contents where they are read;
/// `verify` checks every digest. Nothing is mapped: a file that shrinks while it is read is an
/// error.
///
/// Cost: memory for the manifest alone, whatever the number of documents; one read of 16 bytes to
/// locate a document.
class corpus {
public:
  explicit corpus(std::filesystem::path path) : path_(std::move(path)) {
    const std::string where = (path_ / "manifest.json").string();
    std::error_code ignored;
    require(std::filesystem::is_regular_file(where, ignored), "corpus",
            "'" + path_.string() + "' holds no corpus (no manifest.json)",
            "make one with 'ordo-data build'");
    const std::string text = io::read_file(where, manifest_byte_limit);
    manifest_ = detail::parse_manifest(text, where);
    hash_ = digest::sha256_of(std::string_view(text));
    for (std::size_t s = 0; s < manifest_.sources.size(); ++s) {
      std::vector<std::uint64_t> first{0};
      for (std::size_t i = 0; i < manifest_.sources[s].shards.size(); ++i) {
        open(s, i);
        first.push_back(first.back() + manifest_.sources[s].shards[i].documents);
      }
      first_document_.push_back(std::move(first));
    }
  }

  const std::filesystem::path& path() const { return path_; }
  const manifest& contents() const { return manifest_; }
  const digest::hash256& hash() const { return hash_; } ///< SHA-256 of manifest.json

  /// Finds document `document` of source `source`.
  document_place locate(std::size_t source, std::uint64_t document) const {
    const std::vector<std::uint64_t>& first = first_document_.at(source);
    if (document >= first.back()) {
      throw error(path_.string(), "source '" + manifest_.sources[source].name + "' has " +
                                      std::to_string(first.back()) + " documents, number " +
                                      std::to_string(document) + " is asked for");
    }
    const auto shard = static_cast<std::size_t>(
        std::upper_bound(first.begin(), first.end(), document) - first.begin() - 1);
    const auto files = shard_of(source, shard);
    std::uint64_t both[2];
    files->idx.read_at(8 * (document - first[shard]), std::as_writable_bytes(std::span(both)));
    if (both[0] >= both[1] || both[1] > manifest_.sources[source].shards[shard].tokens) {
      throw error(files->idx.path().string(),
                  "the offsets of document " + std::to_string(document - first[shard]) +
                      " are impossible",
                  "the index is damaged; fetch it again");
    }
    return {source, shard, both[0], both[1] - both[0]};
  }

  /// Tokens of document `document` of source `source`, its separator included.
  std::uint64_t document_length(std::size_t source, std::uint64_t document) const {
    return locate(source, document).tokens;
  }

  /// Reads tokens [first, first + out.size()) of a document. Throws on ids outside the vocabulary.
  void read(const document_place& at, std::uint64_t first, std::span<std::uint32_t> out) const {
    const auto files = shard_of(at.source, at.shard);
    if (first > at.tokens || out.size() > at.tokens - first) {
      throw error(files->bin.path().string(),
                  "tokens " + std::to_string(first) + " to " + std::to_string(first + out.size()) +
                      " of a document of " + std::to_string(at.tokens) + " are asked for");
    }
    files->bin.read_at(4 * (at.begin + first), std::as_writable_bytes(out));
    std::uint32_t largest = 0;
    for (const std::uint32_t id : out)
      largest = std::max(largest, id);
    if (largest >= manifest_.vocabulary) {
      throw error(files->bin.path().string(),
                  "it holds the id " + std::to_string(largest) + ", the vocabulary has " +
                      std::to_string(manifest_.vocabulary),
                  "the shard is damaged; fetch it again");
    }
  }
  void read(std::size_t source, std::uint64_t document, std::uint64_t first,
            std::span<std::uint32_t> out) const {
    read(locate(source, document), first, out);
  }

  /// Checks the SHA-256 of every shard. Throws `mismatch` naming the first file that differs.
  void verify() const {
    for (std::size_t s = 0; s < manifest_.sources.size(); ++s) {
      for (std::size_t i = 0; i < manifest_.sources[s].shards.size(); ++i) {
        const auto files = shard_of(s, i);
        verify_file(files->bin, manifest_.sources[s].shards[i].bin);
        verify_file(files->idx, manifest_.sources[s].shards[i].idx);
      }
    }
  }

private:
  std::shared_ptr<const detail::shard_files> shard_of(std::size_t source, std::size_t i) const {
    return open_.get({source, i}, [&] { return open(source, i); });
  }

  /// Opens a shard; throws unless its files have the manifest's sizes and its index its ends.
  detail::shard_files open(std::size_t source, std::size_t i) const {
    const source_info& s = manifest_.sources[source];
    const shard_info& shard = s.shards[i];
    detail::shard_files files{
        open_checked(path_ / s.name / shard_name(i, ".bin"), 4 * shard.tokens),
        open_checked(path_ / s.name / shard_name(i, ".idx"), 8 * (shard.documents + 1))};
    std::uint64_t first = 0, last = 0;
    files.idx.read_at(0, std::as_writable_bytes(std::span(&first, 1)));
    files.idx.read_at(8 * shard.documents, std::as_writable_bytes(std::span(&last, 1)));
    require(first == 0 && last == shard.tokens, files.idx.path().string(),
            "it does not cover the " + std::to_string(shard.tokens) + " tokens of its shard",
            "the index is damaged; fetch it again");
    return files;
  }

  static io::file open_checked(const std::filesystem::path& path, std::uint64_t expected) {
    io::file file = io::open_regular(path);
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

  std::filesystem::path path_;
  manifest manifest_;
  digest::hash256 hash_{};
  std::vector<std::vector<std::uint64_t>> first_document_; ///< of every shard, and all documents
  mutable detail::open_shards open_;
};

} // namespace ordo::data
