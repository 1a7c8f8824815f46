// SPDX-License-Identifier: Apache-2.0
// The head and its loss on the device against their definition, by bits.
#include "device_fixture.hpp"

#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include <ordo/cuda/cross_entropy.hpp>
#include <ordo/reference/cross_entropy.hpp>

namespace {

namespace cuda = ordo::cuda;
namespace loss = ordo::loss;
using ordo::bf16;
using ordo::test::device_vector;
using ordo::test::median_ms;
using ordo::test::random_bf16;
using ordo::test::same_bits;

/// reference::sliced_contraction with its rows spread over threads.
struct threaded_contraction {
  template <class TA, class TB>
  void operator()(std::size_t m, std::size_t n, std::size_t k, const std::vector<TA>& a,
                  const std::vector<TB>& b, std::vector<float>& c) const {
    using definition = ordo::reference::sliced_contraction;
    if (m * n * k < 1000000)
      return definition{2, 2}(m, n, k, a, b, c);
    std::vector<std::int32_t> a_shift, b_shift;
    const auto x = definition::align(a, m, k, 2, a_shift),
               y = definition::align(b, n, k, 2, b_shift);
    c.assign(m * n, ordo::arith::from_bits(ordo::arith::canonical_nan));
    const std::size_t threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> team;
    for (std::size_t t = 0; t < threads; ++t)
      team.emplace_back([&, t] {
        for (std::size_t i = t; i < m; i += threads)
          for (std::size_t j = 0; j < n; ++j) {
            constexpr std::int32_t bad = ordo::reference::non_finite_shift;
            if (a_shift[i] == bad || b_shift[j] == bad)
              continue;
            std::int64_t sum = 0;
            for (std::size_t p = 0; p < k; ++p)
              sum += std::int64_t{x[i * k + p]} * y[j * k + p];
            c[i * n + j] = ordo::arith::scale_pow2(ordo::arith::from_int(sum),
                                                   std::max(-(a_shift[i] + b_shift[j]), -252));
          }
      });
    for (auto& thread : team)
      thread.join();
  }
};

struct batch {
  std::int64_t tokens, width, vocabulary, padded;
  std::vector<bf16> h, w;
  std::vector<std::uint32_t> labels;
  loss::options options{};

  batch(std::int64_t tokens_, std::int64_t width_, std::int64_t vocabulary_, std::int64_t padded_,
        float scale = 0.2f, std::uint64_t seed = 1)
      : tokens(tokens_), width(width_), vocabulary(vocabulary_), padded(padded_) {
    std::mt19937_64 engine(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tokens * width; ++i)
      h.push_back(ordo::arith::to_bf16(normal(engine)));
    for (std::int64_t i = 0; i < padded * width; ++i)
      w.push_back(ordo::arith::to_bf16(normal(engine) * scale));
    for (std::int64_t i = 0; i < tokens; ++i) {
      const auto word =
          static_cast<std::uint32_t>(engine() % static_cast<std::uint64_t>(vocabulary));
      labels.push_back(engine() % 5 == 0   ? loss::ignore_label
                       : engine() % 3 == 0 ? word % 3 % static_cast<std::uint32_t>(vocabulary)
                                           : word);
    }
    options.token_scale = 1.0f / 3000.0f;
  }
};

struct outcome {
  loss::loss_sum sum;
  std::vector<bf16> d_h;
  std::vector<float> d_w, token_losses;
};

outcome by_definition(const batch& b) {
  ordo::reference::cross_entropy<threaded_contraction> reference{
      {},
      static_cast<std::size_t>(b.tokens),
      static_cast<std::size_t>(b.width),
      static_cast<std::size_t>(b.vocabulary),
      b.h,
      b.w,
      b.labels,
      b.options};
  outcome o{reference.forward(), {}, {}, {}};
  for (const float g : reference.hidden_gradient())
    o.d_h.push_back(ordo::arith::to_bf16(g));
  o.d_w = reference.weight_gradient(static_cast<std::size_t>(b.padded));
  o.token_losses = reference.token_losses;
  return o;
}

/// A head on the device, prepared.
struct device_head {
  device_vector<bf16> words;
  device_vector<std::int8_t> word_low, word_high, feature_low, feature_high;
  device_vector<std::int32_t> word_shift, feature_shift;
  std::int64_t vocabulary, width, padded;

  device_head(std::int64_t vocabulary_, std::int64_t width_, std::int64_t padded_)
      : words(static_cast<std::size_t>(padded_ * width_)),
        word_low(static_cast<std::size_t>(vocabulary_ * width_)), word_high(word_low.size()),
        feature_low(word_low.size()), feature_high(word_low.size()),
        word_shift(static_cast<std::size_t>(vocabulary_)),
        feature_shift(static_cast<std::size_t>(width_)), vocabulary(vocabulary_), width(width_),
        padded(padded_) {}
  cuda::slices<2> by_word() const {
    return {{word_low.data(), word_high.data()}, word_shift.data(), width};
  }
  cuda::slices<2> by_feature() const {
    return {{feature_low.data(), feature_high.data()}, feature_shift.data(), vocabulary};
  }
  void prepare() const {
    cuda::slice_rows<2>(nullptr, words.data(), vocabulary, width, width, by_word());
    cuda::slice_columns<2>(nullptr, words.data(), vocabulary, width, width, by_feature());
  }
};

outcome on_device(const batch& b, std::int64_t chunk) {
  device_head head(b.vocabulary, b.width, b.padded);
  cuda::check(cudaMemcpy(head.words.data(), b.w.data(), b.w.size() * 2, cudaMemcpyHostToDevice),
              "test");
  head.prepare();
  const device_vector<bf16> h(b.h);
  const device_vector<std::uint32_t> labels(b.labels);
  device_vector<bf16> d_h(b.h.size());
  device_vector<float> d_w(b.w.size()), token_losses(b.labels.size());
  const device_vector<unsigned char> scratch(
      cuda::cross_entropy_scratch_bytes(chunk, b.tokens, b.vocabulary, b.width));
  const auto memory =
      cuda::cross_entropy_memory(scratch.data(), chunk, b.tokens, b.vocabulary, b.width);
  cuda::loss_task task{b.tokens,
                       b.width,
                       b.vocabulary,
                       b.padded,
                       h.data(),
                       head.words.data(),
                       head.by_word(),
                       head.by_feature(),
                       labels.data(),
                       b.options.token_scale,
                       b.options.z_coefficient};
  const auto totals = [&] {
    std::int64_t of_call[loss::detail::loss_totals];
    cuda::check(cudaMemcpy(of_call, memory.totals, sizeof of_call, cudaMemcpyDeviceToHost), "test");
    return loss::detail::sum_of(of_call);
  };
  task.token_losses = token_losses.data();
  cuda::cross_entropy_forward(nullptr, task, memory);
  const loss::loss_sum forward = totals();
  task.token_losses = nullptr;
  task.d_h = d_h.data();
  task.d_w = d_w.data();
  cuda::cross_entropy_forward_backward(nullptr, task, memory);
  outcome o{totals(), d_h.host(), d_w.host(), token_losses.host()};
  CHECK(forward == o.sum);
  return o;
}

void check_same(const outcome& found, const outcome& expected) {
  CHECK(found.sum == expected.sum);
  CHECK(same_bits(found.token_losses, expected.token_losses));
  CHECK(same_bits(found.d_h, expected.d_h));
  CHECK(same_bits(found.d_w, expected.d_w));
}

void check(const batch& b, std::initializer_list<std::int64_t> chunks = {256}) {
  CAPTURE(b.tokens);
  CAPTURE(b.width);
  CAPTURE(b.vocabulary);
  const outcome expected = by_definition(b);
  for (const std::int64_t chunk : chunks) {
    CAPTURE(chunk);
    check_same(on_device(b, chunk), expected);
  }
}

__global__ void random_kernel(bf16* x, std::int64_t n, float scale, std::uint32_t seed) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * 256) {
    std::uint32_t word = static_cast<std::uint32_t>(i) * 2654435761u + seed, sum = 0;
    for (int k = 0; k < 4; ++k) {
      word = (word ^ (word >> 15)) * 0x2c1b3c6du;
      word = (word ^ (word >> 12)) * 0x297a2d39u;
      word ^= word >> 15;
      sum += word >> 8;
    }
    const float uniform = ordo::arith::from_int(static_cast<std::int32_t>(sum >> 2) - (1 << 23));
    x[i] = ordo::arith::to_bf16(ordo::arith::mul(uniform, scale * 0x1p-22f));
  }
}

__global__ void digest_kernel(const std::uint32_t* x, std::int64_t n, unsigned long long* digest) {
  unsigned long long sum = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * 256 + threadIdx.x; i < n;
       i += std::int64_t{gridDim.x} * 256) {
    unsigned long long v =
        (static_cast<unsigned long long>(x[i]) << 32 | (i & 0xffffffffu)) * 0x9e3779b97f4a7c15ull;
    v = (v ^ (v >> 29)) * 0xbf58476d1ce4e5b9ull;
    sum += v ^ (v >> 32);
  }
  atomicAdd(digest, sum);
}

unsigned long long digest(const void* x, std::int64_t bytes) {
  const device_vector<unsigned long long> of(std::vector<unsigned long long>{0});
  digest_kernel<<<1024, 256>>>(static_cast<const std::uint32_t*>(x), bytes / 4, of.data());
  return of.host()[0];
}

} // namespace

TEST_CASE("small shapes equal the definition") {
  for (const std::int64_t tokens : {0, 1, 2, 255, 257}) {
    for (const std::int64_t vocabulary : {1, 10, 257}) {
      check(batch(tokens, 17, vocabulary, vocabulary + 6));
    }
    check(batch(tokens, 16, 272, 272));
    check(batch(tokens, 64, 16, 32));
  }
  check(batch(513, 32, 304, 304), {1, 257, 512, 1024});
  check(batch(300, 64, 1000, 1008));
  check(batch(130, 33, 1025, 1040));
  check(batch(130, 144, 1040, 1040));
  check(batch(1030, 16, 67, 72), {256, 1024});
}

TEST_CASE("a larger shape, several chunks") {
  check(batch(700, 256, 8192, 8200), {512, 1024});
}

TEST_CASE("learned and spread logits") {
  for (const float scale : {0.0f, 1.0f, 4.0f, 30.0f, 1000.0f}) {
    check(batch(258, 48, 320, 320, scale));
    check(batch(258, 48, 321, 321, scale));
  }
  batch b(300, 32, 160, 160, 1.0f);
  for (const float scale : {0.0f, 1.0f, -3.0f, 0x1p-60f, 0x1p-110f, 0x1p100f, HUGE_VALF}) {
    b.options.token_scale = scale;
    check(b);
  }
  b.options = {1.0f, 0.0f};
  check(b);
  b.options = {1.0f, 1e30f};
  check(b);
}

TEST_CASE("ignored tokens, one label, no label") {
  batch b(520, 32, 160, 176);
  for (const std::uint16_t held : {0x7f80, 0x7fc0, 0xff81, 0x7e00}) {
    b.labels[5] = b.labels[300] = loss::ignore_label;
    std::fill_n(b.h.begin() + 5 * b.width, b.width, bf16{held});
    std::fill_n(b.h.begin() + 300 * b.width, b.width, bf16{held});
    check(b, {256, 768});
  }
  std::fill(b.labels.begin(), b.labels.end(), 3u);
  check(b);
  std::fill(b.labels.begin(), b.labels.end(), loss::ignore_label);
  check(b);
}

TEST_CASE("a non-finite logit") {
  for (const std::int64_t vocabulary : {1, 9, 160}) {
    batch b(260, 16, vocabulary, vocabulary + 3);
    b.labels[3] = 0;
    b.labels[7] = loss::ignore_label;
    b.h[static_cast<std::size_t>(3 * b.width + 1)] = bf16{0x7f80};
    check(b);
  }
  batch words(260, 16, 160, 160);
  words.w[5] = bf16{0x7fc0};
  check(words);
  batch huge(3, 16, 16, 16);
  huge.labels = {0, 1, 2};
  for (const float value : {0x1p40f, 0x1p62f, 0x1p64f}) {
    std::fill(huge.h.begin(), huge.h.end(), ordo::arith::to_bf16(value));
    std::fill(huge.w.begin(), huge.w.end(), ordo::arith::to_bf16(value));
    huge.w[3] = ordo::arith::to_bf16(-value);
    check(huge);
  }
}

TEST_CASE("a label that is no word is found, and nothing else is touched") {
  batch b(600, 16, 48, 48);
  b.labels[400] = 48;
  b.labels[500] = 0xfffffffeu;
  const std::int64_t chunk = 256;
  device_head head(b.vocabulary, b.width, b.padded);
  head.prepare();
  const device_vector<bf16> h(b.h);
  const device_vector<std::uint32_t> labels(b.labels);
  device_vector<bf16> d_h(b.h.size());
  device_vector<float> d_w(b.w.size());
  const device_vector<unsigned char> scratch(
      cuda::cross_entropy_scratch_bytes(chunk, b.tokens, b.vocabulary, b.width));
  const auto memory =
      cuda::cross_entropy_memory(scratch.data(), chunk, b.tokens, b.vocabulary, b.width);
  cuda::loss_task task{
      b.tokens,       b.width,           b.vocabulary,  b.padded, h.data(), head.words.data(),
      head.by_word(), head.by_feature(), labels.data(), 1.0f,     0.0f};
  task.d_h = d_h.data();
  task.d_w = d_w.data();
  cuda::cross_entropy_forward_backward(nullptr, task, memory);
  std::int64_t totals[loss::detail::loss_totals];
  cuda::check(cudaMemcpy(totals, memory.totals, sizeof totals, cudaMemcpyDeviceToHost), "test");
  CHECK(totals[loss::detail::first_bad_row] == 400);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

TEST_CASE("speed") {
  const std::int64_t tokens = 16384, width = 2048, vocabulary = 128256, chunk = 2048;
  device_head head(vocabulary, width, vocabulary);
  random_kernel<<<4096, 256>>>(head.words.data(), vocabulary * width, 0.03f, 1);
  head.prepare();
  device_vector<bf16> h(static_cast<std::size_t>(tokens * width)), d_h(h.size());
  random_kernel<<<4096, 256>>>(h.data(), tokens * width, 1.0f, 2);
  std::vector<std::uint32_t> label(static_cast<std::size_t>(tokens));
  std::mt19937_64 engine(3);
  for (auto& l : label) { // a few words are frequent, as in text
    const double u = static_cast<double>(engine() % 1000000) * 1e-6;
    l = static_cast<std::uint32_t>(std::exp(u * std::log(128255.0)));
  }
  const device_vector<std::uint32_t> labels(label);
  device_vector<float> d_w(static_cast<std::size_t>(vocabulary * width));
  const device_vector<unsigned char> scratch(
      cuda::cross_entropy_scratch_bytes(2 * chunk, tokens, vocabulary, width));
  auto memory = cuda::cross_entropy_memory(scratch.data(), chunk, tokens, vocabulary, width);
  cuda::loss_task task{tokens,         width,
                       vocabulary,     vocabulary,
                       h.data(),       head.words.data(),
                       head.by_word(), head.by_feature(),
                       labels.data(),  1.0f / 524288.0f,
                       1e-4f};
  task.d_h = d_h.data();
  task.d_w = d_w.data();
  const auto line = [](const char* name, double ms, double floor) {
    std::printf("%-34s %9.3f ms (floor %.3f ms)\n", name, ms, floor);
  };
  const double logit_bytes = 4.0 * chunk * vocabulary, gemm = 8.0 * chunk * vocabulary * width;
  namespace steps = cuda::head;
  line("chunk of 2048: logits",
       median_ms([&] { steps::logits_chunk(nullptr, task, memory, 0, chunk); }, 3), gemm / 1.4e12);
  line("chunk of 2048: rows",
       median_ms([&] { steps::partition_chunk<true>(nullptr, task, memory, 0, chunk); }, 5),
       logit_bytes / 4.3e9);
  line("chunk of 2048: digits",
       median_ms(
           [&] {
             cuda::launch("test", steps::digits_kernel<>,
                          dim3(static_cast<unsigned>(memory.pitch / 32), chunk / 256), dim3(256), 0,
                          nullptr,
                          steps::digits_task{memory.logits, memory.pitch, vocabulary, memory.terms,
                                             memory.by_row, memory.by_word});
           },
           5),
       2 * logit_bytes / 4.3e9);
  line("chunk of 2048: all gradients",
       median_ms([&] { steps::gradients_chunk(nullptr, task, memory, 0, chunk); }, 3),
       2 * gemm / 1.4e12 + 2 * logit_bytes / 4.3e9);
  line("labels",
       median_ms(
           [&] {
             steps::scatter_labels(nullptr, {h.data(), labels.data(), memory.pulls, tokens, width,
                                             vocabulary, d_w.data()});
           },
           3),
       0.1);
  line("head and loss, forward, backward",
       median_ms([&] { cuda::cross_entropy_forward_backward(nullptr, task, memory); }, 3),
       3 * 8 * gemm / 1.4e12 + 4 * 8 * logit_bytes / 4.3e9);
  line("head and loss, forward",
       median_ms([&] { cuda::cross_entropy_forward(nullptr, task, memory); }, 3),
       8 * gemm / 1.4e12 + 8 * logit_bytes / 4.3e9);
  unsigned long long first[2] = {};
  for (int repetition = 0; repetition < 10; ++repetition) {
    if (repetition == 8)
      memory = cuda::cross_entropy_memory(scratch.data(), 2 * chunk, tokens, vocabulary, width);
    if (repetition == 9)
      memory = cuda::cross_entropy_memory(scratch.data(), 1536, tokens, vocabulary, width);
    cuda::check(cudaMemset(d_h.data(), repetition, d_h.size() * 2), "test");
    cuda::cross_entropy_forward_backward(nullptr, task, memory);
    const unsigned long long now[2] = {digest(d_h.data(), tokens * width * 2),
                                       digest(d_w.data(), vocabulary * width * 4)};
    if (repetition == 0)
      std::memcpy(first, now, sizeof now);
    CHECK(first[0] == now[0]);
    CHECK(first[1] == now[1]);
  }
  std::int64_t totals[loss::detail::loss_totals];
  cuda::check(cudaMemcpy(totals, memory.totals, sizeof totals, cudaMemcpyDeviceToHost), "test");
  std::printf("mean loss %.6f, digests %016llx %016llx\n",
              static_cast<double>(loss::detail::sum_of(totals).mean()), first[0], first[1]);
}
