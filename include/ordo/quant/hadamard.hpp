// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The Walsh-Hadamard transform of blocks of 256 integers, unnormalised, exact.
///
/// H is symmetric and H H = 256 I, so rotating both operands of a contraction multiplies it by 256:
/// each operand carries the factor 2^-4, which is exact. The rotated order of a block is
/// *transposed*: entry 16 * b + a of the result is entry 16 * a + b of H x. A contraction does not
/// see the order as long as both operands share it.

#include <cstdint>

#include <ordo/core/macros.hpp>

namespace ordo::quant {

/// Length of a rotated block. Part of the contract; other lengths are padded with zeros.
inline constexpr int rotation_block = 256;

/// `n` rounded up to whole rotation blocks.
ORDO_FORCE_FUNCTION std::int64_t rotated_length(std::int64_t n) {
  return (n + rotation_block - 1) / rotation_block * rotation_block;
}

/// Place of entry `i` of H x in the rotated order.
ORDO_FORCE_FUNCTION constexpr int rotated_place(int i) {
  return (i % 16) * 16 + i / 16;
}

namespace detail {

/// Butterflies of four: the stages of two neighbouring index bits at once. Entry q of four goes
/// with the others by the signs of a 4 x 4 Hadamard matrix.
template <class T>
struct butterfly {
  T sum01, difference01, sum23, difference23;
  ORDO_FORCE_FUNCTION butterfly(T x0, T x1, T x2, T x3)
      : sum01(static_cast<T>(x0 + x1)), difference01(static_cast<T>(x0 - x1)),
        sum23(static_cast<T>(x2 + x3)), difference23(static_cast<T>(x2 - x3)) {}
  ORDO_FORCE_FUNCTION T entry0() const { return static_cast<T>(sum01 + sum23); }
  ORDO_FORCE_FUNCTION T entry1() const { return static_cast<T>(difference01 + difference23); }
  ORDO_FORCE_FUNCTION T entry2() const { return static_cast<T>(sum01 - sum23); }
  ORDO_FORCE_FUNCTION T entry3() const { return static_cast<T>(difference01 - difference23); }
};

/// In place: entries i, i + Step, i + 2 Step and i + 3 Step of each 4 Step of the N entries.
template <int N, int Step, class T>
ORDO_FORCE_FUNCTION void butterflies(T* x) {
  for (int group = 0; group < N; group += 4 * Step) {
    T* ORDO_RESTRICT x0 = x + group;
    T* ORDO_RESTRICT x1 = x0 + Step;
    T* ORDO_RESTRICT x2 = x1 + Step;
    T* ORDO_RESTRICT x3 = x2 + Step;
    for (int i = 0; i < Step; ++i) {
      const butterfly<T> four(x0[i], x1[i], x2[i], x3[i]);
      x0[i] = four.entry0();
      x1[i] = four.entry1();
      x2[i] = four.entry2();
      x3[i] = four.entry3();
    }
  }
}

/// The stages of the two lowest index bits, which become the highest: after two calls the low four
/// bits have been transformed and exchanged with the high four, which is the rotated order.
template <class T>
ORDO_FORCE_FUNCTION void butterflies_of_neighbours(const T* ORDO_RESTRICT x, T* ORDO_RESTRICT y) {
  for (int i = 0; i < rotation_block / 4; ++i) {
    const butterfly<T> four(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    y[i] = four.entry0();
    y[rotation_block / 4 + i] = four.entry1();
    y[rotation_block / 2 + i] = four.entry2();
    y[rotation_block / 4 * 3 + i] = four.entry3();
  }
}

} // namespace detail

/// One contiguous block: `x` (256 entries of magnitude at most 2^23) is destroyed, `y` receives H x
/// in the rotated order.
ORDO_FORCE_FUNCTION void hadamard_row(std::int32_t* ORDO_RESTRICT x,
                                      std::int32_t* ORDO_RESTRICT y) {
  alignas(64) std::int32_t half[rotation_block];
  detail::butterflies<rotation_block, 64>(x);
  detail::butterflies<rotation_block, 16>(x);
  detail::butterflies_of_neighbours(x, half);
  detail::butterflies_of_neighbours(half, y);
}

/// `Lanes` columns at once: x[256][Lanes] becomes H x along the first index, in *natural* order.
/// T must hold 256 times the largest magnitude: 16 bits for int8 codes, 32 for 16-bit integers.
template <int Lanes, class T>
ORDO_FORCE_FUNCTION void hadamard_columns(T* x) {
  detail::butterflies<rotation_block * Lanes, 64 * Lanes>(x);
  detail::butterflies<rotation_block * Lanes, 16 * Lanes>(x);
  detail::butterflies<rotation_block * Lanes, 4 * Lanes>(x);
  detail::butterflies<rotation_block * Lanes, Lanes>(x);
}

} // namespace ordo::quant
