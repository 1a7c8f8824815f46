// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS data THREADS 1
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>

#include <doctest/doctest.h>

#include <ordo/data/stream.hpp>
#include <ordo/reference/stream.hpp>

#include "data_fixture.hpp"
#include "vectors.hpp"

namespace {

using namespace ordo;
namespace fs = std::filesystem;
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
  for (const window& w : windows)
    tree.append(data::window_leaf(first++, w));
  return tree.root();
}

} // namespace

// ---- orders ------------------------------------------------------------------------------------

TEST_CASE("permutation: every one is a bijection and the one of the definition") {
  for (const std::uint64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 1000}) {
    for (const std::uint64_t epoch : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
      INFO("n " << n << ", epoch " << epoch);
      const data::permutation order(7, "ordo.data.order.prose", epoch, n);
      std::vector<std::uint64_t> places;
      for (std::uint64_t i = 0; i < n; ++i)
        places.push_back(order(i));
      CHECK(places == reference::document_order(7, "prose", epoch, n));
      std::sort(places.begin(), places.end());
      for (std::uint64_t i = 0; i < n; ++i)
        REQUIRE(places[i] == i);
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
        for (std::uint64_t i = 0; i < 257; ++i)
          places.push_back(order(i));
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
    for (std::uint64_t i = 0; i < 1000; ++i)
      seen.insert(order(n - 1 - i));
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
    if (w >= 12 && (w & (w + 1)) != 0)
      continue;
    vectors["windows"].push_back({{"window", w},
                                  {"source", corpus.contents().sources[source].name},
                                  {"leaf", digest::hex(leaf)},
                                  {"cursor", io::canonical_json(stream.cursor().to_json())}});
  }
  vectors["root of 1000"] = digest::hex(tree.root());
  vectors["orders"] = test::json::array();
  for (const std::uint64_t n : {1, 5, 16, 17}) {
    const data::permutation order(42, "ordo.data.order.prose", 3, n);
    std::vector<std::uint64_t> places;
    for (std::uint64_t i = 0; i < n; ++i)
      places.push_back(order(i));
    vectors["orders"].push_back({{"documents", n}, {"epoch", 3}, {"order", places}});
  }
  test::check_vectors("stream.json", vectors);
}

TEST_CASE("stream: one stream, whatever the division into calls and processes") {
  const scratch dir;
  test::write_corpus(dir / "corpus", test::three_sources());
  const data::corpus corpus(dir / "corpus");
  data::window_stream whole(corpus, 5, 15);
  const std::vector<window> expected = take(whole, 1000);
  const digest::hash256 root = root_of(expected);
  for (const std::size_t readers : {1, 2, 3, 48}) {
    // Each reader holds windows r, r + readers, ... and reaches each of them on its own.
    std::vector<window> all(1000);
    for (std::size_t r = 0; r < readers; ++r) {
      data::window_stream own(corpus, 5, 15);
      for (std::size_t w = r; w < 1000; w += readers) {
        own.seek(w);
        all[w] = take(own, 1).front();
      }
    }
    CHECK(root_of(all) == root);
  }
  for (const std::size_t batch : {1, 7, 64, 999}) {
    data::window_stream stream(corpus, 5, 15);
    digest::merkle_accumulator tree;
    for (std::uint64_t w = 0; w < 1000; w += batch) {
      std::vector<std::uint32_t> joined;
      const auto part =
          take(stream, static_cast<std::size_t>(std::min<std::uint64_t>(batch, 1000 - w)));
      for (const window& one : part)
        joined.insert(joined.end(), one.begin(), one.end());
      CHECK(data::batch_root(w, 16, joined) == root_of(part, w));
      for (std::size_t i = 0; i < part.size(); ++i)
        tree.append(data::window_leaf(w + i, part[i]));
    }
    CHECK(tree.root() == root);
  }
  data::window_stream other(corpus, 6, 15);
  CHECK(root_of(take(other, 1000)) != root); // the seed counts
  CHECK(root_of(expected, 1) != root);       // and so does the number of a window
}

TEST_CASE("stream: resumed at every window, seeking and walking are one") {
  const scratch dir;
  test::write_corpus(dir / "corpus", test::three_sources());
  const data::corpus corpus(dir / "corpus");
  data::window_stream walked(corpus, 9, 31), back_and_forth(corpus, 9, 31);
  std::vector<io::json> cursors;
  std::vector<window> windows;
  std::uint64_t epochs = 0;
  for (std::uint64_t w = 0; w < 400; ++w) {
    cursors.push_back(io::json::parse(io::canonical_json(walked.cursor().to_json())));
    windows.push_back(take(walked, 1).front());
    for (const auto& s : walked.cursor().sources)
      epochs = std::max(epochs, s.epoch);
  }
  CHECK(epochs >= 3);
  for (std::uint64_t w = 0; w < 400; ++w) {
    INFO("window " << w);
    data::window_stream resumed(corpus, 9, 31), sought(corpus, 9, 31);
    resumed.resume(cursors[w], "state.json");
    sought.seek(w);
    CHECK(resumed.cursor() == sought.cursor());
    CHECK(sought.cursor().to_json() == cursors[w]);
    CHECK(take(resumed, 2).front() == windows[w]);
    CHECK(take(sought, 1).front() == windows[w]);
    const std::uint64_t elsewhere = w * 7919 % 400;
    back_and_forth.seek(elsewhere);
    CHECK(back_and_forth.cursor().to_json() == cursors[elsewhere]);
  }
}

TEST_CASE("stream: on the boundary of an epoch, and in the epoch after it") {
  const scratch dir;
  // 12 documents of 4 tokens; windows of 16 tokens: an epoch is three windows, exactly.
  test::sources sources{{"even", 1, {}}};
  for (std::uint32_t d = 0; d < 12; ++d)
    sources[0].documents.push_back({d, d, d, 999});
  test::write_corpus(dir / "corpus", sources);
  const data::corpus corpus(dir / "corpus");
  data::window_stream stream(corpus, 2, 15);
  const std::vector<window> first = take(stream, 3);
  CHECK(stream.cursor().sources[0] == data::source_cursor{3, 1, 0, 0});
  const io::json boundary = stream.cursor().to_json();
  const std::vector<window> second = take(stream, 3);
  CHECK(first != second); // every epoch has its own order
  const std::vector<window> third = take(stream, 3);
  CHECK(third != second);
  data::window_stream resumed(corpus, 2, 15);
  resumed.resume(boundary, "state.json");
  CHECK(take(resumed, 3) == second);
  CHECK(take(resumed, 3) == third);
  for (const auto& epoch : {first, second, third}) { // every document once
    std::map<std::uint32_t, int> seen;
    for (const window& w : epoch) {
      for (const std::uint32_t id : w)
        ++seen[id];
    }
    CHECK(seen.size() == 13);
    for (const auto& [id, times] : seen)
      CHECK(times == (id == 999 ? 12 : 3));
  }
}

TEST_CASE("stream: marks far apart are as good as near ones") {
  data::sparse_marks<std::uint64_t> marks(0, 4);
  for (std::uint64_t place = 1; place <= 100'000; ++place)
    marks.offer(place, 3 * place);
  CHECK(marks.stride() == 32);
  for (const std::uint64_t place : {0, 1, 31, 32, 33, 63, 64, 99'999, 100'000, 200'000}) {
    const auto [at, value] = marks.before_place(place);
    CHECK(at == std::min<std::uint64_t>(place, 100'000) / 32 * 32);
    CHECK(value == 3 * at);
    CHECK(marks.before_value(3 * place) == marks.before_place(place));
    CHECK(marks.before_value(3 * place + 2) == marks.before_place(place));
  }
}

TEST_CASE("stream: counted choices are the choices") {
  using list = std::vector<std::uint64_t>;
  for (const list& shares : std::vector<list>{{1},
                                              {1, 1},
                                              {7, 2, 1},
                                              {1, 1u << 30, 1},
                                              {333, 333, 333},
                                              {5, 4, 3, 2, 1, 6, 7, 8, 9}}) {
    test::sources sources;
    for (std::size_t s = 0; s < shares.size(); ++s) {
      sources.push_back({"s" + std::to_string(s), shares[s], {}});
    }
    data::source_choice choice(3, shares);
    std::vector<std::uint64_t> expected(shares.size());
    for (std::uint64_t w = 0; w < 40'000; ++w) {
      if (w < 300 || w % 4999 == 0 || (w & (w - 1)) == 0) {
        CHECK(choice.windows_before(w) == expected);
      }
      const std::size_t s = reference::source_of_window(sources, 3, w);
      REQUIRE(choice(w) == s);
      ++expected[s];
    }
    CHECK(choice.windows_before(40'000) == expected);
    CHECK(data::source_choice(3, shares).windows_before(40'000) == expected);
    double total = 0;
    for (const std::uint64_t share : shares)
      total += static_cast<double>(share);
    for (std::size_t s = 0; s < shares.size(); ++s) {
      const double mean = 40'000 * static_cast<double>(shares[s]) / total;
      CHECK(std::abs(static_cast<double>(expected[s]) - mean) <= 5 * std::sqrt(mean + 1));
    }
  }
}

TEST_CASE("stream: token ids beyond 16 bits survive; an id beyond the vocabulary is an error") {
  const scratch dir;
  test::sources sources{{"wide", 1, {{65'535, 65'536, 65'537, 128'254, 128'255}}}};
  test::write_corpus(dir / "corpus", sources, 128'256);
  {
    const data::corpus corpus(dir / "corpus");
    data::window_stream stream(corpus, 1, 3);
    CHECK(take(stream, 2) == std::vector<window>{{65'535, 65'536, 65'537, 128'254},
                                                 {128'255, 65'535, 65'536, 65'537}});
  }
  sources[0].documents[0][1] = 128'256;
  test::write_corpus(dir / "corpus", sources, 128'256);
  const data::corpus corpus(dir / "corpus");
  data::window_stream stream(corpus, 1, 4);
  const data::stream_cursor before = stream.cursor();
  const std::string why = failure_of([&] { take(stream, 1); });
  CHECK(has(why, (dir / "corpus/wide/shard-00000.bin").string()));
  CHECK(has(why, "the id 128256, the vocabulary has 128256"));
  CHECK(stream.cursor() == before); // a window that could not be read is not taken
}

TEST_CASE("stream: windows of impossible lengths") {
  const scratch dir;
  test::write_corpus(dir / "corpus",
                     {{"tiny", 1, {{1, 2, 3, 999}}}, {"more", 1, {{1, 2, 3, 4, 999}}}});
  const data::corpus corpus(dir / "corpus");
  CHECK_NOTHROW(data::window_stream(corpus, 1, 3));
  const auto why = [&](std::uint64_t length) {
    return failure_of([&] { data::window_stream stream(corpus, 1, length); });
  };
  CHECK(has(why(4), "source 'tiny' has 4 tokens, a window needs 5"));
  CHECK(has(why(0), "windows of 0 tokens"));
  CHECK(has(why(~std::uint64_t{0}), "windows of 18446744073709551615 tokens"));
  CHECK(has(why(UINT32_MAX), "windows of 4294967295 tokens"));
  data::window_stream stream(corpus, 1, 3);
  window small(3);
  CHECK(has(failure_of([&] { stream.next(small); }), "a window has 4 tokens, room for 3"));
  CHECK(has(failure_of([&] { stream.seek(data::window_limit + 1); }), "beyond 2^48"));
  CHECK(has(failure_of([&] { data::batch_root(0, 4, small); }), "no whole windows"));
  CHECK(has(failure_of([&] { data::batch_root(0, 0, small); }), "no whole windows"));
}

TEST_CASE("stream: hostile cursors") {
  const scratch dir;
  test::write_corpus(dir / "corpus", test::three_sources());
  const data::corpus corpus(dir / "corpus");
  data::window_stream stream(corpus, 42, 15);
  stream.seek(40);
  const io::json good = stream.cursor().to_json();
  const data::stream_cursor before = stream.cursor();
  const auto why = [&](auto change) {
    io::json bad = good;
    change(bad);
    const std::string text = failure_of([&] { stream.resume(bad, "state.json"); });
    CHECK(stream.cursor() == before);
    return has(text, "state.json: ") ? text : "place not named: " + text;
  };
  CHECK_NOTHROW(stream.resume(good, "state.json"));
  CHECK(has(why([](io::json& c) { c = 7; }), "'window' is expected"));
  CHECK(has(why([](io::json& c) { c.erase("window"); }), "'window' is missing"));
  CHECK(has(why([](io::json& c) { c.erase("sources"); }), "'sources' is missing"));
  CHECK(has(why([](io::json& c) { c["window"] = -1; }), "no count"));
  CHECK(has(why([](io::json& c) { c["window"] = 41; }), "do not add up"));
  CHECK(has(why([](io::json& c) { c["window"] = ~std::uint64_t{0}; }), "beyond 2^48"));
  CHECK(has(why([](io::json& c) { c["sources"].erase(0); }), "the cursor has 2 sources"));
  CHECK(has(why([](io::json& c) { c["sources"].push_back({0, 0, 0, 0}); }), "has 4 sources"));
  CHECK(has(why([](io::json& c) { c["sources"][0] = 7; }), "four numbers"));
  CHECK(has(why([](io::json& c) { c["sources"][0].push_back(0); }), "four numbers"));
  CHECK(has(why([](io::json& c) { c["sources"][0][1] = 0.5; }), "no count"));
  CHECK(has(why([](io::json& c) { c["sources"][0][1] = "0"; }), "no count"));
  CHECK(has(why([](io::json& c) { c["sources"][0][2] = 53u; }), "'prose' lies outside"));
  CHECK(has(why([](io::json& c) { c["sources"][0][2] = ~std::uint64_t{0}; }), "lies outside"));
  CHECK(has(why([](io::json& c) { c["sources"][0][3] = 9u; }), "lies outside"));
  CHECK(has(why([](io::json& c) { c["sources"][0][0] = ~std::uint64_t{0}; }), "lies outside"));
  CHECK(has(why([](io::json& c) { c["sources"][0][1] = ~std::uint64_t{0}; }), "contradicts"));
  CHECK(has(why([](io::json& c) { c["sources"][0] = {0u, 0u, 1u, 0u}; }), "contradicts"));
  CHECK(has(
      why([](io::json& c) { c["sources"][0][0] = c["sources"][0][0].get<std::uint64_t>() + 200; }),
      "contradicts"));
  // Consistent with the corpus, and not what the seed draws.
  test::sources even{{"one", 1, {}}, {"two", 1, {}}};
  for (std::uint32_t d = 0; d < 24; ++d)
    even[d % 2].documents.push_back({d, d, d, 999});
  test::write_corpus(dir / "even", even);
  const data::corpus other(dir / "even");
  data::window_stream mine(other, 1, 15), theirs(other, 2, 15);
  mine.seek(300);
  theirs.seek(300);
  const std::string text =
      failure_of([&] { mine.resume(theirs.cursor().to_json(), "state.json"); });
  CHECK(has(text, "state.json: the cursor has "));
  CHECK(has(text, "belongs to another run"));
}

// ---- the corpus on disk ------------------------------------------------------------------------

TEST_CASE("corpus: two documents swapped change the batch root and the manifest") {
  const scratch dir;
  test::sources sources{test::made_source("prose", 1, 20, 9, 1000)};
  const data::manifest m = test::write_corpus(dir / "corpus", sources, 1000, 1 << 20);
  std::swap(sources[0].documents[3], sources[0].documents[11]);
  REQUIRE(sources[0].documents[3] != sources[0].documents[11]);
  const data::manifest swapped = test::write_corpus(dir / "swapped", sources, 1000, 1 << 20);
  const data::corpus a(dir / "corpus"), b(dir / "swapped");
  CHECK(a.hash() != b.hash());
  CHECK(m.to_json()["sources"][0]["tokens"] == swapped.to_json()["sources"][0]["tokens"]);
  data::window_stream one(a, 1, 15), two(b, 1, 15);
  const std::size_t epoch = test::tokens_of(sources[0]) / 16 + 1;
  CHECK(root_of(take(one, epoch)) != root_of(take(two, epoch)));
  // The shards of one under the manifest of the other: sizes agree, digests do not.
  fs::copy_file(dir / "corpus/manifest.json", dir / "swapped/manifest.json",
                fs::copy_options::overwrite_existing);
  try {
    data::corpus(dir / "swapped").verify();
    FAIL("not noticed");
  } catch (const mismatch& difference) {
    CHECK(has(difference.what(), "swapped/prose/shard-00000.bin"));
    CHECK(difference.expected == digest::hex(m.sources[0].shards[0].bin));
    CHECK(difference.found == digest::hex(swapped.sources[0].shards[0].bin));
  }
  CHECK_NOTHROW(data::corpus(dir / "corpus").verify());
}

TEST_CASE("corpus: a shard cut by a byte and by a page, before and after it is opened") {
  const scratch dir;
  const test::sources sources{test::made_source("prose", 1, 3000, 9, 1000)};
  for (const char* file : {"prose/shard-00000.bin", "prose/shard-00000.idx"}) {
    for (const std::uint64_t cut : {1, 4096}) {
      INFO(file << " cut by " << cut);
      test::write_corpus(dir / "corpus", sources, 1000, 1 << 20);
      const fs::path path = dir / "corpus" / file;
      const std::uint64_t size = fs::file_size(path);
      const data::corpus opened(dir / "corpus");
      data::window_stream stream(opened, 1, 15);
      take(stream, 1);
      fs::resize_file(path, size - cut);
      const std::string why = failure_of([&] { data::corpus corpus(dir / "corpus"); });
      CHECK(has(why, path.string()));
      CHECK(has(why,
                std::to_string(size - cut) + " bytes, the manifest says " + std::to_string(size)));
      const std::string later = failure_of([&] { take(stream, 1200); });
      CHECK(has(later, path.string()));
      CHECK(has(later, "too early"));
      // The right size again, with something else at the end.
      std::ofstream(path, std::ios::binary | std::ios::app)
          << std::string(static_cast<std::size_t>(cut), 'x');
      CHECK_THROWS_AS(opened.verify(), mismatch);
      CHECK_THROWS_AS(data::corpus(dir / "corpus").verify(), error);
    }
  }
}

TEST_CASE("corpus: damaged indexes") {
  const scratch dir;
  const test::sources sources{{"prose", 1, {{1, 2, 999}, {3, 999}, {4, 5, 6, 999}}}};
  const auto why = [&](std::vector<std::uint64_t> offsets) {
    test::write_corpus(dir / "corpus", sources);
    const fs::path path = dir / "corpus/prose/shard-00000.idx";
    put(path, std::string(reinterpret_cast<const char*>(offsets.data()), 8 * offsets.size()));
    const std::string text = failure_of([&] {
      const data::corpus corpus(dir / "corpus");
      for (std::uint64_t d = 0; d < 3; ++d) {
        window tokens(static_cast<std::size_t>(corpus.document_length(0, d)));
        corpus.read(0, d, 0, tokens);
      }
    });
    return has(text, path.string()) || text == "no error" ? text : "path not named: " + text;
  };
  CHECK(why({0, 3, 5, 9}) == "no error");
  CHECK(has(why({1, 3, 5, 9}), "does not cover the 9 tokens"));
  CHECK(has(why({0, 3, 5, 8}), "does not cover"));
  CHECK(has(why({0, 5, 3, 9}), "offsets of document 1 are impossible"));
  CHECK(has(why({0, 3, 3, 9}), "offsets of document 1 are impossible"));
  CHECK(has(why({0, ~std::uint64_t{0}, 5, 9}), "offsets of document 0 are impossible"));
  test::write_corpus(dir / "corpus", sources);
  const data::corpus corpus(dir / "corpus");
  window two(2);
  CHECK(has(failure_of([&] { corpus.document_length(0, 3); }), "has 3 documents, number 3"));
  CHECK(has(failure_of([&] { corpus.read(0, 1, 1, two); }), "of a document of 2"));
  CHECK(has(failure_of([&] { corpus.read(0, 1, ~std::uint64_t{0}, two); }), "of a document of 2"));
}

TEST_CASE("corpus: more shards than a process may have open") {
  const scratch dir;
  const test::sources sources{test::made_source("prose", 1, 200, 9, 1000)};
  test::write_corpus(dir / "corpus", sources, 1000, 1); // a shard a document
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 40;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::vector<window> windows;
  const std::string why = failure_of([&] {
    const data::corpus corpus(dir / "corpus");
    data::window_stream stream(corpus, 1, 15);
    windows = take(stream, 100);
  });
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(why == "no error");
  CHECK(windows == reference::windows(sources, 1, 15, 100));
}

TEST_CASE("corpus: hostile manifests") {
  const scratch dir;
  test::write_corpus(dir / "corpus", test::three_sources());
  const fs::path path = dir / "corpus/manifest.json";
  const io::json good = io::json::parse(content(path));
  const auto write = [&](const std::string& text) {
    put(path, text);
    const std::string why = failure_of([&] { data::corpus corpus(dir / "corpus"); });
    return has(why, path.string()) ? why : "path not named: " + why;
  };
  const auto why = [&](auto change) {
    io::json bad = good;
    change(bad);
    return write(io::canonical_json(bad));
  };
  CHECK(has(why([](io::json&) {}), "no error"));
  for (const char* name : {"../x", "..", "/x", "a/b", "", ".", "a b", "a\n", "a.b", "\u00e4"}) {
    CHECK(has(why([&](io::json& m) { m["sources"][1]["name"] = name; }), "is no name of a source"));
  }
  CHECK(
      has(why([](io::json& m) { m["sources"][1]["name"] = std::string(65, 'a'); }), "is no name"));
  CHECK(has(why([](io::json& m) { m["sources"][1]["name"] = "prose"; }), "two sources"));
  CHECK(has(why([](io::json& m) { m["sources"][1]["name"] = "PROSE"; }), "two sources"));
  for (const char* key : {"format", "vocabulary", "separator", "tokenizer", "sources"}) {
    CHECK(has(why([&](io::json& m) { m.erase(key); }), "'" + std::string(key) + "' is missing"));
    CHECK(has(why([&](io::json& m) { m[key] = nullptr; }), "'" + std::string(key) + "'"));
  }
  for (const char* key : {"name", "share", "tokens", "documents", "shards"}) {
    CHECK(has(why([&](io::json& m) { m["sources"][2].erase(key); }),
              "'" + std::string(key) + "' is missing"));
  }
  for (const char* key : {"tokens", "documents", "bin", "idx"}) {
    CHECK(has(why([&](io::json& m) { m["sources"][0]["shards"][1].erase(key); }),
              "'" + std::string(key) + "' is missing"));
  }
  CHECK(has(why([](io::json& m) { m["format"] = "ordo corpus 2"; }), "no corpus of ordo"));
  CHECK(has(why([](io::json& m) { m["vocabulary"] = 0; }), "impossible"));
  CHECK(has(why([](io::json& m) { m["vocabulary"] = std::uint64_t{1} << 32; }), "impossible"));
  CHECK(has(why([](io::json& m) { m["separator"] = 1000; }), "impossible"));
  CHECK(has(why([](io::json& m) { m["sources"] = io::json::array(); }), "no source"));
  CHECK(has(why([](io::json& m) { m["sources"][0]["share"] = 0; }), "share is impossible"));
  CHECK(has(why([](io::json& m) { m["sources"][0]["share"] = (std::uint64_t{1} << 32) + 1; }),
            "share is impossible"));
  CHECK(has(why([](io::json& m) { m["sources"][0]["shards"] = io::json::array(); }), "add up"));
  CHECK(has(why([](io::json& m) { m["sources"][0]["tokens"] = 1; }), "add up"));
  for (const std::uint64_t tokens :
       {std::uint64_t{0}, (std::uint64_t{1} << 40) + 1, std::uint64_t{1} << 53}) {
    CHECK(has(why([&](io::json& m) { m["sources"][0]["shards"][0]["tokens"] = tokens; }),
              "impossible counts"));
  }
  CHECK(has(why([](io::json& m) { m["sources"][0]["shards"][0]["documents"] = 0; }),
            "impossible counts"));
  CHECK(has(why([](io::json& m) { m["sources"][0]["shards"][0]["bin"] = "00"; }), "no SHA-256"));
  CHECK(has(why([](io::json& m) { m["note"] = "x"; }), "or holds more"));
  CHECK(has(why([](io::json& m) { m["sources"][0]["note"] = "x"; }), "or holds more"));
  CHECK(has(write(good.dump(1)), "not the canonical JSON"));
  CHECK(has(write(good.dump() + "\n"), "not the canonical JSON"));
  CHECK(has(write("{\"format\":\"ordo corpus 1\",\"format\":\"ordo corpus 1\"}"), "occurs twice"));
  CHECK(has(write(""), "no valid JSON"));
  CHECK(has(write("[1,2"), "no valid JSON"));
  fs::remove(path);
  CHECK(has(failure_of([&] { data::corpus corpus(dir / "corpus"); }), "holds no corpus"));
  CHECK(has(failure_of([&] { data::corpus corpus(dir / "nowhere"); }), "holds no corpus"));
  put(path, good.dump());
  fs::remove(dir / "corpus/prose/shard-00000.bin");
  REQUIRE(::mkfifo((dir / "corpus/prose/shard-00000.bin").c_str(), 0600) == 0);
  CHECK(has(failure_of([&] { data::corpus corpus(dir / "corpus"); }), "no regular file"));
}

TEST_CASE("corpus: 2,000 mutations of a manifest and of a cursor are read or refused") {
  const scratch dir;
  test::write_corpus(dir / "corpus", test::three_sources(), 1000, 1 << 20);
  const std::string manifest = content(dir / "corpus/manifest.json");
  const data::corpus corpus(dir / "corpus");
  data::window_stream stream(corpus, 1, 15);
  stream.seek(100);
  const std::string cursor = io::canonical_json(stream.cursor().to_json());
  const random::stream draws(1, "mutations");
  int read = 0, refused = 0;
  const auto count = [&](const auto& attempt) {
    try {
      attempt();
      ++read;
    } catch (const error&) {
      ++refused;
    }
  };
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const random::words4 drawn = draws.block(i);
    const auto mutated = [&](std::string text) {
      const std::size_t at = drawn.w[0] % text.size();
      text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^ (1 + drawn.w[1] % 255));
      return text;
    };
    count([&] { data::detail::parse_manifest(mutated(manifest), "manifest.json"); });
    count([&] {
      data::window_stream other(corpus, 1, 15);
      other.resume(io::parse_json(mutated(cursor), "state.json"), "state.json");
      take(other, 3);
    });
  }
  CHECK(read + refused == 4000);
  CHECK(refused > 3000);
}
