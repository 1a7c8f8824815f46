// SPDX-License-Identifier: Apache-2.0
// attention_backward on CUDA, by bits against reference/attention_backward.hpp.

#include "device_fixture.hpp"

#include <cmath>
#include <limits>
#include <thread>

#include <ordo/cuda/attention_backward.hpp>
#include <ordo/reference/attention_backward.hpp>

using namespace ordo;

namespace {

constexpr nn::AttentionBlocks<64, 64> blocks{};
constexpr float eps = 1e-6f;

struct problem {
  nn::attention_shape s;
  std::vector<float> cosine, sine;
  std::vector<bf16> qkv, out, d_out;
  std::vector<float> lse;
};

/// Bell-shaped values from a counter: cheap enough for the large shapes.
std::vector<bf16> bell(std::int64_t n, std::uint64_t seed, float scale) {
  std::vector<bf16> x(static_cast<std::size_t>(n));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (auto& v : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t u = state ^ state >> 31;
    const int sum = static_cast<int>(u & 0xffff) + static_cast<int>(u >> 16 & 0xffff) +
                    static_cast<int>(u >> 32 & 0xffff) + static_cast<int>(u >> 48);
    v = arith::to_bf16(static_cast<float>(sum - 131070) * 0x1p-15f * scale);
  }
  return x;
}

/// Inputs of a shape; out and lse are random but plausible unless `forward` computes them.
problem make_problem(const nn::attention_shape& s, std::uint64_t seed, float scale = 1.0f) {
  problem p{s, {}, {}, {}, {}, {}, {}};
  for (std::int64_t t = 0; t < s.seq; ++t) {
    for (std::int64_t i = 0; i < s.head_dim / 2; ++i) {
      const double angle =
          static_cast<double>(t) *
          std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(s.head_dim));
      p.cosine.push_back(static_cast<float>(std::cos(angle)));
      p.sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  if (s.tokens() > 8192) {
    p.qkv = bell(s.tokens() * s.qkv_width(), seed, 1.0f);
    p.d_out = bell(s.tokens() * s.out_width(), seed + 1, scale);
    return p;
  }
  p.qkv = test::random_bf16(static_cast<std::size_t>(s.tokens() * s.qkv_width()), seed);
  p.d_out =
      test::random_bf16(static_cast<std::size_t>(s.tokens() * s.out_width()), seed + 1, scale);
  return p;
}

/// out and lse by the definition; sequences and heads by threads.
void forward(problem& p) {
  const nn::attention_shape s = p.s;
  p.out.resize(static_cast<std::size_t>(s.tokens() * s.out_width()));
  p.lse.resize(static_cast<std::size_t>(s.batch * s.heads * s.seq));
  reference::attention_forward(blocks, s, p.cosine, p.sine, eps, p.qkv, p.out, p.lse);
}

/// Plausible out and lse without the forward pass: what the backward pass reads of them is data.
void invent_forward(problem& p) {
  const nn::attention_shape s = p.s;
  p.out = bell(s.tokens() * s.out_width(), 77, 0.25f);
  p.lse.resize(static_cast<std::size_t>(s.batch * s.heads * s.seq));
  for (std::size_t i = 0; i < p.lse.size(); ++i) {
    const double seen = static_cast<double>(
        std::min<std::int64_t>(static_cast<std::int64_t>(i) % s.seq + 1, s.window));
    p.lse[i] = static_cast<float>(std::log(seen) + 0.5 + 0.01 * static_cast<double>(i % 37));
  }
}

struct on_device {
  test::device_vector<float> cosine, sine, lse;
  test::device_vector<bf16> qkv, out, d_out, d_qkv;
  test::device_vector<std::byte> scratch;
  cuda::attention_inputs inputs;

  explicit on_device(const problem& p)
      : cosine(p.cosine), sine(p.sine), lse(p.lse), qkv(p.qkv), out(p.out), d_out(p.d_out),
        d_qkv(p.qkv.size()), scratch(cuda::attention_backward_scratch_bytes(p.s)),
        inputs(cuda::make_attention_inputs(p.s, cosine.data(), sine.data(), eps, qkv.data())) {}

  void run(std::int64_t most = cuda::detail::most_tiles, bool warpgroups = true) {
    cuda::attention_backward(nullptr, inputs, {out.data(), d_out.data(), lse.data(), d_qkv.data()},
                             scratch.data(), most, warpgroups);
  }
};

std::vector<bf16> expected(const problem& p) {
  std::vector<bf16> d_qkv(p.qkv.size(), bf16{0x1234});
  reference::attention_backward(blocks, p.s, p.cosine, p.sine, eps, p.qkv, p.out, p.lse, p.d_out,
                                d_qkv);
  return d_qkv;
}

void check(const problem& p, std::int64_t most = cuda::detail::most_tiles) {
  const std::vector<bf16> right = expected(p);
  for (const bool warpgroups : {true, false}) {
    CAPTURE(warpgroups);
    on_device d(p);
    d.run(most, warpgroups);
    CHECK(test::same_bits(d.d_qkv.host(), right));
  }
}

void check_shape(const nn::attention_shape& s, float scale = 1.0f) {
  CAPTURE(s.batch);
  CAPTURE(s.seq);
  CAPTURE(s.heads);
  CAPTURE(s.kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.window);
  problem p = make_problem(s, 11 + static_cast<std::uint64_t>(s.seq), scale);
  forward(p);
  check(p);
}

} // namespace

TEST_CASE("shapes") {
  for (const std::int64_t seq : {0, 1, 2, 63, 64, 65, 127, 128, 130})
    check_shape({1, seq, 2, 1, 32, 1000});
  for (const std::int64_t window : {0, 1, 2, 63, 64, 65, 66, 128, 129, 149, 150})
    check_shape({1, 150, 2, 2, 16, window});
  for (const std::int64_t hd : {16, 32, 48, 64, 96, 112, 128, 144, 208, 256})
    check_shape({2, 70, 2, 1, hd, 40});
  check_shape({0, 70, 2, 1, 32, 40});
  check_shape({3, 33, 6, 2, 64, 20});
  check_shape({1, 100, 12, 4, 128, 33});
  // Several blocks of queries to a thread block, as warpgroups have them.
  for (const std::int64_t seq : {1, 64, 65, 130, 193, 260}) {
    for (const std::int64_t window : {0, 1, 64, 65, 129, 1000})
      check_shape({seq < 100 ? 2 : 1, seq, 2, 1, 128, window});
  }
  for (const auto& [heads, kv] : {std::pair{1, 1}, {3, 1}, {6, 2}, {8, 2}})
    check_shape({2, 140, heads, kv, 128, 90});
}

TEST_CASE("magnitudes") {
  for (const float scale : {0x1p-20f, 0x1p-60f, 0x1p-100f, 0x1p-120f, 0x1p30f, 0x1p70f}) {
    check_shape({1, 90, 2, 1, 64, 50}, scale);
    check_shape({1, 90, 2, 1, 128, 50}, scale);
  }
  // Units that are not representable: everything is NaN.
  problem p = make_problem({1, 70, 2, 1, 32, 50}, 5);
  p.d_out[100] = arith::to_bf16(0x1p95f);
  forward(p);
  check(p);
  // Subnormal and tiny entries; rows and blocks of zeros.
  p = make_problem({1, 200, 2, 1, 32, 90}, 6, 0x1p-90f);
  for (std::size_t i = 0; i < p.d_out.size(); i += 3)
    p.d_out[i] = bf16{static_cast<std::uint16_t>(i % 256)};
  for (std::size_t i = 64 * 64; i < 128 * 64; ++i)
    p.d_out[i] = bf16{0x8000};
  for (std::size_t i = 128 * 3; i < 256 * 3; ++i)
    p.qkv[i] = bf16{0};
  forward(p);
  check(p);
  // Values of one sign and keys that are all alike: the largest sums.
  p = make_problem({1, 192, 4, 1, 128, 192}, 7);
  for (std::size_t i = 0; i < p.qkv.size(); ++i)
    p.qkv[i] = arith::to_bf16(i % 128 == 5 ? 100.0f : 0.01f);
  for (bf16& x : p.d_out)
    x = arith::to_bf16(arith::to_f32(x) > 0 ? 1.99f : -1.99f);
  forward(p);
  check(p);
}

TEST_CASE("rows that are not finite") {
  for (const std::size_t hd : {32u, 128u}) {
    const nn::attention_shape s{2, 200, 4, 2, static_cast<std::int64_t>(hd), 70};
    const std::size_t width = static_cast<std::size_t>(s.qkv_width());
    const bf16 nan{0x7fc0}, infinity{0xff80};
    problem p = make_problem(s, 21);
    p.qkv[10 * width + 3] = nan;            // q of head 0
    p.qkv[90 * width + 4 * hd + 1] = nan;   // k of group 0
    p.qkv[150 * width + 7 * hd] = infinity; // v of group 1
    p.qkv[(200 + 199) * width + 4 * hd] = infinity;
    p.d_out[77 * 4 * hd + hd + 8] = infinity; // head 1
    p.d_out[200 * 4 * hd + 4 * hd - 1] = nan; // head 3
    forward(p);
    check(p);
  }
}

TEST_CASE("passes") {
  problem p = make_problem({2, 330, 4, 2, 32, 130}, 31);
  forward(p);
  // Tiles of a head: 1 + 2 + 3 + 4 + 4 + 4.
  for (const std::int64_t most : {6, 7, 10, 17, 18, 35, 36, 50, 80, 143, 144})
    check(p, most);
  p = make_problem({1, 330, 4, 2, 128, 130}, 32);
  forward(p);
  for (const std::int64_t most : {6, 7, 18, 35, 36, 72})
    check(p, most);
}

TEST_CASE("the training shape, sampled") {
  for (const std::int64_t window : {4096, 512}) {
    problem p = make_problem({4, 4096, 16, 4, 128, window}, 41, 0x1p-18f);
    invent_forward(p);
    on_device d(p);
    d.run();
    const std::vector<bf16> found = d.d_qkv.host();
    const nn::attention_shape s = p.s;
    const std::int64_t n = 2, g = 1, last = s.seq / 64 - 1, key = last - 2, b = 64;
    reference::gradient_group r =
        reference::read_group(s, p.cosine, p.sine, eps, p.qkv, p.out, p.lse, p.d_out, n, g);
    // One block of queries of one head; one block of keys.
    const auto tile = [&](std::int64_t m, std::int64_t qb, std::int64_t kb) {
      reference::add_tile(s, r.units, reference::head_lse(s, p.lse, n, g * 4 + m),
                          r.queries[static_cast<std::size_t>(m)], r.keys, qb * b, qb * b + b,
                          kb * b, kb * b + b);
    };
    for (std::int64_t kb = std::max<std::int64_t>(0, last - window / 64); kb <= last; ++kb)
      tile(0, last, kb);
    for (std::int64_t m = 0; m < 4; ++m) {
      for (std::int64_t qb = key; qb <= last; ++qb) {
        if (m != 0 || qb != last)
          tile(m, qb, key);
      }
    }
    const auto same = [&](std::int64_t t, std::int64_t column) {
      std::vector<bf16> row(static_cast<std::size_t>(s.qkv_width()));
      reference::write_token(s, p.cosine, p.sine, r, g, t, row);
      const std::size_t at = static_cast<std::size_t>((n * s.seq + t) * s.qkv_width() + column);
      const auto part = [&](const std::vector<bf16>& v, std::size_t from) {
        return std::vector<bf16>(v.begin() + static_cast<std::ptrdiff_t>(from),
                                 v.begin() + static_cast<std::ptrdiff_t>(from + 128));
      };
      return test::same_bits(part(found, at), part(row, static_cast<std::size_t>(column)));
    };
    bool all = true;
    for (std::int64_t i = 0; i < b && all; ++i) {
      all = same(last * b + i, g * 4 * 128) && same(key * b + i, (s.heads + g) * 128) &&
            same(key * b + i, (s.heads + 4 + g) * 128);
    }
    CHECK(all);
  }
}

TEST_CASE("speed") {
  double all_layers = 0, all_floors = 0;
  for (const std::int64_t window : {4096, 512}) {
    problem p = make_problem({4, 4096, 16, 4, 128, window}, 51, 0x1p-18f);
    invent_forward(p);
    on_device d(p);
    const float ms = test::median_ms([&] { d.run(); }, 10);
    const auto numbers = cuda::detail::make_tile_numbers(p.s);
    const double pairs = 64.0 * static_cast<double>(numbers.before(numbers.blocks)) * 4096;
    const double operations = pairs * 20 * 2 * 128;
    std::printf("attention backward 4 x 4096, 16/4 heads of 128, window %lld: %.3f ms, %.0f TOPS, "
                "floor of int8 products at 1400 TOPS %.2f ms, scratch %.2f GB\n",
                static_cast<long long>(window), static_cast<double>(ms),
                operations / static_cast<double>(ms) * 1e-9, operations / 1400e9,
                static_cast<double>(cuda::attention_backward_scratch_bytes(p.s)) * 1e-9);
    all_layers += static_cast<double>(ms) * (window == 512 ? 19 : 5);
    all_floors += operations / 1400e9 * (window == 512 ? 19 : 5);
    const auto stage = [&](const char* name, const auto& f) {
      std::printf("  %s: %.3f ms\n", name, static_cast<double>(test::median_ms(f, 5)));
      std::fflush(stdout);
    };
    const cuda::attention_gradient gradient{d.out.data(), d.d_out.data(), d.lse.data(),
                                            d.d_qkv.data()};
    cuda::detail::scratch_layout layout(d.scratch.data());
    const auto b = cuda::detail::place_gradient(p.s, layout);
    const std::int64_t most = cuda::detail::tiles_at_once(p.s);
    stage("rows", [&] { cuda::detail::prepare_gradient<128>(nullptr, d.inputs, gradient, b); });
    for (const bool warpgroups : {true, false}) {
      stage(warpgroups ? "tiles" : "tiles without warpgroups", [&] {
        cuda::detail::for_passes(p.s, most, [&](const auto& pass) {
          cuda::detail::gradient_tiles<128>(nullptr, d.inputs, gradient, b, pass, warpgroups);
        });
      });
    }
    for (const bool warpgroups : {true, false}) {
      stage(warpgroups ? "sums" : "sums without warpgroups", [&] {
        cuda::detail::for_passes(p.s, most, [&](const auto& pass) {
          cuda::detail::gradient_sums<128>(nullptr, d.inputs, b, pass, warpgroups);
        });
      });
    }
    stage("finish",
          [&] { cuda::detail::finish_gradient<128>(nullptr, d.inputs, b, d.d_qkv.data()); });
  }
  std::printf("attention backward of 24 layers (19 windows of 512): %.1f ms; floor %.1f ms\n",
              all_layers, all_floors);
}
