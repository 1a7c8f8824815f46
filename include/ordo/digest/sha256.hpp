// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// SHA-256 (FIPS 180-4) through OpenSSL: the digest wherever somebody may be lying.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <openssl/evp.h>

#include <ordo/core/error.hpp>

namespace ordo::digest {

/// 32 bytes; printed as 64 lower-case hexadecimal digits.
using hash256 = std::array<std::uint8_t, 32>;

/// Incremental SHA-256. `finish` ends the message and makes the object ready for the next one.
class sha256 {
public:
  sha256() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    require(context_ != nullptr, "ordo::digest::sha256", "OpenSSL is out of memory");
    start();
  }
  sha256& update(std::span<const std::byte> bytes) {
    require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1,
            "ordo::digest::sha256", "OpenSSL refused an update");
    return *this;
  }
  sha256& update(std::string_view text) { return update(std::as_bytes(std::span(text))); }
  sha256& update(const hash256& hash) { return update(std::as_bytes(std::span(hash))); }
  hash256 finish() {
    hash256 out;
    unsigned length = 0;
    require(EVP_DigestFinal_ex(context_.get(), out.data(), &length) == 1 && length == out.size(),
            "ordo::digest::sha256", "OpenSSL could not finish a digest");
    start();
    return out;
  }

private:
  void start() {
    static const EVP_MD* const method = EVP_sha256();
    require(EVP_DigestInit_ex(context_.get(), method, nullptr) == 1, "ordo::digest::sha256",
            "OpenSSL has no SHA-256");
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

inline hash256 sha256_of(std::span<const std::byte> bytes) {
  return sha256().update(bytes).finish();
}
inline hash256 sha256_of(std::string_view text) {
  return sha256().update(text).finish();
}

inline std::string hex(std::span<const std::uint8_t> bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::uint8_t b : bytes) {
    text += digits[b >> 4];
    text += digits[b & 15];
  }
  return text;
}

/// The hash written as 64 lower-case hexadecimal digits. Throws on anything else.
inline hash256 parse_hash(std::string_view text) {
  const auto digit = [&](char c) -> unsigned {
    if (c >= '0' && c <= '9')
      return static_cast<unsigned>(c - '0');
    if (c >= 'a' && c <= 'f')
      return static_cast<unsigned>(c - 'a' + 10);
    throw error("ordo::digest::parse_hash", "'" + std::string(text) + "' is no SHA-256",
                "64 lower-case hexadecimal digits are expected");
  };
  hash256 out;
  require(text.size() == 2 * out.size(), "ordo::digest::parse_hash",
          "a SHA-256 has 64 digits, this text has " + std::to_string(text.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::uint8_t>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
  }
  return out;
}

} // namespace ordo::digest
