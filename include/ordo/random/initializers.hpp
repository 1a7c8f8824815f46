// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Random values of distributions: functions of one word each, and tensors filled with them.

#include <cstdint>
#include <string_view>

#include <ordo/arith/log.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/random/philox.hpp>

namespace ordo::random {

/// The upper 23 bits of a word as the midpoint of one of 2^23 equal parts of (0, 1).
///
/// Bits: exactly (2 floor(word / 512) + 1) / 2^24; never 0, never 1, symmetric about 1/2.
ORDO_FORCE_FUNCTION float uniform(std::uint32_t word) {
  const std::int32_t odd = static_cast<std::int32_t>(word >> 9) * 2 + 1;
  return arith::mul(arith::from_int(odd), 0x1p-24f);
}

/// The same for (-1, 1): exactly (2 floor(word / 512) + 1 - 2^23) / 2^23; never 0.
ORDO_FORCE_FUNCTION float uniform_signed(std::uint32_t word) {
  const std::int32_t odd = static_cast<std::int32_t>(word >> 9) * 2 + 1 - (1 << 23);
  return arith::mul(arith::from_int(odd), 0x1p-23f);
}

/// A standard normal value given that its magnitude is below 2: the inverse of its distribution
/// function at `uniform_signed(word)`.
///
/// v = u erf(sqrt 2); x = sqrt 2 erfinv(v) = v P(-log((1 - v)(1 + v))), P of degree 6.
///
/// Bits: of the word only; words whose upper 23 bits are complements give values of opposite sign.
/// Error: at most 3.3e-7 relative over all words (an exact midpoint taken as the argument).
ORDO_FORCE_FUNCTION float truncated_normal(std::uint32_t word) {
  using arith::detail::add_rn;
  using arith::detail::mul_rn;
  const float v = mul_rn(uniform_signed(word), 0x1.e8b43p-1f);
  const float w = -arith::detail::log_positive(mul_rn(add_rn(1.0f, -v), add_rn(1.0f, v)));
  float p = -0x1.a66c24p-18f; // nothing is tiny: |v| > 2^-25, and w is zero or above 2^-25
  p = add_rn(mul_rn(p, w), 0x1.7a3a1ep-14f);
  p = add_rn(mul_rn(p, w), -0x1.c10f1p-13f);
  p = add_rn(mul_rn(p, w), -0x1.adca4ep-9f);
  p = add_rn(mul_rn(p, w), 0x1.0b7aa2p-6f);
  p = add_rn(mul_rn(p, w), 0x1.4ffe16p-2f);
  p = add_rn(mul_rn(p, w), 0x1.40d932p+0f);
  return mul_rn(v, p);
}

namespace detail {

/// out[i] = value(word first + i of the stream). Blocks of words, then values of all of them, so
/// that both loops can be vectorized.
template <execution_space Space, class Value>
void fill(const Space& space, const char* label, const stream& source, std::uint64_t first,
          const vector_view<float, Space>& out, const Value& value) {
  float* const to = out.data();
  ordo::detail::for_blocks(
      space, label, static_cast<std::int64_t>(out.extent(0)), 4096,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        constexpr int count = 128;
        while (begin < end) {
          const std::uint64_t index = first + static_cast<std::uint64_t>(begin);
          std::uint32_t words[count];
          source.blocks<count / 4>(index / 4, words);
          float values[count];
          for (int j = 0; j < count; ++j)
            values[j] = value(words[j]);
          const int skipped = static_cast<int>(index % 4);
          for (int j = skipped; j < count && begin < end; ++j)
            to[begin++] = values[j];
        }
      });
}

} // namespace detail

/// Fills `out` with values uniform in (low, low + width): low + width * uniform(word).
///
/// Bits: element i is a function of (seed, name, first + i, low, width): a shard that begins at
/// element `first` of its tensor gets that tensor's elements.
template <execution_space Space>
void uniform(const Space& space, std::uint64_t seed, std::string_view name,
             const vector_view<float, Space>& out, float low = 0.0f, float width = 1.0f,
             std::uint64_t first = 0) {
  detail::fill(
      space, "ordo::random::uniform", stream(seed, name), first, out,
      KOKKOS_LAMBDA(std::uint32_t word) {
        return arith::add(low, arith::mul(width, uniform(word)));
      });
}

/// Fills `out` with normal values of mean 0 cut at twice `deviation`, the standard deviation before
/// the cut (after it 0.8796 times that): deviation * truncated_normal(word).
///
/// Bits: as uniform.
template <execution_space Space>
void truncated_normal(const Space& space, std::uint64_t seed, std::string_view name,
                      const vector_view<float, Space>& out, float deviation,
                      std::uint64_t first = 0) {
  detail::fill(
      space, "ordo::random::truncated_normal", stream(seed, name), first, out,
      KOKKOS_LAMBDA(std::uint32_t word) { return arith::mul(deviation, truncated_normal(word)); });
}

} // namespace ordo::random
