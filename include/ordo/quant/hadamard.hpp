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
ORDO_FORCE_FUNCTION constexpr int rotated_place(int i) { return (i % 16) * 16 + i / 16; }

namespace detail {

/// The four butterfly stages over the first index of x[16][16].
ORDO_FORCE_FUNCTION void hadamard_stages(std::int32_t* ORDO_RESTRICT x) {
  for (int half = 128; half >= 16; half /= 2) {
    for (int group = 0; group < 256; group += 2 * half) {
      for (int i = 0; i < half; ++i) {
        const std::int32_t a = x[group + i], b = x[group + half + i];
        x[group + i] = a + b;
        x[group + half + i] = a - b;
      }
    }
  }
}

}  // namespace detail

/// One contiguous block: `x` (256 entries of magnitude at most 2^23) is destroyed, `y` receives H x
/// in the rotated order.
ORDO_FORCE_FUNCTION void hadamard_row(std::int32_t* ORDO_RESTRICT x, std::int32_t* ORDO_RESTRICT y) {
  detail::hadamard_stages(x);
  for (int b = 0; b < 16; ++b) {
    for (int a = 0; a < 16; ++a) y[16 * b + a] = x[16 * a + b];
  }
  detail::hadamard_stages(y);
}

/// `Lanes` columns at once: x[256][Lanes] becomes H x along the first index, in *natural* order.
template <int Lanes>
ORDO_FORCE_FUNCTION void hadamard_columns(std::int32_t* ORDO_RESTRICT x) {
  for (int half = 128; half >= 1; half /= 2) {
    for (int group = 0; group < 256; group += 2 * half) {
      std::int32_t* ORDO_RESTRICT upper = x + group * Lanes;
      std::int32_t* ORDO_RESTRICT lower = x + (group + half) * Lanes;
      for (int i = 0; i < half * Lanes; ++i) {
        const std::int32_t a = upper[i], b = lower[i];
        upper[i] = a + b;
        lower[i] = a - b;
      }
    }
  }
}

}  // namespace ordo::quant
