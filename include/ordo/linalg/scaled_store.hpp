// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What becomes of the int32 sums of a product of two int8 matrices in a linear layer.

#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/quant/code.hpp>

namespace ordo {

/// Where the factor of a row is: `row[0]` for all rows, or `row[m]`.
enum class row_factor { common, each };

/// The epilogue of `gemm_int8` that scales sums and stores them:
/// out[m, n] = from_int(C[m, n]) * (row * column[n]), each product by `arith::mul`, then `to_bf16`
/// where the output is bf16. With `Masked`, +0 where |weight[m, n] * inverse_step(step[m])| is at
/// least 127.5, that is where the quantizer's clamp changed the weight's code.
///
/// Shape: out [m, n] with rows `stride` entries apart; weight alike (same stride); step [m].
/// Bits: depend on the sums and factors alone, not on the pieces.
template <class Out, row_factor Rows, bool Masked = false>
struct scaled_store {
  static_assert(std::is_same_v<Out, bf16> || std::is_same_v<Out, float>,
                "ordo::scaled_store: entries are bf16 or float");

  Out* out;
  std::int64_t stride;
  const float *row, *column;
  const bf16* weight = nullptr;
  const float* step = nullptr;

  ORDO_FORCE_FUNCTION static float value(std::int32_t sum, float row_and_column) {
    return arith::mul(arith::from_int(sum), row_and_column);
  }
  ORDO_FORCE_FUNCTION static float masked(float value, bf16 weight, float inverse) {
    const float code = arith::abs(arith::mul(arith::to_f32(weight), inverse));
    return code >= 127.5f ? 0.0f : value;
  }
  ORDO_FORCE_FUNCTION static Out narrowed(float value) {
    if constexpr (std::is_same_v<Out, bf16>)
      return arith::to_bf16(value);
    else
      return value;
  }
  ORDO_FORCE_FUNCTION float of_row(std::int64_t m) const {
    return row[Rows == row_factor::each ? m : 0];
  }

  ORDO_FUNCTION void operator()(std::int64_t m, std::int64_t n0, int count,
                                const std::int32_t* ORDO_RESTRICT c) const {
    Out* ORDO_RESTRICT target = out + m * stride + n0;
    const float* ORDO_RESTRICT factor = column + n0;
    const float of_m = of_row(m);
    if constexpr (Masked) {
      const bf16* ORDO_RESTRICT w = weight + m * stride + n0;
      const float inverse = quant::inverse_step(step[m]);
      for (int j = 0; j < count; ++j)
        target[j] = narrowed(masked(value(c[j], arith::mul(of_m, factor[j])), w[j], inverse));
    } else {
      for (int j = 0; j < count; ++j)
        target[j] = narrowed(value(c[j], arith::mul(of_m, factor[j])));
    }
  }
};

} // namespace ordo
