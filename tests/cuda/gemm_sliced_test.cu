// SPDX-License-Identifier: Apache-2.0
// Slices and their products on the device against their definition, by bits.
#include "device_fixture.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <ordo/cuda/gemm_sliced.hpp>
#include <ordo/cuda/gemm_sliced_blocks.hpp>
#include <ordo/cuda/slice.hpp>
#include <ordo/reference/cross_entropy.hpp>
#include <ordo/reference/gemm_sliced.hpp>

namespace {

namespace cuda = ordo::cuda;
namespace reference = ordo::reference;
using ordo::bf16;
using ordo::test::device_vector;
using ordo::test::median_ms;
using ordo::test::random_bf16;
using ordo::test::random_f32;
using ordo::test::same_bits;

/// Slices in device memory.
template <int Slices>
struct sliced_memory {
  std::vector<device_vector<std::int8_t>*> plane;
  device_vector<std::int32_t> shift;
  std::int64_t rows, stride;

  sliced_memory(std::int64_t rows_, std::int64_t stride_, std::int64_t shifts = -1)
      : shift(static_cast<std::size_t>(shifts < 0 ? rows_ : shifts)), rows(rows_), stride(stride_) {
    for (int i = 0; i < Slices; ++i)
      plane.push_back(new device_vector<std::int8_t>(static_cast<std::size_t>(rows_ * stride_)));
  }
  ~sliced_memory() {
    for (auto* p : plane)
      delete p;
  }
  cuda::slices<Slices> view() const {
    cuda::slices<Slices> v{};
    for (int i = 0; i < Slices; ++i)
      v.slice[i] = plane[static_cast<std::size_t>(i)]->data();
    v.shift = shift.data();
    v.stride = stride;
    return v;
  }
};

template <class T>
std::vector<T> convert(const std::vector<float>& x) {
  std::vector<T> y;
  for (const float v : x) {
    if constexpr (std::is_same_v<T, float>)
      y.push_back(v);
    else
      y.push_back(ordo::arith::to_bf16(v));
  }
  return y;
}

/// Rows of very different sizes, with zeros, and with special rows where `special`.
std::vector<float> test_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed,
                               bool special) {
  auto x = random_f32(static_cast<std::size_t>(rows * columns), seed);
  std::mt19937_64 engine(seed + 7);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::uint64_t kind = engine() % (special ? 10 : 3);
    const int exponent = static_cast<int>(engine() % 40) - 20;
    for (std::int64_t c = 0; c < columns; ++c) {
      float& v = x[static_cast<std::size_t>(r * columns + c)];
      v = ordo::arith::scale_pow2(v, exponent);
      if (kind == 3)
        v = 0.0f;
      if (kind == 4)
        v = ordo::arith::scale_pow2(v, 120 - exponent);
      if (kind == 5)
        v = ordo::arith::scale_pow2(v, -118 - exponent);
      if (kind == 6)
        v = c % 3 == 0 ? 3e38f : -3e38f;
      if (engine() % 50 == 0)
        v = 0.0f;
    }
    if (columns > 0 && kind == 7)
      x[static_cast<std::size_t>(r * columns + columns / 2)] = std::nanf("");
    if (columns > 0 && kind == 8)
      x[static_cast<std::size_t>(r * columns + columns - 1)] = -HUGE_VALF;
  }
  return x;
}

template <int Slices, class T>
void check_slices(std::int64_t rows, std::int64_t columns, std::int64_t out_pad) {
  CAPTURE(rows);
  CAPTURE(columns);
  const auto x = convert<T>(test_matrix(rows, columns, 3 + rows * 1000 + columns, true));
  const device_vector<T> in(x);
  const auto value = [&](std::int64_t r, std::int64_t c) {
    return ordo::arith::to_f32(x[static_cast<std::size_t>(r * columns + c)]);
  };
  for (const bool by_column : {false, true}) {
    const std::int64_t m = by_column ? columns : rows, k = by_column ? rows : columns;
    sliced_memory<Slices> out(m, k + out_pad);
    if (by_column)
      cuda::slice_columns<Slices>(nullptr, in.data(), rows, columns, columns, out.view());
    else
      cuda::slice_rows<Slices>(nullptr, in.data(), rows, columns, columns, out.view());
    std::vector<std::int32_t> shifts;
    std::vector<std::vector<std::int8_t>> digits(Slices), found(Slices);
    for (int i = 0; i < Slices; ++i)
      found[static_cast<std::size_t>(i)] = out.plane[static_cast<std::size_t>(i)]->host();
    for (std::int64_t r = 0; r < m; ++r) {
      std::vector<float> row;
      for (std::int64_t c = 0; c < k; ++c)
        row.push_back(by_column ? value(c, r) : value(r, c));
      shifts.push_back(reference::row_shift(row, Slices));
      for (int i = 0; i < Slices; ++i)
        for (std::int64_t c = 0; c < k + out_pad; ++c)
          digits[static_cast<std::size_t>(i)].push_back(
              c < k ? reference::digit(reference::aligned(row[static_cast<std::size_t>(c)],
                                                          shifts.back(), Slices),
                                       i, Slices)
                    : static_cast<std::int8_t>(0xa5));
    }
    CHECK(same_bits(out.shift.host(), shifts));
    for (std::size_t i = 0; i < Slices; ++i)
      CHECK(same_bits(found[i], digits[i]));
  }
}

struct store {
  float* c;
  std::int64_t n;
  __device__ void operator()(std::int64_t m, std::int64_t n0, int count, const float* p) const {
    for (int i = 0; i < count; ++i)
      c[m * n + n0 + i] = p[i];
  }
};

template <int A, int B>
void check_product(std::int64_t m, std::int64_t n, std::int64_t k, bool special) {
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  const auto x = test_matrix(m, k, 11 + m, special), y = test_matrix(n, k, 12 + n, special);
  const device_vector<float> xd(x), yd(y);
  sliced_memory<A> a(m, k);
  sliced_memory<B> b(n, k);
  cuda::slice_rows<A>(nullptr, xd.data(), m, k, k, a.view());
  cuda::slice_rows<B>(nullptr, yd.data(), n, k, k, b.view());
  std::vector<float> expected(static_cast<std::size_t>(m * n));
  if (m * n * k < 20000)
    reference::gemm_sliced(A, B, m, n, k, x, y, expected);
  else // the same, with each row aligned once
    reference::sliced_contraction{A, B}(static_cast<std::size_t>(m), static_cast<std::size_t>(n),
                                        static_cast<std::size_t>(k), x, y, expected);
  device_vector<float> c(expected.size()), general(expected.size());
  cuda::gemm_sliced(nullptr, a.view(), b.view(), m, n, k, store{c.data(), n});
  cuda::gemm_sliced_general(nullptr, a.view(), b.view(), m, n, k, store{general.data(), n});
  CHECK(same_bits(general.host(), expected));
  CHECK(same_bits(c.host(), expected));
}

/// Digits as large as they may be, of one sign or of both, or any.
std::vector<std::int8_t> digits(std::size_t n, bool top, int kind, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::int8_t> x(n);
  for (auto& d : x) {
    const int most = top ? 127 : 63, least = top ? -127 : -64;
    const auto r = static_cast<int>(engine() % static_cast<unsigned>(most - least + 1));
    d = static_cast<std::int8_t>(kind == 0   ? least + r
                                 : kind == 1 ? most
                                 : kind == 2 ? least
                                             : (r % 2 == 0 ? most : least));
  }
  return x;
}

struct code_matrix {
  std::vector<std::int8_t> low, high;
  std::vector<std::int32_t> shift;
  device_vector<std::int8_t> low_device, high_device;
  device_vector<std::int32_t> shift_device;
  std::int64_t k;

  code_matrix(std::int64_t rows, std::int64_t k_, int kind, std::vector<std::int32_t> shift_,
              std::uint64_t seed)
      : low(digits(static_cast<std::size_t>(rows * k_), false, kind, seed)),
        high(digits(static_cast<std::size_t>(rows * k_), true, kind, seed + 1)),
        shift(std::move(shift_)), low_device(low), high_device(high), shift_device(shift), k(k_) {}
  cuda::slices<2> view() const {
    return {{low_device.data(), high_device.data()}, shift_device.data(), k};
  }
  std::int64_t value(std::int64_t r, std::int64_t c) const {
    const auto at = static_cast<std::size_t>(r * k + c);
    return std::int64_t{high[at]} * 128 + low[at];
  }
};

std::vector<std::int32_t> some_shifts(std::int64_t n, std::int32_t around, int spread,
                                      std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::int32_t> s;
  for (std::int64_t i = 0; i < n; ++i)
    s.push_back(around + static_cast<std::int32_t>(engine() % static_cast<unsigned>(spread)) -
                spread / 2);
  return s;
}

float rounded(std::int64_t sum, std::int32_t s, std::int32_t t) {
  return ordo::detail::sliced_value(sum, s, t);
}

void check_codes(std::int64_t m, std::int64_t n, std::int64_t k, int kind_a, int kind_b,
                 std::int32_t around, int spread) {
  CAPTURE(k);
  CAPTURE(kind_a);
  CAPTURE(kind_b);
  CAPTURE(around);
  const code_matrix a(m, k, kind_a, some_shifts(m, around, spread, 5), 100 + kind_a);
  const code_matrix b(n, k, kind_b, some_shifts(n, around, spread, 6), 200 + kind_b);
  std::vector<float> expected;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      std::int64_t sum = 0;
      for (std::int64_t p = 0; p < k; ++p)
        sum += a.value(i, p) * b.value(j, p);
      expected.push_back(
          rounded(sum, a.shift[static_cast<std::size_t>(i)], b.shift[static_cast<std::size_t>(j)]));
    }
  device_vector<float> c(expected.size());
  cuda::gemm_sliced(nullptr, a.view(), b.view(), m, n, k, store{c.data(), n});
  CHECK(same_bits(c.host(), expected));
}

void check_blocks(std::int64_t m, std::int64_t n, std::int64_t blocks, int kind_a, int kind_b,
                  std::int32_t around, int spread, bool starts, bool damaged) {
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(blocks);
  CAPTURE(kind_a);
  CAPTURE(around);
  const std::int64_t k = blocks * 256, a_pitch = m + 3, b_pitch = n + 5;
  code_matrix a(m, k, kind_a, some_shifts(a_pitch * blocks, around, spread, 5), 100 + kind_a);
  code_matrix b(n, k, kind_b, some_shifts(b_pitch * blocks, around, spread, 6), 200 + kind_b);
  if (damaged) {
    a.shift[static_cast<std::size_t>(m / 2)] = ordo::sliced_non_finite;
    cuda::check(cudaMemcpy(a.shift_device.data(), a.shift.data(), a.shift.size() * 4,
                           cudaMemcpyHostToDevice),
                "test");
  }
  std::vector<std::int32_t> range;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const auto* first = b.shift.data() + i * b_pitch;
    range.push_back(*std::min_element(first, first + n));
    range.push_back(*std::max_element(first, first + n));
  }
  const device_vector<std::int32_t> range_device(range);
  auto expected = random_f32(static_cast<std::size_t>(m * n), 9, 0x1p-10f);
  device_vector<float> c(expected);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      float& total = expected[static_cast<std::size_t>(i * n + j)];
      total = starts ? 0.0f : total;
      for (std::int64_t block = 0; block < blocks; ++block) {
        std::int64_t sum = 0;
        for (std::int64_t p = block * 256; p < block * 256 + 256; ++p)
          sum += a.value(i, p) * b.value(j, p);
        const float part = rounded(sum, a.shift[static_cast<std::size_t>(block * a_pitch + i)],
                                   b.shift[static_cast<std::size_t>(block * b_pitch + j)]);
        total = ordo::arith::canonical(ordo::arith::add(total, part));
      }
    }
  cuda::add_block_products(nullptr, {a.view(), b.view(), a_pitch, b_pitch, range_device.data(), m,
                                     n, blocks, c.data(), n, starts});
  CHECK(same_bits(c.host(), expected));
}

__global__ void fill_kernel(std::uint32_t* x, std::int64_t words, std::uint32_t seed,
                            std::uint32_t keep, std::uint32_t flip) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x; i < words;
       i += std::int64_t{gridDim.x} * 256) {
    std::uint32_t h = static_cast<std::uint32_t>(i) * 2654435761u + seed;
    h = (h ^ (h >> 15)) * 0x2c1b3c6du;
    h = (h ^ (h >> 12)) * 0x297a2d39u;
    h ^= h >> 15;
    x[i] = ((h & keep) ^ flip) | (((h & keep) ^ flip) & (flip)) << 1;
  }
}

/// Random digits: low ones in [-64, 63], high ones in [-127, 127] (of a smaller range).
void fill(std::int8_t* x, std::int64_t bytes, std::uint32_t seed) {
  fill_kernel<<<2048, 256>>>(reinterpret_cast<std::uint32_t*>(x), bytes / 4, seed, 0x7f7f7f7fu,
                             0x40404040u);
  cuda::check(cudaGetLastError(), "fill");
}

__global__ void difference_kernel(const std::uint32_t* a, const std::uint32_t* b, std::int64_t n,
                                  unsigned long long* different) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * 256)
    if (a[i] != b[i])
      atomicAdd(different, 1ull);
}

} // namespace

TEST_CASE("slices are those of the definition") {
  for (const std::int64_t rows : {0, 1, 2, 7, 33}) {
    for (const std::int64_t columns : {0, 1, 3, 4, 31, 64, 129, 256, 1000}) {
      check_slices<2, float>(rows, columns, 0);
      check_slices<2, bf16>(rows, columns, 0);
      check_slices<3, float>(rows, columns, 3);
      check_slices<3, bf16>(rows, columns, 8);
    }
  }
  for (const std::int64_t rows : {255, 256, 257, 1030}) {
    check_slices<2, float>(rows, 36, 0);
    check_slices<2, bf16>(rows, 31, 1);
    check_slices<3, bf16>(rows, 40, 0);
  }
}

TEST_CASE("products of all kinds of slices") {
  for (const std::int64_t m : {0, 1, 2, 65}) {
    for (const std::int64_t n : {0, 1, 63, 64, 130}) {
      for (const std::int64_t k : {0, 1, 16, 63, 64, 80, 129}) {
        check_product<2, 2>(m, n, k, true);
        check_product<2, 3>(m, n, k, true);
        check_product<3, 2>(m, n, k, true);
        check_product<3, 3>(m, n, k, true);
      }
    }
  }
}

TEST_CASE("products of two slices around the tile") {
  for (const std::int64_t m : {1, 127, 128, 129, 300}) {
    for (const std::int64_t n : {1, 2, 127, 128, 257}) {
      for (const std::int64_t k : {16, 48, 64, 512, 528}) {
        check_product<2, 2>(m, n, k, false);
        check_product<2, 2>(m, n, k, true);
      }
    }
  }
}

TEST_CASE("largest digits, any shifts, long contractions") {
  for (const int kind_a : {0, 1, 2, 3})
    for (const int kind_b : {0, 1, 2})
      for (const std::int32_t around : {10, 62, 75, -39, 150}) {
        check_codes(130, 20, 2048, kind_a, kind_b, around, 20);
        check_codes(5, 3, 65536, kind_a, kind_b, around, 4);
        check_codes(3, 5, 65552, kind_a, kind_b, around, 4);
      }
  check_codes(2, 3, 132096, 1, 2, 0, 2);
  check_codes(2, 3, 132096, 2, 2, 0, 2);
}

TEST_CASE("products of blocks, each rounded and added") {
  for (const int kind_a : {0, 1, 2, 3})
    for (const std::int32_t around : {14, 62, 110, -39})
      for (const bool starts : {true, false}) {
        check_blocks(130, 140, 3, kind_a, 0, around, 20, starts, false);
        check_blocks(20, 17, 5, kind_a, 1, around, 6, starts, false);
      }
  check_blocks(300, 33, 1, 3, 2, 14, 4, true, true);
  check_blocks(64, 128, 8, 0, 0, 16, 4, false, true);
  check_blocks(1, 1, 1, 0, 0, 16, 4, true, false);
}

TEST_CASE("speed") {
  const std::int64_t m = 2048, n = 128256, k = 2048;
  sliced_memory<2> rows(m, k), words(n, k), features(k, n), weights(m, n), by_word(n, m),
      by_feature(k, m, 8 * k);
  int seed = 1;
  for (auto* x : {&rows, &words, &features, &weights, &by_word, &by_feature})
    for (auto* p : x->plane)
      fill(p->data(), static_cast<std::int64_t>(p->size()), static_cast<std::uint32_t>(++seed));
  const auto shifts = [](device_vector<std::int32_t>& s, std::int32_t value) {
    const std::vector<std::int32_t> all(s.size(), value);
    cuda::check(cudaMemcpy(s.data(), all.data(), all.size() * 4, cudaMemcpyHostToDevice), "test");
  };
  for (auto* x : {&rows, &words, &features, &weights, &by_feature})
    shifts(x->shift, 14);
  device_vector<std::int32_t> word_shift(static_cast<std::size_t>(8 * n)), range(16);
  shifts(word_shift, 40);
  shifts(range, 14);
  device_vector<float> c(static_cast<std::size_t>(m * n));
  const auto report = [&](const char* name, double ms, double products) {
    const double operations = 4.0 * 2.0 * products;
    std::printf("%-28s %8.3f ms  %7.1f TOPS (floor at 1400: %.3f ms)\n", name, ms,
                operations / ms * 1e-9, operations / 1.4e12);
  };
  const double products = 1.0 * m * n * k;
  report("logits 2048x128256x2048",
         median_ms(
             [&] {
               cuda::gemm_sliced(nullptr, rows.view(), words.view(), m, n, k, store{c.data(), n});
             },
             5),
         products);
  device_vector<float> d(static_cast<std::size_t>(m * k));
  report("d_h    2048x2048x128256",
         median_ms(
             [&] {
               cuda::gemm_sliced(nullptr, weights.view(), features.view(), m, k, n,
                                 store{d.data(), k});
             },
             5),
         products);
  auto word_view = by_word.view();
  word_view.shift = word_shift.data();
  const cuda::block_products blocks{word_view, by_feature.view(), n, k,    range.data(), n, k,
                                    8,         c.data(),          k, false};
  report("d_w    128256x2048x8x256",
         median_ms([&] { cuda::add_block_products(nullptr, blocks); }, 5), products);
  const std::int64_t some = 8192;
  device_vector<float> general(static_cast<std::size_t>(m * some));
  report("general 2048x8192x2048",
         median_ms(
             [&] {
               cuda::gemm_sliced_general(nullptr, rows.view(), words.view(), m, some, k,
                                         store{general.data(), some});
             },
             3),
         1.0 * m * some * k);
  cuda::gemm_sliced(nullptr, rows.view(), words.view(), m, some, k, store{c.data(), some});
  device_vector<unsigned long long> different(std::vector<unsigned long long>{0});
  difference_kernel<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(c.data()),
                                   reinterpret_cast<std::uint32_t*>(general.data()), m * some,
                                   different.data());
  CHECK(different.host()[0] == 0);
  const device_vector<bf16> w(random_bf16(1 << 20, 5));
  device_vector<bf16> head(static_cast<std::size_t>(n * k));
  for (std::int64_t i = 0; i < n * k; i += 1 << 20)
    cuda::check(cudaMemcpy(head.data() + i, w.data(),
                           static_cast<std::size_t>(std::min<std::int64_t>(1 << 20, n * k - i)) * 2,
                           cudaMemcpyDeviceToDevice),
                "test");
  const auto bytes = [&](const char* name, double ms, double moved) {
    std::printf("%-28s %8.3f ms  %7.1f GB/s (floor at 4.3 TB/s: %.3f ms)\n", name, ms,
                moved / ms * 1e-6, moved / 4.3e9);
  };
  bytes("slice_rows 128256x2048",
        median_ms([&] { cuda::slice_rows<2>(nullptr, head.data(), n, k, k, words.view()); }, 5),
        4.0 * n * k);
  bytes(
      "slice_columns 128256x2048",
      median_ms([&] { cuda::slice_columns<2>(nullptr, head.data(), n, k, k, features.view()); }, 5),
      4.0 * n * k);
}
