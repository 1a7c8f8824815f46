// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::nn::swiglu` and its gradient, one entry at a time.

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/functions.hpp>

namespace ordo::reference {

/// silu(gate) * up.
inline bf16 swiglu(bf16 gate, bf16 up) {
  return arith::to_bf16(arith::mul(arith::silu(arith::to_f32(gate)), arith::to_f32(up)));
}

/// (dy up) (s + (g s) (1 - s)), s = sigmoid(g).
inline bf16 swiglu_gate_gradient(bf16 dy, bf16 gate, bf16 up) {
  const float g = arith::to_f32(gate), s = arith::sigmoid(g);
  const float slope = arith::add(s, arith::mul(arith::mul(g, s), arith::sub(1.0f, s)));
  return arith::to_bf16(arith::mul(arith::mul_exact(arith::to_f32(dy), arith::to_f32(up)), slope));
}

/// dy (g s).
inline bf16 swiglu_up_gradient(bf16 dy, bf16 gate) {
  const float g = arith::to_f32(gate);
  return arith::to_bf16(arith::mul(arith::to_f32(dy), arith::mul(g, arith::sigmoid(g))));
}

} // namespace ordo::reference
