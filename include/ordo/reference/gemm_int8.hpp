// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::gemm_int8`.

#include <cstdint>
#include <span>

namespace ordo::reference {

/// C[m, n] = sum over k of A[m, k] * B[n, k], in int64, which cannot overflow.
inline void gemm_int8(std::int64_t m_total, std::int64_t n_total, std::int64_t k_total,
                      std::span<const std::int8_t> a, std::span<const std::int8_t> b,
                      std::span<std::int32_t> c) {
  for (std::int64_t m = 0; m < m_total; ++m)
    for (std::int64_t n = 0; n < n_total; ++n) {
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < k_total; ++k)
        sum += std::int64_t{a[m * k_total + k]} * b[n * k_total + k];
      c[m * n_total + n] = static_cast<std::int32_t>(sum);
    }
}

} // namespace ordo::reference
