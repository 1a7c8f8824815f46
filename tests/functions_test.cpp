// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS arith TIMEOUT 600 EXHAUSTIVE
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <Kokkos_Core.hpp>
#include <doctest/doctest.h>
#include <xxhash.h>

#include <ordo/arith/functions.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/core/version.hpp>

#include "vectors.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace ordo;
using space = Kokkos::DefaultHostExecutionSpace;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Each function with its stated error, and its value in binary64 (better than 2^-50), which skips
// the library where a few terms of a series or the limit are as good. scale() is what the error's
// ulp belongs to.
struct exp_case {
  static constexpr const char* name = "exp";
  static constexpr double stated = 0.99;
  static float value(float x) { return arith::exp(x); }
  static double oracle(double x) {
    if (std::fabs(x) < 0x1p-30)
      return 1 + x;
    if (std::fabs(x) > 128)
      return x > 0 ? infinity : 0;
    return std::exp(x);
  }
};
struct log_case {
  static constexpr const char* name = "log";
  static constexpr double stated = 0.87;
  static float value(float x) { return arith::log(x); }
  static double oracle(double x) { return x < 0 ? not_a_number : std::log(x); }
};
struct sin_case {
  static constexpr const char* name = "sin";
  static constexpr double stated = 0.79;
  static float value(float x) { return arith::sin(x); }
  static double oracle(double x) {
    return std::fabs(x) < 0x1p-13 ? x - x * x * x / 6 : std::sin(x);
  }
};
struct cos_case {
  static constexpr const char* name = "cos";
  static constexpr double stated = 0.79;
  static float value(float x) { return arith::cos(x); }
  static double oracle(double x) { return std::fabs(x) < 0x1p-13 ? 1 - x * x / 2 : std::cos(x); }
};
struct sigmoid_case {
  static constexpr const char* name = "sigmoid";
  static constexpr double stated = 2.49;
  static float value(float x) { return arith::sigmoid(x); }
  static double oracle(double x) {
    if (std::fabs(x) < 0x1p-30)
      return 0.5 + x / 4;
    if (std::fabs(x) > 128)
      return x > 0 ? 1 : 0;
    return 1 / (1 + std::exp(-x));
  }
};
struct silu_case {
  static constexpr const char* name = "silu";
  static constexpr double stated = 2.45;
  static float value(float x) { return arith::silu(x); }
  static double oracle(double x) {
    if (std::fabs(x) < 0x1p-30)
      return x / 2 + x * x / 4;
    if (std::fabs(x) > 128)
      return x > 0 ? x : -0.0;
    return x / (1 + std::exp(-x));
  }
};
struct silu_grad_case {
  static constexpr const char* name = "silu_grad";
  static constexpr double stated = 5.33;
  static float value(float x) { return arith::silu_grad(x); }
  static double oracle(double x) {
    if (std::fabs(x) < 0x1p-30)
      return 0.5 + x / 2;
    if (std::fabs(x) > 128)
      return x > 0 ? 1 : -0.0;
    const double e = std::exp(-x);
    return (1 + x * e / (1 + e)) / (1 + e);
  }
};
struct rsqrt_case {
  static constexpr const char* name = "rsqrt";
  static constexpr double stated = 0.51;
  static float value(float x) { return arith::rsqrt(x); }
  static double oracle(double x) { return x < 0 ? not_a_number : 1 / std::sqrt(x); }
};

/// The magnitude whose ulp is the unit of the error: the result's; for silu_grad, which has a zero,
/// the larger of result and sigmoid.
template <class Case>
double unit_magnitude(double x, double exact) {
  if constexpr (std::is_same_v<Case, silu_grad_case>) {
    // Only near the zero can sigmoid be the larger one.
    if (x < 0 && x > -4)
      return std::max(std::fabs(exact), sigmoid_case::oracle(x));
  }
  (void)x;
  return std::fabs(exact);
}

/// Error of y as the value of Case at x, in ulp; infinite where no error is allowed.
template <class Case>
double error_ulp(float x, float y) {
  const double exact = Case::oracle(x);
  if (exact != exact)
    return arith::bits(y) == arith::canonical_nan ? 0 : infinity;
  if (!arith::is_finite(y)) {
    return y == y && (y > 0) == (exact > 0) && std::fabs(exact) > 0x1.fffffep127 ? 0 : infinity;
  }
  if (std::isinf(exact))
    return infinity;
  const double smallest = 0x1p-126;
  if (std::fabs(exact) <= smallest && std::fabs(y) < smallest) {
    return std::signbit(y) == std::signbit(exact) || exact == 0 ? 0 : infinity;
  }
  const double got = y == 0 ? std::copysign(smallest, exact) : double{y};
  // The ulp of a magnitude in [2^e, 2^(e+1)) is 2^(e-23).
  const double unit = std::max(unit_magnitude<Case>(x, exact), smallest);
  std::uint64_t u;
  std::memcpy(&u, &unit, sizeof u);
  u = (std::uint64_t{1023 + 23 + 1023} << 52) - (u & 0x7ff0000000000000u);
  double per_ulp;
  std::memcpy(&per_ulp, &u, sizeof per_ulp);
  return std::fabs(got - exact) * per_ulp;
}

struct measurement {
  std::string digest;
  double error = 0;
  std::uint32_t worst = 0;
};

constexpr std::uint64_t chunks = 4096, chunk_inputs = std::uint64_t{1} << 20;

std::string text(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  std::string out;
  for (const unsigned char b : bytes.digest) {
    out += "0123456789abcdef"[b >> 4];
    out += "0123456789abcdef"[b & 15];
  }
  return out;
}

/// Inputs stride * k in one chunk of 2^20 bit patterns, the results, and what they hash to.
template <class Case>
XXH128_hash_t evaluate(std::uint64_t chunk, std::uint64_t stride, std::vector<float>& in,
                       std::vector<float>& out) {
  const std::uint64_t begin = chunk * chunk_inputs, end = begin + chunk_inputs;
  in.clear();
  for (std::uint64_t u = (begin + stride - 1) / stride * stride; u < end; u += stride) {
    in.push_back(arith::flush(arith::from_bits(static_cast<std::uint32_t>(u))));
  }
  out.resize(in.size());
  for (std::size_t i = 0; i < in.size(); ++i)
    out[i] = Case::value(in[i]);
  return XXH3_128bits(out.data(), out.size() * sizeof(float));
}

/// How the values at -x follow from those at x, where they do: then only half need the oracle.
enum class symmetry { none, odd, even };
template <class Case>
constexpr symmetry symmetry_of() {
  if constexpr (std::is_same_v<Case, sin_case>)
    return symmetry::odd;
  if constexpr (std::is_same_v<Case, cos_case>)
    return symmetry::even;
  return symmetry::none;
}

template <class Case>
measurement measure(std::uint64_t stride) {
  constexpr std::size_t half = chunks / 2; // chunk half + c holds the negative inputs of chunk c
  std::vector<XXH128_canonical_t> leaves(chunks);
  std::vector<measurement> worst(chunks);
  detail::for_each(space(), "ordo::test::functions", static_cast<std::int64_t>(half), [&](auto c) {
    thread_local std::vector<float> in, out, positive_out;
    for (const std::size_t chunk :
         {static_cast<std::size_t>(c), static_cast<std::size_t>(c) + half}) {
      positive_out.swap(out);
      XXH128_canonicalFromHash(&leaves[chunk], evaluate<Case>(chunk, stride, in, out));
      const bool mirrored = symmetry_of<Case>() != symmetry::none && chunk >= half && stride == 1;
      const std::uint32_t flip = symmetry_of<Case>() == symmetry::odd ? 0x80000000u : 0u;
      for (std::size_t i = 0; i < in.size(); ++i) {
        double e;
        if (mirrored) {
          const std::uint32_t u = arith::bits(positive_out[i]);
          e = arith::bits(out[i]) == (u == arith::canonical_nan ? u : u ^ flip) ? 0 : infinity;
        } else {
          e = error_ulp<Case>(in[i], out[i]);
        }
        if (e > worst[chunk].error)
          worst[chunk] = {"", e, arith::bits(in[i])};
      }
    }
  });
  measurement result =
      *std::max_element(worst.begin(), worst.end(), [](const measurement& a, const measurement& b) {
        return a.error < b.error;
      });
  result.digest = text(XXH3_128bits(leaves.data(), leaves.size() * sizeof leaves[0]));
  return result;
}

constexpr std::uint64_t sample_stride = 997;
const char* const file = "functions.json";

/// Compares one digest with the stored one, or stores it.
void check_digest(const char* name, const char* which, const std::string& digest) {
  test::json stored = test::read_vectors(file);
  if (test::writing_vectors()) {
    if (stored.is_null()) {
      stored["about"] =
          "XXH3-128 of the XXH3-128 digests (canonical, big-endian) of 4096 chunks; a chunk is the "
          "results (binary32, little-endian) for the 2^20 inputs whose bits are chunk * 2^20 + i, "
          "subnormal inputs flushed; 'sample' takes only inputs whose bits are multiples of 997";
      stored["contract"] = contract_version;
    }
    stored[name][which] = digest;
    return test::write_vectors(file, stored);
  }
  REQUIRE(stored.contains(name));
  REQUIRE(stored[name].contains(which));
  CHECK(stored[name][which].get<std::string>() == digest);
}

template <class Case>
void check_sample() {
  const measurement m = measure<Case>(sample_stride);
  INFO(std::string(Case::name) << ": " << m.error << " ulp at " << test::hex(m.worst));
  CHECK(m.error <= Case::stated);
  CHECK(m.error > 0.4);
  check_digest(Case::name, "sample", m.digest);
}

/// All inputs: the error is the stated one, which is the measured one rounded up to two decimals.
template <class Case>
void check_all() {
  const measurement m = measure<Case>(1);
  MESSAGE(std::string(Case::name) << ": " << m.error << " ulp at " << test::hex(m.worst) << ", "
                                  << m.digest);
  CHECK(m.error <= Case::stated);
  CHECK(m.error > Case::stated - 0.01);
  check_digest(Case::name, "all", m.digest);
}

} // namespace

TEST_CASE("functions: every 997th input has the stored bits and at most the stated error") {
  check_sample<exp_case>();
  check_sample<log_case>();
  check_sample<sin_case>();
  check_sample<cos_case>();
  check_sample<sigmoid_case>();
  check_sample<silu_case>();
  check_sample<silu_grad_case>();
  check_sample<rsqrt_case>();
}

TEST_CASE("exhaustive: exp") {
  check_all<exp_case>();
}
TEST_CASE("exhaustive: log") {
  check_all<log_case>();
}
TEST_CASE("exhaustive: sin") {
  check_all<sin_case>();
}
TEST_CASE("exhaustive: cos") {
  check_all<cos_case>();
}
TEST_CASE("exhaustive: sigmoid") {
  check_all<sigmoid_case>();
}
TEST_CASE("exhaustive: silu") {
  check_all<silu_case>();
}
TEST_CASE("exhaustive: silu_grad") {
  check_all<silu_grad_case>();
}
TEST_CASE("exhaustive: rsqrt") {
  check_all<rsqrt_case>();
}

TEST_CASE("functions: special arguments have stated results") {
  const float inf = arith::from_bits(0x7f800000u), zero = 0.0f;
  const auto bits_of = [](float x) { return arith::bits(x); };
  for (const std::uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7fffffffu}) {
    const float x = arith::from_bits(nan);
    for (const float y :
         {arith::exp(x), arith::log(x), arith::sin(x), arith::cos(x), arith::sigmoid(x),
          arith::silu(x), arith::silu_grad(x), arith::rsqrt(x)}) {
      CHECK(bits_of(y) == arith::canonical_nan);
    }
  }
  for (const float y : {arith::sin(inf), arith::sin(-inf), arith::cos(inf), arith::cos(-inf),
                        arith::log(-1.0f), arith::log(-inf), arith::rsqrt(-1.0f),
                        arith::rsqrt(-inf), arith::log(-0x1p-126f), arith::rsqrt(-0x1p-126f)}) {
    CHECK(bits_of(y) == arith::canonical_nan);
  }
  CHECK(bits_of(arith::exp(inf)) == 0x7f800000u);
  CHECK(bits_of(arith::exp(-inf)) == 0);
  CHECK(bits_of(arith::exp(zero)) == 0x3f800000u);
  CHECK(bits_of(arith::exp(89.0f)) == 0x7f800000u);
  CHECK(bits_of(arith::exp(-88.0f)) == 0);
  CHECK(bits_of(arith::log(zero)) == 0xff800000u);
  CHECK(bits_of(arith::log(-zero)) == 0xff800000u);
  CHECK(bits_of(arith::log(1.0f)) == 0);
  CHECK(bits_of(arith::log(inf)) == 0x7f800000u);
  CHECK(bits_of(arith::sin(-zero)) == 0x80000000u);
  CHECK(bits_of(arith::cos(zero)) == 0x3f800000u);
  CHECK(bits_of(arith::sigmoid(inf)) == 0x3f800000u);
  CHECK(bits_of(arith::sigmoid(-inf)) == 0);
  CHECK(bits_of(arith::sigmoid(zero)) == 0x3f000000u);
  CHECK(bits_of(arith::silu(inf)) == 0x7f800000u);
  CHECK(bits_of(arith::silu(-inf)) == 0x80000000u);
  CHECK(bits_of(arith::silu(-zero)) == 0x80000000u);
  CHECK(arith::silu(-90.0f) < 0.0f); // a normal number, though exp(-90) is none
  CHECK(bits_of(arith::silu_grad(inf)) == 0x3f800000u);
  CHECK(bits_of(arith::silu_grad(-inf)) == 0x80000000u);
  CHECK(bits_of(arith::silu_grad(zero)) == 0x3f000000u);
  CHECK(bits_of(arith::rsqrt(zero)) == 0x7f800000u);
  CHECK(bits_of(arith::rsqrt(-zero)) == 0xff800000u);
  CHECK(bits_of(arith::rsqrt(inf)) == 0);
  CHECK(arith::rsqrt(0x1p-126f) == 0x1p63f);
  CHECK(arith::rsqrt(4.0f) == 0.5f);
}

TEST_CASE("functions: sine and cosine of the arguments closest to a multiple of pi/2") {
  // 16367173 * 2^72 is a known nearest miss of a multiple of pi/2.
  for (const float x : {16367173.0f * 0x1p72f, 0x1.fffffep127f, 1e22f, 0x1p100f, 3.1415927f}) {
    INFO("x = " << test::hex(x));
    CHECK(error_ulp<sin_case>(x, arith::sin(x)) <= sin_case::stated);
    CHECK(error_ulp<cos_case>(x, arith::cos(x)) <= cos_case::stated);
    CHECK(arith::bits(arith::sin(-x)) == (arith::bits(arith::sin(x)) ^ 0x80000000u));
    CHECK(arith::bits(arith::cos(-x)) == arith::bits(arith::cos(x)));
  }
}

TEST_CASE("functions: exp_bounded has the bits of exp") {
  int different = 0;
  for (std::uint64_t u = 0; u < std::uint64_t{1} << 32; u += 337) {
    const float x = arith::flush(arith::from_bits(static_cast<std::uint32_t>(u)));
    if (!(arith::abs(x) <= 86.0f))
      continue;
    different += arith::bits(arith::exp(x)) != arith::bits(arith::detail::exp_bounded(x));
  }
  CHECK(different == 0);
}

#if defined(__x86_64__)
namespace {

template <class Case>
std::string digest_under_mode(unsigned mode) {
  std::vector<float> in, out;
  std::vector<XXH128_canonical_t> leaves;
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(mode);
  // Chunks around the smallest normal numbers, around 1, at the thresholds of exp, large ones.
  for (const std::uint64_t chunk :
       {8,    9,    10,   100,  500,  800,  900,  1000, 1016, 1064, 1065,
        1066, 1067, 2040, 2056, 2057, 2900, 3064, 3112, 3113, 3114, 3115}) {
    XXH128_canonical_t leaf;
    XXH128_canonicalFromHash(&leaf, evaluate<Case>(chunk, 17, in, out));
    leaves.push_back(leaf);
  }
  _mm_setcsr(saved);
  return text(XXH3_128bits(leaves.data(), leaves.size() * sizeof leaves[0]));
}

template <class Case>
void check_modes() {
  INFO(std::string(Case::name));
  const std::string expected = digest_under_mode<Case>(0x1f80u);
  CHECK(digest_under_mode<Case>(0x9f80u) == expected); // flush results
  CHECK(digest_under_mode<Case>(0x1fc0u) == expected); // flush operands
  CHECK(digest_under_mode<Case>(0x9fc0u) == expected); // both
}

} // namespace

TEST_CASE("functions: the bits do not depend on the processor's flushing of subnormals") {
  check_modes<exp_case>();
  check_modes<log_case>();
  check_modes<sin_case>();
  check_modes<cos_case>();
  check_modes<sigmoid_case>();
  check_modes<silu_case>();
  check_modes<silu_grad_case>();
  check_modes<rsqrt_case>();
}
#endif
