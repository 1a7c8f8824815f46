// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Device memory, random inputs, timing and the main function of the tests of the CUDA kernels.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::test {

/// Memory on the device for the length of a scope. Starts as a pattern that is no result.
template <class T>
class device_vector {
public:
  explicit device_vector(std::size_t n) : size_(n) {
    if (n > 0) {
      cuda::check(cudaMalloc(&data_, n * sizeof(T)), "device_vector");
      cuda::check(cudaMemset(data_, 0xa5, n * sizeof(T)), "device_vector");
    }
  }
  explicit device_vector(const std::vector<T>& from) : device_vector(from.size()) {
    if (size_ > 0)
      cuda::check(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
                  "device_vector");
  }
  device_vector(const device_vector&) = delete;
  ~device_vector() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Waits for the device and copies back.
  std::vector<T> host() const {
    std::vector<T> to(size_);
    cuda::check(cudaDeviceSynchronize(), "device_vector");
    if (size_ > 0)
      cuda::check(cudaMemcpy(to.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
                  "device_vector");
    return to;
  }

private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The median time of `f` on the default stream in milliseconds, by events, after two calls.
template <class F>
float median_ms(const F& f, int repetitions = 20) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < repetitions + 2; ++i) {
    cudaEventRecord(begin);
    f();
    cudaEventRecord(end);
    cuda::check(cudaEventSynchronize(end), "median_ms");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 2)
      times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

/// Whether two vectors hold the same bytes; prints the first place where they do not.
template <class T>
bool same_bits(const std::vector<T>& found, const std::vector<T>& expected) {
  if (found.size() != expected.size())
    return false;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::memcmp(&found[i], &expected[i], sizeof(T)) != 0) {
      std::uint64_t f = 0, e = 0;
      std::memcpy(&f, &found[i], std::min(sizeof(T), sizeof f));
      std::memcpy(&e, &expected[i], std::min(sizeof(T), sizeof e));
      std::printf("  first difference at %zu of %zu: found %llx, expected %llx\n", i, found.size(),
                  static_cast<unsigned long long>(f), static_cast<unsigned long long>(e));
      return false;
    }
  }
  return true;
}

/// NaN of binary32 as the contract's one: chips differ in them, digests do not.
inline std::vector<float> canonical(std::vector<float> x) {
  for (float& v : x)
    v = arith::canonical(v);
  return x;
}
/// bf16 and codes have no other NaN.
template <class T>
std::vector<T> canonical(std::vector<T> x) {
  return x;
}

/// Values of a normal distribution with a few zeros, outliers of up to 2^10 and tiny entries.
inline std::vector<bf16> random_bf16(std::size_t n, std::uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16> x(n);
  for (auto& v : x) {
    const std::uint64_t kind = engine() % 64;
    float f = normal(engine) * scale;
    f = kind == 0 ? 0.0f : kind == 1 ? f * 1024.0f : kind == 2 ? f * 0x1p-30f : f;
    v = arith::to_bf16(arith::flush(f));
  }
  return x;
}

/// Codes within [-127, 127].
inline std::vector<std::int8_t> random_codes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::int8_t> x(n);
  for (auto& v : x)
    v = static_cast<std::int8_t>(static_cast<int>(engine() % 255) - 127);
  return x;
}

/// Values of a normal distribution.
inline std::vector<float> random_f32(std::size_t n, std::uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (auto& v : x)
    v = arith::flush(normal(engine) * scale);
  return x;
}

} // namespace ordo::test

/// 77, which ctest takes as skipped, where there is no GPU.
int main(int argc, char** argv) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("no GPU: nothing was tested (%s)\n", cudaGetErrorString(status));
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
