// SPDX-License-Identifier: Apache-2.0
//
// Quantizers and largest magnitudes on the device against their definition, by bits.

#include "device_fixture.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ordo/cuda/abs_max.hpp>
#include <ordo/cuda/quantize.hpp>
#include <ordo/reference/quantize.hpp>

namespace {

using namespace ordo::test;
using ordo::bf16;
using ordo::quant::step_rule;
namespace arith = ordo::arith;
namespace cuda = ordo::cuda;
namespace reference = ordo::reference;

std::int64_t whole(std::size_t n) {
  return static_cast<std::int64_t>(n);
}

template <class T>
std::vector<T> shifted(std::vector<T> x, std::size_t by) {
  x.insert(x.begin(), by, T{});
  return x;
}
template <class T>
std::vector<T> rest(const std::vector<T>& x, std::size_t from) {
  return {x.begin() + static_cast<std::ptrdiff_t>(from), x.end()};
}

void compare_tensor(const std::vector<bf16>& x, std::size_t shift = 0) {
  INFO("entries ", x.size(), ", shift ", shift);
  const device_vector<bf16> in(shifted(x, shift));
  device_vector<std::int8_t> codes(x.size() + shift);
  device_vector<float> step(1);
  device_vector<std::uint32_t> scratch(1);
  cuda::quantize_tensor(nullptr, in.data() + shift, whole(x.size()), codes.data() + shift,
                        step.data(), scratch.data());
  std::vector<std::int8_t> expected(x.size());
  const std::vector<float> expected_step{reference::quantize_tensor(x, expected)};
  CHECK(same_bits(rest(codes.host(), shift), expected));
  CHECK(same_bits(step.host(), expected_step));
}

template <class Order>
void compare_order(Order order, step_rule rule, std::size_t rows, std::size_t columns,
                   const std::vector<bf16>& x, std::size_t shift) {
  INFO("rows ", rows, " of ", columns, ", shift ", shift);
  const device_vector<bf16> in(shifted(x, shift));
  device_vector<std::int8_t> codes(x.size() + shift);
  device_vector<float> steps(rows);
  cuda::quantize_rows(nullptr, order, rule, in.data() + shift, whole(rows), whole(columns),
                      codes.data() + shift, steps.data());
  std::vector<std::int8_t> expected(x.size());
  std::vector<float> expected_steps(rows);
  reference::quantize_rows(order, rule, rows, columns, x, expected, expected_steps);
  CHECK(same_bits(rest(codes.host(), shift), expected));
  CHECK(same_bits(steps.host(), expected_steps));
}

void compare_all(std::size_t rows, std::size_t columns, const std::vector<bf16>& x,
                 std::size_t shift = 0) {
  compare_tensor(x, shift);
  compare_order(ordo::order::Lanes<32>(), step_rule::mean_magnitude, rows, columns, x, shift);
  compare_order(ordo::order::Lanes<32>(), step_rule::largest_magnitude, rows, columns, x, shift);
  compare_order(ordo::order::Sequential(), step_rule::mean_magnitude, rows, columns, x, shift);
  compare_order(ordo::order::Tree(), step_rule::mean_magnitude, rows, columns, x, shift);
}

TEST_CASE("quantizers equal their definition") {
  for (const std::size_t columns : {0u, 1u, 2u, 7u, 8u, 9u, 31u, 32u, 33u, 64u, 256u, 257u, 1000u})
    for (const std::size_t rows : {0u, 1u, 7u, 9u, 33u})
      compare_all(rows, columns, random_bf16(rows * columns, 7 * rows + columns + 1));
  compare_all(9, 264, random_bf16(9 * 264, 3), 1); // nothing is aligned
  for (const std::size_t n : {8191u, 8192u, 8193u, 16385u, 1000003u})
    compare_tensor(random_bf16(n, n));
}

TEST_CASE("every exponent, zeros, subnormals") {
  std::mt19937_64 engine(5);
  const std::size_t columns = 40, tops = 254;
  std::vector<bf16> x(tops * columns);
  for (std::size_t t = 0; t < tops; ++t)
    for (std::size_t i = 0; i < columns; ++i) {
      const int exponent = std::max(static_cast<int>(t) + 1 - static_cast<int>(engine() % 31), 1);
      x[t * columns + i] = bf16{
          static_cast<std::uint16_t>((engine() & 0x807fu) | static_cast<unsigned>(exponent) << 7)};
    }
  for (std::size_t i = 0; i < tops; ++i)
    x[i * columns] = bf16{static_cast<std::uint16_t>(i / 2)};
  compare_all(tops, columns, x);
  for (std::size_t t = 0; t < tops; ++t)
    compare_tensor({x.begin() + static_cast<std::ptrdiff_t>(t * columns),
                    x.begin() + static_cast<std::ptrdiff_t>((t + 1) * columns)});
  compare_all(3, 5, std::vector<bf16>(15, bf16{0x8000}));
  compare_all(3, 5, std::vector<bf16>(15, bf16{0x0001}));
}

TEST_CASE("non-finite entries") {
  const float infinity = std::numeric_limits<float>::infinity();
  auto x = random_bf16(6 * 40, 1);
  x[45] = arith::to_bf16(infinity);
  compare_all(6, 40, x);
  x[90] = arith::to_bf16(-infinity);
  compare_all(6, 40, x);
  x[200] = bf16{0x7fc0};
  x[201] = x[45];
  compare_all(6, 40, x);
  x[130] = bf16{0xff81}; // a NaN that no operation here produces: the step is canonical
  x[200] = bf16{0x3f80};
  compare_tensor(x);
}

template <class T>
std::vector<T> numbers(std::size_t n, std::uint64_t seed) {
  if constexpr (std::is_same_v<T, float>)
    return random_f32(n, seed);
  else
    return random_bf16(n, seed);
}

template <class T>
std::uint32_t expected_largest(const std::vector<T>& x, std::size_t from, std::size_t step,
                               std::size_t count) {
  std::uint32_t top = 0;
  for (std::size_t i = 0; i < count; ++i)
    top = std::max(top, arith::bits(arith::abs(arith::to_f32(x[from + i * step]))));
  return top;
}

template <class T>
void compare_largest(std::size_t rows, std::size_t columns, std::vector<T> x) {
  INFO("rows ", rows, " of ", columns);
  const device_vector<T> in(x);
  device_vector<std::uint32_t> cell(1), row_bits(rows);
  device_vector<float> by_row(rows), by_column(columns);
  cuda::largest_bits(nullptr, in.data(), whole(x.size()), cell.data());
  cuda::row_largest(nullptr, in.data(), whole(rows), whole(columns), row_bits.data());
  cuda::row_largest(nullptr, in.data(), whole(rows), whole(columns), by_row.data());
  cuda::column_largest(nullptr, in.data(), whole(rows), whole(columns), by_column.data());
  std::vector<std::uint32_t> row_expected(rows);
  std::vector<float> row_values(rows), column_values(columns);
  const auto value = [](std::uint32_t u) { return arith::canonical(arith::from_bits(u)); };
  for (std::size_t r = 0; r < rows; ++r) {
    row_expected[r] = expected_largest(x, r * columns, 1, columns);
    row_values[r] = value(row_expected[r]);
  }
  for (std::size_t c = 0; c < columns; ++c)
    column_values[c] = value(expected_largest(x, c, columns, rows));
  CHECK(same_bits(cell.host(), std::vector<std::uint32_t>{expected_largest(x, 0, 1, x.size())}));
  CHECK(same_bits(row_bits.host(), row_expected));
  CHECK(same_bits(by_row.host(), row_values));
  CHECK(same_bits(by_column.host(), column_values));
}

TEST_CASE("largest magnitudes") {
  for (const std::size_t columns : {0u, 1u, 7u, 8u, 31u, 33u, 64u, 300u})
    for (const std::size_t rows : {0u, 1u, 8u, 255u, 257u}) {
      compare_largest(rows, columns, numbers<bf16>(rows * columns, rows + columns));
      compare_largest(rows, columns, numbers<float>(rows * columns, rows + columns));
    }
  auto x = numbers<float>(600, 1);
  x[17] = arith::from_bits(0xff800000u);
  x[333] = arith::from_bits(0xffc12345u);
  x[334] = arith::from_bits(5u);
  compare_largest(20, 30, x);
  compare_largest(2, 3, std::vector<float>(6, arith::from_bits(0x80000123u)));
}

TEST_CASE("speed") {
  const std::size_t copied = std::size_t{1} << 30;
  double copy = 0;
  {
    const device_vector<std::int8_t> from(copied), to(copied);
    const float ms = median_ms(
        [&] { cudaMemcpyAsync(to.data(), from.data(), copied, cudaMemcpyDeviceToDevice); });
    copy = 2.0 * static_cast<double>(copied) / ms * 1e-9;
    std::printf("copy of 1 GiB: %.4f ms, %.3f TB/s read and written\n", ms, copy);
  }
  const auto sample = random_bf16(1 << 20, 1);
  for (const std::size_t columns : {2048u, 5632u, 11264u}) {
    const std::size_t n = 16384 * columns;
    device_vector<bf16> a(n), b(n);
    for (std::size_t i = 0; i < n; i += sample.size()) {
      const std::size_t bytes = std::min(sample.size(), n - i) * sizeof(bf16);
      cudaMemcpy(a.data() + i, sample.data(), bytes, cudaMemcpyHostToDevice);
      cudaMemcpy(b.data() + i, sample.data(), bytes, cudaMemcpyHostToDevice);
    }
    const device_vector<std::int8_t> codes(n);
    const device_vector<float> step(16384);
    const device_vector<std::uint32_t> scratch(16384);
    int turn = 0;
    const auto report = [&](const char* name, double bytes, const auto& f) {
      const float ms = median_ms(f);
      const double rate = bytes / ms * 1e-9;
      std::printf("%-16s 16384 x %5zu %8.4f ms %7.3f TB/s %5.1f%% of copy, floor %.4f ms\n", name,
                  columns, ms, rate, 100 * rate / copy, bytes / copy * 1e-9);
    };
    const auto input = [&] { return (turn++ % 2 == 0 ? a : b).data(); };
    const double entries = static_cast<double>(n);
    report("quantize_tensor", 5 * entries, [&] {
      cuda::quantize_tensor(nullptr, input(), whole(n), codes.data(), step.data(), scratch.data());
    });
    report("row_largest", 2 * entries, [&] {
      cuda::row_largest_bits(nullptr, input(), 16384, whole(columns), scratch.data());
    });
    report("quantize_rows", 3 * entries, [&] {
      cuda::quantize_rows(nullptr, ordo::order::Lanes<32>(), step_rule::mean_magnitude, input(),
                          16384, whole(columns), codes.data(), step.data());
    });
  }
}

} // namespace
