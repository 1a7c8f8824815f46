// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The shifts of the backward pass: rows and columns of a tile to fixed point, and from there into
/// the units of the accumulators.

#include <cstdint>

#include <ordo/nn/attention_shape.hpp>

namespace ordo::nn::detail {

ORDO_FORCE_FUNCTION std::int32_t within(std::int32_t s, std::int32_t low, std::int32_t high) {
  return s < low ? low : s > high ? high : s;
}

/// The shift that aligns a row or column of a tile: `magnitude` holds the bits of its largest
/// entry.
ORDO_FORCE_FUNCTION std::int32_t tile_shift(std::uint32_t magnitude, std::int32_t cap) {
  return within(aligned_shift(magnitude, attention_limit, cap), -126, 126);
}

/// What is left of the way into the unit: the n of `in_units`.
ORDO_FORCE_FUNCTION std::int32_t rest_of_unit(std::int32_t unit, std::int32_t shift) {
  return within(unit - shift, 0, 62);
}

} // namespace ordo::nn::detail
