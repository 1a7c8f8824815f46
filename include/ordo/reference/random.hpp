// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Random tensors as plain loops, one word at a time.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <ordo/arith/value.hpp>
#include <ordo/random/distributions.hpp>
#include <ordo/random/philox.hpp>

namespace ordo::reference {

/// out[i] = low + width * uniform(word first + i of the stream of this name).
inline void uniform(std::uint64_t seed, std::string_view name, std::span<float> out, float low,
                    float width, std::uint64_t first = 0) {
  const random::stream source(seed, name);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float u = random::uniform(source.word(first + i));
    out[i] = arith::add(low, arith::mul(width, u));
  }
}

/// out[i] = deviation * truncated_normal(word first + i of the stream of this name).
inline void truncated_normal(std::uint64_t seed, std::string_view name, std::span<float> out,
                             float deviation, std::uint64_t first = 0) {
  const random::stream source(seed, name);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = arith::mul(deviation, random::truncated_normal(source.word(first + i)));
  }
}

} // namespace ordo::reference
