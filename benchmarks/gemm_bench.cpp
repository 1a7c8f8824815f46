// SPDX-License-Identifier: Apache-2.0
//
// The ordered and exact contractions beside OpenBLAS's sgemm, with the same number of threads.
//
// Counters: GFLOP/s (or integer operations), the ratio of the best time of sgemm on the same shape,
// taken just before, to the best time here, and both best times. The label is the digest of the
// result. OMP_NUM_THREADS sets the threads of both.

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

#include <ordo/arith/value.hpp>
#include <ordo/cpu/isa.hpp>
#include <ordo/digest/sha256.hpp>
#include <ordo/linalg/gemm_f32.hpp>
#include <ordo/linalg/gemm_int8.hpp>
#include <ordo/linalg/gemm_sliced.hpp>
#include <ordo/linalg/sliced.hpp>

#include "yardstick.hpp"

namespace {

using space = Kokkos::DefaultHostExecutionSpace;

struct shape {
  std::size_t m, n, k;
  explicit shape(const benchmark::State& state)
      : m(static_cast<std::size_t>(state.range(0))), n(static_cast<std::size_t>(state.range(1))),
        k(static_cast<std::size_t>(state.range(2))) {}
  double operations() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

/// Numbers in [-1, 1), the same in every run.
std::vector<float> reals(std::size_t count, std::uint32_t seed) {
  std::vector<float> out(count);
  std::uint32_t state = seed;
  for (float& x : out) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<std::int32_t>(state) >> 8) * 0x1p-23f;
  }
  return out;
}

std::vector<std::int8_t> bytes(std::size_t count, std::uint32_t seed) {
  std::vector<std::int8_t> out;
  for (const float x : reals(count, seed))
    out.push_back(static_cast<std::int8_t>(ordo::arith::to_int(x * 127.0f, 127)));
  return out;
}

template <class F>
double seconds(const F& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Best time of sgemm on this shape.
double sgemm_seconds(shape s) {
  const auto a = reals(s.m * s.k, 1), b = reals(s.n * s.k, 2);
  std::vector<float> c(s.m * s.n);
  const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
  openblas_set_num_threads(space().concurrency());
  double best = 1e30;
  double spent = 0.0;
  for (int i = 0; i < 5 || (spent < 0.2 && i < 1000); ++i) {
    const double t = seconds([&] {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, a.data(), k, b.data(), k,
                  0.0f, c.data(), n);
    });
    best = std::min(best, t);
    spent += t;
  }
  return best;
}

/// Runs `f` as the benchmark and reports; `c` is its result.
template <class T, class F>
void measure(benchmark::State& state, shape s, const std::vector<T>& c, const F& f) {
  const double baseline = sgemm_seconds(s);
  f();
  double best = 1e30;
  for (auto _ : state)
    best = std::min(best, seconds(f));
  state.counters["rate"] = s.operations() / best;
  state.counters["of_sgemm"] = baseline / best;
  state.counters["best_ms"] = best * 1e3;
  state.counters["sgemm_ms"] = baseline * 1e3;
  state.counters["threads"] = space().concurrency();
  const auto digest = ordo::digest::sha256_of(std::as_bytes(std::span(c)));
  state.SetLabel(ordo::digest::hex(digest).substr(0, 16));
}

template <class T>
auto view(T* data, std::size_t rows, std::size_t columns) {
  return ordo::matrix_view<T, space>(data, rows, columns);
}

void int8_exact(benchmark::State& state) {
  const shape s(state);
  const auto a = bytes(s.m * s.k, 1), b = bytes(s.n * s.k, 2);
  std::vector<std::int32_t> c(s.m * s.n);
  measure(state, s, c, [&] {
    ordo::gemm_int8(space(), ordo::order::Exact(), view(a.data(), s.m, s.k),
                    view(b.data(), s.n, s.k), view(c.data(), s.m, s.n));
  });
}

/// The slicing of both operands is part of the time.
template <int A, int B>
void sliced(benchmark::State& state) {
  const shape s(state);
  const auto a = reals(s.m * s.k, 1), b = reals(s.n * s.k, 2);
  std::vector<float> c(s.m * s.n);
  ordo::sliced_matrix<A, space> left;
  ordo::sliced_matrix<B, space> right;
  measure(state, s, c, [&] {
    ordo::slice_rows(space(), view(a.data(), s.m, s.k), left);
    ordo::slice_rows(space(), view(b.data(), s.n, s.k), right);
    ordo::gemm_sliced(space(), ordo::Sliced<A, B>(), left, right, view(c.data(), s.m, s.n));
  });
}

template <class Order>
void f32(benchmark::State& state) {
  const shape s(state);
  const auto a = reals(s.m * s.k, 1), b = reals(s.n * s.k, 2);
  std::vector<float> c(s.m * s.n);
  measure(state, s, c, [&] {
    ordo::gemm_f32(space(), Order(), view(a.data(), s.m, s.k), view(b.data(), s.n, s.k),
                   view(c.data(), s.m, s.n));
  });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"M", "N", "K"})->UseRealTime()->Unit(benchmark::kMillisecond)->MinTime(0.2);
  b->Args({1024, 1024, 1024})->Args({512, 512, 512})->Args({512, 128, 128})->Args({64, 1024, 1024});
  b->Args({4096, 512, 2048})->Args({2048, 1000, 512});
}

BENCHMARK(int8_exact)->Apply(shapes);
BENCHMARK_TEMPLATE(sliced, 2, 2)->Apply(shapes);
BENCHMARK_TEMPLATE(sliced, 3, 3)
    ->Args({1024, 1024, 1024})
    ->ArgNames({"M", "N", "K"})
    ->UseRealTime();
BENCHMARK_TEMPLATE(f32, ordo::order::Lanes<16>)->Apply(shapes);
BENCHMARK_TEMPLATE(f32, ordo::order::Sequential)->Apply(shapes);

} // namespace

int main(int argc, char** argv) {
  return ordo::benchmarks::run(argc, argv);
}
