// SPDX-License-Identifier: Apache-2.0
//
// Attention forward and backward beside OpenBLAS's sgemm on the seven matrix products that binary32
// attention would need for the same tiles (two forward, five backward), softmax not included.
//
// Counters: the best times of the forward pass, of both passes and of the products, taken in turns,
// and their ratio. The label is the digest of d_qkv. OMP_NUM_THREADS sets the threads of both.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>
#include <cblas.h>

#include <ordo/digest/sha256.hpp>
#include <ordo/nn/attention.hpp>

#include "yardstick.hpp"

namespace {

using space = Kokkos::DefaultHostExecutionSpace;
using blocks = ordo::nn::AttentionBlocks<64, 64>;
using matrix = Kokkos::View<ordo::bf16**, Kokkos::LayoutRight, Kokkos::HostSpace>;

template <class F>
double seconds(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

matrix numbers(std::int64_t rows, std::int64_t columns, std::uint32_t state) {
  matrix m("m", static_cast<std::size_t>(rows), static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < m.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    m.data()[i] =
        ordo::arith::to_bf16(static_cast<float>(static_cast<std::int32_t>(state) >> 8) * 0x1p-22f);
  }
  return m;
}

/// The seven products of each block of 64 queries with all the key blocks that it sees, head by
/// head. Threads take heads, as attention does.
void products(const ordo::nn::attention_shape& s) {
  const int dim = static_cast<int>(s.head_dim);
  ordo::detail::for_each(space(), "attention_bench::products", s.batch * s.heads,
                         [=](std::int64_t) {
                           static thread_local std::vector<float> x, p, o;
                           x.assign(static_cast<std::size_t>(s.seq * s.head_dim), 1.0f);
                           o.assign(x.size(), 0.0f);
                           p.assign(static_cast<std::size_t>(64 * (s.seq + 64)), 1.0f);
                           for (std::int64_t i = 0; i < s.seq; i += 64) {
                             const std::int64_t first = s.first_key(i) / 64 * 64;
                             const int m = static_cast<int>(std::min<std::int64_t>(64, s.seq - i));
                             const int n = static_cast<int>(std::min(s.seq, i + 64) - first);
                             const float *q = x.data() + i * dim, *k = x.data() + first * dim;
                             float *dq = o.data() + i * dim, *dk = o.data() + first * dim;
                             for (int r = 0; r < 3; ++r) // q k^T twice, dO v^T
                               cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, dim, 1.0f,
                                           q, dim, k, dim, 0.0f, p.data(), n);
                             for (int r = 0; r < 2; ++r) // P v, dS k
                               cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, dim, n,
                                           1.0f, p.data(), n, k, dim, 0.0f, dq, dim);
                             for (int r = 0; r < 2; ++r) // P^T dO, dS^T q
                               cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, dim, m, 1.0f,
                                           p.data(), n, q, dim, 0.0f, dk, dim);
                           }
                         });
}

void attention(benchmark::State& state) {
  const ordo::nn::attention_shape s{state.range(0), state.range(1), state.range(2),
                                    state.range(3), state.range(4), state.range(5)};
  const matrix qkv = numbers(s.tokens(), s.qkv_width(), 1),
               d_out = numbers(s.tokens(), s.out_width(), 2);
  const matrix out = numbers(s.tokens(), s.out_width(), 3),
               d_qkv = numbers(s.tokens(), s.qkv_width(), 4);
  const ordo::nn::rope_table<space> rope(10000.0, s.head_dim, s.seq);
  ordo::nn::attention_saved<space> saved(s);
  ordo::nn::attention_scratch<space, blocks> scratch(s);
  double forward = 1e30, both = 1e30, sgemm = 1e30;
  openblas_set_num_threads(1);
  for (auto _ : state) {
    state.PauseTiming();
    sgemm = std::min(sgemm, seconds([&] { products(s); }));
    state.ResumeTiming();
    const double f = seconds([&] {
      ordo::nn::attention_forward(space(), blocks(), s, rope, 1e-6f, qkv, out, saved, scratch);
    });
    const double b = seconds([&] {
      ordo::nn::attention_backward(space(), blocks(), s, rope, 1e-6f, qkv, out, saved, d_out, d_qkv,
                                   scratch);
    });
    forward = std::min(forward, f);
    both = std::min(both, f + b);
  }
  state.counters["forward_ms"] = forward * 1e3;
  state.counters["best_ms"] = both * 1e3;
  state.counters["sgemm_ms"] = sgemm * 1e3;
  state.counters["times_sgemm"] = both / sgemm;
  state.counters["tokens/s"] = static_cast<double>(s.tokens()) / both;
  state.counters["threads"] = space().concurrency();
  const auto digest = ordo::digest::sha256_of(std::as_bytes(std::span(d_qkv.data(), d_qkv.size())));
  state.SetLabel(ordo::digest::hex(digest).substr(0, 16));
}

BENCHMARK(attention)
    ->ArgNames({"batch", "seq", "heads", "kv", "dim", "window"})
    ->Args({4, 512, 8, 2, 32, 512})
    ->Args({4, 512, 8, 2, 32, 128})
    ->Args({4, 512, 8, 2, 64, 512})
    ->Args({1, 2048, 8, 2, 64, 512})
    ->Args({1, 1024, 4, 1, 128, 1024})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.5);

} // namespace

int main(int argc, char** argv) {
  return ordo::benchmarks::run(argc, argv);
}
