// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The operand of the integer products of this directory.

#include <cstdint>

namespace ordo::cpu {

/// The slices of a matrix of int8, rows `stride` bytes apart.
template <int S>
struct int8_slices {
  const std::int8_t* slice[S];
  std::int64_t rows, columns, stride;
};

/// The most columns of C that are handed on at a time.
inline constexpr int most_piece = 64;

} // namespace ordo::cpu
