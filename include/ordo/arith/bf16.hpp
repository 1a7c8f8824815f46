// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// bfloat16 storage and its one narrowing.

#include <cstdint>

#include <ordo/arith/value.hpp>

namespace ordo {

/// The upper half of a binary32: storage only, arithmetic happens in binary32.
struct bf16 {
  std::uint16_t bits;
  friend bool operator==(bf16, bf16) = default;
};

namespace arith {

/// Nearest even bf16; NaN becomes 7fc0, a rounded magnitude of at most 2^-126 zero of its sign.
ORDO_FORCE_FUNCTION bf16 to_bf16(float x) {
  const std::uint32_t u = bits(x);
  std::uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  r = (r & 0x7fffu) <= 0x0080u ? r & 0x8000u : r;
  r = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : r;
  return bf16{static_cast<std::uint16_t>(r)};
}

/// Exact. A subnormal bf16 (which no operation here produces) becomes zero of its sign.
ORDO_FORCE_FUNCTION float to_f32(bf16 x) {
  return flush(from_bits(static_cast<std::uint32_t>(x.bits) << 16));
}
ORDO_FORCE_FUNCTION float to_f32(float x) {
  return flush(x);
}

} // namespace arith
} // namespace ordo
