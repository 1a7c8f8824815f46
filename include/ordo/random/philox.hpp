// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): random words as a function of their place.

#include <array>
#include <cstdint>
#include <string_view>

#include <ordo/core/macros.hpp>
#include <ordo/digest/sha256.hpp>

namespace ordo::random {

struct words4 {
  std::uint32_t w[4];
  friend bool operator==(const words4&, const words4&) = default;
};

/// The ten-round block function on a 128-bit counter and a 64-bit key, words least significant
/// first as in the published known-answer vectors.
ORDO_FUNCTION words4 philox4x32_10(words4 counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xd2511f53u} * counter.w[0];
    const std::uint64_t p1 = std::uint64_t{0xcd9e8d57u} * counter.w[2];
    counter = words4{{static_cast<std::uint32_t>(p1 >> 32) ^ counter.w[1] ^ key0,
                      static_cast<std::uint32_t>(p1),
                      static_cast<std::uint32_t>(p0 >> 32) ^ counter.w[3] ^ key1,
                      static_cast<std::uint32_t>(p0)}};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return counter;
}

/// A stream of random words named by (seed, name); element i never depends on how many are drawn.
///
/// Key: the seed. Counter: block number in the low half, stream in the high half, where the stream
/// is the first 8 bytes, little-endian, of the SHA-256 of the name.
class stream {
public:
  stream(std::uint64_t seed, std::string_view name) : seed_(seed), stream_(0) {
    const digest::hash256 hash = digest::sha256_of(name);
    for (int i = 7; i >= 0; --i)
      stream_ = stream_ << 8 | hash[static_cast<std::size_t>(i)];
  }

  /// The four words of block `index`.
  ORDO_FUNCTION words4 block(std::uint64_t index) const {
    return philox4x32_10(
        words4{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)}},
        static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32));
  }

  /// Blocks index, index + 1, ..., one after the other; loops run across blocks, so that compilers
  /// vectorize them.
  template <int Blocks>
  ORDO_FUNCTION void blocks(std::uint64_t index, std::uint32_t (&words)[4 * Blocks]) const {
    std::uint32_t c0[Blocks], c1[Blocks], c2[Blocks], c3[Blocks];
    for (int b = 0; b < Blocks; ++b) {
      const std::uint64_t i = index + static_cast<std::uint64_t>(b);
      c0[b] = static_cast<std::uint32_t>(i);
      c1[b] = static_cast<std::uint32_t>(i >> 32);
      c2[b] = static_cast<std::uint32_t>(stream_);
      c3[b] = static_cast<std::uint32_t>(stream_ >> 32);
    }
    std::uint32_t key0 = static_cast<std::uint32_t>(seed_);
    std::uint32_t key1 = static_cast<std::uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int b = 0; b < Blocks; ++b) {
        const std::uint64_t p0 = std::uint64_t{0xd2511f53u} * c0[b];
        const std::uint64_t p1 = std::uint64_t{0xcd9e8d57u} * c2[b];
        c0[b] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[b] ^ key0;
        c1[b] = static_cast<std::uint32_t>(p1);
        c2[b] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[b] ^ key1;
        c3[b] = static_cast<std::uint32_t>(p0);
      }
      key0 += 0x9e3779b9u;
      key1 += 0xbb67ae85u;
    }
    for (int b = 0; b < Blocks; ++b) {
      words[4 * b] = c0[b];
      words[4 * b + 1] = c1[b];
      words[4 * b + 2] = c2[b];
      words[4 * b + 3] = c3[b];
    }
  }

  /// Word `index` of the stream: word index % 4 of block index / 4.
  ORDO_FUNCTION std::uint32_t word(std::uint64_t index) const {
    return block(index / 4).w[index % 4];
  }

  /// Words 2 * index (low) and 2 * index + 1 (high) as one.
  ORDO_FUNCTION std::uint64_t word64(std::uint64_t index) const {
    const words4 b = block(index / 2);
    const std::uint32_t half = static_cast<std::uint32_t>(index % 2) * 2;
    return std::uint64_t{b.w[half + 1]} << 32 | b.w[half];
  }

private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

} // namespace ordo::random
