// SPDX-License-Identifier: Apache-2.0
// ctest: THREADS 1 2 3 7
//
// Contractions against their definitions in plain loops, by bits.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ordo/arith/bf16.hpp>
#include <ordo/cpu/isa.hpp>
#include <ordo/linalg/gemm_f32.hpp>
#include <ordo/linalg/gemm_int8.hpp>
#include <ordo/linalg/gemm_sliced.hpp>
#include <ordo/linalg/sliced.hpp>
#include <ordo/reference/gemm_f32.hpp>
#include <ordo/reference/gemm_int8.hpp>
#include <ordo/reference/gemm_sliced.hpp>

namespace {

using space = Kokkos::DefaultHostExecutionSpace;

/// A row-major matrix in ordinary memory.
template <class T>
struct matrix {
  std::int64_t rows, columns;
  std::vector<T> data;

  matrix(std::int64_t r, std::int64_t c)
      : rows(r), columns(c), data(static_cast<std::size_t>(r * c)) {}
  ordo::matrix_view<T, space> view() {
    return ordo::matrix_view<T, space>(data.data(), static_cast<std::size_t>(rows),
                                       static_cast<std::size_t>(columns));
  }
  ordo::matrix_view<const T, space> view() const {
    return ordo::matrix_view<const T, space>(data.data(), static_cast<std::size_t>(rows),
                                             static_cast<std::size_t>(columns));
  }
};

/// A small generator of test data (a weak one suffices).
struct numbers {
  std::uint64_t state;
  std::uint32_t operator()() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 33) ^ static_cast<std::uint32_t>(state >> 11);
  }
};

matrix<std::int8_t> int8_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  matrix<std::int8_t> out(rows, columns);
  numbers next{seed};
  for (auto& x : out.data)
    x = static_cast<std::int8_t>(static_cast<int>(next() % 255) - 127);
  return out;
}

/// Magnitudes from 2^low to 2^high, both signs, some zeros.
matrix<float> float_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed, int low,
                           int high) {
  matrix<float> out(rows, columns);
  numbers next{seed};
  for (auto& x : out.data) {
    const std::uint32_t exponent =
        static_cast<std::uint32_t>(low + 127) + next() % static_cast<std::uint32_t>(high - low + 1);
    const std::uint32_t u = next();
    x = ordo::arith::from_bits((u & 0x807fffffu) | exponent << 23);
    if ((u >> 24 & 15u) == 0)
      x = (u & 0x80000000u) != 0 ? -0.0f : 0.0f;
  }
  return out;
}

matrix<ordo::bf16> narrowed(const matrix<float>& x) {
  matrix<ordo::bf16> out(x.rows, x.columns);
  for (std::size_t i = 0; i < x.data.size(); ++i)
    out.data[i] = ordo::arith::to_bf16(x.data[i]);
  return out;
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  if (x.size() != y.size())
    return false;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (ordo::arith::bits(x[i]) != ordo::arith::bits(y[i]))
      return false;
  return true;
}

/// Counts how often each element is handed out, and stores it.
template <class T>
struct counting_epilogue {
  T* values;
  std::atomic<int>* visits;
  std::int64_t columns;

  void operator()(std::int64_t m, std::int64_t n0, int count, const T* c) const {
    for (int j = 0; j < count; ++j) {
      values[m * columns + n0 + j] = c[j];
      visits[m * columns + n0 + j].fetch_add(1);
    }
  }
};

struct extents {
  std::int64_t m, n, k;
};

/// Every boundary of the blocking, in every operand at least once.
std::vector<extents> sizes() {
  const std::int64_t edge[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257};
  const int count = static_cast<int>(std::size(edge));
  std::vector<extents> out;
  for (int i = 0; i < count; ++i)
    for (const int step : {1, 3, 5})
      out.push_back({edge[i], edge[(i * step + step) % count], edge[(i * 7 + step * 4) % count]});
  return out;
}

/// Runs `check` on every path that this processor has.
template <class F>
void on_every_isa(const F& check) {
  for (const auto isa : {ordo::cpu::isa::portable, ordo::cpu::isa::avx2, ordo::cpu::isa::avx512}) {
    if (!ordo::cpu::supported(isa))
      continue;
    ordo::cpu::force_isa(isa);
    check();
  }
  ordo::cpu::force_isa(ordo::cpu::best_isa());
}

} // namespace

TEST_CASE("gemm_int8 equals its definition on every path") {
  for (const auto [m, n, k] : sizes()) {
    const auto a = int8_matrix(m, k, 1), b = int8_matrix(n, k, 2);
    matrix<std::int32_t> expected(m, n);
    ordo::reference::gemm_int8(m, n, k, a.data, b.data, expected.data);
    on_every_isa([&, m = m, n = n, k = k] {
      CAPTURE(ordo::shape(m, n, k));
      matrix<std::int32_t> c(m, n);
      ordo::gemm_int8(space(), ordo::order::Exact(), a.view(), b.view(), c.view());
      CHECK(c.data == expected.data);

      matrix<std::int32_t> again(m, n);
      std::vector<std::atomic<int>> visits(c.data.size());
      ordo::gemm_int8(space(), ordo::order::Exact(), a.view(), b.view(),
                      counting_epilogue<std::int32_t>{again.data.data(), visits.data(), n});
      CHECK(again.data == expected.data);
      CHECK(std::all_of(visits.begin(), visits.end(), [](const auto& v) { return v == 1; }));
    });
  }
}

TEST_CASE("gemm_int8 holds 133,144 products of 127 by 127 and refuses one more") {
  matrix<std::int8_t> a(1, 133144), b(2, 133144);
  std::fill(a.data.begin(), a.data.end(), std::int8_t{127});
  std::fill(b.data.begin(), b.data.end(), std::int8_t{127});
  std::fill(b.data.begin() + 133144, b.data.end(), std::int8_t{-127});
  on_every_isa([&] {
    matrix<std::int32_t> c(1, 2);
    ordo::gemm_int8(space(), ordo::order::Exact(), a.view(), b.view(), c.view());
    CHECK(c.data == std::vector<std::int32_t>{2147479576, -2147479576});
  });
  const matrix<std::int8_t> long_a(1, 133145), long_b(2, 133145);
  bool called = false;
  const auto epilogue = [&called](std::int64_t, std::int64_t, int, const std::int32_t*) {
    called = true;
  };
  CHECK_THROWS_WITH_AS(
      ordo::gemm_int8(space(), ordo::order::Exact(), long_a.view(), long_b.view(), epilogue),
      doctest::Contains("1 x 133145 and B is 2 x 133145"), ordo::error);
  CHECK_FALSE(called);
  CHECK_THROWS_WITH_AS(
      ordo::gemm_int8(space(), ordo::order::Exact(), a.view(), long_b.view(), epilogue),
      doctest::Contains("A is 1 x 133144 and B is 2 x 133145"), ordo::error);
}

TEST_CASE("gemm_int8 is exact for -128 while K is at most 131,071") {
  matrix<std::int8_t> a(1, 131071);
  std::fill(a.data.begin(), a.data.end(), std::int8_t{-128});
  on_every_isa([&] {
    matrix<std::int32_t> c(1, 1);
    ordo::gemm_int8(space(), ordo::order::Exact(), a.view(), a.view(), c.view());
    CHECK(c.data[0] == 2147467264);
  });
}

namespace {

template <int S>
void check_slices(const matrix<float>& x, const ordo::sliced_matrix<S, space>& out) {
  REQUIRE(out.rows() == x.rows);
  REQUIRE(out.columns() == x.columns);
  bool same = true;
  for (std::int64_t r = 0; r < x.rows; ++r) {
    const std::span row(x.data.data() + r * x.columns, static_cast<std::size_t>(x.columns));
    const std::int32_t shift = ordo::reference::row_shift(row, S);
    same = same && out.shift(r) == shift;
    for (std::int64_t k = 0; k < x.columns; ++k) {
      const std::int32_t v = ordo::reference::aligned(x.data[r * x.columns + k], shift, S);
      for (int i = 0; i < S; ++i)
        same = same && out.slice[i](r, k) == ordo::reference::digit(v, i, S);
    }
  }
  CHECK(same);
}

matrix<float> transposed(const matrix<float>& x) {
  matrix<float> out(x.columns, x.rows);
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t c = 0; c < x.columns; ++c)
      out.data[c * x.rows + r] = x.data[r * x.columns + c];
  return out;
}

/// Rows whose largest entries are far apart, and in some cases not numbers.
matrix<float> uneven_rows(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  auto x = float_matrix(rows, columns, seed, -12, 1);
  const float special[] = {0x1p-126f, 0x1.5p-120f, 0x1p-60f, 0x1.fp100f, 0x1.fffffep127f,
                           0x1p126f,  0.0f,        1.0f,     3e38f,      1e-30f};
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t k = 0; k < columns; ++k)
      if (r % 3 == 1)
        x.data[r * columns + k] *= special[r / 3 % 10];
  for (auto& value : x.data)
    value = ordo::arith::flush(value);
  if (rows > 8 && columns > 2) {
    x.data[6 * columns + columns - 1] = ordo::arith::from_bits(0xff800000u);
    x.data[7 * columns + 1] = ordo::arith::from_bits(0x7f800001u);
  }
  return x;
}

template <int A, int B>
void check_sliced(extents size) {
  const std::int64_t m = size.m, n = size.n, k = size.k;
  const auto a = uneven_rows(m, k, 3), b = uneven_rows(n, k, 4);
  matrix<float> expected(m, n), c(m, n);
  ordo::reference::gemm_sliced(A, B, m, n, k, a.data, b.data, expected.data);
  on_every_isa([&] {
    CAPTURE(ordo::shape(m, n, k));
    ordo::sliced_matrix<A, space> left;
    ordo::sliced_matrix<B, space> right;
    ordo::slice_rows(space(), a.view(), left);
    ordo::slice_rows(space(), b.view(), right);
    ordo::gemm_sliced(space(), ordo::Sliced<A, B>(), left, right, c.view());
    CHECK(same_bits(c.data, expected.data));
  });
}

} // namespace

TEST_CASE("slicing equals its definition on every path") {
  for (const auto [m, n, k] : sizes()) {
    const auto x = uneven_rows(m, k, 5);
    const auto narrow = narrowed(x);
    auto wide = x;
    for (std::size_t i = 0; i < x.data.size(); ++i)
      wide.data[i] = ordo::arith::to_f32(narrow.data[i]);
    on_every_isa([&, m = m, k = k] {
      CAPTURE(ordo::shape(m, k));
      ordo::sliced_matrix<2, space> two;
      ordo::sliced_matrix<3, space> three;
      ordo::slice_rows(space(), x.view(), two);
      check_slices(x, two);
      ordo::slice_rows(space(), x.view(), three);
      check_slices(x, three);
      ordo::slice_rows(space(), narrow.view(), two);
      check_slices(wide, two);
      ordo::slice_columns(space(), x.view(), three);
      check_slices(transposed(x), three);
      ordo::slice_columns(space(), narrow.view(), two);
      check_slices(transposed(wide), two);

      const std::int64_t r0 = m / 3, r1 = m - m / 4;
      matrix<float> middle(r1 - r0, k);
      std::copy_n(x.data.begin() + r0 * k, middle.data.size(), middle.data.begin());
      ordo::slice_columns(space(), x.view(), r0, r1, two);
      check_slices(transposed(middle), two);
    });
  }
}

TEST_CASE("slices of entries worked out by hand") {
  // Largest 1: 2^13 <= 16319 < 2^14. -0.5 is -4096 = -32 * 128; 0x1.04p-7 is 65 = 1 * 128 - 63.
  matrix<float> x(2, 3);
  x.data = {1.0f, -0.5f, 0x1.04p-7f, 0.0f, -0.0f, 0.0f};
  ordo::sliced_matrix<2, space> out;
  ordo::slice_rows(space(), x.view(), out);
  CHECK(out.shift(0) == 13);
  CHECK(int{out.slice[1](0, 0)} == 64);
  CHECK(int{out.slice[0](0, 0)} == 0);
  CHECK(int{out.slice[1](0, 1)} == -32);
  CHECK(int{out.slice[1](0, 2)} == 1);
  CHECK(int{out.slice[0](0, 2)} == -63);
  CHECK(out.shift(1) == 0);
  CHECK_THROWS_WITH_AS(ordo::slice_columns(space(), x.view(), 1, 3, out),
                       doctest::Contains("rows 1 to 3 of a matrix of 2 x 3"), ordo::error);
}

TEST_CASE("gemm_sliced equals its definition on every path") {
  for (const auto size : sizes())
    check_sliced<2, 2>(size);
  for (const extents size : {extents{9, 33, 65}, extents{31, 17, 257}, extents{1, 1, 3}}) {
    check_sliced<2, 3>(size);
    check_sliced<3, 2>(size);
    check_sliced<3, 3>(size);
  }
}

TEST_CASE("gemm_sliced reaches the words of the head and refuses what int32 sums cannot hold") {
  static_assert(ordo::gemm_sliced_max_k<2, 2> == 132104);
  static_assert(ordo::gemm_sliced_max_k<2, 3> == 132104 && ordo::gemm_sliced_max_k<3, 2> == 132104);
  static_assert(ordo::gemm_sliced_max_k<3, 3> == 105517);
  // The largest sums of each weight: digits 127 and 63 in every place, 127 and -64.
  for (const float entry : {16319.0f, 16192.0f}) {
    matrix<float> a(1, 132104), b(1, 132104), c(1, 1), expected(1, 1);
    std::fill(a.data.begin(), a.data.end(), entry);
    std::fill(b.data.begin(), b.data.end(), -entry);
    a.data[0] = b.data[0] = 16319.0f;
    ordo::reference::gemm_sliced(2, 2, 1, 1, 132104, a.data, b.data, expected.data);
    on_every_isa([&] {
      ordo::sliced_matrix<2, space> left, right;
      ordo::slice_rows(space(), a.view(), left);
      ordo::slice_rows(space(), b.view(), right);
      ordo::gemm_sliced(space(), ordo::Sliced<2, 2>(), left, right, c.view());
      CHECK(same_bits(c.data, expected.data));
    });
  }
  ordo::sliced_matrix<2, space> left, right;
  left.resize(1, 132105);
  right.resize(2, 132105);
  matrix<float> c(1, 2);
  CHECK_THROWS_WITH_AS(ordo::gemm_sliced(space(), ordo::Sliced<2, 2>(), left, right, c.view()),
                       doctest::Contains("A is 1 x 132105 and B is 2 x 132105"), ordo::error);
}

TEST_CASE("gemm_sliced keeps its error bound") {
  const std::int64_t m = 16, n = 24, k = 512;
  const auto a = float_matrix(m, k, 6, -6, 0), b = float_matrix(n, k, 7, -6, 0);
  matrix<float> c(m, n);
  ordo::sliced_matrix<2, space> left;
  ordo::sliced_matrix<3, space> right;
  ordo::slice_rows(space(), a.view(), left);
  ordo::slice_rows(space(), b.view(), right);
  ordo::gemm_sliced(space(), ordo::Sliced<2, 3>(), left, right, c.view());
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      const double ea = 0.5 * ordo::reference::power_of_two(-left.shift(i));
      const double eb = 0.5 * ordo::reference::power_of_two(-right.shift(j));
      double exact = 0.0, bound = 0.0;
      for (std::int64_t l = 0; l < k; ++l) {
        const double x = a.data[i * k + l], y = b.data[j * k + l];
        exact += x * y;
        bound += (x < 0 ? -x : x) * eb + (y < 0 ? -y : y) * ea + ea * eb;
      }
      const double result = c.data[i * n + j], error = result - exact;
      CHECK((error < 0 ? -error : error) <= bound + 0x1p-24 * (result < 0 ? -result : result));
    }
}

namespace {

template <class Order, class TA, class TB>
void check_f32(int lanes, const matrix<TA>& a, const matrix<TB>& b) {
  matrix<float> expected(a.rows, b.rows);
  ordo::reference::gemm_f32<TA, TB>(lanes, a.rows, b.rows, a.columns, a.data, b.data,
                                    expected.data);
  on_every_isa([&] {
    CAPTURE(ordo::shape(a.rows, b.rows, a.columns));
    matrix<float> c(a.rows, b.rows);
    ordo::gemm_f32(space(), Order(), a.view(), b.view(), c.view());
    CHECK(same_bits(c.data, expected.data));
  });
}

} // namespace

TEST_CASE("gemm_f32 equals its definition on every path") {
  for (const auto [m, n, k] : sizes()) {
    const auto a = float_matrix(m, k, 8, -12, 1), b = float_matrix(n, k, 9, -12, 1);
    check_f32<ordo::order::Sequential>(1, a, b);
    check_f32<ordo::order::Lanes<16>>(16, a, b);
    check_f32<ordo::order::Lanes<16>>(16, narrowed(a), narrowed(b));
  }
  for (const extents size : {extents{9, 33, 65}, extents{31, 17, 257}, extents{1, 1, 3}}) {
    const auto a = float_matrix(size.m, size.k, 10, -12, 1);
    const auto b = float_matrix(size.n, size.k, 11, -12, 1);
    check_f32<ordo::order::Lanes<2>>(2, a, b);
    check_f32<ordo::order::Lanes<32>>(32, a, b);
    check_f32<ordo::order::Lanes<128>>(128, a, b);
    check_f32<ordo::order::Lanes<32>>(32, narrowed(a), b);
    check_f32<ordo::order::Lanes<8>>(8, a, narrowed(b));
  }
}

TEST_CASE("gemm_f32 near the smallest normal number") {
  // Products from below 2^-151 to above 2^-101, with cancelling and tiny sums.
  for (const extents size : {extents{17, 40, 96}, extents{6, 65, 33}}) {
    for (const int shift : {-64, -61, -52}) {
      const auto a = float_matrix(size.m, size.k, 12, shift - 3, shift + 1);
      const auto b = float_matrix(size.n, size.k, 13, -64, -61);
      check_f32<ordo::order::Sequential>(1, a, b);
      check_f32<ordo::order::Lanes<16>>(16, a, b);
      check_f32<ordo::order::Lanes<16>>(16, narrowed(a), narrowed(b));
      check_f32<ordo::order::Lanes<4>>(4, narrowed(a), b);
    }
  }
  // 2^-63 * 2^-63 is 2^-126: zero as a rounded product, kept as an exact one. The product after it
  // is the smallest that is certainly kept, (1 + 2^-13)(1 - 2^-13) one that rounds up to 2^-126.
  matrix<float> a(2, 1), b(1, 1), c(2, 1);
  for (const float x : {0x1p-63f, 0x1p-62f, 0x1.0008p-63f, -0x1.fffffep-64f})
    for (const float y : {0x1p-63f, 0x1.fffp-64f, 0x1.000002p-63f, 0x1.000004p-63f}) {
      a.data = {x, -0x1p-63f};
      b.data = {y};
      check_f32<ordo::order::Sequential>(1, a, b);
    }
  a.data = {0x1p-63f, 0x1p-62f};
  b.data = {0x1p-63f};
  ordo::gemm_f32(space(), ordo::order::Sequential(), a.view(), b.view(), c.view());
  CHECK(c.data[0] == 0.0f);
  const auto narrow_a = narrowed(a), narrow_b = narrowed(b);
  ordo::gemm_f32(space(), ordo::order::Sequential(), narrow_a.view(), narrow_b.view(), c.view());
  CHECK(c.data[0] == 0x1p-126f);
}

TEST_CASE("gemm_f32 with infinities, NaN and subnormal foreign input") {
  auto a = float_matrix(20, 70, 14, -3, 3), b = float_matrix(37, 70, 15, -3, 3);
  a.data[3 * 70 + 5] = ordo::arith::from_bits(0x7f800001u);
  a.data[4 * 70 + 6] = ordo::arith::from_bits(0xffc12345u);
  a.data[5 * 70 + 7] = ordo::arith::from_bits(0x7f800000u);
  a.data[6 * 70 + 8] = ordo::arith::from_bits(0x007fffffu);
  b.data[7 * 70 + 8] = 0x1p127f;
  b.data[8 * 70 + 7] = 0.0f;
  check_f32<ordo::order::Sequential>(1, a, b);
  check_f32<ordo::order::Lanes<16>>(16, a, b);
}

TEST_CASE("the plain loops, which other devices run, equal the definition too") {
  const auto a = float_matrix(9, 70, 16, -66, -60), b = float_matrix(21, 70, 17, -66, -60);
  matrix<float> c(9, 21), expected(9, 21);
  ordo::detail::gemm_f32_plain<16, space, float, float>(
      space(), a.view(), b.view(), ordo::detail::store_piece<float, space>{c.view()});
  ordo::reference::gemm_f32<float, float>(16, 9, 21, 70, a.data, b.data, expected.data);
  CHECK(same_bits(c.data, expected.data));
}

#if defined(KOKKOS_ENABLE_SERIAL)
TEST_CASE("the Serial space gives the same bits, into and from memory that Kokkos manages") {
  using serial = Kokkos::Serial;
  const std::size_t m = 50, n = 70, k = 130;
  const auto a = float_matrix(m, k, 18, -12, 1), b = float_matrix(n, k, 19, -12, 1);
  const auto a8 = int8_matrix(m, k, 20), b8 = int8_matrix(n, k, 21);
  Kokkos::View<float**, Kokkos::LayoutRight, Kokkos::HostSpace> c("c", m, n), x("x", m, k);
  Kokkos::View<std::int32_t**, Kokkos::LayoutRight, Kokkos::HostSpace> c8("c8", m, n);
  std::copy_n(a.data.begin(), m * k, x.data());
  matrix<float> expected(m, n);
  matrix<std::int32_t> expected8(m, n);
  const auto same = [&] { return same_bits({c.data(), c.data() + m * n}, expected.data); };

  ordo::gemm_int8(serial(), ordo::order::Exact(), a8.view(), b8.view(), c8);
  ordo::reference::gemm_int8(m, n, k, a8.data, b8.data, expected8.data);
  CHECK(std::equal(expected8.data.begin(), expected8.data.end(), c8.data()));

  ordo::gemm_f32(serial(), ordo::order::Lanes<16>(), x, b.view(), c);
  ordo::reference::gemm_f32<float, float>(16, m, n, k, a.data, b.data, expected.data);
  CHECK(same());

  ordo::sliced_matrix<2, serial> left, right;
  ordo::slice_rows(serial(), x, left);
  ordo::slice_rows(serial(), b.view(), right);
  ordo::gemm_sliced(serial(), ordo::Sliced<2, 2>(), left, right, c);
  ordo::reference::gemm_sliced(2, 2, m, n, k, a.data, b.data, expected.data);
  CHECK(same());
}
#endif

TEST_CASE("gemm_f32: orders differ on chosen data") {
  matrix<float> a(1, 4), b(1, 4), c(1, 1);
  a.data = {1e8f, 1.0f, -1e8f, 1.0f};
  std::fill(b.data.begin(), b.data.end(), 1.0f);
  on_every_isa([&] {
    ordo::gemm_f32(space(), ordo::order::Sequential(), a.view(), b.view(), c.view());
    CHECK(c.data[0] == 1.0f);
    ordo::gemm_f32(space(), ordo::order::Lanes<2>(), a.view(), b.view(), c.view());
    CHECK(c.data[0] == 2.0f);
    ordo::gemm_f32(space(), ordo::order::Lanes<4>(), a.view(), b.view(), c.view());
    CHECK(c.data[0] == 0.0f);
  });
  const matrix<float> other(1, 5);
  CHECK_THROWS_WITH_AS(
      ordo::gemm_f32(space(), ordo::order::Sequential(), a.view(), other.view(), c.view()),
      doctest::Contains("A is 1 x 4 and B is 1 x 5"), ordo::error);
  matrix<float> wrong(2, 1);
  CHECK_THROWS_WITH_AS(
      ordo::gemm_f32(space(), ordo::order::Sequential(), a.view(), b.view(), wrong.view()),
      doctest::Contains("C is 2 x 1 and the product is 1 x 1"), ordo::error);
}
