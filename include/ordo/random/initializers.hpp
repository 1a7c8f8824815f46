// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Tensors filled with random values.

#include <cstdint>
#include <string_view>

#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/random/distributions.hpp>
#include <ordo/random/philox.hpp>

namespace ordo::random {

namespace detail {

/// out[i] = value(word first + i of the stream). On a host blocks of words, then values of all of
/// them, so that both loops can be vectorized; on a device four words a work item.
template <execution_space Space, class Value>
void fill(const Space& space, const char* label, const stream& source, std::uint64_t first,
          const vector_view<float, Space>& out, const Value& value) {
  float* const to = out.data();
  if constexpr (ordo::detail::on_host<Space>) {
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
  } else {
    const std::uint64_t n = out.extent(0), last = first + n;
    const std::uint64_t begin = first / 4, end = n == 0 ? begin : (last + 3) / 4;
    ordo::detail::for_each(
        space, label, static_cast<std::int64_t>(end - begin), KOKKOS_LAMBDA(std::int64_t b) {
          const std::uint64_t block = begin + static_cast<std::uint64_t>(b);
          const words4 words = source.block(block);
          for (std::uint64_t j = 0; j < 4; ++j) {
            const std::uint64_t index = 4 * block + j;
            if (index >= first && index < last)
              to[index - first] = value(words.w[j]);
          }
        });
  }
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
