// SPDX-License-Identifier: Apache-2.0
// ctest: THREADS 1 2 3 7

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ordo/nn/attention.hpp>
#include <ordo/reference/attention_backward.hpp>

#include "attention_oracle.hpp"

using namespace ordo;

namespace {

using blocks_64 = nn::AttentionBlocks<64, 64>;
constexpr float eps = 1e-6f;
constexpr double theta = 10000.0;

std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// Roughly normal bf16 numbers: sums of four uniform ones.
std::vector<bf16> numbers(std::int64_t count, float scale, std::uint32_t seed) {
  std::vector<bf16> x;
  std::uint32_t state = seed * 2654435761u + 12345u;
  for (std::int64_t i = 0; i < count; ++i) {
    float sum = 0.0f;
    for (int k = 0; k < 4; ++k) {
      state = state * 1664525u + 1013904223u;
      sum = arith::add(sum, static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
    }
    x.push_back(arith::to_bf16(arith::mul(sum, scale)));
  }
  return x;
}

struct problem {
  nn::attention_shape s;
  std::vector<bf16> qkv, d_out;
  explicit problem(const nn::attention_shape& shape, float scale = 1.0f)
      : s(shape), qkv(numbers(s.tokens() * s.qkv_width(), 1.0f, 1)),
        d_out(numbers(s.tokens() * s.out_width(), scale, 2)) {}
  bf16& at(std::int64_t token, std::int64_t column) {
    return qkv[size(token * s.qkv_width() + column)];
  }
};

struct result {
  std::vector<bf16> out, d_qkv;
  std::vector<float> lse;
};

bool same(const result& a, const result& b) {
  const auto bits = [](float x, float y) { return arith::bits(x) == arith::bits(y); };
  return a.out == b.out && a.d_qkv == b.d_qkv &&
         std::equal(a.lse.begin(), a.lse.end(), b.lse.begin(), b.lse.end(), bits);
}

result empty_result(const nn::attention_shape& s) {
  return {std::vector<bf16>(size(s.tokens() * s.out_width())),
          std::vector<bf16>(size(s.tokens() * s.qkv_width())),
          std::vector<float>(size(s.batch * s.heads * s.seq))};
}

template <class Blocks>
result by_reference(const problem& p, Blocks blocks) {
  result r = empty_result(p.s);
  std::vector<float> c(size(p.s.seq * p.s.head_dim / 2)), s(c.size());
  reference::rope_table(theta, p.s.head_dim, p.s.seq, c, s);
  reference::attention_forward(blocks, p.s, c, s, eps, p.qkv, r.out, r.lse);
  reference::attention_backward(blocks, p.s, c, s, eps, p.qkv, r.out, r.lse, p.d_out, r.d_qkv);
  return r;
}

template <class Space, class Blocks>
result by_kernel(const problem& p, Blocks blocks) {
  using matrix = Kokkos::View<bf16**, Kokkos::LayoutRight, typename Space::memory_space>;
  const Space space;
  const auto copy = [](const std::vector<bf16>& from, std::int64_t rows, std::int64_t columns) {
    matrix m("m", size(rows), size(columns));
    std::copy(from.begin(), from.end(), m.data());
    return m;
  };
  const std::int64_t rows = p.s.tokens();
  const matrix qkv = copy(p.qkv, rows, p.s.qkv_width()),
               d_out = copy(p.d_out, rows, p.s.out_width());
  const matrix out("out", size(rows), size(p.s.out_width()));
  const matrix d_qkv("d_qkv", size(rows), size(p.s.qkv_width()));
  const nn::rope_table<Space> rope(theta, p.s.head_dim, p.s.seq);
  nn::attention_saved<Space> saved(p.s);
  nn::attention_scratch<Space, Blocks> scratch(p.s);
  nn::attention_forward(space, blocks, p.s, rope, eps, qkv, out, saved, scratch);
  nn::attention_backward(space, blocks, p.s, rope, eps, qkv, out, saved, d_out, d_qkv, scratch);
  const float* lse = saved.log_sum_exp.data();
  return {std::vector<bf16>(out.data(), out.data() + out.size()),
          std::vector<bf16>(d_qkv.data(), d_qkv.data() + d_qkv.size()),
          std::vector<float>(lse, lse + saved.log_sum_exp.size())};
}

/// Every instruction set of this processor, in one space.
template <class Space, class Blocks>
void check_space(const problem& p, Blocks blocks, const result& wanted) {
  for (const cpu::isa level : {cpu::isa::portable, cpu::isa::avx2, cpu::isa::avx512}) {
    if (!cpu::supported(level))
      continue;
    CAPTURE(static_cast<int>(level));
    cpu::force_isa(level);
    CHECK(same(by_kernel<Space>(p, blocks), wanted));
  }
  cpu::force_isa(cpu::best_isa());
}

template <class Blocks>
void check_all(const problem& p, Blocks blocks) {
  CAPTURE(p.s.seq);
  CAPTURE(p.s.window);
  CAPTURE(p.s.head_dim);
  const result wanted = by_reference(p, blocks);
#if defined(KOKKOS_ENABLE_SERIAL)
  check_space<Kokkos::Serial>(p, blocks, wanted);
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
  check_space<Kokkos::OpenMP>(p, blocks, wanted);
#endif
}

bool is_nan(bf16 x) {
  return arith::is_nan(arith::to_f32(x));
}

/// Whether all (or any) of columns [begin, end) of a token's row satisfy `f`.
template <class F>
bool all_of(const std::vector<bf16>& m, std::int64_t width, std::int64_t row, std::int64_t begin,
            std::int64_t end, const F& f) {
  for (std::int64_t c = begin; c < end; ++c) {
    if (!f(m[size(row * width + c)]))
      return false;
  }
  return true;
}

struct rope_vector {
  double theta;
  std::int64_t head_dim, position, pair;
  std::uint32_t cosine, sine;
};
constexpr rope_vector rope_vectors[] = {
    {10000, 64, 255, 0, 0xbf5cbfeeu, 0xbf01a2e2u},
    {10000, 64, 255, 1, 0xbf6a5c12u, 0x3ece065bu},
    {10000, 64, 255, 7, 0xbf59e193u, 0x3f0666d2u},
    {10000, 64, 255, 31, 0x3f7fda1du, 0x3d0b41beu},
    {10000, 64, 256, 0, 0xbd22fba3u, 0xbf7fcc19u},
    {10000, 64, 256, 1, 0xbf71b45cu, 0xbea8b335u},
    {10000, 64, 256, 7, 0xbf69d102u, 0x3ed07aa2u},
    {10000, 64, 256, 31, 0x3f7fd9d1u, 0x3d0bcd7eu},
    {10000, 64, 257, 0, 0x3f51be02u, 0xbf12c789u},
    {10000, 64, 257, 1, 0xbeeec2adu, 0xbf6275e4u},
    {10000, 64, 257, 7, 0xbf759997u, 0x3e9073f3u},
    {10000, 64, 257, 31, 0x3f7fd984u, 0x3d0c593du},
    {10000, 64, 4095, 0, 0xbd871e6cu, 0xbf7f7136u},
    {10000, 64, 4095, 1, 0xbdb822c8u, 0xbf7ef692u},
    {10000, 64, 4095, 7, 0x3f58e265u, 0xbf08011cu},
    {10000, 64, 4095, 31, 0x3f5ac4ffu, 0x3f04f363u},
    {500000, 48, 255, 0, 0xbf5cbfeeu, 0xbf01a2e2u},
    {500000, 48, 255, 1, 0xbf7f9967u, 0x3d651aafu},
    {500000, 48, 255, 7, 0x3f3e52f8u, 0xbf2b35aau},
    {500000, 48, 255, 23, 0x3f7ffff9u, 0x3a66f9e5u},
    {500000, 48, 256, 0, 0xbd22fba3u, 0xbf7fcc19u},
    {500000, 48, 256, 1, 0xbf5dcc27u, 0xbeffabb5u},
    {500000, 48, 256, 7, 0x3f420166u, 0xbf2706cfu},
    {500000, 48, 256, 23, 0x3f7ffff9u, 0x3a67e1c6u},
    {500000, 48, 257, 0, 0x3f51be02u, 0xbf12c789u},
    {500000, 48, 257, 1, 0xbee779f2u, 0xbf6457e4u},
    {500000, 48, 257, 7, 0x3f45984bu, 0xbf22c3b1u},
    {500000, 48, 257, 23, 0x3f7ffff9u, 0x3a68c9a8u},
    {500000, 48, 4095, 0, 0xbd871e6cu, 0xbf7f7136u},
    {500000, 48, 4095, 1, 0x3d89511cu, 0x3f7f6c86u},
    {500000, 48, 4095, 7, 0x3ec6fb02u, 0x3f6be05eu},
    {500000, 48, 4095, 23, 0x3f7ff971u, 0x3c67d14fu},
};

struct trig_vector {
  double x, cosine, sine;
};
constexpr trig_vector trig_vectors[] = {
    {0x1.0000000000000p-1, 0x1.c1528065b7d50p-1, 0x1.eaee8744b05f0p-2},
    {-0x1.0000000000000p+0, 0x1.14a280fb5068cp-1, -0x1.aed548f090ceep-1},
    {0x1.8000000000000p+1, -0x1.fae04be85e5d2p-1, 0x1.210386db6d55bp-3},
    {0x1.9100000000000p+6, 0x1.ebec72ba6b0ecp-1, -0x1.1bf00980dc35cp-2},
    {-0x1.ffe0000000000p+11, -0x1.0e3cd8b89b3a3p-4, 0x1.fee26bf3a602ep-1},
    {0x1.fffff00000000p+19, 0x1.f932ec65b1d71p-1, -0x1.4cb305757fa66p-3},
    {0x1.12e0be826d695p-30, 0x1.0000000000000p+0, 0x1.12e0be826d695p-30},
    {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, 0x1.0000000000000p+0},
};

struct root_vector {
  double x;
  int n;
  double root;
};
constexpr root_vector root_vectors[] = {
    {10000.0, 32, 0x1.5561a91ba8144p+0}, {500000.0, 128, 0x1.1ba31ea3f0828p+0},
    {2.0, 1, 0x1.0000000000000p+1},      {1000000.0, 5, 0x1.fb2a734897867p+3},
    {1.0, 7, 0x1.0000000000000p+0},      {1.8446744073709552e+19, 512, 0x1.172b83c7d517bp+0},
};

} // namespace

TEST_CASE("host functions are within 1e-15 of the exact values") {
  for (const trig_vector& v : trig_vectors) {
    CAPTURE(v.x);
    CHECK(std::abs(host::cos(v.x) - v.cosine) <= 1e-15);
    CHECK(std::abs(host::sin(v.x) - v.sine) <= 1e-15);
  }
  for (const root_vector& v : root_vectors) {
    CAPTURE(v.x);
    CHECK(std::abs(host::root(v.x, v.n) - v.root) <= 0x1p-51 * v.root);
  }
  CHECK(host::power(3.0, 5) == 243.0);
  CHECK(host::power(7.0, 0) == 1.0);
  CHECK_THROWS_AS(host::cos(0x1p21), error);
  CHECK_THROWS_AS(host::sin(std::numeric_limits<double>::quiet_NaN()), error);
  CHECK_THROWS_AS(host::root(0.5, 2), error);
}

TEST_CASE("RoPE tables are correctly rounded binary32") {
  for (const rope_vector& v : rope_vectors) {
    CAPTURE(v.position);
    CAPTURE(v.pair);
    const nn::rope_table<Kokkos::DefaultHostExecutionSpace> table(v.theta, v.head_dim,
                                                                  v.position + 1);
    CHECK(arith::bits(table.cosine(size(v.position), size(v.pair))) == v.cosine);
    CHECK(arith::bits(table.sine(size(v.position), size(v.pair))) == v.sine);
  }
}

TEST_CASE("six tokens and a window of three see 1, 2, 3, 3, 3, 3 keys") {
  // q and k are zero: every visible key has the logit 0. v is 127 in dim t of token t: with one
  // step of 1 the int8 product is exact, and o tells who was seen.
  for (const std::int64_t window : {0, 1, 3, 6, 100}) {
    problem p({1, 6, 1, 1, 16, window});
    for (bf16& x : p.qkv)
      x = bf16{0};
    for (std::int64_t t = 0; t < 6; ++t)
      p.at(t, 32 + t) = arith::to_bf16(127.0f);
    const result r = by_kernel<Kokkos::DefaultHostExecutionSpace>(p, blocks_64{});
    CHECK(same(r, by_reference(p, blocks_64{})));
    for (std::int64_t i = 0; i < 6; ++i) {
      const std::int64_t seen = std::min(i + 1, window);
      const float lse =
          seen > 0 ? arith::log(static_cast<float>(seen)) : -std::numeric_limits<float>::infinity();
      CHECK(arith::bits(r.lse[size(i)]) == arith::bits(lse));
      for (std::int64_t j = 0; j < 16; ++j) {
        const bool visible = j <= i && j > i - window;
        // 127 * (127 * (1/127)) / seen
        const float weight = arith::mul(1.0f, arith::mul(1.0f, arith::div(1.0f, 127.0f)));
        const float o = arith::mul(weight, 127.0f * 127.0f);
        const bf16 wanted =
            visible ? arith::to_bf16(arith::mul(o, arith::div(1.0f, static_cast<float>(seen))))
                    : bf16{0};
        CHECK(r.out[size(i * 16 + j)] == wanted);
      }
    }
    if (window == 0)
      CHECK(std::all_of(r.d_qkv.begin(), r.d_qkv.end(),
                        [](bf16 x) { return (x.bits & 0x7fff) == 0; }));
  }
}

TEST_CASE("kernels have the reference's bits") {
  for (const std::int64_t seq : {0, 1, 63, 64, 65, 127, 128, 129})
    check_all(problem({1, seq, 2, 1, 16, 64}), blocks_64{});
  for (const std::int64_t window :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, std::int64_t{63}, std::int64_t{65},
        std::numeric_limits<std::int64_t>::max()})
    check_all(problem({1, 129, 1, 1, 16, window}), blocks_64{});
  check_all(problem({2, 65, 4, 4, 32, 64}), blocks_64{});
  check_all(problem({2, 65, 4, 1, 48, 40}), blocks_64{});
  check_all(problem({1, 70, 2, 2, 64, 512}), blocks_64{});
  check_all(problem({1, 66, 1, 1, 80, 512}), blocks_64{});
  check_all(problem({1, 65, 1, 1, 256, 512}), blocks_64{});
  check_all(problem({1, 100, 2, 1, 32, 50}), nn::AttentionBlocks<32, 16>{});
}

TEST_CASE("block sizes are part of the result") {
  const problem p({1, 200, 2, 1, 32, 150});
  const result r = by_reference(p, blocks_64{});
  CHECK_FALSE(same(r, by_reference(p, nn::AttentionBlocks<64, 32>{})));
  const result queries = by_reference(p, nn::AttentionBlocks<32, 64>{});
  CHECK(r.out == queries.out);
  CHECK_FALSE(r.d_qkv == queries.d_qkv);
}

TEST_CASE("what a query does not see changes nothing, what it sees makes it NaN") {
  const nn::attention_shape s{1, 70, 2, 1, 16, 3};
  const std::int64_t width = s.qkv_width();
  for (const std::int64_t column : {std::int64_t{32}, std::int64_t{48 + 5}}) { // k, v
    for (const std::int64_t token : {0, 40, 69}) {
      for (const float value :
           {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        problem broken(s), clean(s);
        broken.at(token, column) = arith::to_bf16(value);
        // The clean twin has zeros where the broken row is.
        for (std::int64_t c = 32; c < 64; ++c)
          clean.at(token, c) = bf16{0};
        check_all(broken, blocks_64{});
        const result b = by_reference(broken, blocks_64{}), c = by_reference(clean, blocks_64{});
        for (std::int64_t i = 0; i < s.seq; ++i) {
          const bool sees = i >= token && i < token + s.window;
          CAPTURE(i);
          CHECK(all_of(b.out, 32, i, 0, 32, is_nan) == sees);
          CHECK(all_of(b.d_qkv, width, i, 0, 32, is_nan) == sees);
          CHECK(arith::is_nan(b.lse[size(i)]) == sees);
          // Keys that share a NaN query are NaN, all others are not.
          const bool near = i > token - s.window && i < token + s.window;
          CHECK(all_of(b.d_qkv, width, i, 32, 64, is_nan) == near);
          if (!sees) {
            for (std::int64_t e = 0; e < 32; ++e)
              CHECK(b.out[size(i * 32 + e)] == c.out[size(i * 32 + e)]);
          }
        }
      }
    }
  }
}

TEST_CASE("a NaN in the output's gradient is NaN in what it touches, never zero") {
  problem p({2, 70, 4, 2, 16, 5});
  p.d_out[size(20 * p.s.out_width() + 16 + 3)] = bf16{0x7fc0}; // token 20, head 1
  p.d_out[size(90 * p.s.out_width())] = bf16{0x7f80};          // sequence 1, token 20, head 0
  check_all(p, blocks_64{});
  const result r = by_reference(p, blocks_64{});
  const std::int64_t width = p.s.qkv_width();
  for (std::int64_t t = 0; t < 140; ++t) {
    CHECK(all_of(r.d_qkv, width, t, 16, 32, is_nan) == (t == 20));
    CHECK(all_of(r.d_qkv, width, t, 0, 16, is_nan) == (t == 90));
    const bool seen = (t >= 16 && t <= 20) || (t >= 86 && t <= 90);
    CHECK(all_of(r.d_qkv, width, t, 64, 80, is_nan) == seen); // k of kv head 0
    CHECK(all_of(r.d_qkv, width, t, 96, 112, is_nan) == seen);
    CHECK(all_of(r.d_qkv, width, t, 80, 96, [](bf16 x) { return !is_nan(x); }));
  }
  // Beyond the range of the units a whole head group is NaN.
  problem large({1, 3, 2, 2, 16, 3});
  large.d_out[0] = arith::to_bf16(0x1p100f);
  check_all(large, blocks_64{});
  CHECK(all_of(by_reference(large, blocks_64{}).d_qkv, large.s.qkv_width(), 2, 0, 16, is_nan));
}

TEST_CASE("gradients stay alive and accurate for output gradients of any size") {
  for (const float scale : {1e-30f, 1e-12f, 1e-3f, 1.0f, 1e3f, 1e20f}) {
    CAPTURE(scale);
    problem p({1, 129, 4, 2, 32, 100}, scale);
    const result r = by_kernel<Kokkos::DefaultHostExecutionSpace>(p, blocks_64{});
    oracle::attention o{p.s, theta, eps, &p.qkv, &p.d_out, {}, {}, {}};
    o.run();
    const std::int64_t width = p.s.qkv_width();
    const double out = oracle::error(r.out, o.out, 128, 0, 128);
    const double dq = oracle::error(r.d_qkv, o.d_qkv, width, 0, 128);
    const double dk = oracle::error(r.d_qkv, o.d_qkv, width, 128, 192);
    const double dv = oracle::error(r.d_qkv, o.d_qkv, width, 192, 256);
    MESSAGE("relative errors at ", scale, ": o ", out, " dq ", dq, " dk ", dk, " dv ", dv);
    double lse = 0;
    for (std::size_t i = 0; i < r.lse.size(); ++i)
      lse = std::max(lse, std::abs(static_cast<double>(r.lse[i]) - o.log_sum_exp[i]));
    CHECK(lse < 0x1p-11);
    CHECK(out < 0.015);
    CHECK(dq < 0.02);
    CHECK(dk < 0.02);
    CHECK(dv < 0.004);
    CHECK(all_of(r.d_qkv, width, 64, 0, 128, [](bf16 x) { return (x.bits & 0x7fff) != 0; }));
  }
}

TEST_CASE("one enormous gradient or value leaves the others alive, and nothing wraps") {
  for (const bool value : {false, true}) {
    problem p({1, 100, 2, 1, 16, 100}, 1.0f);
    (value ? p.at(80, 48 + 2) : p.d_out[size(80 * 32 + 3)]) = arith::to_bf16(0x1p14f);
    check_all(p, blocks_64{});
    const result r = by_reference(p, blocks_64{});
    oracle::attention o{p.s, theta, eps, &p.qkv, &p.d_out, {}, {}, {}};
    o.run();
    CHECK(oracle::error(r.d_qkv, o.d_qkv, 64, 0, 48) < 0.03);
    CHECK(oracle::error(r.d_qkv, o.d_qkv, 64, 48, 64) < 0.004);
    // Queries of the first block neither see the value nor have the gradient, and share no int8
    // step with it: accurate by themselves.
    oracle::vec before(o.d_qkv.begin(), o.d_qkv.begin() + 64 * 64);
    const std::vector<bf16> got(r.d_qkv.begin(), r.d_qkv.begin() + 64 * 64);
    CHECK(oracle::error(got, before, 64, 0, 32) < 0.03);
  }
}

TEST_CASE("the head of a peaked row: all queries attend to one key with all their weight") {
  // The column sums of P reach the number of queries, which the key and value units allow for.
  problem p({1, 192, 4, 1, 64, 192});
  for (std::int64_t t = 0; t < 192; ++t) {
    for (std::int64_t c = 0; c < 64; ++c) {
      for (std::int64_t h = 0; h < 4; ++h)
        p.at(t, h * 64 + c) = arith::to_bf16(c == 63 ? 8.0f : 0.0f);
      p.at(t, 256 + c) = arith::to_bf16(c == 63 ? (t == 0 ? 8.0f : -8.0f) : 0.0f);
      p.at(t, 320 + c) = arith::to_bf16(t == 0 ? 1.0f : -1.0f);
    }
  }
  for (bf16& x : p.d_out)
    x = arith::to_bf16(1.0f);
  check_all(p, blocks_64{});
  const result r = by_reference(p, blocks_64{});
  oracle::attention o{p.s, theta, eps, &p.qkv, &p.d_out, {}, {}, {}};
  o.run();
  CHECK(oracle::error(r.out, o.out, 256, 0, 256) < 0.015);
  CHECK(oracle::error(r.d_qkv, o.d_qkv, p.s.qkv_width(), 320, 384) < 0.004);
}

TEST_CASE("shapes that disagree are refused") {
  using space = Kokkos::DefaultHostExecutionSpace;
  CHECK_THROWS_AS((nn::attention_scratch<space, blocks_64>(nn::attention_shape{1, 4, 3, 2, 16, 4})),
                  error);
  CHECK_THROWS_AS((nn::attention_scratch<space, blocks_64>(nn::attention_shape{1, 4, 2, 2, 24, 4})),
                  error);
  const nn::attention_shape s{1, 4, 2, 2, 16, 4};
  nn::attention_saved<space> saved(s);
  nn::attention_scratch<space, blocks_64> scratch(s);
  const nn::rope_table<space> rope(theta, 16, 3);
  const Kokkos::View<bf16**, Kokkos::LayoutRight, Kokkos::HostSpace> qkv("qkv", 4, 96),
      out("out", 4, 32);
  CHECK_THROWS_AS(
      nn::attention_forward(space(), blocks_64{}, s, rope, eps, qkv, out, saved, scratch), error);
}
