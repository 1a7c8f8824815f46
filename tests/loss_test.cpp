// SPDX-License-Identifier: Apache-2.0
// ctest: THREADS 1 2 3 7
// The fused head and loss against its definition, by bits; and against binary64, by stated errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <Kokkos_Core.hpp>

#include <ordo/cpu/isa.hpp>
#include <ordo/loss/cross_entropy.hpp>
#include <ordo/loss/head.hpp>
#include <ordo/reference/cross_entropy.hpp>

namespace {

namespace loss = ordo::loss;
using ordo::bf16;
using two_slices = ordo::Sliced<2, 2>;
using lanes = ordo::order::Lanes<16>;

constexpr std::uint32_t nan_bits = ordo::arith::canonical_nan;

ordo::reference::sliced_contraction twin(two_slices) {
  return {2, 2};
}
ordo::reference::lanes_contraction twin(lanes) {
  return {16};
}

bf16 narrow(float x) {
  return ordo::arith::to_bf16(x);
}
float widen(bf16 x) {
  return ordo::arith::to_f32(x);
}

struct source {
  std::uint64_t state;
  std::uint32_t word() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 33);
  }
  float uniform() { return static_cast<float>(word() & 0xffffff) * 0x1p-23f - 1.0f; }
  /// Bell-shaped around 0, standard deviation 0.58.
  float bell() { return (uniform() + uniform() + uniform() + uniform()) * 0.5f; }
};

/// A micro-batch and a head.
struct batch {
  std::int64_t tokens, width, vocabulary, padded;
  std::vector<bf16> h, w;
  std::vector<std::uint32_t> labels;
  loss::options options{};

  batch(std::int64_t tokens_, std::int64_t width_, std::int64_t vocabulary_, std::int64_t padded_,
        std::uint64_t seed = 1)
      : tokens(tokens_), width(width_), vocabulary(vocabulary_), padded(padded_) {
    source random{seed};
    for (std::int64_t i = 0; i < tokens * width; ++i) {
      h.push_back(narrow(2.0f * random.bell()));
    }
    for (std::int64_t i = 0; i < padded * width; ++i) {
      w.push_back(narrow(0.5f * random.bell()));
    }
    for (std::int64_t i = 0; i < tokens; ++i) {
      const bool ignored = random.word() % 5 == 0;
      labels.push_back(ignored ? loss::ignore_label
                               : random.word() % static_cast<std::uint32_t>(vocabulary));
    }
    options.token_scale = 1.0f / 3000.0f;
  }
};

struct outcome {
  loss::loss_sum sum;
  std::vector<std::uint16_t> d_h;
  std::vector<std::uint32_t> d_w, token_losses;
  friend bool operator==(const outcome&, const outcome&) = default;
};

std::vector<std::uint32_t> bits_of(const std::vector<float>& x) {
  std::vector<std::uint32_t> bits;
  for (const float v : x) {
    bits.push_back(ordo::arith::bits(v));
  }
  return bits;
}

template <class Policy>
outcome by_definition(Policy policy, const batch& b) {
  ordo::reference::cross_entropy<decltype(twin(policy))> reference{
      twin(policy),
      static_cast<std::size_t>(b.tokens),
      static_cast<std::size_t>(b.width),
      static_cast<std::size_t>(b.vocabulary),
      b.h,
      b.w,
      b.labels,
      b.options};
  outcome o{reference.forward(), {}, {}, {}};
  for (const float g : reference.hidden_gradient()) {
    o.d_h.push_back(narrow(g).bits);
  }
  o.d_w = bits_of(reference.weight_gradient(static_cast<std::size_t>(b.padded)));
  o.token_losses = bits_of(reference.token_losses);
  return o;
}

template <class Space, class T>
auto to_space(const std::vector<T>& x, std::int64_t rows, std::int64_t columns) {
  Kokkos::View<T**, Kokkos::LayoutRight, Space> v("test", rows, columns);
  const auto host = Kokkos::create_mirror_view(v);
  std::copy(x.begin(), x.end(), host.data());
  Kokkos::deep_copy(v, host);
  return v;
}

template <class Space>
auto to_space(const std::vector<std::uint32_t>& x) {
  Kokkos::View<std::uint32_t*, Space> v("test", x.size());
  const auto host = Kokkos::create_mirror_view(v);
  std::copy(x.begin(), x.end(), host.data());
  Kokkos::deep_copy(v, host);
  return v;
}

/// Both entries on a space, into gradients that start as garbage.
template <class Space, class Policy>
outcome on_space(Policy policy, const batch& b, std::int64_t chunk_rows = loss::block_rows) {
  const Space space;
  const auto h = to_space<Space>(b.h, b.tokens, b.width);
  const auto w = to_space<Space>(b.w, b.padded, b.width);
  const auto labels = to_space<Space>(b.labels);
  const std::vector<bf16> garbage_h(b.h.size(), bf16{0x7fc1});
  const std::vector<float> garbage_w(b.w.size(), std::nanf(""));
  const auto d_h = to_space<Space>(garbage_h, b.tokens, b.width);
  const auto d_w = to_space<Space>(garbage_w, b.padded, b.width);
  const Kokkos::View<float*, Space> token_losses("test", b.tokens);

  loss::head_weights<Policy, Space> head(b.vocabulary, b.width);
  head.prepare(space, w);
  const std::int64_t spare = b.tokens % 2 * 300; // scratch may be larger than needed
  loss::loss_scratch<Policy, Space> scratch(b.tokens + spare, b.vocabulary, b.width, chunk_rows);
  const auto sum = loss::cross_entropy_forward_backward(space, policy, h, head, labels, d_h, d_w,
                                                        scratch, b.options);
  const auto forward =
      loss::cross_entropy_forward(space, policy, h, head, labels, token_losses, scratch, b.options);
  CHECK(forward == sum);

  const auto h_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), d_h);
  const auto w_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), d_w);
  const auto l_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), token_losses);
  outcome o{sum, {}, {}, {}};
  for (std::int64_t i = 0; i < b.tokens * b.width; ++i) {
    o.d_h.push_back(h_host.data()[i].bits);
  }
  o.d_w = bits_of({w_host.data(), w_host.data() + b.padded * b.width});
  o.token_losses = bits_of({l_host.data(), l_host.data() + b.tokens});
  return o;
}

template <class Policy>
void check_everywhere(Policy policy, const batch& b) {
  CAPTURE(b.tokens);
  CAPTURE(b.width);
  CAPTURE(b.vocabulary);
  const outcome expected = by_definition(policy, b);
  CHECK(on_space<Kokkos::Serial>(policy, b) == expected);
#if defined(KOKKOS_ENABLE_OPENMP)
  CHECK(on_space<Kokkos::OpenMP>(policy, b) == expected);
#endif
#if defined(KOKKOS_ENABLE_CUDA)
  CHECK(on_space<Kokkos::Cuda>(policy, b) == expected);
#endif
}

using host_space = Kokkos::DefaultHostExecutionSpace;

} // namespace

TEST_CASE("spaces equal the definition") {
  for (const std::int64_t tokens : {0, 1, 2, 255, 256, 257}) {
    for (const std::int64_t vocabulary : {1, 10, 257}) {
      check_everywhere(two_slices{}, batch(tokens, 17, vocabulary, vocabulary + 6));
    }
  }
  check_everywhere(two_slices{}, batch(300, 64, 1000, 1000));
  check_everywhere(two_slices{}, batch(130, 33, 1025, 1040));
  for (const std::int64_t tokens : {0, 1, 257}) {
    check_everywhere(lanes{}, batch(tokens, 16, 10, 16));
  }
  check_everywhere(lanes{}, batch(300, 40, 131, 136));
}

TEST_CASE("the order and the fixed point are visible: policies differ") {
  const batch b(40, 48, 100, 100);
  const outcome sliced = by_definition(two_slices{}, b), plain = by_definition(lanes{}, b);
  CHECK(sliced.d_w != plain.d_w);
  CHECK(sliced.token_losses != plain.token_losses);
}

TEST_CASE("hand-worked: two equal words") {
  batch b(1, 1, 2, 2);
  b.h = {narrow(1.0f)};
  b.w = {narrow(0.0f), narrow(0.0f)};
  b.labels = {0};
  b.options = {1.0f, 0.0f};
  const outcome o = on_space<Kokkos::Serial>(two_slices{}, b);
  CHECK(o.token_losses[0] == 0x3f317218u); // ln 2
  CHECK(o.sum == loss::loss_sum{std::int64_t{0xb1721800}, 1, true});
  CHECK(o.sum.mean() == ordo::arith::from_bits(0x3f317218u));
  CHECK(o.d_h == std::vector<std::uint16_t>{0});
  CHECK(o.d_w == bits_of({-0.5f, 0.5f}));
}

TEST_CASE("hand-worked: a vocabulary of one has no cross-entropy, only the penalty") {
  batch b(1, 2, 1, 1);
  b.h = {narrow(2.0f), narrow(4.0f)};
  b.w = {narrow(0.5f), narrow(0.75f)};
  b.labels = {0};
  b.options = {0.5f, 0.0f};
  CHECK(on_space<Kokkos::Serial>(two_slices{}, b).sum == loss::loss_sum{0, 1, true});
  b.options.z_coefficient = 0.25f;
  // lse = 4, loss = 0.25 * 16; the gradient's factor is 0.5 * (1 + 2 * 0.25 * 4) = 1.5, less 0.5.
  const outcome o = on_space<Kokkos::Serial>(two_slices{}, b);
  CHECK(o.sum == loss::loss_sum{std::int64_t{4} << 32, 1, true});
  CHECK(o.d_h == std::vector<std::uint16_t>{narrow(0.5f).bits, narrow(0.75f).bits});
  CHECK(o.d_w == bits_of({2.0f, 4.0f}));
}

TEST_CASE("the chunk changes no bit") {
  const batch b(1030, 16, 67, 72);
  const outcome expected = on_space<host_space>(two_slices{}, b, 256);
  for (const std::int64_t chunk : {1, 257, 512, 1024, 4096}) {
    CAPTURE(chunk);
    CHECK(on_space<host_space>(two_slices{}, b, chunk) == expected);
  }
}

TEST_CASE("the instruction set changes no bit") {
  const batch b(263, 35, 150, 152);
  const outcome expected = by_definition(two_slices{}, b);
  const auto best = ordo::cpu::active_isa();
  for (const auto level :
       {ordo::cpu::isa::portable, ordo::cpu::isa::avx2, ordo::cpu::isa::avx512}) {
    if (ordo::cpu::supported(level)) {
      ordo::cpu::force_isa(level);
      CHECK(on_space<host_space>(two_slices{}, b) == expected);
    }
  }
  ordo::cpu::force_isa(best);
}

TEST_CASE("a vocabulary of 10 padded to 16: what the padding holds does not matter") {
  batch b(70, 24, 10, 16);
  const outcome expected = by_definition(two_slices{}, b);
  for (const std::uint16_t pad : {0x0000, 0x7f7f, 0x7f80, 0xffff}) {
    for (std::size_t i = static_cast<std::size_t>(b.vocabulary * b.width); i < b.w.size(); ++i) {
      b.w[i] = bf16{pad};
    }
    const outcome o = on_space<host_space>(two_slices{}, b);
    CHECK(o == expected);
    for (std::size_t i = static_cast<std::size_t>(b.vocabulary * b.width); i < o.d_w.size(); ++i) {
      CHECK(o.d_w[i] == 0u);
    }
  }
  batch narrow_head = b;
  narrow_head.padded = 10;
  narrow_head.w.resize(static_cast<std::size_t>(b.vocabulary * b.width));
  CHECK(on_space<host_space>(two_slices{}, narrow_head).d_h == expected.d_h);
}

TEST_CASE("no valid label: zero loss, zero gradient") {
  batch b(300, 8, 20, 24);
  std::fill(b.labels.begin(), b.labels.end(), loss::ignore_label);
  const outcome o = on_space<host_space>(two_slices{}, b);
  CHECK(o.sum == loss::loss_sum{});
  CHECK(o.sum.mean() == 0.0f);
  CHECK(std::all_of(o.d_h.begin(), o.d_h.end(), [](auto x) { return x == 0; }));
  CHECK(std::all_of(o.d_w.begin(), o.d_w.end(), [](auto x) { return x == 0; }));
}

TEST_CASE("a label out of range is an error that names it, and nothing is written") {
  const host_space space;
  batch b(2100, 4, 10, 16);
  b.labels[2050] = 12; // a padding row
  b.labels[1500] = 10;
  const auto h = to_space<host_space>(b.h, b.tokens, b.width);
  const auto labels = to_space<host_space>(b.labels);
  const auto d_h = to_space<host_space>(std::vector<bf16>(b.h.size(), bf16{7}), b.tokens, b.width);
  const auto d_w = to_space<host_space>(std::vector<float>(b.w.size(), 7.0f), b.padded, b.width);
  loss::head_weights<two_slices, host_space> head(b.vocabulary, b.width);
  loss::loss_scratch<two_slices, host_space> scratch(b.tokens, b.vocabulary, b.width);
  const auto run = [&] {
    (void)loss::cross_entropy_forward_backward(space, two_slices{}, h, head, labels, d_h, d_w,
                                               scratch, b.options);
  };
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("has no weight"), ordo::error);
  const auto w = to_space<host_space>(b.w, b.padded, b.width);
  head.prepare(space, w);
  CHECK_THROWS_WITH_AS(run(), doctest::Contains("row 1500 has label 10, the vocabulary 10 words"),
                       ordo::error);
  for (std::size_t i = 0; i < b.w.size(); ++i) {
    CHECK(d_w.data()[i] == 7.0f);
  }
  CHECK(d_h(0, 0) == bf16{7});
  CHECK(d_h(2099, 3) == bf16{7});
  b.options.z_coefficient = -1.0f;
  CHECK_THROWS_AS(run(), ordo::error);
}

TEST_CASE("what an ignored token holds stays there") {
  batch b(270, 12, 30, 32);
  b.labels[5] = loss::ignore_label;
  const outcome expected = by_definition(two_slices{}, b);
  for (const std::uint16_t held : {0x7f80, 0x7fc0, 0xff81, 0x7e00}) {
    std::fill_n(b.h.begin() + 5 * b.width, b.width, bf16{held});
    CHECK(on_space<host_space>(two_slices{}, b) == expected);
  }
}

TEST_CASE("a non-finite logit is an event, not a number") {
  batch b(260, 6, 9, 12);
  b.labels[3] = 2;
  b.labels[4] = 1;
  b.h[static_cast<std::size_t>(3 * b.width + 1)] = bf16{0x7f80};
  const outcome o = on_space<host_space>(two_slices{}, b);
  CHECK(o == by_definition(two_slices{}, b));
  CHECK(!o.sum.finite);
  CHECK(o.sum.sum == 0);
  CHECK(ordo::arith::bits(o.sum.total()) == nan_bits);
  CHECK(ordo::arith::bits(o.sum.mean()) == nan_bits);
  CHECK(o.token_losses[3] == nan_bits);
  CHECK(o.token_losses[4] != nan_bits);
  CHECK(o.d_h[static_cast<std::size_t>(3 * b.width)] == 0x7fc0);
  CHECK(o.d_h[static_cast<std::size_t>(4 * b.width)] != 0x7fc0);
  for (std::int64_t i = 0; i < b.padded * b.width; ++i) {
    CHECK(o.d_w[static_cast<std::size_t>(i)] == (i < b.vocabulary * b.width ? nan_bits : 0u));
  }
  batch huge(3, 2, 4, 4); // finite logits whose penalty is not
  huge.labels = {0, 1, 2};
  std::fill(huge.h.begin(), huge.h.end(), narrow(0x1p40f));
  std::fill(huge.w.begin(), huge.w.end(), narrow(0x1p40f));
  const outcome large = on_space<host_space>(two_slices{}, huge);
  CHECK(large == by_definition(two_slices{}, huge));
  CHECK(!large.sum.finite);
}

TEST_CASE("losses add up in any grouping; the mean is over tokens") {
  using loss::loss_sum;
  const loss_sum one{std::int64_t{6} << 32, 1, true}, three{std::int64_t{2} << 32, 3, true};
  CHECK((one + three).mean() == 2.0f); // the mean of means is 3.33
  const loss_sum big{(std::int64_t{1} << 62) - 5, 1, true}, damaged{0, 1, false};
  CHECK(!(big + loss_sum{5, 1, true}).finite);
  CHECK((big + loss_sum{4, 1, true}).finite);
  CHECK(((big + big) + one) == (big + (one + big)));
  CHECK((one + damaged) == (damaged + one));

  // Micro-batches with 1 and 3 valid tokens against one with all of them.
  batch both(6, 8, 11, 11), first = both, second = both;
  both.labels = {4, loss::ignore_label, loss::ignore_label, 1, 0, 10};
  first.labels = {4, loss::ignore_label, loss::ignore_label};
  second.labels = {1, 0, 10};
  first.tokens = second.tokens = 3;
  first.h.resize(24);
  second.h.erase(second.h.begin(), second.h.begin() + 24);
  const auto sum = on_space<host_space>(two_slices{}, first).sum +
                   on_space<host_space>(two_slices{}, second).sum;
  CHECK(sum == on_space<host_space>(two_slices{}, both).sum);
  CHECK(sum.tokens == 4);
}

TEST_CASE("logits and the word that generation picks") {
  const host_space space;
  const batch b(3, 20, 300, 304);
  const auto h = to_space<host_space>(b.h, b.tokens, b.width);
  const auto w = to_space<host_space>(b.w, b.padded, b.width);
  loss::head_weights<two_slices, host_space> head(b.vocabulary, b.width);
  head.prepare(space, w);
  const Kokkos::View<float**, Kokkos::LayoutRight, host_space> out("test", 3, 300);
  loss::logits(space, two_slices{}, h, head, out);
  std::vector<float> expected;
  auto words = b.w;
  words.resize(300 * 20);
  twin(two_slices{})(3, 300, 20, b.h, words, expected);
  CHECK(bits_of({out.data(), out.data() + 900}) == bits_of(expected));
  const auto best = std::max_element(expected.begin(), expected.begin() + 300) - expected.begin();
  const ordo::vector_view<const float, host_space> row(out.data(), 300);
  CHECK(loss::argmax(space, row) == best);

  const auto pick = [&](std::vector<float> l) {
    return loss::argmax(space, ordo::vector_view<const float, host_space>(l.data(), l.size()));
  };
  const float nan = std::nanf(""), inf = HUGE_VALF;
  CHECK(pick({-1.0f, -0.0f, 0.0f, -2.0f}) == 1);
  CHECK(pick({nan, -inf, -nan}) == 1);
  CHECK(pick({nan, nan}) == 0);
  CHECK(pick({3.0f, inf, inf}) == 1);
  std::vector<float> wide(9000, -3.0f);
  wide[8999] = wide[5000] = -2.0f;
  CHECK(pick(wide) == 5000);
}

namespace {

/// Relative error in the Frobenius norm.
double distance(const std::vector<float>& x, const std::vector<double>& y) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / norm);
}

/// The gradients in binary64.
struct oracle {
  std::vector<double> logits, d_h, d_w;

  explicit oracle(const batch& b)
      : logits(static_cast<std::size_t>(b.tokens * b.vocabulary)),
        d_h(static_cast<std::size_t>(b.tokens * b.width)),
        d_w(static_cast<std::size_t>(b.vocabulary * b.width)) {
    const auto width = static_cast<std::size_t>(b.width);
    const auto words = static_cast<std::size_t>(b.vocabulary);
    const double scale = b.options.token_scale, z = b.options.z_coefficient;
    std::vector<double> h(b.h.size()), w(b.w.size());
    std::transform(b.h.begin(), b.h.end(), h.begin(), widen);
    std::transform(b.w.begin(), b.w.end(), w.begin(), widen);
    for (std::size_t i = 0; i < static_cast<std::size_t>(b.tokens); ++i) {
      double* row = &logits[i * words];
      double sum = 0.0;
      for (std::size_t j = 0; j < words; ++j) {
        for (std::size_t d = 0; d < width; ++d) {
          row[j] += h[i * width + d] * w[j * width + d];
        }
        sum += std::exp(row[j]);
      }
      const double lse = std::log(sum);
      for (std::size_t j = 0; j < words; ++j) {
        const double g = scale * ((1.0 + 2.0 * z * lse) * std::exp(row[j]) / sum -
                                  (j == b.labels[i] ? 1.0 : 0.0));
        for (std::size_t d = 0; d < width; ++d) {
          d_h[i * width + d] += g * w[j * width + d];
          d_w[j * width + d] += g * h[i * width + d];
        }
      }
    }
  }
};

struct errors {
  double logits, d_h, d_w;
};

/// Errors of the definition (the kernels have its bits), and those of the same contractions with
/// the one-hot inside.
std::pair<errors, errors> measure(const batch& b) {
  const auto tokens = static_cast<std::size_t>(b.tokens), width = static_cast<std::size_t>(b.width);
  const auto words = static_cast<std::size_t>(b.vocabulary);
  const oracle exact(b);
  const auto contract = twin(two_slices{});
  ordo::reference::cross_entropy<ordo::reference::sliced_contraction> apart{
      contract, tokens, width, words, b.h, b.w, b.labels, b.options};
  CHECK(apart.forward().finite);
  std::vector<float> logits;
  contract(tokens, words, width, b.h, b.w, logits);
  const errors e{distance(logits, exact.logits), distance(apart.hidden_gradient(), exact.d_h),
                 distance(apart.weight_gradient(words), exact.d_w)};

  std::vector<float> g = apart.probabilities, d_h;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const bool at_label = i % words == b.labels[i / words];
    g[i] = at_label ? apart.pulls[i / words] : apart.factors[i / words] * g[i];
  }
  contract(tokens, width, words, g, ordo::reference::detail::transposed(b.w, 0, words, width), d_h);
  auto inside = apart;
  inside.pulls.assign(tokens, 0.0f);
  inside.probabilities = g;
  inside.factors.assign(tokens, 1.0f);
  return {e,
          {e.logits, distance(d_h, exact.d_h), distance(inside.weight_gradient(words), exact.d_w)}};
}

/// Early in training nothing is known; late, a token's hidden state points at its label.
batch training(bool late) {
  batch b(512, 64, 2048, 2048, 5);
  source random{77};
  for (std::int64_t i = 0; i < b.vocabulary * b.width; ++i) {
    b.w[static_cast<std::size_t>(i)] = narrow((late ? 0.25f : 0.0345f) * random.bell());
  }
  for (std::int64_t i = 0; i < b.tokens; ++i) {
    const auto word = random.word() % static_cast<std::uint32_t>(b.vocabulary);
    b.labels[static_cast<std::size_t>(i)] = word;
    for (std::int64_t d = 0; d < b.width; ++d) {
      const float w = widen(b.w[static_cast<std::size_t>(word * b.width + d)]);
      b.h[static_cast<std::size_t>(i * b.width + d)] =
          narrow(1.73f * random.bell() + (late ? 8.0f * w : 0.0f));
    }
  }
  b.options.token_scale = 1.0f / 512.0f;
  return b;
}

} // namespace

TEST_CASE("errors against binary64, and what the one-hot inside would do") {
  // The Error field of cross_entropy_forward_backward.
  constexpr errors early_bound{1.6e-5, 9.0e-7, 9.0e-7}, late_bound{1.7e-5, 8.0e-5, 3.0e-5};
  for (const bool late : {false, true}) {
    CAPTURE(late);
    const auto measured = measure(training(late));
    const errors apart = measured.first, inside = measured.second;
    const errors bound = late ? late_bound : early_bound;
    CAPTURE(apart.logits);
    CAPTURE(apart.d_h);
    CAPTURE(apart.d_w);
    CHECK(apart.logits < bound.logits);
    CHECK(apart.d_h < bound.d_h);
    CHECK(apart.d_w < bound.d_w);
    CHECK(inside.d_h > (late ? 20.0 : 1000.0) * apart.d_h);
    CHECK(inside.d_w > (late ? 10.0 : 500.0) * apart.d_w);
  }
}
