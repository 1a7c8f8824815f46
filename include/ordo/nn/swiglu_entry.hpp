// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// SwiGLU and the residual stream entry by entry: what every backend's loops and kernels call
/// (contract, section 7).

#include <ordo/arith/activation.hpp>
#include <ordo/arith/bf16.hpp>

namespace ordo::nn {

/// What the gradients of SwiGLU take from the gate.
struct gate_slopes {
  float slope; ///< s + (g s) (1 - s), the factor of the gate's gradient, s = sigmoid(g)
  float value; ///< g s, the factor of up's gradient
};

ORDO_FORCE_FUNCTION gate_slopes gate_slopes_of(float gate) {
  const float s = arith::sigmoid(gate);
  const float value = arith::mul(gate, s);
  return {arith::add(s, arith::mul(value, arith::sub(1.0f, s))), value};
}

/// silu(gate) up, still to be rounded to bf16.
ORDO_FORCE_FUNCTION float swiglu_entry(float silu_of_gate, float up) {
  return arith::mul(silu_of_gate, up);
}

/// The gate's gradient, still to be rounded to bf16.
ORDO_FORCE_FUNCTION float gate_gradient(float dy, float up, const gate_slopes& gate) {
  return arith::mul(arith::mul_exact(dy, up), gate.slope);
}

/// The gradient of up, still to be rounded to bf16.
ORDO_FORCE_FUNCTION float up_gradient(float dy, const gate_slopes& gate) {
  return arith::mul(dy, gate.value);
}

/// An entry of the residual stream.
ORDO_FORCE_FUNCTION bf16 residual_entry(bf16 a, bf16 b) {
  return arith::to_bf16(arith::add(arith::to_f32(a), arith::to_f32(b)));
}

} // namespace ordo::nn
