// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Building a corpus: documents to shards and manifest, complete or not at all.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
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
  const auto refuse = [](const source_request& r, const char* why) {
    throw error("--source " + r.name, "the share '" + io::printable(r.share) + "' " + why,
                "write a positive number of at most nine digits, such as 7 or 0.7");
  };
  const auto fraction = [](const source_request& r) {
    const std::size_t point = r.share.find('.');
    return point == std::string::npos ? std::string() : r.share.substr(point + 1);
  };
  std::size_t decimals = 0;
  for (const source_request& r : requests) {
    if (fraction(r).size() > 8)
      refuse(r, "has too many digits");
    decimals = std::max(decimals, fraction(r).size());
  }
  std::vector<std::uint64_t> shares;
  for (const source_request& r : requests) {
    std::string digits = r.share.substr(0, r.share.find('.')) + fraction(r);
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) {
      refuse(r, "is no positive number");
    }
    digits.append(decimals - fraction(r).size(), '0');
    digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
    if (digits.empty())
      refuse(r, "is no positive number");
    if (digits.size() > 9)
      refuse(r, "and the others differ in too many digits");
    shares.push_back(std::stoull(digits));
  }
  return shares;
}

/// Writes one source's shards below `folder`.
class shard_writer {
public:
  shard_writer(const std::filesystem::path& folder, std::uint64_t shard_tokens)
      : folder_(folder), shard_tokens_(shard_tokens) {
    std::error_code failure;
    std::filesystem::create_directory(folder, failure);
    require(!failure, folder.string(), "it cannot be made: " + failure.message());
  }

  /// Appends a document, whose last token is the separator.
  void add(const std::vector<std::uint32_t>& tokens) {
    require(!tokens.empty(), folder_.string(), "a document without its separator is given to it");
    if (!bin_)
      open();
    bin_->add(std::as_bytes(std::span(tokens)));
    shard_.tokens += tokens.size();
    ++shard_.documents;
    add_offset(shard_.tokens);
    if (shard_.tokens >= shard_tokens_)
      close();
  }

  /// Tokens and documents so far.
  std::uint64_t tokens() const { return info_.tokens + shard_.tokens; }
  std::uint64_t documents() const { return info_.documents + shard_.documents; }

  /// Ends the source and returns its counts and digests.
  data::source_info finish() {
    if (bin_)
      close();
    return std::move(info_);
  }

private:
  /// A file that is written in large pieces and hashed on the way.
  class hashed_file {
  public:
    explicit hashed_file(const std::filesystem::path& path)
        : file_(path, O_WRONLY | O_CREAT | O_EXCL) {}
    void add(std::span<const std::byte> bytes) {
      waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
      if (waiting_.size() >= std::size_t{1} << 20)
        flush();
    }
    digest::hash256 finish() {
      flush();
      return hash_.finish();
    }

  private:
    void flush() {
      file_.write(std::span<const std::byte>(waiting_));
      hash_.update(waiting_);
      waiting_.clear();
    }
    io::file file_;
    digest::sha256 hash_;
    std::vector<std::byte> waiting_;
  };

  void add_offset(std::uint64_t offset) { idx_->add(std::as_bytes(std::span(&offset, 1))); }
  void open() {
    const std::size_t number = info_.shards.size();
    require(number < data::shard_limit, folder_.string(), "it needs more than 2^20 shards",
            "let --shard-tokens be larger");
    bin_.emplace(folder_ / data::shard_name(number, ".bin"));
    idx_.emplace(folder_ / data::shard_name(number, ".idx"));
    add_offset(0);
  }
  void close() {
    shard_.bin = bin_->finish();
    shard_.idx = idx_->finish();
    info_.tokens += shard_.tokens;
    info_.documents += shard_.documents;
    info_.shards.push_back(std::exchange(shard_, {}));
    bin_.reset();
    idx_.reset();
  }

  std::filesystem::path folder_;
  std::uint64_t shard_tokens_;
  std::optional<hashed_file> bin_, idx_;
  data::shard_info shard_;
  data::source_info info_;
};

/// What `build_corpus` is to do.
struct build_request {
  std::vector<source_request> sources;
  std::vector<std::string> text_fields{"text"};
  std::map<std::string, std::vector<std::string>> source_fields; ///< for sources that differ
  bool split_blank_lines = false;
  std::uint64_t shard_tokens = std::uint64_t{1} << 27;
  /// Told after every document: the source, its documents and its tokens so far.
  std::function<void(const std::string&, std::uint64_t, std::uint64_t)> progress;
};

struct build_result {
  data::manifest contents;
  std::uint64_t empty_documents = 0;
};

/// Takes fields as the command line has them: FIELD[,FIELD...] for every source, or
/// SOURCE:FIELD[,FIELD...] for one.
inline void add_text_fields(const std::vector<std::string>& written, build_request& request) {
  std::vector<std::string> shared;
  for (const std::string& field : written) {
    const std::string name = field.substr(0, field.find(':'));
    const bool one = name.size() < field.size() &&
                     std::any_of(request.sources.begin(), request.sources.end(),
                                 [&](const source_request& s) { return s.name == name; });
    std::vector<std::string>& fields = one ? request.source_fields[name] : shared;
    for (std::size_t at = one ? name.size() + 1 : 0; at <= field.size();) {
      const std::size_t comma = std::min(field.find(',', at), field.size());
      require(comma > at, "--text-field " + io::printable(field), "it has an empty name",
              "write --text-field FIELD[,FIELD...]");
      fields.push_back(field.substr(at, comma - at));
      at = comma + 1;
    }
  }
  if (!shared.empty())
    request.text_fields = std::move(shared);
}

/// Finds what can be found wrong before hours of work.
inline void check_request(const build_request& request, const std::filesystem::path& target) {
  std::error_code ignored;
  require(!std::filesystem::exists(std::filesystem::symlink_status(target, ignored)),
          target.string(), "it exists", "choose another --out, or remove it first");
  require(request.sources.size() <= data::source_limit, "--source",
          std::to_string(request.sources.size()) + " are given, a corpus has at most " +
              std::to_string(data::source_limit),
          "list the files of several in one");
  // The document that ends a shard may go beyond.
  constexpr std::uint64_t most = data::shard_token_limit - document_limit - 1;
  require(request.shard_tokens > 0 && request.shard_tokens <= most, "--shard-tokens",
          std::to_string(request.shard_tokens) + " tokens make no shard",
          "write 1 to " + std::to_string(most));
  for (std::size_t i = 0; i < request.sources.size(); ++i) {
    const source_request& source = request.sources[i];
    for (std::size_t other = 0; other < i; ++other) {
      require(!data::detail::same_but_for_case(request.sources[other].name, source.name),
              "--source " + source.name,
              "the name occurs twice (upper and lower case count as one)",
              "list all its files in one --source");
    }
    for (const std::filesystem::path& file : source.files)
      byte_source readable(file);
  }
}

/// Builds `target`, which must not exist.
inline build_result build_corpus(const build_request& request, const data::tokenizer& tokenizer,
                                 const std::filesystem::path& target) {
  const std::vector<std::uint64_t> shares = parse_shares(request.sources);
  check_request(request, target);
  build_result result;
  result.contents.vocabulary = tokenizer.vocabulary();
  result.contents.separator = tokenizer.separator();
  result.contents.tokenizer = tokenizer.hash();
  io::staged_directory staged(target);
  std::vector<std::uint32_t> tokens;
  for (std::size_t i = 0; i < request.sources.size(); ++i) {
    const source_request& source = request.sources[i];
    shard_writer writer(staged.path() / source.name, request.shard_tokens);
    const auto take = [&](const std::string& text) {
      if (text.empty()) {
        ++result.empty_documents;
        return;
      }
      tokens.clear();
      tokenizer.encode(text, tokens);
      tokens.push_back(tokenizer.separator());
      writer.add(tokens);
      if (request.progress)
        request.progress(source.name, writer.documents(), writer.tokens());
    };
    const auto own = request.source_fields.find(source.name);
    const auto& fields = own == request.source_fields.end() ? request.text_fields : own->second;
    for (const std::filesystem::path& file : source.files) {
      for_each_document(file, fields, request.split_blank_lines, take);
    }
    data::source_info info = writer.finish();
    info.name = source.name;
    info.share = shares[i];
    require(info.tokens > 0, "--source " + source.name, "its files hold no text",
            "leave it out, or name files that do");
    result.contents.sources.push_back(std::move(info));
  }
  const std::string text = io::canonical_json(result.contents.to_json());
  require(text.size() <= data::manifest_byte_limit, target.string(),
          "its manifest would have " + std::to_string(text.size()) + " bytes",
          "let --shard-tokens be larger");
  io::write_file_atomic(staged.path() / "manifest.json", text);
  staged.commit();
  return result;
}

} // namespace ordo::program
