// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>

#include "device_fixture.hpp"

#include <ordo/cuda/gemm_int8.hpp>
#include <ordo/reference/gemm_int8.hpp>

namespace {

using namespace ordo;
using cuda::gemm_int8_kernel;
using cuda::int8_operands;
using test::device_vector;

constexpr gemm_int8_kernel kernels[] = {gemm_int8_kernel::wgmma, gemm_int8_kernel::mma,
                                        gemm_int8_kernel::dot};

const char* name_of(gemm_int8_kernel kernel) {
  return kernel == gemm_int8_kernel::wgmma ? "wgmma"
         : kernel == gemm_int8_kernel::mma ? "mma"
                                           : "dot";
}

/// Rows of `columns` entries at distance `stride`, of which the last has no padding.
template <class T>
std::vector<T> spread(const std::vector<T>& x, std::int64_t rows, std::int64_t columns,
                      std::int64_t stride, T padding) {
  std::vector<T> y(static_cast<std::size_t>(rows == 0 ? 0 : (rows - 1) * stride + columns),
                   padding);
  for (std::int64_t r = 0; r < rows; ++r)
    std::copy_n(x.begin() + r * columns, columns, y.begin() + r * stride);
  return y;
}

/// A product on the device, rows `extra` entries longer than they need be and bases `offset`
/// entries late, and its sums on the host.
struct operands {
  std::int64_t m, n, k, a_stride, b_stride, offset;
  std::vector<std::int8_t> a, b;
  std::vector<std::int32_t> sums;
  device_vector<std::int8_t> device_a, device_b;

  operands(std::int64_t m_, std::int64_t n_, std::int64_t k_, std::int64_t extra = 0,
           std::int64_t offset_ = 0)
      : m(m_), n(n_), k(k_), a_stride(k_ + extra), b_stride(k_ + 2 * extra), offset(offset_),
        a(test::random_codes(static_cast<std::size_t>(m * k), 1)),
        b(test::random_codes(static_cast<std::size_t>(n * k), 2)),
        sums(static_cast<std::size_t>(m * n)), device_a(late(a, m, a_stride)),
        device_b(late(b, n, b_stride)) {
    reference::gemm_int8(m, n, k, a, b, sums);
  }
  std::vector<std::int8_t> late(const std::vector<std::int8_t>& x, std::int64_t rows,
                                std::int64_t stride) const {
    std::vector<std::int8_t> y = spread<std::int8_t>(x, rows, k, stride, 99);
    y.insert(y.begin(), static_cast<std::size_t>(offset), 99);
    return y;
  }
  int8_operands view() const {
    return {device_a.data() + offset, a_stride, device_b.data() + offset, b_stride, m, n, k};
  }
};

struct extents {
  std::int64_t m, n, k;
};

void check_sums(const operands& x) {
  for (const auto kernel : kernels) {
    CAPTURE(name_of(kernel));
    CAPTURE(ordo::shape(x.m, x.n, x.k));
    const std::int64_t stride = x.n + 3;
    device_vector<std::int32_t> c(static_cast<std::size_t>(x.m * stride));
    const auto before = c.host();
    cuda::gemm_int8(nullptr, x.view(), cuda::store_sums{c.data(), stride}, kernel);
    auto expected = before;
    for (std::int64_t m = 0; m < x.m; ++m)
      std::copy_n(x.sums.begin() + m * x.n, x.n, expected.begin() + m * stride);
    CHECK(test::same_bits(c.host(), expected));
  }
}

} // namespace

TEST_CASE("sums of all kernels") {
  for (const extents& e : {extents{0, 5, 7},
                           {5, 0, 7},
                           {3, 2, 0},
                           {1, 1, 1},
                           {1, 1, 128},
                           {7, 9, 31},
                           {64, 64, 64},
                           {16, 256, 32},
                           {127, 255, 129},
                           {128, 256, 128},
                           {129, 257, 127},
                           {257, 513, 384},
                           {300, 200, 1040},
                           {1, 700, 272},
                           {700, 1, 272},
                           {512, 512, 640}})
    check_sums(operands(e.m, e.n, e.k));
  check_sums(operands(130, 260, 144, 16));
  check_sums(operands(130, 260, 140, 4, 16));
  check_sums(operands(65, 70, 77, 3, 5));
  check_sums(operands(200, 300, 160, 0, 1));
}

TEST_CASE("the kernel that is wanted runs where it can") {
  const operands x(130, 260, 144), unaligned(20, 30, 33);
  for (const auto kernel : kernels)
    CHECK(cuda::gemm_int8_choice(x.view(), kernel) == kernel);
  CHECK(cuda::gemm_int8_choice(x.view()) == gemm_int8_kernel::wgmma);
  CHECK(cuda::gemm_int8_choice(unaligned.view(), gemm_int8_kernel::wgmma) == gemm_int8_kernel::mma);
}

TEST_CASE("the longest contraction of the largest codes") {
  for (const std::int64_t k :
       {std::int64_t{133144}, std::int64_t{133136}}) { // the second: aligned rows
    const std::vector<std::int8_t> a(static_cast<std::size_t>(2 * k), 127);
    std::vector<std::int8_t> b(a);
    std::fill(b.begin() + k, b.end(), std::int8_t{-127});
    const device_vector<std::int8_t> a_there(a), b_there(b);
    const auto sum = static_cast<std::int32_t>(k * 127 * 127);
    for (const auto kernel : kernels) {
      const device_vector<std::int32_t> c(4);
      cuda::gemm_int8(nullptr, {a_there.data(), k, b_there.data(), k, 2, 2, k},
                      cuda::store_sums{c.data(), 2}, kernel);
      CHECK(c.host() == std::vector<std::int32_t>{sum, -sum, sum, -sum});
    }
  }
}

TEST_CASE("an epilogue of one's own") {
  const operands x(150, 270, 208);
  for (const auto kernel : kernels) {
    device_vector<std::int64_t> out(x.sums.size());
    std::int64_t* const to = out.data();
    const std::int64_t n_total = x.n;
    cuda::gemm_int8(
        nullptr, x.view(),
        [=] __device__(std::int64_t m, std::int64_t n0, int count, const std::int32_t* c) {
          for (int j = 0; j < count; ++j)
            to[m * n_total + n0 + j] = 3 * std::int64_t{c[j]} + m;
        },
        kernel);
    std::vector<std::int64_t> expected(x.sums.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = 3 * std::int64_t{x.sums[i]} + static_cast<std::int64_t>(i) / x.n;
    CHECK(test::same_bits(test::canonical(out.host()), test::canonical(expected)));
  }
}

namespace {

/// Factors of the ordinary size, or with all that rules treat apart.
std::vector<float> factors(std::int64_t n, std::uint64_t seed, int kind) {
  std::vector<float> x = test::random_f32(static_cast<std::size_t>(n), seed, 0x1p-9f);
  const float infinity = std::numeric_limits<float>::infinity();
  const float odd[] = {0.0f,     -0.0f,    0x1p-126f, -0x1.8p-126f, 0x1p-75f, 0x1p-63f,
                       0x1p-90f, 0x1p100f, infinity,  -infinity,    0x1p127f, std::nanf("")};
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (kind == 1 && i % 5 == 0)
      x[i] = 0.0f;
    if (kind == 2 && i % 3 == 0)
      x[i] = odd[i / 3 % std::size(odd)];
    if (kind == 3)
      x[i] = arith::mul(x[i], 0x1p-60f);
    if (kind == 4)
      x[i] = arith::mul(x[i], 0x1p60f);
  }
  return x;
}

template <class Out>
std::vector<Out> filled(std::size_t n) {
  std::vector<Out> x(n);
  std::memset(x.data(), 0xa5, n * sizeof(Out));
  return x;
}

template <class Out, row_factor Rows, bool Masked>
void check_scaled(const operands& x, int kind, std::int64_t extra) {
  CAPTURE(ordo::shape(x.m, x.n, x.k));
  CAPTURE(kind);
  CAPTURE(extra);
  const bool each = Rows == row_factor::each;
  const std::int64_t stride = x.n + extra;
  const auto row = factors(each ? x.m : 1, 3, kind == 2 && !each ? 0 : kind);
  const auto column = factors(x.n, 4, kind);
  auto step = test::random_f32(static_cast<std::size_t>(x.m), 5, 0.01f);
  for (std::size_t i = 0; i < step.size(); ++i)
    step[i] = i % 7 == 0 ? 0.0f : arith::abs(step[i]);
  const auto weight = test::random_bf16(static_cast<std::size_t>(x.m * x.n), 6);
  const device_vector<float> row_there(row), column_there(column), step_there(step);
  const device_vector<bf16> weight_there(spread(weight, x.m, x.n, stride, bf16{0x7fc0}));
  auto expected = filled<Out>(static_cast<std::size_t>(x.m == 0 ? 0 : (x.m - 1) * stride + x.n));
  for (std::int64_t m = 0; m < x.m; ++m)
    for (std::int64_t n = 0; n < x.n; ++n) {
      const auto at = static_cast<std::size_t>(m * x.n + n);
      float g = arith::mul(arith::from_int(x.sums[at]),
                           arith::mul(row[static_cast<std::size_t>(each ? m : 0)],
                                      column[static_cast<std::size_t>(n)]));
      if (Masked) {
        const float inverse = quant::inverse_step(step[static_cast<std::size_t>(m)]);
        if (arith::abs(arith::mul(arith::to_f32(weight[at]), inverse)) >= 127.5f)
          g = 0.0f;
      }
      auto& to = expected[static_cast<std::size_t>(m * stride + n)];
      if constexpr (std::is_same_v<Out, bf16>)
        to = arith::to_bf16(g);
      else
        to = g;
    }
  for (const auto kernel : kernels) {
    CAPTURE(name_of(kernel));
    device_vector<Out> out(expected.size());
    using store = scaled_store<Out, Rows, Masked>;
    cuda::gemm_int8(nullptr, x.view(),
                    store{out.data(), stride, row_there.data(), column_there.data(),
                          weight_there.data(), step_there.data()},
                    kernel);
    CHECK(test::same_bits(test::canonical(out.host()), test::canonical(expected)));
  }
}

} // namespace

TEST_CASE("scaled stores") {
  for (const extents& e : {extents{0, 5, 16},
                           {1, 1, 16},
                           {5, 8, 0},
                           {64, 64, 64},
                           {33, 72, 48},
                           {129, 264, 144},
                           {300, 520, 272},
                           {257, 1032, 1040}}) {
    const operands x(e.m, e.n, e.k);
    for (int kind = 0; kind < 5; ++kind) {
      check_scaled<bf16, row_factor::common, false>(x, kind, 0);
      check_scaled<bf16, row_factor::each, false>(x, kind, 0);
      check_scaled<float, row_factor::each, true>(x, kind, 0);
    }
  }
  for (const std::int64_t extra : {1, 3, 7}) { // rows of 256 entries for 249 and for 253
    const operands x(131, extra == 7 ? 249 : extra == 3 ? 253 : 264, 80);
    check_scaled<bf16, row_factor::common, false>(x, 2, extra);
    check_scaled<bf16, row_factor::each, false>(x, 0, extra);
    check_scaled<float, row_factor::each, true>(x, 0, extra);
    check_scaled<float, row_factor::common, false>(x, 2, extra);
  }
}

namespace {

__global__ void fill_codes(std::int8_t* x, std::int64_t n, std::uint32_t seed, bool narrow) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    std::uint32_t h = (static_cast<std::uint32_t>(i) + seed) * 0x9e3779b9u;
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    h ^= h >> 16;
    // Narrow: the sum of four, which spreads by about 18.
    const int wide = static_cast<int>(h % 255u) - 127;
    const int sum = static_cast<int>(h & 31u) + static_cast<int>(h >> 5 & 31u) +
                    static_cast<int>(h >> 10 & 31u) + static_cast<int>(h >> 15 & 31u) - 62;
    x[i] = static_cast<std::int8_t>(narrow ? sum : wide);
  }
}

/// A product too large for the reference, and a store of its kind.
template <class Out, row_factor Rows, bool Masked>
struct large_product {
  extents e;
  device_vector<std::int8_t> a, b;
  device_vector<float> row, column, step;
  device_vector<bf16> weight;
  device_vector<Out> out;

  explicit large_product(extents e_, bool narrow = false)
      : e(e_), a(size(e.m, e.k)), b(size(e.n, e.k)),
        row(test::random_f32(size(Rows == row_factor::each ? e.m : 1, 1), 7, 0x1p-9f)),
        column(test::random_f32(size(e.n, 1), 8, 0x1p-9f)),
        step(std::vector<float>(size(Masked ? e.m : 0, 1), 0.01f)),
        weight(Masked ? test::random_bf16(size(e.m, e.n), 9) : std::vector<bf16>{}),
        out(size(e.m, e.n)) {
    fill_codes<<<1024, 256>>>(a.data(), e.m * e.k, 1u, narrow);
    fill_codes<<<1024, 256>>>(b.data(), e.n * e.k, 77u, narrow);
  }
  static std::size_t size(std::int64_t rows, std::int64_t columns) {
    return static_cast<std::size_t>(rows * columns);
  }
  void run(gemm_int8_kernel kernel) const {
    using store = scaled_store<Out, Rows, Masked>;
    cuda::gemm_int8(nullptr, {a.data(), e.k, b.data(), e.k, e.m, e.n, e.k},
                    store{out.data(), e.n, row.data(), column.data(), weight.data(), step.data()},
                    kernel);
  }
};

template <class Out, row_factor Rows, bool Masked>
void check_large(extents e) {
  CAPTURE(ordo::shape(e.m, e.n, e.k));
  const large_product<Out, Rows, Masked> x(e);
  x.run(gemm_int8_kernel::mma);
  const auto expected = x.out.host();
  for (int i = 0; i < 10; ++i) {
    cuda::check(cudaMemset(x.out.data(), 0xa5, x.out.size() * sizeof(Out)), "test");
    x.run(gemm_int8_kernel::wgmma);
    const auto found = x.out.host();
    CHECK(test::same_bits(found, expected));
  }
  const auto a = x.a.host(), b = x.b.host();
  const auto row = x.row.host(), column = x.column.host(), step = x.step.host();
  const auto weight = x.weight.host();
  std::mt19937_64 engine(10);
  for (int i = 0; i < 500; ++i) {
    const auto m = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(e.m));
    const auto n = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(e.n));
    std::int64_t sum = 0;
    for (std::int64_t k = 0; k < e.k; ++k)
      sum += std::int64_t{a[static_cast<std::size_t>(m * e.k + k)]} *
             b[static_cast<std::size_t>(n * e.k + k)];
    const float f = arith::mul(row[static_cast<std::size_t>(Rows == row_factor::each ? m : 0)],
                               column[static_cast<std::size_t>(n)]);
    float g = arith::mul(arith::from_int(sum), f);
    const auto at = static_cast<std::size_t>(m * e.n + n);
    if (Masked &&
        arith::abs(arith::mul(arith::to_f32(weight[at]),
                              quant::inverse_step(step[static_cast<std::size_t>(m)]))) >= 127.5f)
      g = 0.0f;
    if constexpr (std::is_same_v<Out, bf16>)
      CHECK(expected[at] == arith::to_bf16(g));
    else
      CHECK(arith::bits(expected[at]) == arith::bits(g));
  }
}

template <class Out, row_factor Rows, bool Masked>
void time(const char* name, extents e, bool narrow = false,
          gemm_int8_kernel kernel = gemm_int8_kernel::wgmma) {
  const large_product<Out, Rows, Masked> x(e, narrow);
  const double ms = test::median_ms([&] { x.run(kernel); }, 15);
  const double operations =
      2.0 * static_cast<double>(e.m) * static_cast<double>(e.n) * static_cast<double>(e.k);
  std::printf("%-22s %6lld x %6lld x %6lld %s %s: %7.3f ms %6.0f TOPS; at 1,400 TOPS %.3f ms\n",
              name, static_cast<long long>(e.m), static_cast<long long>(e.n),
              static_cast<long long>(e.k), narrow ? "narrow" : "wide  ", name_of(kernel), ms,
              operations / ms * 1e-9, operations / 1.4e12);
}

} // namespace

TEST_CASE("large products") {
  check_large<bf16, row_factor::common, false>({4096, 5632, 2048});
  check_large<bf16, row_factor::each, false>({2176, 2056, 5632});
  check_large<float, row_factor::each, true>({2048, 2048, 16384});
}

TEST_CASE("speed") {
  using enum row_factor;
  for (const bool narrow : {false, true}) {
    time<bf16, common, false>("forward", {16384, 11264, 2048}, narrow);
    time<bf16, common, false>("forward", {16384, 2048, 5632}, narrow);
  }
  time<bf16, common, false>("forward", {16384, 3072, 2048});
  time<bf16, common, false>("forward", {16384, 2048, 2048});
  time<bf16, each, false>("input gradient", {16384, 2048, 11264});
  time<bf16, each, false>("input gradient", {16384, 5632, 2048});
  time<bf16, each, false>("input gradient", {16384, 2048, 3072});
  time<bf16, each, false>("input gradient", {16384, 2048, 2048});
  time<float, each, true>("weight gradient", {11264, 2048, 16384});
  time<float, each, true>("weight gradient", {2048, 5632, 16384});
  time<float, each, true>("weight gradient", {3072, 2048, 16384});
  time<float, each, true>("weight gradient", {2048, 2048, 16384});
  time<bf16, common, false>("forward", {16384, 2048, 5632}, false, gemm_int8_kernel::mma);
  time<bf16, common, false>("forward", {4096, 2048, 2048}, false, gemm_int8_kernel::dot);
}
