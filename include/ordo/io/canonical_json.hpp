// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// JSON as ordo writes and reads it: RFC 8785 (JCS) restricted to integers, and checked access.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <ordo/core/error.hpp>
#include <ordo/digest/sha256.hpp>

namespace ordo::io {

using json = nlohmann::json;

namespace detail {

/// Whether UTF-8 `a` comes before `b` in the order of UTF-16 code units, which RFC 8785 asks for:
/// as bytes, but for characters beyond U+FFFF, whose surrogates sort below U+E000.
inline bool before_in_utf16(const std::string& a, const std::string& b) {
  const std::size_t n = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<unsigned char>(a[i]), y = static_cast<unsigned char>(b[i]);
    if (x == y) continue;
    const bool x_high = x >= 0xf0, y_high = y >= 0xf0;  // lead byte of a surrogate pair
    if (x_high && !y_high && y >= 0xee) return true;
    if (y_high && !x_high && x >= 0xee) return false;
    return x < y;
  }
  return a.size() < b.size();
}

inline void write_canonical(const json& value, std::string& out) {
  constexpr std::int64_t limit = std::int64_t{1} << 53;
  switch (value.type()) {
    case json::value_t::object: {
      std::vector<std::string> keys;
      for (const auto& item : value.items()) keys.push_back(item.key());
      std::sort(keys.begin(), keys.end(), before_in_utf16);
      out += '{';
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (i > 0) out += ',';
        out += json(keys[i]).dump() + ":";
        write_canonical(value.at(keys[i]), out);
      }
      out += '}';
      return;
    }
    case json::value_t::array:
      out += '[';
      for (std::size_t i = 0; i < value.size(); ++i) {
        if (i > 0) out += ',';
        write_canonical(value[i], out);
      }
      out += ']';
      return;
    case json::value_t::number_unsigned:
      require(value.get<std::uint64_t>() <= static_cast<std::uint64_t>(limit), "canonical JSON",
              value.dump() + " is beyond 2^53", "write it as a string");
      break;
    case json::value_t::number_integer:
      require(value.get<std::int64_t>() >= -limit && value.get<std::int64_t>() <= limit,
              "canonical JSON", value.dump() + " is beyond 2^53", "write it as a string");
      break;
    case json::value_t::number_float:
      throw error("canonical JSON", value.dump() + " is a floating-point number",
                  "write its bits as a hexadecimal string");
    default: break;
  }
  out += value.dump();
}

}  // namespace detail

/// RFC 8785. Throws on floating-point numbers and on integers beyond 2^53.
inline std::string canonical_json(const json& value) {
  std::string out;
  detail::write_canonical(value, out);
  return out;
}

/// Parses text that nobody vouches for: at most 64 levels, no key twice. `where` names it in errors.
inline json parse_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    require(depth <= 64, where, "it is nested more than 64 levels deep");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const std::string key = parsed.get<std::string>();
      require(keys.back().insert(key).second, where, "the key '" + key + "' occurs twice");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& failure) {
    throw error(where, std::string("it is no valid JSON (") + failure.what() + ")",
                "the file is damaged; fetch it again");
  }
}

/// The value of `key`, which must be there.
inline const json& get(const json& object, const char* key, const std::string& where) {
  require(object.is_object(), where, "an object with '" + std::string(key) + "' is expected");
  const auto found = object.find(key);
  require(found != object.end(), where, "'" + std::string(key) + "' is missing");
  return *found;
}
inline std::uint64_t get_u64(const json& object, const char* key, const std::string& where) {
  const json& value = get(object, key, where);
  require(value.is_number_unsigned(), where, "'" + std::string(key) + "' is no count");
  return value.get<std::uint64_t>();
}
inline std::string get_string(const json& object, const char* key, const std::string& where) {
  const json& value = get(object, key, where);
  require(value.is_string(), where, "'" + std::string(key) + "' is no text");
  return value.get<std::string>();
}
inline digest::hash256 get_hash(const json& object, const char* key, const std::string& where) {
  try {
    return digest::parse_hash(get_string(object, key, where));
  } catch (const error& failure) {
    throw error(where, "'" + std::string(key) + "': " + failure.what());
  }
}
inline const json& get_object(const json& object, const char* key, const std::string& where) {
  const json& value = get(object, key, where);
  require(value.is_object(), where, "'" + std::string(key) + "' is no object");
  return value;
}
inline const json& get_array(const json& object, const char* key, const std::string& where) {
  const json& value = get(object, key, where);
  require(value.is_array(), where, "'" + std::string(key) + "' is no list");
  return value;
}

/// The bits of a binary32 as eight hexadecimal digits, and back.
inline std::string f32_hex(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const std::uint8_t bytes[4] = {static_cast<std::uint8_t>(u >> 24), static_cast<std::uint8_t>(u >> 16),
                                 static_cast<std::uint8_t>(u >> 8), static_cast<std::uint8_t>(u)};
  return digest::hex(bytes);
}
inline float parse_f32_hex(const std::string& text, const std::string& where) {
  std::uint32_t u = 0;
  require(text.size() == 8, where, "'" + text + "' is no binary32", "eight hexadecimal digits");
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    require(digit || letter, where, "'" + text + "' is no binary32", "eight hexadecimal digits");
    u = u << 4 | static_cast<std::uint32_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return std::bit_cast<float>(u);
}

}  // namespace ordo::io
