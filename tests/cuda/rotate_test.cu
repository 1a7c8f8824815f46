// SPDX-License-Identifier: Apache-2.0
//
// Rotated operands on the device against their definition, by bits.

#include "device_fixture.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ordo/cuda/rotate_columns.hpp>
#include <ordo/cuda/rotate_rows.hpp>
#include <ordo/reference/linear.hpp>

namespace {

using namespace ordo::test;
using ordo::bf16;
namespace arith = ordo::arith;
namespace cuda = ordo::cuda;
namespace reference = ordo::reference;
using cuda::detail::column_way;

std::size_t padded(std::size_t n) {
  return (n + 255) / 256 * 256;
}
std::int64_t whole(std::size_t n) {
  return static_cast<std::int64_t>(n);
}

/// A vector on the device that begins `shift` entries after an aligned address.
template <class T>
struct shifted {
  device_vector<T> memory;
  std::size_t shift;
  shifted(std::size_t n, std::size_t by) : memory(n + by), shift(by) {}
  shifted(std::vector<T> from, std::size_t by)
      : memory((from.insert(from.begin(), by, T{}), from)), shift(by) {}
  T* data() const { return memory.data() + shift; }
  std::vector<T> host() const {
    auto all = memory.host();
    return {all.begin() + static_cast<std::ptrdiff_t>(shift), all.end()};
  }
};

/// A bf16 of random sign and significand whose exponent lies within 30 below `top`.
bf16 near_exponent(std::mt19937_64& engine, int top) {
  const int exponent = std::max(top - static_cast<int>(engine() % 31), -126) + 127;
  return bf16{
      static_cast<std::uint16_t>((engine() & 0x807fu) | static_cast<unsigned>(exponent) << 7)};
}

bf16 brain(float x) {
  return arith::to_bf16(x);
}

void compare_rows(std::size_t rows, std::size_t n, const std::vector<bf16>& x,
                  const std::vector<float>& factor, std::size_t shift = 0) {
  INFO("rows ", rows, " of ", n, ", shift ", shift);
  const shifted<bf16> in(x, shift);
  const shifted<float> factors(factor, shift);
  shifted<std::int8_t> codes(rows * padded(n), shift);
  device_vector<float> scale(rows);
  cuda::rotate_rows(nullptr, in.data(), whole(rows), whole(n), factors.data(), codes.data(),
                    scale.data());
  const auto expected = reference::rotate_scaled_rows(rows, n, x, factor);
  CHECK(same_bits(codes.host(), expected.codes));
  CHECK(same_bits(scale.host(), expected.scale));
}

template <class T>
void run_columns(column_way way, const T* x, std::size_t m, std::size_t columns,
                 const float* common, std::int8_t* codes, float* scale) {
  if (cuda::detail::whole_columns(x, whole(columns), codes))
    cuda::detail::rotate_columns_by<T, true>(way, nullptr, x, whole(m), whole(columns), common,
                                             codes, scale);
  else
    cuda::detail::rotate_columns_by<T, false>(way, nullptr, x, whole(m), whole(columns), common,
                                              codes, scale);
}

std::vector<column_way> ways(std::size_t m) {
  std::vector<column_way> all{column_way::plain, column_way::tiles};
  if (m > 0 && m <= 64 * 256)
    all.push_back(column_way::cluster);
  return all;
}

template <class T>
void compare_columns(std::size_t m, std::size_t columns, const std::vector<T>& x,
                     const reference::rotated_rows& expected, float common, std::size_t shift) {
  const shifted<T> in(x, shift);
  const device_vector<float> step(std::vector<float>{common});
  const float* const factor = sizeof(T) == 1 ? step.data() : nullptr;
  for (const column_way way : ways(m)) {
    INFO("columns ", columns, " of ", m, ", way ", static_cast<int>(way), ", shift ", shift);
    shifted<std::int8_t> codes(columns * padded(m), shift);
    device_vector<float> scale(columns);
    run_columns(way, in.data(), m, columns, factor, codes.data(), scale.data());
    CHECK(same_bits(codes.host(), expected.codes));
    CHECK(same_bits(scale.host(), expected.scale));
  }
  shifted<std::int8_t> codes(columns * padded(m), shift);
  device_vector<float> scale(columns);
  cuda::rotate_columns(nullptr, in.data(), whole(m), whole(columns), factor, codes.data(),
                       scale.data());
  CHECK(same_bits(codes.host(), expected.codes));
  CHECK(same_bits(scale.host(), expected.scale));
}

void compare_value_columns(std::size_t m, std::size_t columns, const std::vector<bf16>& x,
                           std::size_t shift = 0) {
  compare_columns(m, columns, x, reference::rotate_value_columns(m, columns, x), 1.0f, shift);
}
void compare_code_columns(std::size_t m, std::size_t columns, const std::vector<std::int8_t>& x,
                          float common, std::size_t shift = 0) {
  compare_columns(m, columns, x, reference::rotate_code_columns(m, columns, x, common), common,
                  shift);
}

TEST_CASE("rows equal their definition") {
  for (const std::size_t n :
       {0u,   1u,    7u,    8u,    255u,   256u,   257u,   264u,   511u,   512u,
        513u, 1000u, 4096u, 4104u, 11264u, 11780u, 16384u, 16385u, 16392u, 17001u})
    compare_rows(2, n, random_bf16(2 * n, n + 1), random_f32(n, n + 2, 0.01f));
  compare_rows(0, 300, {}, random_f32(300, 1));
  compare_rows(5, 512, random_bf16(5 * 512, 3), random_f32(512, 4), 1); // nothing is aligned
  compare_rows(300, 64, random_bf16(300 * 64, 3), random_f32(64, 4));
}

TEST_CASE("columns equal their definition") {
  for (const std::size_t m : {0u, 1u, 3u, 255u, 256u, 257u, 511u, 513u, 1025u, 2048u, 2049u})
    for (const std::size_t columns : {1u, 2u, 36u}) {
      compare_value_columns(m, columns, random_bf16(m * columns, m + columns));
      compare_code_columns(m, columns, random_codes(m * columns, m + columns), 0.037f);
    }
  for (const std::size_t columns :
       {15u, 16u, 17u, 31u, 32u, 33u, 64u, 65u, 127u, 128u, 130u, 260u}) {
    compare_value_columns(40, columns, random_bf16(40 * columns, columns));
    compare_code_columns(40, columns, random_codes(40 * columns, columns), 1.0f);
  }
  compare_value_columns(300, 32, random_bf16(300 * 32, 3), 1); // nothing is aligned
  compare_code_columns(300, 32, random_codes(300 * 32, 3), 2.5f, 1);
  for (const std::size_t m : {5000u, 9000u, 16384u, 16385u}) { // each number of blocks, and beyond
    compare_value_columns(m, 6, random_bf16(m * 6, m));
    compare_code_columns(m, 8, random_codes(m * 8, m), 0.5f);
  }
}

TEST_CASE("every exponent") {
  std::mt19937_64 engine(5);
  const std::size_t tops = 254, n = 300;
  std::vector<bf16> by_row(tops * n), by_column(n * tops);
  for (std::size_t t = 0; t < tops; ++t)
    for (std::size_t i = 0; i < n; ++i) {
      by_row[t * n + i] = near_exponent(engine, static_cast<int>(t) - 126);
      by_column[i * tops + t] = near_exponent(engine, static_cast<int>(t) - 126);
    }
  for (std::size_t i = 0; i < tops; ++i) // subnormals, which are read as zeros
    by_row[i * n] = by_column[i] = bf16{static_cast<std::uint16_t>(i)};
  compare_value_columns(n, tops, by_column);
  for (const float size : {1.0f, 0x1p-90f, 0x1p-60f, 0x1p60f, 0x1p120f})
    compare_rows(tops, n, by_row, random_f32(n, 9, size));
}

TEST_CASE("extreme integers") {
  for (const std::size_t m : {256u, 700u}) {
    std::vector<bf16> x(m * 4);
    std::vector<std::int8_t> codes(m * 4);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < 4; ++j) {
        // 32767 is no bf16; magnitudes 1.9921875 are aligned to 32640, and all add up in one entry.
        const bool minus = j == 1 || (j == 2 && i % 2 == 1) || (j == 3 && i % 64 >= 32);
        x[4 * i + j] = brain(minus ? -1.9921875f : 1.9921875f);
        codes[4 * i + j] = static_cast<std::int8_t>(minus ? -127 : 127);
      }
    compare_value_columns(m, 4, x);
    compare_code_columns(m, 4, codes, 1.0f);
    // Rows reach 32767 through their factors.
    compare_rows(4, m, x, std::vector<float>(m, 32767.0f / 1.9921875f));
  }
}

TEST_CASE("zeros and non-finite entries mark their row or column") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::size_t n = 40;
  std::vector<bf16> x = random_bf16(n * n, 1);
  for (std::size_t i = 0; i < n; ++i)
    x[i * n + 9] = x[9 * n + i] = bf16{static_cast<std::uint16_t>(i % 2 == 0 ? 0 : 0x8000)};
  x[3 * n + 5] = brain(infinity);
  x[20 * n + 30] = brain(-infinity);
  x[21 * n + 31] = brain(nan);
  x[22 * n + 32] = brain(nan), x[22 * n + 33] = brain(infinity);
  x[23 * n + 34] = bf16{0xff81};
  auto factor = random_f32(n, 2, 0.01f);
  compare_rows(n, n, x, factor);
  compare_value_columns(n, n, x);
  factor[7] = nan;
  compare_rows(n, n, x, factor);
  factor[7] = 0x1p127f; // products overflow
  compare_rows(n, n, x, factor);
  compare_code_columns(n, n, random_codes(n * n, 3), nan);
  compare_code_columns(n, n, std::vector<std::int8_t>(n * n, 0), 3.0f);
}

__global__ void fill_kernel(bf16* x, std::int64_t n, std::uint32_t seed) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  std::uint32_t h = (static_cast<std::uint32_t>(i) ^ seed) * 0x9e3779b1u;
  h = (h ^ (h >> 15)) * 0x85ebca77u;
  h = (h ^ (h >> 13)) * 0xc2b2ae3du;
  const int sum = __vsads4(h, 0x80808080u); // four bytes: nearly normal
  const float value = arith::from_int(sum - 256 + static_cast<int>(h % 7));
  x[i] = arith::to_bf16(arith::mul(value, 0x1p-20f));
}
__global__ void fill_kernel(std::int8_t* x, std::int64_t n, std::uint32_t seed) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  std::uint32_t h = (static_cast<std::uint32_t>(i) ^ seed) * 0x9e3779b1u;
  h = (h ^ (h >> 15)) * 0x85ebca77u;
  x[i] = static_cast<std::int8_t>(static_cast<int>((h >> 8) % 255) - 127);
}
template <class T>
void fill(const device_vector<T>& x, std::uint32_t seed) {
  const auto n = static_cast<std::int64_t>(x.size());
  fill_kernel<<<static_cast<unsigned>((n + 255) / 256), 256>>>(x.data(), n, seed);
  cuda::check(cudaGetLastError(), "fill");
}

/// Columns `from`, `from` + step, ... of the result against the definition, other ways by equality.
template <class T>
void compare_sampled_columns(std::size_t m, std::size_t columns) {
  device_vector<T> x(m * columns);
  fill(x, 77);
  const device_vector<float> step(std::vector<float>{0.37f});
  const float* const factor = sizeof(T) == 1 ? step.data() : nullptr;
  const auto host = x.host();
  std::vector<std::int8_t> first;
  std::vector<float> first_scale;
  for (const column_way way : ways(m)) {
    INFO("way ", static_cast<int>(way));
    device_vector<std::int8_t> codes(columns * padded(m));
    device_vector<float> scale(columns);
    run_columns(way, x.data(), m, columns, factor, codes.data(), scale.data());
    const auto found = codes.host();
    const auto found_scale = scale.host();
    if (first.empty()) {
      first = found;
      first_scale = found_scale;
    }
    CHECK(same_bits(found, first));
    CHECK(same_bits(found_scale, first_scale));
  }
  for (std::size_t c = 0; c < columns; c += columns / 13) {
    std::vector<T> column;
    for (std::size_t i = 0; i < m; ++i)
      column.push_back(host[i * columns + c]);
    const auto expected = [&] {
      if constexpr (sizeof(T) == 1)
        return reference::rotate_code_columns(m, 1, column, 0.37f);
      else
        return reference::rotate_value_columns(m, 1, column);
    }();
    const auto at = static_cast<std::ptrdiff_t>(c * padded(m));
    CHECK(same_bits(
        std::vector<std::int8_t>(first.begin() + at,
                                 first.begin() + at + static_cast<std::ptrdiff_t>(padded(m))),
        expected.codes));
    CHECK(same_bits(std::vector<float>{first_scale[c]}, expected.scale));
  }
}

TEST_CASE("whole micro-batches, sampled") {
  compare_sampled_columns<bf16>(16384, 1024);
  compare_sampled_columns<std::int8_t>(16384, 1024);
  compare_sampled_columns<std::int8_t>(11264, 2048);
}

/// Median milliseconds over rotating inputs, and the rate of `bytes` in TB/s.
template <class F>
void report(const std::string& name, double bytes, double copy, const F& f) {
  const float ms = median_ms(f);
  const double rate = bytes / ms * 1e-9;
  std::printf("%-52s %8.4f ms %7.3f TB/s  %5.1f%% of copy, floor %.4f ms\n", name.c_str(), ms, rate,
              100 * rate / copy, bytes / copy * 1e-9);
}

double copy_rate() {
  const std::size_t n = std::size_t{1} << 30;
  const device_vector<std::int8_t> from(n), to(n);
  fill(from, 1);
  const float ms =
      median_ms([&] { cudaMemcpyAsync(to.data(), from.data(), n, cudaMemcpyDeviceToDevice); });
  std::printf("copy of 1 GiB: %.4f ms, %.3f TB/s read and written\n", ms, 2.0 * n / ms * 1e-9);
  return 2.0 * static_cast<double>(n) / ms * 1e-9;
}

constexpr std::size_t tokens = 16384;

void time_rows(std::size_t n, double copy) {
  const device_vector<bf16> a(tokens * n), b(tokens * n), c(tokens * n);
  fill(a, 1), fill(b, 2), fill(c, 3);
  const device_vector<float> factor(random_f32(n, 4, 0.01f));
  const device_vector<std::int8_t> codes(tokens * padded(n));
  const device_vector<float> scale(tokens);
  int turn = 0;
  const bf16* const inputs[] = {a.data(), b.data(), c.data()};
  report("rotate_rows 16384 x " + std::to_string(n), 3.0 * tokens * static_cast<double>(n), copy,
         [&] {
           cuda::rotate_rows(nullptr, inputs[turn++ % 3], tokens, whole(n), factor.data(),
                             codes.data(), scale.data());
         });
}

template <class T>
void time_columns(std::size_t m, std::size_t columns, double copy) {
  const device_vector<T> a(m * columns), b(m * columns), c(m * columns);
  fill(a, 1), fill(b, 2), fill(c, 3);
  const device_vector<float> step(std::vector<float>{0.37f});
  const float* const factor = sizeof(T) == 1 ? step.data() : nullptr;
  const device_vector<std::int8_t> codes(columns * padded(m));
  const device_vector<float> scale(columns);
  int turn = 0;
  const T* const inputs[] = {a.data(), b.data(), c.data()};
  const double bytes = (sizeof(T) + 1.0) * static_cast<double>(m * columns);
  const std::string name = std::string("rotate_columns<") + (sizeof(T) == 1 ? "int8" : "bf16") +
                           "> " + std::to_string(m) + " x " + std::to_string(columns);
  const char* const names[] = {" plain", " tiles", " cluster"};
  for (const column_way way : ways(m))
    report(name + names[static_cast<int>(way)], bytes, copy, [&] {
      run_columns(way, inputs[turn++ % 3], m, columns, factor, codes.data(), scale.data());
    });
  for (const cuda::detail::cluster_shape shape :
       {cuda::detail::cluster_shape{16, 2}, cuda::detail::cluster_shape{16, 4}}) {
    if (static_cast<std::size_t>(shape.blocks * (8 / shape.groups)) * 256 < m)
      continue;
    report(name + " cluster " + std::to_string(shape.blocks) + ", " + std::to_string(shape.groups) +
               " side by side",
           bytes, copy, [&] {
             cuda::detail::rotate_columns_in_cluster<T, true>(nullptr, shape, inputs[turn++ % 3],
                                                              whole(m), whole(columns), factor,
                                                              codes.data(), scale.data());
           });
  }
}

TEST_CASE("speed") {
  const double copy = copy_rate();
  std::printf("chosen for a micro-batch: way %d\n",
              static_cast<int>(cuda::detail::best_column_way<bf16, true>(tokens, 2048)));
  for (const std::size_t n : {2048u, 3072u, 11264u})
    time_rows(n, copy);
  for (const std::size_t columns : {2048u, 3072u, 11264u})
    time_columns<bf16>(tokens, columns, copy);
  for (const std::size_t columns : {2048u, 5632u})
    time_columns<std::int8_t>(tokens, columns, copy);
  for (const std::size_t n : {2048u, 11264u})
    time_columns<std::int8_t>(n, 2048, copy);
}

} // namespace
