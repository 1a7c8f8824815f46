// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS random THREADS 1 2 3 7
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>
#include <doctest/doctest.h>

#include <ordo/arith/value.hpp>
#include <ordo/core/version.hpp>
#include <ordo/digest/sha256.hpp>
#include <ordo/random/initializers.hpp>
#include <ordo/random/philox.hpp>
#include <ordo/reference/random.hpp>

#include "vectors.hpp"

namespace {

using namespace ordo;
using arith::bits;
using space = Kokkos::DefaultHostExecutionSpace;

std::vector<float> normal(std::size_t n, std::uint64_t seed, const char* name, float deviation,
                          std::uint64_t first = 0) {
  std::vector<float> out(n);
  random::truncated_normal(space(), seed, name, vector_view<float, space>(out.data(), n), deviation,
                           first);
  return out;
}

std::string digest_of(const std::vector<float>& x) {
  return digest::hex(digest::sha256_of(std::as_bytes(std::span(x))));
}

int differences(const std::vector<float>& a, const std::vector<float>& b) {
  int count = a.size() != b.size();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    count += bits(a[i]) != bits(b[i]);
  return count;
}

} // namespace

TEST_CASE("random: the published known-answer vectors of Philox4x32-10") {
  using random::philox4x32_10;
  using random::words4;
  CHECK(philox4x32_10(words4{{0, 0, 0, 0}}, 0, 0) ==
        words4{{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}});
  CHECK(philox4x32_10(words4{{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u) ==
        words4{{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}});
  CHECK(philox4x32_10(words4{{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0xa4093822u,
                      0x299f31d0u) == words4{{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}});
}

TEST_CASE("random: words of a stream are those of its blocks") {
  const random::stream s(0x0123456789abcdefull, "layers.0.attention.wq");
  for (std::uint64_t i = 0; i < 64; ++i) {
    CHECK(s.word(i) == s.block(i / 4).w[i % 4]);
    CHECK(s.word64(i) == (std::uint64_t{s.word(2 * i + 1)} << 32 | s.word(2 * i)));
  }
  // The counter of block (index, stream) and the key, by hand.
  const digest::hash256 name = digest::sha256_of("layers.0.attention.wq");
  std::uint32_t low = 0, high = 0;
  for (int i = 3; i >= 0; --i) {
    low = low << 8 | name[static_cast<std::size_t>(i)];
    high = high << 8 | name[static_cast<std::size_t>(i + 4)];
  }
  CHECK(s.block(0x500000007ull) ==
        random::philox4x32_10(random::words4{{7, 5, low, high}}, 0x89abcdefu, 0x01234567u));
}

TEST_CASE("random: uniform values are exact midpoints") {
  CHECK(random::uniform(0) == 0x1p-24f);
  CHECK(random::uniform(511) == 0x1p-24f);
  CHECK(random::uniform(512) == 0x1.8p-23f);
  CHECK(random::uniform(0xffffffffu) == 0x1.fffffep-1f);
  CHECK(random::uniform_signed(0) == -0x1.fffffcp-1f);
  CHECK(random::uniform_signed(0xffffffffu) == 0x1.fffffcp-1f);
  CHECK(random::uniform_signed(0x80000000u) == 0x1p-23f);
  CHECK(random::uniform_signed(0x7fffffffu) == -0x1p-23f);
  double sum = 0;
  for (std::uint32_t k = 0; k < 1u << 23; ++k)
    sum += double{random::uniform(k << 9)};
  CHECK(sum == 0x1p22);
}

TEST_CASE("random: all truncated normal values: error, symmetry, cut, moments") {
  const double range = std::erf(std::sqrt(2.0)), pi = 3.14159265358979323846;
  double worst = 0, second = 0, fourth = 0;
  int wrong = 0;
  float largest = 0.0f, previous = -3.0f;
  for (std::uint32_t k = 0; k < 1u << 23; ++k) {
    const float x = random::truncated_normal(k << 9);
    wrong += x < previous; // a quantile is monotone
    previous = x;
    wrong += x != -random::truncated_normal(((1u << 23) - 1 - k) << 9);
    largest = std::max(largest, std::fabs(x));
    const double z = double{x};
    second += z * z;
    fourth += z * z * z * z;
    if (k % 16 != 0)
      continue;
    const double v = (2.0 * k + 1 - 0x1p23) * 0x1p-23 * range;
    const double density = std::sqrt(2 / pi) * std::exp(-z * z / 2);
    worst = std::max(worst, std::fabs((std::erf(z / std::sqrt(2.0)) - v) / (density * z)));
  }
  MESSAGE("relative error " << worst << ", largest " << largest);
  CHECK(wrong == 0);
  CHECK(worst <= 3.3e-7);
  CHECK(worst > 2.5e-7);
  CHECK(largest < 2.0f);
  CHECK(largest > 1.9999f);
  // Moments of the cut distribution: 1 - 4 f(2) / range and 3 - (8 + 3 * 2) 2 f(2) / range.
  const double f = std::exp(-2.0) / std::sqrt(2 * pi) * 2 / range;
  CHECK(std::fabs(second * 0x1p-23 - (1 - 2 * f)) < 1e-6);
  CHECK(std::fabs(fourth * 0x1p-23 - (3 - 14 * f)) < 1e-5);
}

TEST_CASE("random: element i does not depend on how many are drawn, or from where") {
  const std::vector<float> all = normal(1000000, 42, "w", 0.02f);
  for (const std::size_t n : {0u, 1u, 2u, 3u, 4u, 5u, 4095u, 4096u, 4097u, 40960u, 40961u}) {
    const std::vector<float> some = normal(n, 42, "w", 0.02f);
    CHECK(differences(some, {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n)}) == 0);
  }
  for (const std::size_t first : {1u, 2u, 3u, 4u, 4095u, 4097u, 99999u}) {
    const std::vector<float> shard = normal(5001, 42, "w", 0.02f, first);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    CHECK(differences(shard, {begin, begin + 5001}) == 0);
  }
  for (const std::size_t i : {0u, 1u, 4094u, 999999u}) {
    const std::vector<float> prefix = normal(i + 1, 42, "w", 0.02f);
    CHECK(bits(prefix[i]) == bits(all[i]));
  }
}

TEST_CASE("random: kernels agree with the reference") {
  for (const std::size_t n : {0u, 1u, 3u, 4u, 5u, 4095u, 4096u, 4097u, 40961u}) {
    std::vector<float> expected(n), out(n);
    reference::truncated_normal(1, "embedding", expected, 0.5f);
    CHECK(differences(normal(n, 1, "embedding", 0.5f), expected) == 0);
    reference::uniform(1, "embedding", expected, -2.0f, 4.0f, 3);
    random::uniform(space(), 1, "embedding", vector_view<float, space>(out.data(), n), -2.0f, 4.0f,
                    3);
    CHECK(differences(out, expected) == 0);
  }
}

TEST_CASE("random: seeds and names give different streams whose means are near zero") {
  std::set<std::string> seen;
  double worst = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const std::vector<float> x = normal(1024, seed, "w", 1.0f);
    seen.insert(digest_of(x));
    double mean = 0;
    for (const float v : x)
      mean += double{v} / 1024;
    worst = std::max(worst, std::fabs(mean));
  }
  CHECK(seen.size() == 1000);
  CHECK(worst < 5 * 0.88 / 32); // five standard deviations of the mean
  CHECK(digest_of(normal(1024, 1, "v", 1.0f)) != digest_of(normal(1024, 1, "w", 1.0f)));
  for (const std::size_t n : {40960u, 40961u}) {
    const std::vector<float> x = normal(n, 1, "sizes", 1.0f);
    double mean = 0, square = 0;
    for (const float v : x) {
      mean += double{v} / static_cast<double>(n);
      square += double{v} * double{v} / static_cast<double>(n);
    }
    CHECK(std::fabs(mean) < 5 * 0.88 / std::sqrt(40960.0));
    CHECK(std::fabs(square - 0.7737) < 0.02);
  }
}

TEST_CASE("random: stored vectors") {
  test::json content;
  content["about"] = "Streams by seed and name: the first eight words, the bits of the first eight "
                     "uniform and truncated "
                     "normal (deviation 1) values, and SHA-256 of 40,961 truncated normal values "
                     "of deviation 0.02 "
                     "(binary32, little-endian).";
  content["contract"] = contract_version;
  const std::pair<std::uint64_t, const char*> cases[] = {
      {0, ""}, {1, "w"}, {42, "layers.0.attention.wq"}, {~std::uint64_t{0}, "tok_embeddings"}};
  for (const auto& [seed, name] : cases) {
    test::json entry;
    entry["seed"] = test::hex(static_cast<std::uint32_t>(seed >> 32)) +
                    test::hex(static_cast<std::uint32_t>(seed));
    entry["name"] = name;
    const random::stream words(seed, name);
    for (std::uint64_t i = 0; i < 8; ++i) {
      entry["words"].push_back(test::hex(words.word(i)));
      entry["uniform"].push_back(test::hex(random::uniform(words.word(i))));
      entry["truncated_normal"].push_back(test::hex(random::truncated_normal(words.word(i))));
    }
    entry["sha256"] = digest_of(normal(40961, seed, name, 0.02f));
    content["streams"].push_back(entry);
  }
  test::check_vectors("random.json", content);
}
