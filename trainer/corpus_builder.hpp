// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Building a corpus: documents to shards and manifest, complete or not at all.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ordo/data/corpus.hpp>
#include <ordo/data/tokenizer.hpp>

#include "text_input.hpp"

namespace ordo::program {

/// NAME=SHARE:FILE[,FILE...], the share still as written.
struct source_request {
  std::string name, share;
  std::vector<std::filesystem::path> files;
};

inline source_request parse_source(const std::string& text) {
  const std::string form = "write --source NAME=SHARE:FILE[,FILE...]";
  const std::size_t equals = text.find('='), colon = text.find(':', equals);
  require(equals != std::string::npos && colon != std::string::npos, "--source " + text,
          "it is not understood", form);
  source_request request{text.substr(0, equals), text.substr(equals + 1, colon - equals - 1), {}};
  require(data::valid_source_name(request.name), "--source " + text,
          "'" + request.name + "' is no name", "letters, digits, '_' and '-', at most 64");
  for (std::size_t at = colon + 1; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    require(comma > at, "--source " + text, "it has an empty file name", form);
    request.files.emplace_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  require(!request.files.empty(), "--source " + text, "it has no file", form);
  return request;
}

/// Shares as whole numbers in the proportion written: decimals are scaled by one power of ten.
inline std::vector<std::uint64_t> parse_shares(const std::vector<source_request>& requests) {
  std::size_t decimals = 0;
  for (const source_request& r : requests) {
    const std::size_t point = r.share.find('.');
    if (point != std::string::npos) decimals = std::max(decimals, r.share.size() - point - 1);
  }
  std::vector<std::uint64_t> shares;
  for (const source_request& r : requests) {
    const std::size_t point = std::min(r.share.find('.'), r.share.size());
    std::string digits = r.share.substr(0, point);
    const std::string fraction = point < r.share.size() ? r.share.substr(point + 1) : "";
    digits += fraction + std::string(decimals - fraction.size(), '0');
    const bool number = !digits.empty() && digits.size() <= 9 &&
                        digits.find_first_not_of("0123456789") == std::string::npos;
    require(number && std::stoull(digits) > 0, "--source " + r.name,
            "the share '" + r.share + "' is no positive number", "such as 7 or 0.7");
    shares.push_back(std::stoull(digits));
  }
  return shares;
}

/// Writes one source's shards below `folder`.
class shard_writer {
 public:
  shard_writer(const std::filesystem::path& folder, std::uint64_t shard_tokens)
      : folder_(folder), shard_tokens_(shard_tokens) {
    std::filesystem::create_directory(folder);
  }

  /// Appends a document, whose last token is the separator.
  void add(const std::vector<std::uint32_t>& tokens) {
    if (!bin_) open();
    write(*bin_, bin_hash_, std::as_bytes(std::span(tokens)));
    shard_.tokens += tokens.size();
    ++shard_.documents;
    write_offset(shard_.tokens);
    if (shard_.tokens >= shard_tokens_) close();
  }

  /// Ends the source and returns its counts and digests.
  data::source_info finish() {
    if (bin_) close();
    return std::move(info_);
  }

 private:
  static void write(const io::file& file, digest::sha256& hash, std::span<const std::byte> bytes) {
    file.write(bytes);
    hash.update(bytes);
  }
  void write_offset(std::uint64_t offset) {
    write(*idx_, idx_hash_, std::as_bytes(std::span(&offset, 1)));
  }
  void open() {
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL;
    const std::size_t number = info_.shards.size();
    bin_.emplace(folder_ / data::shard_name(number, ".bin"), flags);
    idx_.emplace(folder_ / data::shard_name(number, ".idx"), flags);
    shard_ = {};
    write_offset(0);
  }
  void close() {
    shard_.bin = bin_hash_.finish();
    shard_.idx = idx_hash_.finish();
    info_.tokens += shard_.tokens;
    info_.documents += shard_.documents;
    info_.shards.push_back(shard_);
    bin_.reset();
    idx_.reset();
  }

  std::filesystem::path folder_;
  std::uint64_t shard_tokens_;
  std::optional<io::file> bin_, idx_;
  digest::sha256 bin_hash_, idx_hash_;
  data::shard_info shard_;
  data::source_info info_;
};

struct build_request {
  std::vector<source_request> sources;
  std::vector<std::string> text_fields{"text"};
  bool split_blank_lines = false;
  std::uint64_t shard_tokens = std::uint64_t{1} << 27;
};

struct build_result {
  data::manifest contents;
  std::uint64_t empty_documents = 0;
};

/// Builds `target`, which must not exist.
inline build_result build_corpus(const build_request& request, const data::tokenizer& tokenizer,
                                 const std::filesystem::path& target) {
  require(!std::filesystem::exists(target), target.string(), "it exists",
          "choose another --out, or remove it first");
  const std::vector<std::uint64_t> shares = parse_shares(request.sources);
  build_result result;
  result.contents.vocabulary = tokenizer.vocabulary();
  result.contents.separator = tokenizer.separator();
  result.contents.tokenizer = tokenizer.hash();
  io::staged_directory staged(target);
  std::vector<std::uint32_t> tokens;
  for (std::size_t i = 0; i < request.sources.size(); ++i) {
    const source_request& source = request.sources[i];
    for (std::size_t other = 0; other < i; ++other) {
      require(strcasecmp(request.sources[other].name.c_str(), source.name.c_str()) != 0,
              "--source " + source.name, "the name occurs twice (upper and lower case count as one)",
              "list all its files in one --source");
    }
    shard_writer writer(staged.path() / source.name, request.shard_tokens);
    for (const std::filesystem::path& file : source.files) {
      for_each_document(file, request.text_fields, request.split_blank_lines,
                        [&](const std::string& text) {
                          if (text.empty()) {
                            ++result.empty_documents;
                            return;
                          }
                          tokens.clear();
                          tokenizer.encode(text, tokens);
                          tokens.push_back(tokenizer.separator());
                          writer.add(tokens);
                        });
    }
    data::source_info info = writer.finish();
    info.name = source.name;
    info.share = shares[i];
    require(info.tokens > 0, "--source " + source.name, "its files hold no text");
    result.contents.sources.push_back(std::move(info));
  }
  io::write_file_atomic(staged.path() / "manifest.json",
                        io::canonical_json(result.contents.to_json()));
  staged.commit();
  return result;
}

}  // namespace ordo::program
