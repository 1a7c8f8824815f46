// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of the rotated int8 operands (`ordo::quant::rotate_rows` and `rotate_columns`).

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <ordo/arith/value.hpp>
#include <ordo/reference/quantize.hpp>

namespace ordo::reference {

/// H x of one block of 256: entry i is the sum over j of x_j, negative where i and j share an odd
/// number of set bits.
inline std::vector<std::int64_t> hadamard(std::span<const std::int32_t> x) {
  std::vector<std::int64_t> y(256, 0);
  for (unsigned i = 0; i < 256; ++i)
    for (unsigned j = 0; j < 256; ++j)
      y[i] += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
  return y;
}

/// The integers of a vector, padded with zeros to whole blocks, rotated block by block; entry
/// 16 a + b of a block goes to place 16 b + a.
inline std::vector<std::int64_t> rotate(std::vector<std::int32_t> v) {
  v.resize((v.size() + 255) / 256 * 256, 0);
  std::vector<std::int64_t> rotated(v.size());
  for (std::size_t block = 0; block < v.size(); block += 256) {
    const auto y = hadamard(std::span(v).subspan(block, 256));
    for (std::size_t a = 0; a < 16; ++a)
      for (std::size_t b = 0; b < 16; ++b)
        rotated[block + 16 * b + a] = y[16 * a + b];
  }
  return rotated;
}

/// Codes of rotated integers: nearest even of r * (127 / A) with A = max|r|. Returns A.
inline std::int64_t codes_of_rotated(std::span<const std::int64_t> r,
                                     std::span<std::int8_t> codes) {
  std::int64_t most = 0;
  for (const std::int64_t entry : r)
    most = std::max(most, std::int64_t{std::abs(entry)});
  const float inverse = most == 0 ? 0.0f : arith::div(127.0f, static_cast<float>(most));
  for (std::size_t i = 0; i < r.size(); ++i) {
    const float scaled = arith::mul(static_cast<float>(r[i]), inverse);
    codes[i] = static_cast<std::int8_t>(nearest_even(scaled, 127));
  }
  return most;
}

/// Rotates and quantizes a vector of int8 codes; returns the scale.
inline float rotate_codes(std::span<const std::int8_t> x, std::span<std::int8_t> codes) {
  const auto r = rotate(std::vector<std::int32_t>(x.begin(), x.end()));
  const float most = static_cast<float>(codes_of_rotated(r, codes));
  return arith::scale_pow2(arith::div(most, 127.0f), -4);
}

/// Aligns, rotates and quantizes a vector of values; returns the scale.
inline float rotate_values(std::span<const float> x, std::span<std::int8_t> codes) {
  float largest = 0.0f;
  bool finite = true;
  for (const float value : x) {
    finite = finite && arith::is_finite(value);
    largest = std::max(largest, arith::abs(value));
  }
  int shift = 0;
  if (finite && largest != 0.0f) {
    for (shift = 150; shift > -100 && std::ldexp(double{largest}, shift) > 32767.0;)
      --shift;
  }
  std::vector<std::int32_t> v;
  for (const float value : x)
    v.push_back(nearest_even(std::ldexp(double{value}, shift), 32767));
  const float most = static_cast<float>(codes_of_rotated(rotate(v), codes));
  if (!finite)
    return arith::from_bits(arith::canonical_nan);
  return arith::scale_pow2(arith::div(most, 127.0f), -shift - 4);
}

} // namespace ordo::reference
