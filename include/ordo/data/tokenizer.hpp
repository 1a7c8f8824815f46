// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Tokenizers: text to ids and back. This release has the byte tokenizer.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>

namespace ordo::data {

/// Ids 0 ... 255 are bytes, 256 separates documents. A literal "<|endoftext|>" in a text is text.
class tokenizer {
public:
  /// "byte", or the path of a tokenizer file. Throws when this release cannot read it.
  static tokenizer open(const std::string& name) {
    if (name == "byte")
      return {};
    const io::json file = io::parse_json(io::read_file(name, 1 << 26), name);
    const std::string type = file.is_object() && file.contains("type") && file["type"].is_string()
                                 ? file["type"].get<std::string>()
                                 : "unknown";
    require(type == "byte", name, "its tokenizer type is '" + type + "'",
            "this release reads byte tokenizers only; write --tokenizer byte");
    const tokenizer byte;
    require(file == byte.description(), name, "it is no byte tokenizer of this release",
            "write --tokenizer byte");
    return byte;
  }

  std::uint32_t vocabulary() const { return 257; }
  std::uint32_t separator() const { return 256; }

  /// The canonical description whose SHA-256 is the tokenizer's digest.
  io::json description() const {
    return {{"type", "byte"}, {"vocabulary", vocabulary()}, {"separator", separator()}};
  }
  digest::hash256 hash() const {
    return digest::sha256_of(std::string_view(io::canonical_json(description())));
  }

  /// Appends the ids of `text`.
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const {
    for (const char c : text)
      ids.push_back(static_cast<unsigned char>(c));
  }
  /// The bytes of ids; separators become line breaks. Throws on an id outside the vocabulary.
  std::string decode(const std::vector<std::uint32_t>& ids) const {
    std::string text;
    for (const std::uint32_t id : ids) {
      require(id < vocabulary(), "ordo::data::tokenizer",
              "id " + std::to_string(id) + " is outside the vocabulary of " +
                  std::to_string(vocabulary()));
      text += id == separator() ? '\n' : static_cast<char>(id);
    }
    return text;
  }
};

} // namespace ordo::data
