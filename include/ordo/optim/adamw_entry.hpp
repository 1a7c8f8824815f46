// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// AdamW entry by entry: what every backend's loops and kernels call (contract, section 11).

#include <cstdint>

#include <ordo/arith/value.hpp>

namespace ordo::optim {

/// The scalars of one update, all binary32; made on the host by `adamw_scalars_of`.
struct adamw_scalars {
  float learning_rate, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, weight_decay;
  float inverse_bias1, inverse_bias2; ///< 1 / (1 - beta^t)
  float clip;                         ///< min(1, max_norm / (norm + 1e-6)), multiplied in always
};

/// Indices [begin, end) of a flat vector.
struct index_range {
  std::int64_t begin, end;
};

/// The moments of one entry, which the update replaces.
struct moments {
  float first, second;
};

/// The updated parameter of one entry; without a master copy still to be rounded to bf16.
ORDO_FORCE_FUNCTION float adamw_entry(const adamw_scalars& s, float weight_decay, float grad,
                                      float p, moments& at) {
  const float g = arith::mul(grad, s.clip);
  at.first = arith::add(arith::mul(s.beta1, at.first), arith::mul(s.one_minus_beta1, g));
  at.second =
      arith::add(arith::mul(s.beta2, at.second), arith::mul(s.one_minus_beta2, arith::mul(g, g)));
  const float denominator =
      arith::add(arith::sqrt(arith::mul(at.second, s.inverse_bias2)), s.epsilon);
  const float direction = arith::div(arith::mul(at.first, s.inverse_bias1), denominator);
  return arith::sub(
      p, arith::mul(s.learning_rate, arith::add(direction, arith::mul(weight_decay, p))));
}

} // namespace ordo::optim
