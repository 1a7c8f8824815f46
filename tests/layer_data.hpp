// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Matrices in ordinary memory and made-up numbers for the tests of layers.

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>

/// Every test of bits runs on these.
#define ORDO_TEST_SPACES Kokkos::Serial, Kokkos::OpenMP

namespace ordo::test {

/// A row-major matrix (or, with one column, a vector) that any host space can view.
template <class T>
struct matrix {
  std::size_t rows, columns;
  std::vector<T> data;

  explicit matrix(std::size_t r, std::size_t c = 1) : rows(r), columns(c), data(r * c) {}
  T& operator()(std::size_t i, std::size_t j = 0) { return data[i * columns + j]; }
  T operator()(std::size_t i, std::size_t j = 0) const { return data[i * columns + j]; }
  std::span<const T> span() const { return data; }
  std::span<T> span() { return data; }

  template <class Space>
  matrix_view<T, Space> in() {
    return matrix_view<T, Space>(data.data(), rows, columns);
  }
  template <class Space>
  matrix_view<const T, Space> in() const {
    return matrix_view<const T, Space>(data.data(), rows, columns);
  }
  template <class Space>
  vector_view<T, Space> line() {
    return vector_view<T, Space>(data.data(), data.size());
  }
  template <class Space>
  vector_view<const T, Space> line() const {
    return vector_view<const T, Space>(data.data(), data.size());
  }
};

/// The constant views that entry points with a deduced space take.
template <class Space, class T>
matrix_view<const T, Space> read(const matrix<T>& x) {
  return x.template in<Space>();
}
template <class Space, class T>
vector_view<const T, Space> read_line(const matrix<T>& x) {
  return x.template line<Space>();
}

/// A weak generator suffices.
struct numbers {
  std::uint64_t state;
  std::uint32_t operator()() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 33) ^ static_cast<std::uint32_t>(state >> 11);
  }
  /// Uniform in [-1, 1).
  float uniform() {
    return static_cast<float>(static_cast<std::int32_t>((*this)() << 8) >> 8) * 0x1p-23f;
  }
  /// Nearly normal: the sum of twelve uniform numbers, variance 1.
  float normal() {
    double sum = 0;
    for (int i = 0; i < 12; ++i)
      sum += double{uniform()};
    return static_cast<float>(sum * 0.5);
  }
};

/// Nearly normal bf16 numbers.
inline matrix<bf16> normal_bf16(std::size_t rows, std::size_t columns, std::uint64_t seed,
                                float deviation = 1.0f) {
  matrix<bf16> out(rows, columns);
  numbers next{seed};
  for (bf16& x : out.data)
    x = arith::to_bf16(next.normal() * deviation);
  return out;
}

/// bf16 numbers of all magnitudes in [2^low, 2^high], some zeros of both signs among them.
inline matrix<bf16> wide_bf16(std::size_t rows, std::size_t columns, std::uint64_t seed, int low,
                              int high) {
  matrix<bf16> out(rows, columns);
  numbers next{seed};
  for (bf16& x : out.data) {
    const std::uint32_t u = next();
    const auto range = static_cast<std::uint32_t>(high - low + 1);
    const std::uint32_t exponent = static_cast<std::uint32_t>(low + 127) + next() % range;
    const bool zero = (u >> 20) % 16 == 0;
    x.bits = static_cast<std::uint16_t>((u & 0x8000u) | (zero ? 0 : exponent << 7 | (u & 0x7fu)));
  }
  return out;
}

inline matrix<std::int8_t> codes(std::size_t rows, std::size_t columns, std::uint64_t seed) {
  matrix<std::int8_t> out(rows, columns);
  numbers next{seed};
  for (auto& x : out.data)
    x = static_cast<std::int8_t>(static_cast<int>(next() % 255) - 127);
  return out;
}

/// The bits of an entry; those of any NaN are 7fc00000.
inline std::uint32_t bits_of(float x) {
  return arith::bits(arith::canonical(x));
}
inline std::uint32_t bits_of(bf16 x) {
  return x.bits;
}
inline std::uint32_t bits_of(std::int8_t x) {
  return static_cast<std::uint8_t>(x);
}

/// The first place where x and y differ in bits, or -1.
template <class T>
std::int64_t first_difference(const std::vector<T>& x, const std::vector<T>& y) {
  if (x.size() != y.size())
    return 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (bits_of(x[i]) != bits_of(y[i]))
      return static_cast<std::int64_t>(i);
  return -1;
}

template <class T>
bool same(const matrix<T>& x, const matrix<T>& y) {
  return first_difference(x.data, y.data) < 0;
}

inline bf16 brain(float x) {
  return arith::to_bf16(x);
}

} // namespace ordo::test
