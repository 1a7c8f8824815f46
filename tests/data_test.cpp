// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS data THREADS 1
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ordo/data/stream.hpp>
#include <ordo/reference/stream.hpp>

#include "data_fixture.hpp"
#include "vectors.hpp"

namespace {

using namespace ordo;
using test::content;
using test::failure_of;
using test::has;
using test::put;
using test::scratch;
using window = std::vector<std::uint32_t>;

std::vector<window> take(data::window_stream& stream, std::size_t count) {
  std::vector<window> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.emplace_back(static_cast<std::size_t>(stream.window_tokens()));
    stream.next(all.back());
  }
  return all;
}

digest::hash256 root_of(const std::vector<window>& windows, std::uint64_t first = 0) {
  digest::merkle_accumulator tree;
  for (const window& w : windows) tree.append(data::window_leaf(first++, w));
  return tree.root();
}

}  // namespace

// ---- orders ------------------------------------------------------------------------------------

TEST_CASE("permutation: every one is a bijection and the one of the definition") {
  for (const std::uint64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1000}) {
    for (const std::uint64_t epoch : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
      INFO("n " << n << ", epoch " << epoch);
      const data::permutation order(7, "ordo.data.order.prose", epoch, n);
      std::vector<std::uint64_t> places;
      for (std::uint64_t i = 0; i < n; ++i) places.push_back(order(i));
      CHECK(places == reference::document_order(7, "prose", epoch, n));
      std::sort(places.begin(), places.end());
      for (std::uint64_t i = 0; i < n; ++i) REQUIRE(places[i] == i);
      CHECK(has(failure_of([&] { order(n); }), "place " + std::to_string(n)));
    }
  }
  CHECK(has(failure_of([] { data::permutation(7, "x", 0, 0); }), "nothing to permute"));
}

TEST_CASE("permutation: seeds, names and epochs give different orders") {
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (const char* name : {"prose", "code"}) {
      for (const std::uint64_t epoch :
           {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{1} << 32}) {
        const data::permutation order(seed, name, epoch, 257);
        std::vector<std::uint64_t> places;
        for (std::uint64_t i = 0; i < 257; ++i) places.push_back(order(i));
        orders.insert(places);
      }
    }
  }
  CHECK(orders.size() == 80);
}

TEST_CASE("permutation: as large as a corpus may be, without a table") {
  for (const std::uint64_t n : {std::uint64_t{332'000'000}, (std::uint64_t{1} << 40) - 1,
                                std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    const data::permutation order(1, "x", 0, n);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 1000; ++i) seen.insert(order(n - 1 - i));
    CHECK(seen.size() == 1000);
    CHECK(*seen.rbegin() < n);
  }
}

// ---- the stream --------------------------------------------------------------------------------

TEST_CASE("stream: windows equal the definition's, over several epochs of every source") {
  const scratch dir;
  const test::sources sources = test::three_sources();
  for (const std::uint64_t shard_tokens : {1, 64, 1 << 20}) {
    test::write_corpus(dir / "corpus", sources, 1000, shard_tokens);
    const data::corpus corpus(dir / "corpus");
    for (const std::size_t length : {1, 7, 15, 16, 60}) {
      for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}}) {
        INFO("shards of " << shard_tokens << ", length " << length << ", seed " << seed);
        data::window_stream stream(corpus, seed, length);
        CHECK(take(stream, 300) == reference::windows(sources, seed, length, 300));
      }
    }
  }
}

TEST_CASE("stream: test vectors") {
  const scratch dir;
  test::write_corpus(dir / "corpus", test::three_sources());
  const data::corpus corpus(dir / "corpus");
  data::window_stream stream(corpus, 42, 15);
  test::json vectors;
  vectors["corpus"] = "tests/data_fixture.hpp: three_sources(), vocabulary 1000, shards of 64";
  vectors["manifest"] = digest::hex(corpus.hash());
  vectors["seed"] = 42;
  vectors["length"] = 15;
  vectors["windows"] = test::json::array();
  digest::merkle_accumulator tree;
  for (std::uint64_t w = 0; w < 1000; ++w) {
    const std::size_t source = stream.source_of(w);
    const window tokens = take(stream, 1).front();
    const digest::hash256 leaf = data::window_leaf(w, tokens);
    tree.append(leaf);
    if (w >= 12 && (w & (w + 1)) != 0) continue;
    vectors["windows"].push_back(
        {{"window", w},
         {"source", corpus.contents().sources[source].name},
         {"leaf", digest::hex(leaf)},
         {"cursor", io::canonical_json(stream.cursor().to_json())}});
  }
  vectors["root of 1000"] = digest::hex(tree.root());
  vectors["orders"] = test::json::array();
  for (const std::uint64_t n : {1, 5, 16, 17}) {
    const data::permutation order(42, "ordo.data.order.prose", 3, n);
    std::vector<std::uint64_t> places;
    for (std::uint64_t i = 0; i < n; ++i) places.push_back(order(i));
    vectors["orders"].push_back({{"documents", n}, {"epoch", 3}, {"order", places}});
  }
  test::check_vectors("stream.json", vectors);
}
