// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::gemm_f32`.

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>

namespace ordo::reference {

/// C[m, n] = sum over k of A[m, k] * B[n, k]: product k goes to lane k mod `lanes`, which starts
/// from +0; then neighbouring lanes are added until one is left. One lane is the sequential sum.
template <class TA, class TB>
void gemm_f32(int lanes, std::int64_t m_total, std::int64_t n_total, std::int64_t k_total,
              std::span<const TA> a, std::span<const TB> b, std::span<float> c) {
  constexpr bool exact = std::is_same_v<TA, bf16> && std::is_same_v<TB, bf16>;
  for (std::int64_t m = 0; m < m_total; ++m)
    for (std::int64_t n = 0; n < n_total; ++n) {
      std::vector<float> sum(static_cast<std::size_t>(lanes), 0.0f);
      for (std::int64_t k = 0; k < k_total; ++k) {
        const float x = arith::to_f32(a[m * k_total + k]), y = arith::to_f32(b[n * k_total + k]);
        float& lane = sum[static_cast<std::size_t>(k % lanes)];
        lane = arith::add(lane, exact ? arith::mul_exact(x, y) : arith::mul(x, y));
      }
      for (; sum.size() > 1; sum.resize(sum.size() / 2))
        for (std::size_t i = 0; i < sum.size() / 2; ++i)
          sum[i] = arith::add(sum[2 * i], sum[2 * i + 1]);
      c[m * n_total + n] = arith::canonical(sum[0]);
    }
}

} // namespace ordo::reference
