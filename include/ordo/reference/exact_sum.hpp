// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The exact sum of binary32 by schoolbook integers of any length.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ordo/arith/value.hpp>

namespace ordo::reference {

/// A natural number, one bit an element, least significant first.
using natural = std::vector<bool>;

/// a += significand * 2^shift.
inline void add(natural& a, std::uint32_t significand, std::size_t shift) {
  bool carry = false;
  for (std::size_t i = shift; significand != 0 || carry; ++i, significand >>= 1) {
    if (i >= a.size())
      a.resize(i + 1);
    const int total = int{a[i]} + static_cast<int>(significand & 1u) + int{carry};
    a[i] = (total & 1) != 0;
    carry = total > 1;
  }
}

/// a - b, for a >= b, without leading zeros.
inline natural subtract(natural a, const natural& b) {
  bool borrow = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const int total = int{a[i]} - (i < b.size() ? int{b[i]} : 0) - int{borrow};
    a[i] = (total & 1) != 0;
    borrow = total < 0;
  }
  while (!a.empty() && !a.back())
    a.pop_back();
  return a;
}

/// a >= b, neither with leading zeros.
inline bool at_least(const natural& a, const natural& b) {
  if (a.size() != b.size())
    return a.size() > b.size();
  return !std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend());
}

/// The bits of the binary32 nearest to a * 2^-149, ties to even; subnormal results are zero.
inline std::uint32_t nearest(const natural& a) {
  if (a.size() < 24)
    return 0;
  const std::size_t cut = a.size() - 24; // bits below this one are rounded away
  std::uint32_t significand = 0;
  for (std::size_t i = a.size(); i-- > cut;)
    significand = significand << 1 | std::uint32_t{a[i]};
  const bool half = cut > 0 && a[cut - 1];
  bool more = false;
  for (std::size_t i = 0; i + 1 < cut; ++i)
    more = more || a[i];
  if (half && (more || significand % 2 == 1))
    ++significand;
  const std::uint64_t bits = (std::uint64_t{cut} << 23) + significand;
  return bits < 0x7f800000u ? static_cast<std::uint32_t>(bits) : 0x7f800000u;
}

/// Positive and negative addends are summed apart as natural numbers in units of 2^-149; their
/// difference is rounded once. NaN, or infinities of both signs: the canonical NaN.
inline float exact_sum(std::span<const float> x) {
  natural positive, negative;
  bool nan = false, plus = false, minus = false;
  for (const float element : x) {
    const std::uint32_t u = arith::bits(arith::flush(element));
    const std::uint32_t exponent = (u >> 23) & 0xffu, fraction = u & 0x7fffffu;
    if (exponent == 0)
      continue;
    if (exponent == 255) {
      (fraction != 0 ? nan : u >> 31 != 0 ? minus : plus) = true;
      continue;
    }
    add(u >> 31 != 0 ? negative : positive, fraction | 0x800000u, exponent - 1);
  }
  if (nan || (plus && minus))
    return arith::from_bits(arith::canonical_nan);
  if (plus || minus)
    return arith::from_bits(plus ? 0x7f800000u : 0xff800000u);
  return at_least(positive, negative)
             ? arith::from_bits(nearest(subtract(positive, negative)))
             : arith::from_bits(0x80000000u | nearest(subtract(negative, positive)));
}

} // namespace ordo::reference
