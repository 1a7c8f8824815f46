// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS arith THREADS 1 2 7
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <Kokkos_Core.hpp>
#include <doctest/doctest.h>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/float_mode.hpp>
#include <ordo/arith/functions.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/digest/sha256.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/reduce/sum.hpp>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using namespace ordo;
using arith::bits;
using arith::from_bits;

const float inf = from_bits(0x7f800000u);
const float nan_value = from_bits(0x7fc00000u);

/// A value that the compiler does not know.
float opaque(float x) {
  volatile float v = x;
  return v;
}

/// The nearest binary32 of a number far from the range's ends, scaled by 2^-200: rounded as if
/// exponents had no end; then the rule of rounded results, or the one of exact results.
float rounded_result(double scaled, bool exact = false) {
  const float wide = static_cast<float>(scaled);
  const double value = std::ldexp(static_cast<double>(wide), -200);
  const bool zero = exact ? std::fabs(value) < 0x1p-126 : std::fabs(value) <= 0x1p-126;
  return zero ? std::copysign(0.0f, wide) : static_cast<float>(value);
}

/// A magnitude in [2^e, 2^(e+1)) with a random significand and sign.
float random_value(std::mt19937& source, int e) {
  const auto u = static_cast<std::uint32_t>(source());
  return from_bits((u & 0x807fffffu) | static_cast<std::uint32_t>(e + 127) << 23);
}

struct pair {
  float a, b;
};

/// Operands whose product (or quotient a / (1/b)) is within a few ulp of 2^-126.
std::vector<pair> edge_pairs(std::size_t n) {
  std::mt19937 source(1);
  std::vector<pair> out;
  while (out.size() < n) {
    const int e = static_cast<int>(source() % 120) - 120;
    const float a = random_value(source, e);
    const float near = static_cast<float>(0x1p-126 / static_cast<double>(a));
    const std::uint32_t u = bits(near) + static_cast<std::uint32_t>(source() % 7) - 3;
    if (!arith::is_finite(from_bits(u)) || std::fabs(from_bits(u)) < 0x1p-126f)
      continue;
    out.push_back({a, from_bits(u)});
  }
  return out;
}

} // namespace

TEST_CASE("arith: a product is rounded before it is added") {
  const float x = opaque(0x1.000002p0f);
  const float r = arith::mul(x, x);
  CHECK(bits(arith::sub(arith::mul(x, x), r)) == 0);
  CHECK(arith::fma(x, x, -r) == 0x1p-46f); // what a fused product would have left
  const float tenth = opaque(0.1f), three = opaque(3.0f), other = opaque(0.3f);
  const float unfused =
      static_cast<float>(double{other} - double{static_cast<float>(double{three} * double{tenth})});
  const float fused = static_cast<float>(double{other} - double{three} * double{tenth});
  CHECK(bits(arith::sub(other, arith::mul(three, tenth))) == bits(unfused));
  CHECK(bits(unfused) != bits(fused));
  // Host scalars in binary64 are not fused either, within a statement or across two.
  volatile double hundredth = 0.01, factor = 3.0, whole = 0.03;
  volatile double product = factor * hundredth;
  const double expected = whole - product;
  const double f = factor, h = hundredth, w = whole;
  const double kept = f * h;
  CHECK(w - f * h == expected);
  CHECK(w - kept == expected);
  CHECK(std::fma(-f, h, w) != expected);
  CHECK_NOTHROW(detail::require_unfused());
}

TEST_CASE("arith: results at the edge of the normal numbers") {
  CHECK(bits(arith::mul(0x1p-63f, 0x1p-63f)) == 0);
  CHECK(bits(arith::mul(-0x1p-63f, 0x1p-63f)) == 0x80000000u);
  CHECK(arith::mul_exact(0x1p-63f, 0x1p-63f) == 0x1p-126f);
  CHECK(bits(arith::mul_exact(0x1p-64f, -0x1p-63f)) == 0x80000000u);
  CHECK(arith::mul(0x1.000002p-63f, 0x1p-63f) == 0x1.000002p-126f);
  CHECK(bits(arith::mul(0x1.fffffep-64f, 0x1.000001p-63f)) == 0);
  CHECK(bits(arith::div(0x1p-100f, 0x1p26f)) == 0);
  CHECK(bits(arith::sub(0x1.8p-126f, 0x1p-126f)) == 0);
  CHECK(bits(arith::sub(0x1p-126f, 0x1.8p-126f)) == 0x80000000u);
  CHECK(arith::add(0x1p-126f, 0.0f) == 0x1p-126f);
  CHECK(arith::sub(0x1p-125f, 0x1p-126f) == 0x1p-126f);
  CHECK(bits(arith::flush(from_bits(0x007fffffu))) == 0);
  CHECK(bits(arith::flush(from_bits(0x80000001u))) == 0x80000000u);
  CHECK(bits(arith::flush(0x1p-126f)) == 0x00800000u);

  int wrong = 0, zeros = 0, smallest_by_naive_flush = 0;
  for (const auto [a, b] : edge_pairs(300000)) {
    const double product = std::ldexp(double{a} * double{b}, 200);
    const float expected = rounded_result(product);
    zeros += expected == 0.0f;
    smallest_by_naive_flush += std::fabs(static_cast<float>(product)) == 0x1p74f;
    wrong += bits(arith::mul(a, b)) != bits(expected);
    const float inverse = static_cast<float>(1.0 / double{b});
    if (arith::is_finite(inverse) && arith::abs(inverse) >= 0x1p-126f) {
      const double quotient = std::ldexp(double{a} / double{inverse}, 200);
      wrong += bits(arith::div(a, inverse)) != bits(rounded_result(quotient));
    }
  }
  CHECK(wrong == 0);
  CHECK(zeros > 1000);
  CHECK(smallest_by_naive_flush > 1000); // the pairs do reach the edge
}

TEST_CASE("arith: ordinary results are the rounded exact ones") {
  std::mt19937 source(2);
  int wrong = 0;
  for (int i = 0; i < 300000; ++i) {
    const float a = random_value(source, static_cast<int>(source() % 60) - 30);
    const float b = random_value(source, static_cast<int>(source() % 60) - 30);
    wrong += bits(arith::mul(a, b)) != bits(static_cast<float>(double{a} * double{b}));
    wrong += bits(arith::div(a, b)) != bits(static_cast<float>(double{a} / double{b}));
    wrong += bits(arith::sqrt(arith::abs(a))) !=
             bits(static_cast<float>(std::sqrt(std::fabs(double{a}))));
    const float c = random_value(source, arith::exponent(a) - static_cast<int>(source() % 28));
    wrong += bits(arith::add(a, c)) != bits(static_cast<float>(double{a} + double{c}));
    wrong += bits(arith::sub(a, c)) != bits(static_cast<float>(double{a} - double{c}));
  }
  CHECK(wrong == 0);
  CHECK(arith::mul(0x1p127f, 2.0f) == inf);
  CHECK(arith::add(0x1.fffffep127f, 0x1p104f) == inf);
  CHECK(arith::is_nan(arith::sub(inf, inf)));
  CHECK(arith::is_nan(arith::sqrt(-1.0f)));
}

#if defined(__x86_64__)
namespace {

/// One digest over every operation on operands aimed at the edge, in one mode of the processor.
std::string edge_digest(unsigned mode, const std::vector<pair>& pairs) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(mode);
  std::vector<std::uint32_t> out;
  for (const auto [a, b] : pairs) {
    const float c = from_bits(bits(a) ^ (bits(b) & 7u));
    const float wide = arith::to_f32(arith::to_bf16(b));
    for (const float y :
         {arith::mul(a, b), arith::div(a, arith::div(1.0f, b)), arith::sub(a, c), arith::add(a, b),
          arith::mul_exact(arith::to_f32(arith::to_bf16(a)), wide), arith::fma(a, b, 0x1p-126f),
          arith::scale_pow2(a, arith::exponent(b)), arith::sqrt(arith::abs(a))}) {
      out.push_back(bits(y));
    }
    out.push_back(arith::to_bf16(arith::mul(a, b)).bits);
    out.push_back(static_cast<std::uint32_t>(arith::to_int(a, 1000)));
  }
  _mm_setcsr(saved);
  return digest::hex(digest::sha256_of(std::as_bytes(std::span(out))));
}

} // namespace

TEST_CASE("arith: the bits do not depend on the processor's flushing of subnormals") {
  const std::vector<pair> pairs = edge_pairs(200000);
  const std::string expected = edge_digest(0x1f80u, pairs);
  CHECK(edge_digest(0x9f80u, pairs) == expected); // flush results
  CHECK(edge_digest(0x1fc0u, pairs) == expected); // flush operands
  CHECK(edge_digest(0x9fc0u, pairs) == expected); // both
  CHECK(edge_digest(0x5f80u, pairs) != expected); // rounding upwards does differ: a canary
}
#endif

TEST_CASE("arith: a NaN is stored and hashed as 7fc00000") {
  const float zero = opaque(0.0f);
  for (const float x : {arith::div(zero, zero), arith::sub(inf, inf), arith::sqrt(opaque(-1.0f)),
                        from_bits(0xffc00000u), from_bits(0x7fffffffu), from_bits(0x7f800001u)}) {
    CHECK(arith::is_nan(x));
    CHECK(bits(arith::canonical(x)) == 0x7fc00000u);
  }
  for (const float x : {inf, -inf, 0.0f, -0.0f, 1.0f})
    CHECK(bits(arith::canonical(x)) == bits(x));
}

TEST_CASE("arith: max and min have one answer for zeros and NaN") {
  CHECK(bits(arith::max(0.0f, -0.0f)) == 0x80000000u);
  CHECK(bits(arith::max(-0.0f, 0.0f)) == 0);
  CHECK(bits(arith::min(0.0f, -0.0f)) == 0x80000000u);
  CHECK(arith::max(nan_value, 1.0f) == 1.0f);
  CHECK(arith::is_nan(arith::max(1.0f, nan_value)));
  CHECK(arith::min(nan_value, 1.0f) == 1.0f);
  CHECK(arith::max(1.0f, 2.0f) == 2.0f);
  CHECK(arith::min(1.0f, 2.0f) == 1.0f);
}

TEST_CASE("arith: narrowing to bf16") {
  CHECK(arith::to_f32(arith::to_bf16(from_bits(0x3E89CCD5u))) == 0.26953125f);
  CHECK(arith::to_bf16(from_bits(0x3f808000u)).bits == 0x3f80); // tie, even below
  CHECK(arith::to_bf16(from_bits(0x3f818000u)).bits == 0x3f82); // tie, even above
  CHECK(arith::to_bf16(from_bits(0x3f808001u)).bits == 0x3f81);
  CHECK(arith::to_bf16(from_bits(0xbf818000u)).bits == 0xbf82);
  for (const std::uint32_t u : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    CHECK(arith::to_bf16(from_bits(u)).bits == 0x7fc0);
  }
  CHECK(arith::to_bf16(inf).bits == 0x7f80);
  CHECK(arith::to_bf16(-inf).bits == 0xff80);
  CHECK(arith::to_bf16(from_bits(0x7f7fffffu)).bits == 0x7f80); // rounds up to infinity
  CHECK(arith::to_bf16(from_bits(0x7f7f7fffu)).bits == 0x7f7f);
  CHECK(arith::to_bf16(0x1p-126f).bits == 0); // the rule of rounded results
  CHECK(arith::to_bf16(-0x1.008p-126f).bits == 0x8000);
  CHECK(arith::to_bf16(0x1.02p-126f).bits == 0x0081);
  CHECK(bits(arith::to_f32(bf16{0x8001})) == 0x80000000u);
  int wrong = 0;
  for (std::uint32_t u = 0; u < 0x10000u; ++u) {
    const bf16 x{static_cast<std::uint16_t>(u)};
    const bool tiny = (u & 0x7fffu) <= 0x80u, nan = (u & 0x7fffu) > 0x7f80u;
    const std::uint32_t expected = nan ? 0x7fc0u : tiny ? u & 0x8000u : u;
    wrong += arith::to_bf16(arith::to_f32(x)).bits != expected;
  }
  CHECK(wrong == 0);
}

TEST_CASE("arith: a reciprocal product is not a quotient") {
  for (const float divisor : {3.0f, 6.0f, 48.0f}) {
    const float reciprocal = arith::div(1.0f, opaque(divisor));
    int different = 0;
    for (int i = 1; i <= 1000; ++i) {
      const float x = arith::from_int(i);
      different += bits(arith::mul(x, reciprocal)) != bits(arith::div(x, divisor));
    }
    CHECK(different == 332);
  }
  CHECK(bits(arith::div(opaque(5.0f), 6.0f)) == 0x3f555555u);
  CHECK(bits(arith::mul(opaque(5.0f), arith::div(1.0f, opaque(6.0f)))) == 0x3f555556u);
}

TEST_CASE("arith: to integer, nearest even and clamped") {
  CHECK(arith::to_int(opaque(127.6f), 127) == 127);
  CHECK(arith::to_int(opaque(-127.6f), 127) == -127);
  struct case_of_rounding {
    float x;
    int expected;
  };
  for (const case_of_rounding c : std::vector<case_of_rounding>{{0.5f, 0},
                                                                {-0.5f, 0},
                                                                {1.5f, 2},
                                                                {-1.5f, -2},
                                                                {2.5f, 2},
                                                                {-2.5f, -2},
                                                                {3.5f, 4},
                                                                {126.5f, 126},
                                                                {0.50000006f, 1},
                                                                {0.49999997f, 0},
                                                                {0x1p-126f, 0},
                                                                {-0.0f, 0}}) {
    INFO("x = " << c.x);
    CHECK(arith::to_int(opaque(c.x), 127) == c.expected);
    CHECK(arith::to_int64(opaque(c.x)) == c.expected);
  }
  CHECK(arith::to_int(inf, 127) == 127);
  CHECK(arith::to_int(-inf, 127) == -127);
  CHECK(arith::to_int(nan_value, 127) == 0);
  CHECK(arith::to_int(from_bits(0xffffffffu), 127) == 0);
  CHECK(arith::to_int(300.0f, 127) == 127);
  CHECK(arith::to_int(-300.0f, 127) == -127);
  constexpr std::int32_t largest = 1 << 22;
  CHECK(arith::to_int(1e30f, largest) == largest);
  CHECK(arith::to_int(-1e30f, largest) == -largest);
  CHECK(arith::to_int(4194303.5f, largest) == 4194304);
  CHECK(arith::to_int(-4194302.5f, largest) == -4194302);
  int wrong = 0;
  std::mt19937 source(3);
  for (int i = 0; i < 200000; ++i) {
    const float x = random_value(source, static_cast<int>(source() % 30) - 4);
    const double expected = std::nearbyint(double{x});
    wrong += arith::to_int64(x) != static_cast<std::int64_t>(expected);
    const double limited = std::fmin(std::fmax(expected, -2088895.0), 2088895.0);
    wrong += arith::to_int(x, 2088895) != static_cast<std::int32_t>(limited);
  }
  CHECK(wrong == 0);
}

TEST_CASE("arith: to 64-bit integer") {
  constexpr std::int64_t largest = std::int64_t{1} << 62;
  CHECK(arith::to_int64(opaque(4194304.5f)) == 4194304);
  CHECK(arith::to_int64(opaque(4194305.5f)) == 4194306);
  CHECK(arith::to_int64(opaque(8388607.5f)) == 8388608);
  CHECK(arith::to_int64(opaque(-8388607.5f)) == -8388608);
  CHECK(arith::to_int64(opaque(-8388606.5f)) == -8388606);
  CHECK(arith::to_int64(8388609.0f) == 8388609);
  CHECK(arith::to_int64(-16777215.0f) == -16777215);
  CHECK(arith::to_int64(0x1.fffffep61f) == 0x3fffffc000000000);
  CHECK(arith::to_int64(0x1p62f) == largest);
  CHECK(arith::to_int64(0x1p63f) == largest);
  CHECK(arith::to_int64(-0x1p100f) == -largest);
  CHECK(arith::to_int64(inf) == largest);
  CHECK(arith::to_int64(-inf) == -largest);
  CHECK(arith::to_int64(nan_value) == 0);
  CHECK(arith::from_int(std::int64_t{16777217}) == 16777216.0f);
  CHECK(arith::from_int(std::int64_t{16777219}) == 16777220.0f);
  CHECK(arith::from_int(std::int64_t{-16777217}) == -16777216.0f);
  CHECK(arith::from_int(std::numeric_limits<std::int64_t>::max()) == 0x1p63f);
  CHECK(arith::from_int(std::numeric_limits<std::int64_t>::min()) == -0x1p63f);
  CHECK(arith::from_int(std::int32_t{16777217}) == 16777216.0f);
}

TEST_CASE("arith: scaling by powers of two is rounded once") {
  CHECK(arith::scale_pow2(1.0f, 127) == 0x1p127f);
  CHECK(arith::scale_pow2(0x1p-126f, 1) == 0x1p-125f);
  CHECK(bits(arith::scale_pow2(0x1p-126f, 0)) == 0);
  CHECK(arith::scale_pow2(0x1p-126f, 252) == 0x1p126f);
  CHECK(arith::scale_pow2(0x1p-126f, 254) == inf);
  CHECK(arith::scale_pow2(0x1p-126f, 253) == 0x1p127f);
  CHECK(bits(arith::scale_pow2(-0x1p126f, -252)) == 0x80000000u);
  CHECK(arith::scale_pow2(0x1.8p126f, -252) == 0x1.8p-126f);
  CHECK(arith::scale_pow2(0x1.fffffep127f, -252) == 0x1.fffffep-125f);
  CHECK(bits(arith::scale_pow2(-0.0f, 100)) == 0x80000000u);
  CHECK(arith::scale_pow2(inf, -252) == inf);
  int wrong = 0;
  std::mt19937 source(4);
  for (int i = 0; i < 200000; ++i) {
    const float x = random_value(source, static_cast<int>(source() % 254) - 126);
    const int e = static_cast<int>(source() % 507) - 252;
    const double exact = std::ldexp(double{x}, e);
    const float expected = std::fabs(exact) <= 0x1p-126  ? std::copysign(0.0f, x)
                           : std::fabs(exact) >= 0x1p128 ? std::copysign(inf, x)
                                                         : static_cast<float>(exact);
    wrong += bits(arith::scale_pow2(x, e)) != bits(expected);
  }
  CHECK(wrong == 0);
  CHECK(arith::exponent(0x1.8p-126f) == -126);
  CHECK(arith::exponent(-0x1.8p127f) == 127);
  CHECK(arith::pow2(-126) == 0x1p-126f);
}

namespace {

/// A thread that exists before main, and so before anything could set a mode for it.
class early_thread {
public:
  early_thread()
      : worker_([this] {
          go_.get_future().wait();
          result_ = arith::sub(a_, b_);
        }) {}
  ~early_thread() {
    if (worker_.joinable())
      difference(0.0f, 0.0f);
  }
  float difference(float a, float b) {
    a_ = a;
    b_ = b;
    go_.set_value();
    worker_.join();
    return result_;
  }

private:
  std::promise<void> go_;
  float a_ = 0.0f, b_ = 0.0f, result_ = 1.0f;
  std::thread worker_; // last: it uses the others
};

early_thread early;

} // namespace

TEST_CASE("arith: a subnormal difference is zero on every thread") {
  float results[3] = {1.0f, 1.0f, 1.0f};
  const float a = opaque(0x1.8p-126f), b = opaque(0x1p-126f);
  std::thread([&] { results[0] = arith::sub(a, b); }).join();
  results[1] = arith::sub(a, b);
  std::vector<float> workers(16, 1.0f);
  Kokkos::parallel_for(Kokkos::RangePolicy<Kokkos::DefaultHostExecutionSpace>(0, 16),
                       [&](int i) { workers[static_cast<std::size_t>(i)] = arith::sub(a, b); });
  std::thread([&] {
    const arith::float_mode mode;
    results[2] = mode.pinned(arith::sub(a, b));
  }).join();
  CHECK(bits(early.difference(a, b)) == 0);
  for (const float r : results)
    CHECK(bits(r) == 0);
  for (const float r : workers)
    CHECK(bits(r) == 0);
}

namespace {

/// The mode of the calling thread, without sticky flags.
std::uint64_t current_mode() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fu;
#else
  return static_cast<std::uint64_t>(std::fegetround());
#endif
}

/// What a library that was loaded later may leave behind.
void set_foreign_mode(unsigned flush_bits, int rounding) {
#if defined(__x86_64__)
  _mm_setcsr(0x1f80u | flush_bits);
#else
  (void)flush_bits;
#endif
  std::fesetround(rounding);
}

/// Calls `f` on every thread that the host space uses.
template <class F>
void on_every_thread(const F& f) {
#if defined(KOKKOS_ENABLE_OPENMP)
#pragma omp parallel
  f();
#endif
  f();
}

std::string kernels_digest() {
  using space = Kokkos::DefaultHostExecutionSpace;
  constexpr std::int64_t n = 20000;
  const Kokkos::View<float*, space::memory_space> x("ordo::test::x", n), y("ordo::test::y", n);
  std::mt19937 source(5);
  for (std::int64_t i = 0; i < n; ++i) {
    x(i) = from_bits((source() & 0x807fffffu) | (static_cast<std::uint32_t>(i % 140) << 23));
  }
  float* const from = x.data();
  float* const to = y.data();
  detail::for_blocks(
      space(), "ordo::test::kernel", n, 256, KOKKOS_LAMBDA(std::int64_t b, std::int64_t e) {
        for (std::int64_t i = b; i < e; ++i) {
          const float v = arith::flush(from[i]);
          to[i] = arith::canonical(
              arith::add(arith::exp(v), arith::div(arith::mul(v, 0.3f), arith::add(2.0f, v))));
        }
      });
  digest::sha256 hash;
  hash.update(std::as_bytes(std::span(y.data(), y.extent(0))));
  for (const float r :
       {reduce::sum(space(), order::Sequential{}, x), reduce::sum(space(), order::Lanes<32>{}, y),
        reduce::sum(space(), order::Tree{}, y), reduce::sum_squares(space(), order::Exact{}, y)}) {
    hash.update(std::as_bytes(std::span(&r, 1)));
  }
  return digest::hex(hash.finish());
}

} // namespace

TEST_CASE("arith: kernels do not depend on the modes that they find, and leave them as they were") {
  const std::string expected = kernels_digest();
  for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    for (const unsigned flush_bits : {0u, 0x8000u, 0x0040u, 0x8040u}) {
      INFO("rounding " << rounding << ", flushing " << flush_bits);
      on_every_thread([=] { set_foreign_mode(flush_bits, rounding); });
      const std::uint64_t foreign = current_mode();
      const std::string found = kernels_digest();
      int changed = 0;
      on_every_thread([&] {
        if (current_mode() != foreign) {
#if defined(KOKKOS_ENABLE_OPENMP)
#pragma omp atomic
#endif
          ++changed;
        }
      });
      on_every_thread([] { set_foreign_mode(0, FE_TONEAREST); });
      CHECK(found == expected);
      CHECK(changed == 0);
    }
  }
}
