// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Test vectors: self-describing JSON files, compared with what the test computes. With the
/// environment variable ORDO_WRITE_VECTORS=1 they are written instead.

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <ordo/arith/value.hpp>

namespace ordo::test {

using json = nlohmann::ordered_json;

inline bool writing_vectors() {
  const char* const value = std::getenv("ORDO_WRITE_VECTORS");
  return value != nullptr && std::string(value) == "1";
}

inline std::string vectors_path(const std::string& file) {
  return std::string(ORDO_SOURCE_DIR) + "/tests/vectors/" + file;
}

/// The file's content; null if it does not exist.
inline json read_vectors(const std::string& file) {
  std::ifstream in(vectors_path(file));
  return in ? json::parse(in) : json();
}

inline void write_vectors(const std::string& file, const json& content) {
  std::ofstream out(vectors_path(file));
  out << content.dump(1) << '\n';
  REQUIRE(out.good());
}

/// Fails unless the file holds exactly `content` (or writes it there).
inline void check_vectors(const std::string& file, const json& content) {
  if (writing_vectors())
    return write_vectors(file, content);
  const json stored = read_vectors(file);
  REQUIRE_MESSAGE(!stored.is_null(), "no " << vectors_path(file));
  for (const auto& item : content.items()) {
    const std::string key = item.key();
    const json& value = item.value();
    INFO(file << ", " << key);
    REQUIRE(stored.contains(key));
    if (!value.is_array()) {
      CHECK(stored[key] == value);
      continue;
    }
    REQUIRE(stored[key].size() == value.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
      INFO("entry " << i << ": stored " << stored[key][i].dump() << ", computed "
                    << value[i].dump());
      CHECK(stored[key][i] == value[i]);
    }
  }
  CHECK(stored.size() == content.size());
}

/// Eight hexadecimal digits.
inline std::string hex(std::uint32_t u) {
  static const char digits[] = "0123456789abcdef";
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4)
    text += digits[(u >> shift) & 15u];
  return text;
}
inline std::string hex(float x) {
  return hex(arith::bits(x));
}

} // namespace ordo::test
