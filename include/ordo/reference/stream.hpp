// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The canonical stream as docs/contract.md defines it, with every order written out: tables of
/// permutations, sources joined token by token.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ordo/random/philox.hpp>

namespace ordo::reference {

/// A source in memory: its share of the windows and its documents, separators included.
struct stream_source {
  std::string name;
  std::uint64_t share = 0;
  std::vector<std::vector<std::uint32_t>> documents;
};

/// The order of an epoch: place i holds the first value below n on the walk i, P(i), P(P(i)), ...
/// after i itself, where P is a Feistel network of six rounds on twice `half` bits.
inline std::vector<std::uint64_t> document_order(std::uint64_t seed, const std::string& name,
                                                 std::uint64_t epoch, std::uint64_t n) {
  const random::words4 first = random::stream(seed, "ordo.data.order." + name).block(0);
  int half = 1;
  while ((std::uint64_t{1} << (2 * half)) < n)
    ++half;
  const std::uint64_t low = (std::uint64_t{1} << half) - 1;
  std::vector<std::uint64_t> network;
  for (std::uint64_t i = 0; i < std::uint64_t{1} << (2 * half); ++i) {
    std::uint64_t left = i >> half, right = i & low;
    for (std::uint32_t round = 0; round < 6; ++round) {
      const random::words4 counter{{static_cast<std::uint32_t>(right), round,
                                    static_cast<std::uint32_t>(epoch),
                                    static_cast<std::uint32_t>(epoch >> 32)}};
      const std::uint64_t mixed = random::philox4x32_10(counter, first.w[0], first.w[1]).w[0];
      const std::uint64_t next = left ^ (mixed & low);
      left = right;
      right = next;
    }
    network.push_back(left << half | right);
  }
  std::vector<std::uint64_t> order;
  for (std::uint64_t i = 0; i < n; ++i) {
    std::uint64_t value = network[i];
    while (value >= n)
      value = network[value];
    order.push_back(value);
  }
  return order;
}

/// The first tokens of a source's endless text: its documents in the order of epoch 0, then of
/// epoch 1, and so on until there are `count`.
inline std::vector<std::uint32_t> source_text(const stream_source& source, std::uint64_t seed,
                                              std::size_t count) {
  std::vector<std::uint32_t> text;
  for (std::uint64_t epoch = 0; text.size() < count; ++epoch) {
    for (const std::uint64_t document :
         document_order(seed, source.name, epoch, source.documents.size())) {
      const std::vector<std::uint32_t>& tokens = source.documents[document];
      text.insert(text.end(), tokens.begin(), tokens.end());
    }
  }
  text.resize(count);
  return text;
}

/// The source of window `w`: the shares laid end to end on [0, total), the point
/// floor(word * total / 2^64) in one of them.
inline std::size_t source_of_window(const std::vector<stream_source>& sources, std::uint64_t seed,
                                    std::uint64_t w) {
  std::uint64_t total = 0;
  for (const stream_source& source : sources)
    total += source.share;
  const random::stream draws(seed, "ordo.data.source");
  const std::uint64_t high = draws.word(2 * w + 1), low = draws.word(2 * w);
  // floor((high * 2^32 + low) * total / 2^64), in two steps that fit: total is below 2^32 here.
  const std::uint64_t point = (high * total + (low * total >> 32)) >> 32;
  std::uint64_t end = 0;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    end += sources[s].share;
    if (point < end)
      return s;
  }
  return sources.size();
}

/// Windows 0 ... count - 1, each of `length` + 1 tokens.
inline std::vector<std::vector<std::uint32_t>> windows(const std::vector<stream_source>& sources,
                                                       std::uint64_t seed, std::size_t length,
                                                       std::size_t count) {
  std::vector<std::vector<std::uint32_t>> texts;
  for (const stream_source& source : sources) {
    texts.push_back(source_text(source, seed, count * (length + 1)));
  }
  std::vector<std::size_t> taken(sources.size());
  std::vector<std::vector<std::uint32_t>> all;
  for (std::uint64_t w = 0; w < count; ++w) {
    const std::size_t s = source_of_window(sources, seed, w);
    const auto from = texts[s].begin() + static_cast<std::ptrdiff_t>(taken[s]);
    all.emplace_back(from, from + static_cast<std::ptrdiff_t>(length + 1));
    taken[s] += length + 1;
  }
  return all;
}

} // namespace ordo::reference
