// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::optim::adamw`, one entry at a time.

#include <ordo/arith/value.hpp>
#include <ordo/optim/adamw.hpp>

namespace ordo::reference {

struct adamw_entry {
  float parameter; ///< the master copy, or the bf16 parameter widened
  float first, second;
};

/// The entry after one update; without a master copy its parameter is still to be rounded to bf16.
inline adamw_entry adamw(const optim::adamw_scalars& s, adamw_entry e, float gradient) {
  using arith::add, arith::mul;
  const float g = mul(gradient, s.clip);
  e.first = add(mul(s.beta1, e.first), mul(s.one_minus_beta1, g));
  e.second = add(mul(s.beta2, e.second), mul(s.one_minus_beta2, mul(g, g)));
  const float first = mul(e.first, s.inverse_bias1);
  const float root = arith::sqrt(mul(e.second, s.inverse_bias2));
  const float direction = arith::div(first, add(root, s.epsilon));
  const float decay = mul(s.weight_decay, e.parameter);
  e.parameter = arith::sub(e.parameter, mul(s.learning_rate, add(direction, decay)));
  return e;
}

} // namespace ordo::reference
