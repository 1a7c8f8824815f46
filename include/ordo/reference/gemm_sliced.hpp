// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::slice_rows` and `ordo::gemm_sliced`.

#include <cstdint>
#include <limits>
#include <span>

#include <ordo/arith/value.hpp>

namespace ordo::reference {

inline constexpr std::int32_t non_finite_shift = std::numeric_limits<std::int32_t>::max();

/// Largest magnitude of an aligned entry: 127 * 128 + 63, or that times 128 plus 63.
constexpr std::int32_t aligned_limit(int slices) {
  return slices == 2 ? 16319 : 2088895;
}

/// 2^e as binary64; exact for every e used here.
inline double power_of_two(int e) {
  double p = 1.0;
  for (; e > 0; --e)
    p *= 2.0;
  for (; e < 0; ++e)
    p *= 0.5;
  return p;
}

/// The largest shift s in [-100, 150] with max|x| * 2^s <= limit; 0 if there is none but zeros.
inline std::int32_t row_shift(std::span<const float> x, int slices) {
  float amax = 0.0f;
  for (const float value : x) {
    if (!arith::is_finite(value))
      return non_finite_shift;
    amax = arith::max(amax, arith::abs(arith::flush(value)));
  }
  if (amax == 0.0f)
    return 0;
  std::int32_t s = 150;
  while (s > -100 && double{amax} * power_of_two(s) > aligned_limit(slices))
    --s;
  return s;
}

/// The aligned entry: an integer of at most `aligned_limit`, standing for x after division by 2^s.
inline std::int32_t aligned(float x, std::int32_t shift, int slices) {
  if (shift == non_finite_shift)
    return 0;
  return arith::to_int(arith::scale_pow2(arith::flush(x), shift), aligned_limit(slices));
}

/// Balanced digit i, base 128: v is the sum of digit i times 128^i.
inline std::int8_t digit(std::int32_t v, int i, int slices) {
  for (; i > 0; --i, --slices)
    v = (v - (((v + 64) & 127) - 64)) / 128;
  return static_cast<std::int8_t>(slices > 1 ? ((v + 64) & 127) - 64 : v);
}

/// C[m, n]: the rows of both sides aligned, their integer product rounded once, scaled back.
inline void gemm_sliced(int a_slices, int b_slices, std::int64_t m_total, std::int64_t n_total,
                        std::int64_t k_total, std::span<const float> a, std::span<const float> b,
                        std::span<float> c) {
  for (std::int64_t m = 0; m < m_total; ++m)
    for (std::int64_t n = 0; n < n_total; ++n) {
      const auto x = a.subspan(m * k_total, k_total), y = b.subspan(n * k_total, k_total);
      const std::int32_t s = row_shift(x, a_slices), t = row_shift(y, b_slices);
      float& result = c[m * n_total + n];
      if (s == non_finite_shift || t == non_finite_shift) {
        result = arith::from_bits(arith::canonical_nan);
        continue;
      }
      std::int64_t sum = 0;
      for (std::int64_t k = 0; k < k_total; ++k)
        sum += std::int64_t{aligned(x[k], s, a_slices)} * aligned(y[k], t, b_slices);
      const double scaled = double{arith::from_int(sum)} * power_of_two(-(s + t));
      const bool tiny = scaled >= -0x1p-126 && scaled <= 0x1p-126;
      result = tiny ? (sum < 0 ? -0.0f : 0.0f) : static_cast<float>(scaled);
    }
}

} // namespace ordo::reference
