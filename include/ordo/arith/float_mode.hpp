// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The floating-point mode of the calling thread, for the length of a scope.
///
/// Mode bits are per thread and any loaded library may change them, so kernels do not trust what
/// they find: each work item runs inside a `float_mode`.

#include <cstdint>

#include <ordo/core/macros.hpp>

#if defined(__x86_64__) && !defined(__CUDA_ARCH__)
#include <xmmintrin.h>
#endif

namespace ordo::arith {

/// Round to nearest even, exceptions masked, subnormals flushed; restores the former mode.
///
/// Compilers know nothing of modes. Loads and stores do not cross the ends of the scope, so what is
/// computed from memory into memory is computed inside; a value that leaves in a register must go
/// through `pinned`.
class float_mode {
public:
#if defined(__CUDA_ARCH__)
  ORDO_FUNCTION float_mode() {}
#elif defined(__x86_64__)
  float_mode() : saved_(_mm_getcsr()) {
    if ((saved_ & ~status) == wanted)
      return;
    _mm_setcsr(wanted);
    asm volatile("" : : : "memory");
  }
  ~float_mode() {
    if ((saved_ & ~status) == wanted)
      return;
    asm volatile("" : : : "memory");
    _mm_setcsr(saved_);
  }
#elif defined(__aarch64__)
  float_mode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != wanted)
      asm volatile("msr fpcr, %0" : : "r"(wanted) : "memory");
  }
  ~float_mode() {
    if (saved_ != wanted)
      asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory");
  }
#else
#error "ordo: no floating-point mode for this processor; add it to arith/float_mode.hpp"
#endif
  float_mode(const float_mode&) = delete;
  float_mode& operator=(const float_mode&) = delete;

  /// `x`, which has been computed before this mode may end.
  ORDO_FORCE_FUNCTION float pinned(float x) const {
#if !defined(__CUDA_ARCH__)
    asm volatile("" : "+m"(x));
#endif
    return x;
  }

private:
#if defined(__x86_64__) && !defined(__CUDA_ARCH__)
  static constexpr unsigned status = 0x3fu;   // sticky exception flags
  static constexpr unsigned wanted = 0x9fc0u; // masks, flush results, flush operands, nearest
  unsigned saved_;
#elif defined(__aarch64__) && !defined(__CUDA_ARCH__)
  static constexpr std::uint64_t wanted = std::uint64_t{1} << 24; // FZ, nearest
  std::uint64_t saved_ = 0;
#endif
};

} // namespace ordo::arith
