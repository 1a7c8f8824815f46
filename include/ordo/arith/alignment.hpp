// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The shift that aligns a row to fixed point.

#include <cstdint>

#include <ordo/arith/value.hpp>

namespace ordo::arith {

/// The largest s with magnitude * 2^s <= limit, without bounds; for the bits of a finite magnitude
/// above zero, and 0 < limit < 2^24.
ORDO_FORCE_FUNCTION std::int32_t alignment_shift(std::uint32_t magnitude, std::int32_t limit) {
  const std::uint32_t bound = bits(from_int(limit)), significand = 0x7fffffu;
  return static_cast<std::int32_t>(bound >> 23) - static_cast<std::int32_t>(magnitude >> 23) -
         ((magnitude & significand) > (bound & significand) ? 1 : 0);
}

} // namespace ordo::arith
