// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The chunks of the global norm: what every backend's loops and kernels call (contract, section
/// 11).

#include <cstdint>

#include <ordo/arith/value.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/order/sum.hpp>

namespace ordo::reduce {

/// Elements of a tensor whose squares are summed by one Lanes<32>. Part of the contract.
inline constexpr std::int64_t norm_chunk = 4096;

/// The addend of an element.
ORDO_FORCE_FUNCTION float norm_term(float x) {
  const float value = arith::flush(x);
  return arith::mul(value, value);
}

/// The sum of squares of one chunk of at most norm_chunk elements: Lanes<32> over mul(x, x). What a
/// rank computes of the chunks that it owns.
ORDO_FUNCTION float chunk_sum_squares(const float* from, std::int64_t n) {
  return order::sum(order::Lanes<32>{}, n, [=](std::int64_t i) { return norm_term(from[i]); });
}

} // namespace ordo::reduce
