// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Scalar functions of the host in binary64, made of + - * / only, so that every machine computes
/// the same bits. For schedules and tables, never inside kernels.

#include <cstdint>

#include <ordo/arith/value.hpp>
#include <ordo/core/error.hpp>

namespace ordo::host {

/// The binary32 value nearest to x, |x| below 2^128; a rounded magnitude of at most 2^-126 becomes
/// zero of its sign, so that the thread's flush-to-zero mode does not matter.
inline float narrow(double x) {
  return arith::detail::flush_rounded(static_cast<float>(x));
}

/// x^n by squaring, lowest bit of n first.
///
/// Error: about n/2 ulp. Bits: of x and n. n = 0 gives 1.
inline double power(double x, std::uint64_t n) {
  double result = 1.0;
  for (double square = x; n != 0; n >>= 1) {
    if ((n & 1u) != 0)
      result = result * square;
    square = square * square;
  }
  return result;
}

/// The n-th root of x in [1, 2^64], n in [1, 512].
///
/// Order: y starts from the smallest power of two whose n-th power exceeds x, then 2n + 16 times
/// y = y - (y^n - x) / (n y^(n-1)) with `power` for y^(n-1). From above, Newton's steps descend to
/// the root by at least the factor 1 - 1/(2n) until they converge quadratically.
/// Error: 2 ulp. Throws: outside the stated ranges.
inline double root(double x, int n) {
  require(x >= 1.0 && x <= 0x1p64 && n >= 1 && n <= 512, "ordo::host::root",
          "the root needs 1 <= x <= 2^64 and 1 <= n <= 512");
  double y = 1.0, reached = 1.0;
  while (reached <= x) {
    y = y * 2.0;
    reached = reached * (n <= 65 ? power(2.0, static_cast<std::uint64_t>(n)) : 0x1p65);
  }
  const double degree = n;
  for (int step = 0; step < 2 * n + 16; ++step) {
    const double below = power(y, static_cast<std::uint64_t>(n - 1));
    y = y - (below * y - x) / (degree * below);
  }
  return y;
}

namespace detail {

/// An angle as quadrant * pi/2 + rest, |rest| <= pi/4 (1 + 2^-30).
struct reduced_angle {
  std::int64_t quadrant;
  double rest;
};

/// pi/2 is taken as three parts, of which the first two have 33 bits: their products with the
/// quadrant are exact.
inline reduced_angle reduce(double x) {
  require(x >= -0x1p20 && x <= 0x1p20, "ordo::host", "an angle is not within [-2^20, 2^20]",
          "reduce it first");
  constexpr double first = 0x1.921fb544p+0, second = 0x1.0b4611a6p-34,
                   third = 0x1.3198a2e037073p-69;
  const double turns = x * 0x1.45f306dc9c883p-1; // 2/pi
  const std::int64_t quadrant = static_cast<std::int64_t>(turns < 0.0 ? turns - 0.5 : turns + 0.5);
  const double k = static_cast<double>(quadrant);
  return {quadrant, ((x - k * first) - k * second) - k * third};
}

/// The Taylor polynomials to x^17 and x^18, by Horner's rule in -x^2 with division instead of
/// tabulated factorials: each bracket is 1 - x^2/(k(k+1)) * (next bracket).
inline double sine_of_rest(double x) {
  const double square = x * x;
  double bracket = 1.0;
  for (int k = 16; k >= 2; k -= 2)
    bracket = 1.0 - square / static_cast<double>(k * (k + 1)) * bracket;
  return x * bracket;
}
inline double cosine_of_rest(double x) {
  const double square = x * x;
  double bracket = 1.0;
  for (int k = 17; k >= 1; k -= 2)
    bracket = 1.0 - square / static_cast<double>(k * (k + 1)) * bracket;
  return bracket;
}

} // namespace detail

/// Sine and cosine of x radians.
///
/// Error: 1e-15 absolute. Throws: for |x| > 2^20 (about 10^6), and for NaN.
inline double sin(double x) {
  const detail::reduced_angle a = detail::reduce(x);
  const double value =
      (a.quadrant & 1) != 0 ? detail::cosine_of_rest(a.rest) : detail::sine_of_rest(a.rest);
  return (a.quadrant & 2) != 0 ? -value : value;
}
inline double cos(double x) {
  const detail::reduced_angle a = detail::reduce(x);
  const double value =
      (a.quadrant & 1) != 0 ? detail::sine_of_rest(a.rest) : detail::cosine_of_rest(a.rest);
  return ((a.quadrant + 1) & 2) != 0 ? -value : value;
}

} // namespace ordo::host
