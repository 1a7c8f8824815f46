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

/// Text that nobody vouches for, as errors print it: at most 80 bytes, no control characters.
inline std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 80)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return text.size() > 80 ? out + "..." : out;
}

namespace detail {

/// Whether UTF-8 `a` comes before `b` in the order of UTF-16 code units, which RFC 8785 asks for:
/// as bytes, but for characters beyond U+FFFF, whose surrogates sort below U+E000.
inline bool before_in_utf16(const std::string& a, const std::string& b) {
  const std::size_t n = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<unsigned char>(a[i]), y = static_cast<unsigned char>(b[i]);
    if (x == y)
      continue;
    const bool x_high = x >= 0xf0, y_high = y >= 0xf0; // lead byte of a surrogate pair
    if (x_high && !y_high && y >= 0xee)
      return true;
    if (y_high && !x_high && x >= 0xee)
      return false;
    return x < y;
  }
  return a.size() < b.size();
}

/// A string, number or other leaf: how nlohmann::json writes them is what RFC 8785 asks for.
inline std::string write_leaf(const json& value) {
  try {
    return value.dump();
  } catch (const json::exception&) {
    throw error("canonical JSON", "a string is no valid UTF-8", "write its bytes in hexadecimal");
  }
}

inline void require_exact(const json& number) {
  constexpr std::int64_t limit = std::int64_t{1} << 53;
  require(!number.is_number_float(), "canonical JSON",
          number.dump() + " is a floating-point number", "write its bits as a hexadecimal string");
  const bool fits =
      number.is_number_unsigned()
          ? number.get<std::uint64_t>() <= static_cast<std::uint64_t>(limit)
          : number.get<std::int64_t>() >= -limit && number.get<std::int64_t>() <= limit;
  require(fits, "canonical JSON", number.dump() + " is beyond 2^53", "write it as a string");
}

inline void write_canonical(const json& value, std::string& out) {
  if (value.is_object()) {
    std::vector<const std::string*> keys;
    for (const auto& item : value.get_ref<const json::object_t&>())
      keys.push_back(&item.first);
    std::sort(keys.begin(), keys.end(),
              [](const auto* a, const auto* b) { return before_in_utf16(*a, *b); });
    out += '{';
    for (std::size_t i = 0; i < keys.size(); ++i) {
      out += (i > 0 ? "," : "") + write_leaf(*keys[i]) + ":";
      write_canonical(value.at(*keys[i]), out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i > 0)
        out += ',';
      write_canonical(value[i], out);
    }
    out += ']';
  } else {
    if (value.is_number())
      require_exact(value);
    require(!value.is_binary() && !value.is_discarded(), "canonical JSON",
            "a value is of a type that JSON does not have");
    out += write_leaf(value);
  }
}

} // namespace detail

/// RFC 8785: no spaces, keys in the order of their UTF-16 code units.
///
/// Throws: on floating-point numbers, integers beyond 2^53, strings that are no UTF-8.
inline std::string canonical_json(const json& value) {
  std::string out;
  detail::write_canonical(value, out);
  return out;
}

/// Levels of arrays and objects that `parse_json` accepts, and bytes unless told otherwise.
inline constexpr int json_depth_limit = 64;
inline constexpr std::size_t json_size_limit = std::size_t{1} << 28;

/// Parses text that nobody vouches for. `where` names it in errors.
///
/// Throws: on more bytes or levels than the limits, a key that an object has twice, anything that
/// is no JSON (RFC 8259), bad UTF-8 included.
inline json parse_json(std::string_view text, const std::string& where,
                       std::size_t size_limit = json_size_limit) {
  require(text.size() <= size_limit, where,
          "it has " + std::to_string(text.size()) + " bytes of JSON, at most " +
              std::to_string(size_limit) + " are accepted");
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    using kind = json::parse_event_t;
    if (event == kind::object_start || event == kind::array_start) {
      require(depth < json_depth_limit, where,
              "it is nested more than " + std::to_string(json_depth_limit) + " levels deep");
    }
    if (event == kind::object_start)
      keys.emplace_back();
    if (event == kind::object_end)
      keys.pop_back();
    if (event == kind::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      require(keys.back().insert(key).second, where,
              "the key '" + printable(key) + "' occurs twice in one object");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& failure) {
    // The parser's own count of lines is of `text`, which may be one line of a file.
    const std::string_view what = failure.what();
    const std::size_t reason = what.rfind(": ", what.find("parsing "));
    std::string why(what.substr(reason == what.npos ? 0 : reason + 2, 160));
    std::replace_if(
        why.begin(), why.end(), [](unsigned char c) { return c >= 0x7f; }, '?');
    throw error(where,
                "it is no valid JSON at byte " + std::to_string(failure.byte) + " (" + why + ")",
                "the file is damaged; fetch it again");
  } catch (const json::exception& failure) {
    throw error(where, "it is no valid JSON (" + std::string(failure.what()).substr(0, 200) + ")",
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
  require(value.is_number_unsigned() ||
              (value.is_number_integer() && value.get<std::int64_t>() >= 0),
          where, "'" + std::string(key) + "' is no count");
  return value.get<std::uint64_t>();
}
inline bool get_bool(const json& object, const char* key, const std::string& where) {
  const json& value = get(object, key, where);
  require(value.is_boolean(), where, "'" + std::string(key) + "' is neither true nor false");
  return value.get<bool>();
}
inline std::string get_string(const json& object, const char* key, const std::string& where) {
  const json& value = get(object, key, where);
  require(value.is_string(), where, "'" + std::string(key) + "' is no text");
  return value.get<std::string>();
}
inline digest::hash256 get_hash(const json& object, const char* key, const std::string& where) {
  const std::string text = get_string(object, key, where);
  try {
    return digest::parse_hash(text);
  } catch (const error&) {
    throw error(where, "'" + std::string(key) + "' is no SHA-256: '" + printable(text) + "'",
                "64 lower-case hexadecimal digits are expected");
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

namespace detail {

template <class Word>
std::string hex_digits(Word word) {
  std::uint8_t bytes[sizeof(Word)];
  for (std::size_t i = 0; i < sizeof(Word); ++i) {
    bytes[i] = static_cast<std::uint8_t>(word >> (8 * (sizeof(Word) - 1 - i)));
  }
  return digest::hex(bytes);
}

template <class Word>
Word parse_hex_digits(const std::string& text, const std::string& where) {
  Word word = 0;
  bool valid = text.size() == 2 * sizeof(Word);
  for (std::size_t i = 0; valid && i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9', letter = text[i] >= 'a' && text[i] <= 'f';
    valid = digit || letter;
    word = static_cast<Word>(word << 4 | static_cast<Word>(text[i] - (digit ? '0' : 'a' - 10)));
  }
  require(valid, where, "'" + printable(text) + "' is no binary" + std::to_string(8 * sizeof(Word)),
          std::to_string(2 * sizeof(Word)) + " lower-case hexadecimal digits are expected");
  return word;
}

} // namespace detail

/// The bits of a binary32 as eight lower-case hexadecimal digits, and back.
inline std::string f32_hex(float x) {
  return detail::hex_digits(std::bit_cast<std::uint32_t>(x));
}
inline float parse_f32_hex(const std::string& text, const std::string& where) {
  return std::bit_cast<float>(detail::parse_hex_digits<std::uint32_t>(text, where));
}

/// The bits of a binary64 as sixteen lower-case hexadecimal digits, and back.
inline std::string f64_hex(double x) {
  return detail::hex_digits(std::bit_cast<std::uint64_t>(x));
}
inline double parse_f64_hex(const std::string& text, const std::string& where) {
  return std::bit_cast<double>(detail::parse_hex_digits<std::uint64_t>(text, where));
}

/// The binary32 that `key` holds as `f32_hex` writes it.
inline float get_f32(const json& object, const char* key, const std::string& where) {
  return parse_f32_hex(get_string(object, key, where), where + ", '" + key + "'");
}

} // namespace ordo::io
