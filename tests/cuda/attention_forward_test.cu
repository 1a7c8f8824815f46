// SPDX-License-Identifier: Apache-2.0
// The forward pass of attention on CUDA against its definition, by bits.
#include "device_fixture.hpp"

#include <cmath>
#include <limits>
#include <span>
#include <string>

#include <ordo/cuda/attention_forward.hpp>
#include <ordo/reference/attention.hpp>

namespace {

using namespace ordo;
using nn::attention_shape;
using test::device_vector;

struct rope {
  std::vector<float> cosine, sine;
  explicit rope(const attention_shape& s)
      : cosine(static_cast<std::size_t>(s.seq * s.head_dim / 2)), sine(cosine.size()) {
    reference::rope_table(10000.0, s.head_dim, s.seq, cosine, sine);
  }
};

struct result {
  std::vector<bf16> out;
  std::vector<float> log_sum_exp;
};

result on_device(const attention_shape& s, const rope& r, float eps, const std::vector<bf16>& qkv,
                 bool warpgroups = true) {
  const device_vector<float> cosine(r.cosine), sine(r.sine);
  const device_vector<bf16> in(qkv), out(static_cast<std::size_t>(s.tokens() * s.out_width()));
  const device_vector<float> lse(static_cast<std::size_t>(s.batch * s.heads * s.seq));
  const device_vector<std::byte> scratch(cuda::attention_forward_scratch_bytes(s));
  const auto inputs = cuda::make_attention_inputs(s, cosine.data(), sine.data(), eps, in.data());
  cuda::attention_forward(nullptr, inputs, out.data(), lse.data(), scratch.data(), warpgroups);
  return {out.host(), lse.host()};
}

void compare(const attention_shape& s, const std::vector<bf16>& qkv, float eps = 1e-5f) {
  CAPTURE(s.batch);
  CAPTURE(s.seq);
  CAPTURE(s.heads);
  CAPTURE(s.kv_heads);
  CAPTURE(s.head_dim);
  CAPTURE(s.window);
  const rope r(s);
  result expected{std::vector<bf16>(static_cast<std::size_t>(s.tokens() * s.out_width())),
                  std::vector<float>(static_cast<std::size_t>(s.batch * s.heads * s.seq))};
  reference::attention_forward(nn::AttentionBlocks<64, 64>{}, s, r.cosine, r.sine, eps, qkv,
                               expected.out, expected.log_sum_exp);
  for (const bool warpgroups : {true, false}) {
    if (warpgroups && cuda::attention_padded_dim(s.head_dim) != 128)
      continue;
    CAPTURE(warpgroups);
    const result found = on_device(s, r, eps, qkv, warpgroups);
    CHECK(test::same_bits(found.log_sum_exp, expected.log_sum_exp));
    CHECK(test::same_bits(found.out, expected.out));
  }
}

std::size_t entries(const attention_shape& s) {
  return static_cast<std::size_t>(s.tokens() * s.qkv_width());
}

/// Bell-shaped values from a counter: cheap enough for the large shapes.
std::vector<bf16> bell(std::size_t n, std::uint64_t seed) {
  std::vector<bf16> x(n);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (auto& v : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t u = state ^ state >> 31;
    const int sum = static_cast<int>(u & 0xffff) + static_cast<int>(u >> 16 & 0xffff) +
                    static_cast<int>(u >> 32 & 0xffff) + static_cast<int>(u >> 48);
    v = arith::to_bf16(static_cast<float>(sum - 131070) * 0x1p-15f);
  }
  return x;
}

} // namespace

TEST_CASE("digits of q and k, codes of v") {
  const attention_shape s{2, 70, 2, 1, 48, 70};
  const auto qkv = test::random_bf16(entries(s), 5);
  const rope r(s);
  const device_vector<float> cosine(r.cosine), sine(r.sine);
  const device_vector<bf16> in(qkv);
  const device_vector<std::byte> scratch(cuda::attention_planes_bytes(s));
  const auto inputs = cuda::make_attention_inputs(s, cosine.data(), sine.data(), 1e-5f, in.data());
  cuda::prepare_attention(nullptr, inputs, cuda::make_attention_planes(s, scratch.data()));
  const auto bytes = scratch.host();
  const auto planes = cuda::make_attention_planes(s, const_cast<std::byte*>(bytes.data()));
  const int dim = cuda::attention_padded_dim(s.head_dim), blocks = 2;
  int wrong = 0;
  for (int n = 0; n < 2; ++n) {
    for (int h = 0; h < 3; ++h) {
      const auto head = reference::normalise_head(s, r.cosine, r.sine, 1e-5f, qkv, n, h * 48);
      const std::int8_t* plane =
          h < 2 ? planes.q + (n * 2 + h) * blocks * 128 * dim : planes.k + n * blocks * 128 * dim;
      for (int t = 0; t < blocks * 64; ++t) {
        for (int d = 0; d < dim; ++d) {
          const int at = t / 64 * 128 * dim + (d / 16 * 64 + t % 64) * 16 + d % 16;
          const int low = plane[at], high = plane[at + 64 * dim];
          const int v = t < 70 && d < 48 ? head.fixed[static_cast<std::size_t>(t * 48 + d)] : 0;
          wrong += low + 128 * high != v || low < -64 || low > 63;
        }
      }
    }
    const auto values = reference::read_values(s, qkv, n, 3 * 48);
    for (int b = 0; b < blocks; ++b) {
      const auto block = reference::quantize_values(s, values, b * 64, std::min(70, b * 64 + 64));
      wrong += planes.v_weight[n * blocks + b] != arith::mul(block.step, arith::div(1.0f, 127.0f));
      wrong += planes.bad_key[n * blocks + b] != 0;
      for (int j = 0; j < 64; ++j) {
        for (int d = 0; d < dim; ++d) {
          const int code =
              d < 48 && b * 64 + j < 70 ? block.q[static_cast<std::size_t>(j * 48 + d)] : 0;
          const int place = cuda::detail::attention_place(j);
          wrong += planes.v[((n * blocks + b) * 4 + place / 16) * dim * 16 + d * 16 + place % 16] !=
                   code;
        }
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("shapes") {
  for (const std::int64_t seq : {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200}) {
    for (const std::int64_t window : {0, 1, 5, 63, 64, 65, 100, 1000}) {
      const attention_shape s{seq < 100 ? 2 : 1, seq, 4, 2, 32, window};
      compare(s, test::random_bf16(entries(s), static_cast<std::uint64_t>(seq * 1000 + window)));
    }
  }
  for (const std::int64_t seq : {1, 64, 65, 130, 193, 260}) {
    for (const std::int64_t window : {0, 1, 64, 65, 129, 1000}) {
      const attention_shape s{seq < 100 ? 2 : 1, seq, 2, 1, 128, window};
      compare(s, test::random_bf16(entries(s), static_cast<std::uint64_t>(seq * 1000 + window)));
    }
  }
  const attention_shape empty{0, 64, 4, 2, 32, 64};
  compare(empty, {});
}

TEST_CASE("head dimensions and groups") {
  for (const std::int64_t dim : {16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 208, 240, 256}) {
    for (const auto& [heads, kv] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 1}, {6, 2}, {4, 4}}) {
      const attention_shape s{1, 135, heads, kv, dim, dim % 32 == 0 ? 135 : 70};
      compare(s, test::random_bf16(entries(s), static_cast<std::uint64_t>(dim * 10 + heads)));
    }
  }
}

namespace {

void magnitudes(const attention_shape& s) {
  const std::size_t hd = static_cast<std::size_t>(s.head_dim);
  // Scales of q, k and of v: steps at and below the floor, overflow, sums that cancel to zero.
  // The least epsilon outweighs all squares that are flushed.
  for (const float scale : {0x1p-130f, 0x1p-120f, 0x1p-70f, 0x1p-60f, 0x1p-40f, 0x1p40f, 0x1p60f}) {
    for (const float eps : {1e-5f, 0x1p-126f})
      compare(s, test::random_bf16(entries(s), 77, scale), eps);
  }
  for (const float scale : {0x1p-126f, 0x1p-105f, 0x1p-100f, 0x1p-96f, 0x1p-93f, 0x1p-80f, 0x1p90f,
                            0x1p110f, 0x1p117f}) {
    auto qkv = test::random_bf16(entries(s), 78);
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      if (i % (4 * hd) >= 3 * hd)
        qkv[i] = arith::to_bf16(arith::mul(arith::to_f32(qkv[i]), scale));
    }
    compare(s, qkv);
  }
  compare(s, std::vector<bf16>(entries(s)), 0x1p-126f);
  compare(s, std::vector<bf16>(entries(s)), 1e-5f);
  CHECK_THROWS_AS(compare(s, std::vector<bf16>(entries(s)), 0.0f), ordo::error);
  std::vector<bf16> subnormal(entries(s));
  for (std::size_t i = 0; i < subnormal.size(); ++i)
    subnormal[i] = bf16{static_cast<std::uint16_t>(i % 3 == 0 ? 0x3f80 : i % 0x7f)};
  compare(s, subnormal);
  // Rows that point the same way: the largest logits.
  std::vector<bf16> same(entries(s), bf16{0x3f80});
  compare(s, same);
}

} // namespace

TEST_CASE("magnitudes") {
  for (const std::int64_t hd : {64, 128})
    magnitudes({1, 140, 2, 1, hd, 100});
}

TEST_CASE("rows that are not finite") {
  const std::uint16_t poison[] = {0x7fc0, 0xffc1, 0x7f80, 0xff80, 0x7f81};
  for (const std::int64_t window : {1, 40, 64, 300, 301}) {
    const attention_shape s{2, 190, 4, 2, window == 301 ? 128 : 32, window};
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      auto qkv = test::random_bf16(entries(s), seed);
      std::mt19937_64 engine(seed + 100);
      for (std::uint64_t i = 0; i < 1 + seed; ++i)
        qkv[engine() % qkv.size()] = bf16{poison[engine() % 5]};
      compare(s, qkv);
    }
    // One poisoned value row, at block edges; squares that overflow.
    for (const std::size_t token : {63u, 64u, 127u, 189u}) {
      auto qkv = test::random_bf16(entries(s), 9);
      const std::size_t hd = static_cast<std::size_t>(s.head_dim);
      qkv[token * 8 * hd + 6 * hd + 8] = bf16{0x7fc0};
      qkv[token * 8 * hd + 4 * hd + 2] = bf16{0x7e00};
      compare(s, qkv);
    }
  }
}

TEST_CASE("the training shape, sampled rows") {
  for (const std::int64_t window : {512, 4096}) {
    const attention_shape s{2, 4096, 16, 4, 128, window};
    const rope r(s);
    const auto qkv = bell(entries(s), 3);
    const result found = on_device(s, r, 1e-6f, qkv);
    int wrong = 0;
    for (const auto& [n, h] : {std::pair{0, 0}, {1, 7}, {1, 15}}) {
      const std::int64_t g = h / 4;
      const auto q = reference::normalise_head(s, r.cosine, r.sine, 1e-6f, qkv, n, h * 128);
      const auto k = reference::normalise_head(s, r.cosine, r.sine, 1e-6f, qkv, n, (16 + g) * 128);
      const auto v = reference::read_values(s, qkv, n, (20 + g) * 128);
      std::vector<reference::value_block> blocks;
      for (std::int64_t j = 0; j < s.seq; j += 64)
        blocks.push_back(reference::quantize_values(s, v, j, j + 64));
      for (std::int64_t i = n * 7; i < s.seq; i += i < 1100 ? 61 : 397) {
        bf16 o[128];
        const float lse =
            reference::attend(nn::AttentionBlocks<64, 64>{}, s,
                              &q.fixed[static_cast<std::size_t>(i * 128)], k, blocks, i, o);
        wrong += lse != found.log_sum_exp[static_cast<std::size_t>((n * 16 + h) * 4096 + i)];
        wrong +=
            std::memcmp(o, &found.out[static_cast<std::size_t>((n * 4096 + i) * 2048 + h * 128)],
                        256) != 0;
      }
    }
    CHECK(wrong == 0);
  }
}

#if defined(ORDO_ATTENTION_VARIANTS)
template <int Heads, int Warps, int Together>
void variant(const attention_shape& s, const cuda::detail::attention_forward_arguments& a) {
  const float ms = test::median_ms(
      [&] { cuda::detail::launch_attention_forward<128, Heads, Warps, Together>(nullptr, a); }, 10);
  std::printf("  window %4lld  heads %d warps %d together %d  %.3f ms\n",
              static_cast<long long>(s.window), Heads, Warps, Together, ms);
}
#endif

TEST_CASE("speed") {
  double all_layers = 0, all_floors = 0;
  for (const std::int64_t window : {512, 4096}) {
    const attention_shape s{4, 4096, 16, 4, 128, window};
    const rope r(s);
    const auto qkv = bell(entries(s), 3);
    const device_vector<float> cosine(r.cosine), sine(r.sine);
    const device_vector<bf16> in(qkv), out(static_cast<std::size_t>(s.tokens() * s.out_width()));
    const device_vector<float> lse(static_cast<std::size_t>(s.batch * s.heads * s.seq));
    const device_vector<std::byte> scratch(cuda::attention_forward_scratch_bytes(s));
    const auto inputs =
        cuda::make_attention_inputs(s, cosine.data(), sine.data(), 1e-6f, in.data());
    const auto planes = cuda::make_attention_planes(s, scratch.data());
    const float prepare =
        test::median_ms([&] { cuda::prepare_attention(nullptr, inputs, planes); });
    const auto time = [&](bool warpgroups) {
      return test::median_ms([&] {
        cuda::attention_forward(nullptr, inputs, out.data(), lse.data(), scratch.data(),
                                warpgroups);
      });
    };
    const float all = time(true), plain = time(false);
    double pairs = 0;
    for (std::int64_t i = 0; i < s.seq; ++i)
      pairs += static_cast<double>(i + 1 - s.first_key(i)) * 64;
    const double floor_ms = pairs * 1280 / 1.4e12;
    std::printf("attention_forward 4 x 4096, window %4lld: %.3f ms (preparation %.3f; without "
                "warpgroups %.3f), %.0f TOPS; "
                "floor %.3f ms of products at 1400 TOPS, preparation %.3f at 4.3 TB/s\n",
                static_cast<long long>(window), all, prepare, plain, pairs * 1280 / (all * 1e9),
                floor_ms, static_cast<double>(entries(s)) * 4 / 4.3e9);
    all_layers += static_cast<double>(all) * (window == 512 ? 19 : 5);
    all_floors += floor_ms * (window == 512 ? 19 : 5);
#if defined(ORDO_ATTENTION_VARIANTS)
    const cuda::detail::attention_forward_arguments a{inputs.s, inputs.scales.logit, planes,
                                                      out.data(), lse.data()};
    variant<2, 4, 1>(s, a);
    variant<1, 4, 2>(s, a);
    variant<1, 4, 3>(s, a);
    variant<4, 3, 1>(s, a);
    variant<2, 6, 1>(s, a);
    variant<4, 2, 1>(s, a);
    variant<2, 8, 1>(s, a);
    variant<2, 2, 3>(s, a);
#endif
  }
  std::printf("attention_forward of 24 layers (19 windows of 512): %.1f ms; floor %.1f ms\n",
              all_layers, all_floors);
}
