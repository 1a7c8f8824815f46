// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// AdamW in binary32 on bf16 parameters, with or without a binary32 master copy.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>

namespace ordo::optim {

/// The scalars of one update, all binary32; made on the host by `adamw_scalars_of`.
struct adamw_scalars {
  float learning_rate, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, weight_decay;
  float inverse_bias1, inverse_bias2; ///< 1 / (1 - beta^t)
  float clip;                         ///< min(1, max_norm / (norm + 1e-6)), multiplied in always
};

/// One AdamW update, entry by entry:
///   g = grad * clip;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) (g g);
///   p' = p - lr * ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd * p ).
/// With a master copy p is the master and the bf16 parameter is its rounding; without one p is the
/// bf16 parameter itself, rounded back once.
///
/// Shape: all views [n]; `master` empty for parameters without a master copy.
/// Order: none across entries. Bits: entry by entry, from the inputs and scalars alone.
/// Source: OPEN-1B, section 3; contract, section 9.
template <execution_space Space>
void adamw(const Space& space, const adamw_scalars& scalars, vector_view<const float, Space> grad,
           vector_view<bf16, Space> parameter, vector_view<float, Space> master,
           vector_view<float, Space> first, vector_view<float, Space> second) {
  const std::int64_t n = static_cast<std::int64_t>(grad.extent(0));
  const bool mastered = master.extent(0) > 0;
  require(parameter.extent(0) == grad.extent(0) && first.extent(0) == grad.extent(0) &&
              second.extent(0) == grad.extent(0) &&
              (!mastered || master.extent(0) == grad.extent(0)),
          "ordo::optim::adamw",
          "gradient of " + shape(n) + " for parameters of " + shape(parameter.extent(0)));
  const float* const g_in = grad.data();
  bf16* const p_out = parameter.data();
  float* const p_master = mastered ? master.data() : nullptr;
  float* const m_io = first.data();
  float* const v_io = second.data();
  ordo::detail::for_blocks(
      space, "ordo::optim::adamw", n, 1 << 13, KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        const adamw_scalars s = scalars; // a copy that no store can change, so the loop vectorizes
        const float* ORDO_RESTRICT gs = g_in;
        bf16* ORDO_RESTRICT ps = p_out;
        float* ORDO_RESTRICT ms = m_io;
        float* ORDO_RESTRICT vs = v_io;
        const auto update = [&](std::int64_t i, float p) {
          const float g = arith::mul(gs[i], s.clip);
          const float m = arith::add(arith::mul(s.beta1, ms[i]), arith::mul(s.one_minus_beta1, g));
          const float v = arith::add(arith::mul(s.beta2, vs[i]),
                                     arith::mul(s.one_minus_beta2, arith::mul(g, g)));
          ms[i] = m;
          vs[i] = v;
          const float denominator =
              arith::add(arith::sqrt(arith::mul(v, s.inverse_bias2)), s.epsilon);
          const float direction = arith::div(arith::mul(m, s.inverse_bias1), denominator);
          return arith::sub(
              p, arith::mul(s.learning_rate, arith::add(direction, arith::mul(s.weight_decay, p))));
        };
        if (p_master != nullptr) {
          float* ORDO_RESTRICT masters = p_master;
          for (std::int64_t i = begin; i < end; ++i) {
            masters[i] = update(i, masters[i]);
            ps[i] = arith::to_bf16(masters[i]);
          }
        } else {
          for (std::int64_t i = begin; i < end; ++i) {
            ps[i] = arith::to_bf16(update(i, arith::to_f32(ps[i])));
          }
        }
      });
}

} // namespace ordo::optim
