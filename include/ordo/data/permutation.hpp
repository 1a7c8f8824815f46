// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Keyed bijections of [0, n): an order of any number of documents that costs no memory.

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include <ordo/core/error.hpp>
#include <ordo/random/philox.hpp>

namespace ordo::data {

/// The order of epoch `epoch`: a balanced Feistel network of six rounds on the smallest even number
/// of bits that holds n - 1, walked along its cycle until the value lies below n.
///
/// Round r maps (left, right) to (right, left ^ F(right)) with F the low bits of word 0 of Philox
/// under the stream's key, counter words (right, r, epoch low, epoch high) in place of a block's.
/// Cost: on average fewer than four walks of six rounds. Bits: of seed, name, epoch, n.
class permutation {
public:
  permutation(std::uint64_t seed, std::string_view name, std::uint64_t epoch, std::uint64_t n)
      : epoch_(epoch), n_(n) {
    require(n > 0, "ordo::data::permutation", "there is nothing to permute");
    // The key is drawn from the named stream, so that two sources of one seed differ.
    key_ = random::stream(seed, name).word64(0);
    const int bits = n > 1 ? 64 - std::countl_zero(n - 1) : 1;
    half_bits_ = (bits + 1) / 2;
    mask_ = half_bits_ == 32 ? 0xffffffffu : (1u << half_bits_) - 1;
  }

  /// The order that the same seed and name give another epoch; spares making the key again.
  permutation at_epoch(std::uint64_t epoch) const {
    permutation other = *this;
    other.epoch_ = epoch;
    return other;
  }

  /// Place `i` of the order.
  std::uint64_t operator()(std::uint64_t i) const {
    // Not by `require`, whose texts would be made at every call.
    if (i >= n_) {
      throw error("ordo::data::permutation",
                  "place " + std::to_string(i) + " of " + std::to_string(n_) + " is asked for");
    }
    do {
      i = round_trip(i);
    } while (i >= n_);
    return i;
  }

private:
  std::uint64_t round_trip(std::uint64_t i) const {
    auto left = static_cast<std::uint32_t>(i >> half_bits_) & mask_;
    auto right = static_cast<std::uint32_t>(i) & mask_;
    for (std::uint32_t round = 0; round < 6; ++round) {
      const random::words4 counter{{right, round, static_cast<std::uint32_t>(epoch_),
                                    static_cast<std::uint32_t>(epoch_ >> 32)}};
      const random::words4 words = random::philox4x32_10(counter, static_cast<std::uint32_t>(key_),
                                                         static_cast<std::uint32_t>(key_ >> 32));
      const std::uint32_t next = left ^ (words.w[0] & mask_);
      left = right;
      right = next;
    }
    return std::uint64_t{left} << half_bits_ | right;
  }

  std::uint64_t key_ = 0, epoch_, n_;
  int half_bits_ = 1;
  std::uint32_t mask_ = 1;
};

} // namespace ordo::data
