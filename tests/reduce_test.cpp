// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS reduce THREADS 1 2 3 7 8
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>
#include <doctest/doctest.h>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/version.hpp>
#include <ordo/digest/sha256.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/order/sum.hpp>
#include <ordo/random/philox.hpp>
#include <ordo/reduce/abs_max.hpp>
#include <ordo/reduce/exact.hpp>
#include <ordo/reduce/norm.hpp>
#include <ordo/reduce/sum.hpp>
#include <ordo/reference/exact_sum.hpp>
#include <ordo/reference/norm.hpp>
#include <ordo/reference/sum.hpp>

#include "vectors.hpp"

namespace {

using namespace ordo;
using arith::bits;
using arith::from_bits;
using space = Kokkos::DefaultHostExecutionSpace;

const float inf = from_bits(0x7f800000u);
const float nan_value = from_bits(0x7fc00000u);

/// n values with exponents in [-spread, spread) and random signs and significands.
std::vector<float> values(std::size_t n, std::uint32_t spread, const char* name = "values") {
  const random::stream words(7, name);
  std::vector<float> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t w = words.word64(i);
    const std::uint32_t exponent =
        127 - spread + static_cast<std::uint32_t>(w >> 32) % (2 * spread);
    out[i] = from_bits((static_cast<std::uint32_t>(w) & 0x807fffffu) | exponent << 23);
  }
  return out;
}

template <class T>
vector_view<const T, space> view(const std::vector<T>& x) {
  return vector_view<const T, space>(x.data(), x.size());
}

/// Sizes around every boundary: lanes, groups of lanes, tree leaves, chunks, grains, powers of two.
const std::vector<std::size_t> sizes = {
    0,    1,    2,    3,    4,     5,     6,     7,     8,     9,     15,    16,    17,    31,
    32,   33,   63,   64,   65,    127,   128,   129,   1023,  1024,  1025,  1500,  4095,  4096,
    4097, 8191, 8192, 8193, 12287, 12289, 16383, 16384, 16385, 20480, 65535, 65536, 65537, 193500};

template <class Policy>
void check_policy(Policy policy) {
  const std::vector<float> all = values(sizes.back(), 12);
  for (const std::size_t n : sizes) {
    INFO("n = " << n);
    const std::vector<float> x(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n));
    const std::uint32_t expected = bits(reference::sum(policy, x));
    CHECK(bits(reduce::sum(space(), policy, view(x))) == expected);
    CHECK(bits(order::sum(policy, static_cast<std::int64_t>(n), [&](std::int64_t i) {
            return x[static_cast<std::size_t>(i)];
          })) == expected);
    std::vector<float> squares(n);
    for (std::size_t i = 0; i < n; ++i)
      squares[i] = arith::mul(x[i], x[i]);
    CHECK(bits(reduce::sum_squares(space(), policy, view(x))) ==
          bits(reference::sum(policy, squares)));
  }
}

template <class Policy>
float sum_of(Policy policy, const std::vector<float>& x) {
  return reduce::sum(space(), policy, view(x));
}

} // namespace

TEST_CASE("reduce: Sequential") {
  check_policy(order::Sequential{});
}
TEST_CASE("reduce: Lanes") {
  check_policy(order::Lanes<1>{});
  check_policy(order::Lanes<4>{});
  check_policy(order::Lanes<32>{});
  check_policy(order::Lanes<64>{});
}
TEST_CASE("reduce: Tree") {
  check_policy(order::Tree{});
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("reduce: the serial space has the same bits") {
  const std::vector<float> x = values(20001, 12);
  const Kokkos::Serial serial;
  CHECK(bits(reduce::sum(serial, order::Lanes<32>{}, view(x))) ==
        bits(sum_of(order::Lanes<32>{}, x)));
  CHECK(bits(reduce::sum(serial, order::Tree{}, view(x))) == bits(sum_of(order::Tree{}, x)));
  CHECK(bits(reduce::sum(serial, order::Exact{}, view(x))) == bits(sum_of(order::Exact{}, x)));
}
#endif

TEST_CASE("reduce: the probe 1e8, 1, -1e8, 1") {
  const std::vector<float> probe = {1e8f, 1.0f, -1e8f, 1.0f};
  CHECK(sum_of(order::Sequential{}, probe) == 1.0f);
  CHECK(sum_of(order::Lanes<1>{}, probe) == 1.0f);
  CHECK(sum_of(order::Lanes<2>{}, probe) == 2.0f);
  CHECK(sum_of(order::Lanes<4>{}, probe) == 0.0f);
  CHECK(sum_of(order::Tree{}, probe) == 0.0f);
  CHECK(sum_of(order::Exact{}, probe) == 2.0f);
}

TEST_CASE("reduce: all permutations of the probe under Exact, and a canary that others differ") {
  std::vector<float> probe = {1e8f, 1.0f, -1e8f, 1.0f};
  std::array<int, 4> order = {0, 1, 2, 3};
  int permutations = 0;
  bool sequential_differs = false, tree_differs = false;
  do {
    std::vector<float> x;
    for (const int i : order)
      x.push_back(probe[static_cast<std::size_t>(i)]);
    CHECK(sum_of(order::Exact{}, x) == 2.0f);
    CHECK(reference::exact_sum(x) == 2.0f);
    sequential_differs = sequential_differs || sum_of(order::Sequential{}, x) != 1.0f;
    tree_differs = tree_differs || sum_of(order::Tree{}, x) != 0.0f;
    ++permutations;
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(permutations == 24);
  CHECK(sequential_differs);
  CHECK(tree_differs);
}

TEST_CASE("reduce: the shape of Tree, by hand") {
  // Powers of two far apart show the parentheses: 2^24 + 1 = 2^24 and 2^24 + 2 = 2^24 + 2.
  const float big = 0x1p24f;
  CHECK(sum_of(order::Tree{}, {big, 0.0f, 1.0f, 1.0f}) == 0x1.000002p24f); // (0+1)+(2+3)
  CHECK(sum_of(order::Sequential{}, {big, 0.0f, 1.0f, 1.0f}) == 0x1p24f);
  // Six: ((0+1)+(2+3))+(4+5); the last two meet before they join the rest.
  CHECK(sum_of(order::Tree{}, {big, 0.0f, 0.0f, 0.0f, 1.0f, 1.0f}) == 0x1.000002p24f);
  // Seven: (((0+1)+(2+3))+(4+5))+6; the sixth and seventh addends do not meet.
  CHECK(sum_of(order::Tree{}, {big, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f, 1.0f}) == 0x1p24f);
  CHECK(bits(sum_of(order::Tree{}, {-0.0f})) == 0x80000000u); // n = 1: the element
  CHECK(bits(sum_of(order::Sequential{}, {-0.0f})) == 0);     // +0 + -0
  CHECK(bits(sum_of(order::Lanes<8>{}, {-0.0f})) == 0);
  CHECK(bits(sum_of(order::Exact{}, {-0.0f})) == 0);
}

TEST_CASE("reduce: different orders differ on these values") {
  const std::vector<float> x = values(1500, 12);
  std::vector<std::uint32_t> results = {
      bits(sum_of(order::Sequential{}, x)), bits(sum_of(order::Lanes<4>{}, x)),
      bits(sum_of(order::Lanes<32>{}, x)), bits(sum_of(order::Lanes<64>{}, x)),
      bits(sum_of(order::Tree{}, x))};
  std::sort(results.begin(), results.end());
  CHECK(std::unique(results.begin(), results.end()) - results.begin() >= 4);
}

TEST_CASE("reduce: 129 levels of 1,500 addends") {
  // Each level's sums are the next level's addends: a carried order.
  std::vector<float> level = values(1500, 4);
  for (int depth = 0; depth < 129; ++depth) {
    const std::uint32_t expected = bits(reference::sum(order::Lanes<32>{}, level));
    const float total = sum_of(order::Lanes<32>{}, level);
    REQUIRE(bits(total) == expected);
    std::rotate(level.begin(), level.begin() + 1, level.end());
    level.back() = arith::mul(total, 0x1p-8f);
  }
}

TEST_CASE("reduce: bf16, foreign subnormals, NaN") {
  std::vector<bf16> x(5000);
  std::vector<float> wide(x.size()), squares(x.size());
  const std::vector<float> source = values(x.size(), 60);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = arith::to_bf16(source[i]);
    wide[i] = arith::to_f32(x[i]);
    squares[i] = arith::mul_exact(wide[i], wide[i]);
  }
  CHECK(bits(reduce::sum(space(), order::Lanes<32>{}, view(x))) ==
        bits(reference::sum(order::Lanes<32>{}, wide)));
  CHECK(bits(reduce::sum(space(), order::Tree{}, view(x))) ==
        bits(reference::sum(order::Tree{}, wide)));
  CHECK(bits(reduce::sum(space(), order::Exact{}, view(x))) == bits(reference::exact_sum(wide)));
  CHECK(bits(reduce::sum_squares(space(), order::Lanes<32>{}, view(x))) ==
        bits(reference::sum(order::Lanes<32>{}, squares)));
  CHECK(bits(reduce::sum_squares(space(), order::Exact{}, view(x))) ==
        bits(reference::exact_sum(squares)));

  const std::vector<float> tiny = {from_bits(1u), from_bits(0x807fffffu), 1.0f};
  CHECK(sum_of(order::Sequential{}, tiny) == 1.0f);
  CHECK(sum_of(order::Exact{}, tiny) == 1.0f);
  const std::vector<float> bad = {1.0f, from_bits(0xffc00001u), 2.0f};
  CHECK(bits(sum_of(order::Sequential{}, bad)) == 0x7fc00000u);
  CHECK(bits(sum_of(order::Tree{}, bad)) == 0x7fc00000u);
  CHECK(bits(sum_of(order::Lanes<4>{}, bad)) == 0x7fc00000u);
  CHECK(bits(sum_of(order::Exact{}, bad)) == 0x7fc00000u);
}

TEST_CASE("reduce: Exact, by hand") {
  CHECK(sum_of(order::Exact{}, {inf, 1.0f}) == inf);
  CHECK(sum_of(order::Exact{}, {-inf, 1.0f, -inf}) == -inf);
  CHECK(bits(sum_of(order::Exact{}, {inf, -inf})) == 0x7fc00000u);
  CHECK(bits(sum_of(order::Exact{}, {inf, nan_value})) == 0x7fc00000u);
  const float largest = from_bits(0x7f7fffffu);
  CHECK(sum_of(order::Exact{}, {largest, largest}) == inf);
  CHECK(sum_of(order::Exact{}, {largest, largest, -largest}) == largest); // only the result counts
  CHECK(sum_of(order::Exact{}, {-largest, -largest}) == -inf);
  CHECK(sum_of(order::Exact{}, {largest, 0x1p102f}) == largest);
  CHECK(sum_of(order::Exact{}, {largest, 0x1p103f}) == inf); // tie, and the significand is odd
  CHECK(sum_of(order::Exact{}, {largest, 0x1p103f, -0x1p-126f}) == largest);
  CHECK(bits(sum_of(order::Exact{}, {0x1.8p-126f, -0x1p-126f})) == 0);
  CHECK(bits(sum_of(order::Exact{}, {-0x1.8p-126f, 0x1p-126f})) == 0x80000000u);
  CHECK(sum_of(order::Exact{}, {0x1.8p-125f, -0x1p-125f}) == 0x1p-126f);
  CHECK(bits(sum_of(order::Exact{}, {1.0f, -1.0f})) == 0);
  CHECK(sum_of(order::Exact{}, {1.0f, 0x1p-24f}) == 1.0f); // tie to even
  CHECK(sum_of(order::Exact{}, {0x1.000002p0f, 0x1p-24f}) == 0x1.000004p0f);
  CHECK(sum_of(order::Exact{}, {1.0f, 0x1p-24f, 0x1p-126f}) == 0x1.000002p0f);
  CHECK(sum_of(order::Exact{}, {-1.0f, -0x1p-24f, -0x1p-126f}) == -0x1.000002p0f);
}

TEST_CASE("reduce: Exact is the correctly rounded sum in any order") {
  for (const std::uint32_t spread : {4u, 30u, 120u}) {
    std::vector<float> x = values(3001, spread, "exact");
    for (const std::size_t n :
         {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{100}, x.size()}) {
      const std::span<const float> some = std::span(x).first(n);
      const float expected = reference::exact_sum(some);
      const std::vector<float> forward(some.begin(), some.end());
      const std::vector<float> backward(some.rbegin(), some.rend());
      CHECK(bits(sum_of(order::Exact{}, forward)) == bits(expected));
      CHECK(bits(sum_of(order::Exact{}, backward)) == bits(expected));
    }
    // Everything cancels but one element.
    std::vector<float> cancelling = x;
    for (const float v : x)
      cancelling.push_back(-v);
    cancelling.push_back(0x1.234568p-100f);
    CHECK(sum_of(order::Exact{}, cancelling) == 0x1.234568p-100f);
  }
  std::vector<float> long_one = values(100000, 20, "exact long");
  const float total = sum_of(order::Exact{}, long_one);
  CHECK(bits(total) == bits(reference::exact_sum(long_one)));
  std::sort(long_one.begin(), long_one.end());
  CHECK(bits(sum_of(order::Exact{}, long_one)) == bits(total));
}

TEST_CASE("reduce: integers under Exact") {
  std::vector<std::int8_t> bytes(100001);
  std::vector<std::int32_t> ints(70001);
  const random::stream words(3, "integers");
  std::int64_t byte_sum = 0, int_sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::int8_t>(words.word(i) & 0xffu);
    byte_sum += bytes[i];
  }
  for (std::size_t i = 0; i < ints.size(); ++i) {
    ints[i] = static_cast<std::int32_t>(words.word(i)) | (i % 2 == 0 ? 0x40000000 : 0);
    int_sum += ints[i];
  }
  CHECK(reduce::sum(space(), order::Exact{}, view(bytes)) == byte_sum);
  CHECK(reduce::sum(space(), order::Exact{}, view(ints)) == int_sum);
  const vector_view<const float, space> too_long(nullptr, std::size_t{1} << 31);
  CHECK_THROWS_AS(reduce::sum(space(), order::Exact{}, too_long), error);
  const vector_view<const std::int32_t, space> many(nullptr, std::size_t{1} << 33);
  CHECK_THROWS_AS(reduce::sum(space(), order::Exact{}, many), error);
}

TEST_CASE("reduce: largest magnitudes") {
  std::vector<float> x = values(50001, 100);
  float expected = 0.0f;
  for (const float v : x)
    expected = arith::max(arith::abs(v), expected);
  CHECK(reduce::abs_max(space(), view(x)) == expected);
  CHECK(bits(reduce::abs_max(space(), view(std::vector<float>{}))) == 0);
  CHECK(bits(reduce::abs_max(space(), view(std::vector<float>{-0.0f, from_bits(0x80000005u)}))) ==
        0);
  CHECK(reduce::abs_max(space(), view(std::vector<float>{1.0f, -inf})) == inf);
  CHECK(reduce::abs_max(space(), view(std::vector<bf16>{{0xc000}, {0x3f80}})) == 2.0f);
  x[40000] = from_bits(0xff800001u);
  CHECK(bits(reduce::abs_max(space(), view(x))) == 0x7fc00000u);

  constexpr std::size_t rows = 37, columns = 133;
  std::vector<float> matrix = values(rows * columns, 10), by_row(rows), by_column(columns);
  matrix[5 * columns + 7] = nan_value;
  const matrix_view<const float, space> m(matrix.data(), rows, columns);
  reduce::row_abs_max(space(), m, vector_view<float, space>(by_row.data(), rows));
  reduce::column_abs_max(space(), m, vector_view<float, space>(by_column.data(), columns));
  int wrong = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    std::vector<float> row(&matrix[r * columns], &matrix[r * columns] + columns);
    wrong += bits(by_row[r]) != bits(reduce::abs_max(space(), view(row)));
  }
  for (std::size_t c = 0; c < columns; ++c) {
    std::vector<float> column;
    for (std::size_t r = 0; r < rows; ++r)
      column.push_back(matrix[r * columns + c]);
    wrong += bits(by_column[c]) != bits(reduce::abs_max(space(), view(column)));
  }
  CHECK(wrong == 0);
  CHECK(arith::is_nan(by_row[5]));
  CHECK(arith::is_nan(by_column[7]));
  CHECK_THROWS_AS(
      reduce::row_abs_max(space(), m, vector_view<float, space>(by_column.data(), columns)), error);
}

namespace {

reduce::norm_result norm_of(const std::map<std::string, std::vector<float>>& tensors,
                            bool reversed) {
  std::vector<reduce::named_values<space>> list;
  for (const auto& [name, x] : tensors)
    list.push_back({name, view(x)});
  if (reversed)
    std::reverse(list.begin(), list.end());
  return reduce::global_norm<space>(space(), list);
}

} // namespace

TEST_CASE("reduce: global norm") {
  std::map<std::string, std::vector<float>> tensors;
  CHECK(bits(norm_of(tensors, false).norm) == 0);
  tensors["empty"] = {};
  CHECK(bits(norm_of(tensors, false).norm) == 0);
  tensors["b"] = {3.0f};
  tensors["a"] = {4.0f};
  CHECK(norm_of(tensors, false).norm == 5.0f);
  CHECK(norm_of(tensors, false).sum_squares == 25.0f);
  int i = 0;
  for (const std::size_t n : {1u, 4095u, 4096u, 4097u, 8193u, 70000u}) {
    tensors["layer." + std::to_string(i++) + ".weight"] = values(n, 8, "norm");
  }
  const float expected = reference::global_norm(tensors);
  CHECK(bits(norm_of(tensors, false).norm) == bits(expected));
  CHECK(bits(norm_of(tensors, true).norm) ==
        bits(expected)); // names, not arguments, give the order

  double sum = 0;
  for (const auto& [name, x] : tensors) {
    for (const float v : x)
      sum += double{v} * double{v};
  }
  CHECK(std::fabs(expected / std::sqrt(sum) - 1) < 1e-6);

  // Chunks owned by different ranks, joined afterwards.
  std::vector<float> sums;
  for (const auto& [name, x] : tensors) {
    for (std::size_t begin = 0; begin < x.size(); begin += reduce::norm_chunk) {
      sums.push_back(reduce::chunk_sum_squares(
          &x[begin], static_cast<std::int64_t>(std::min<std::size_t>(4096, x.size() - begin))));
    }
  }
  CHECK(bits(reduce::join_chunk_sums(sums).norm) == bits(expected));

  std::vector<reduce::named_values<space>> twice = {{"a", view(tensors["a"])},
                                                    {"a", view(tensors["b"])}};
  CHECK_THROWS_AS(reduce::global_norm<space>(space(), twice), error);
  tensors["large"] = std::vector<float>(10, 1e20f);
  CHECK(norm_of(tensors, false).norm == inf);
  tensors["large"] = {nan_value};
  CHECK(bits(norm_of(tensors, false).norm) == 0x7fc00000u);
}

TEST_CASE("reduce: stored vectors") {
  test::json content;
  content["about"] = "Sums of x[0..n), each result the bits of a binary32. Word w = word64(i) of "
                     "the stream (seed 7, name "
                     "'values'): x[i] has the sign and the significand of w's low half (bits & "
                     "807fffff) and the biased "
                     "exponent 115 + (w >> 32) % 24.";
  content["contract"] = contract_version;
  const std::vector<float> all = values(sizes.back(), 12);
  for (const std::size_t n : sizes) {
    const std::vector<float> x(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n));
    test::json entry;
    entry["n"] = n;
    entry["sequential"] = test::hex(reference::sum(order::Sequential{}, x));
    entry["lanes_4"] = test::hex(reference::sum(order::Lanes<4>{}, x));
    entry["lanes_32"] = test::hex(reference::sum(order::Lanes<32>{}, x));
    entry["lanes_64"] = test::hex(reference::sum(order::Lanes<64>{}, x));
    entry["tree"] = test::hex(reference::sum(order::Tree{}, x));
    entry["exact"] = test::hex(reference::exact_sum(x));
    CHECK(entry["exact"] == test::hex(sum_of(order::Exact{}, x)));
    entry["sum_squares_lanes_32"] =
        test::hex(reduce::sum_squares(space(), order::Lanes<32>{}, view(x)));
    content["sums"].push_back(entry);
  }
  test::check_vectors("sums.json", content);
}
