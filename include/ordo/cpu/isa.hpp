// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Which instruction set the kernels of this directory use. Tuning: every choice gives the same
/// bits.

#include <atomic>

#include <ordo/core/error.hpp>

/// In code of which the device's copy must know nothing.
#if defined(__x86_64__) && !defined(__CUDA_ARCH__)
#define ORDO_CPU_X86 1
#endif

#if defined(__x86_64__)
#include <immintrin.h>
/// Functions compiled for an instruction set that the rest of the program does not need.
#define ORDO_AVX2 __attribute__((target("avx2")))
#define ORDO_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
/// Parts of such functions.
#define ORDO_AVX512_INLINE ORDO_AVX512 __attribute__((always_inline)) inline
/// Around code that uses intrinsics: gcc 12 takes its own undefined operands for uninitialised
/// ones.
#if defined(__clang__)
#define ORDO_INTRINSICS_BEGIN
#define ORDO_INTRINSICS_END
#else
#define ORDO_INTRINSICS_BEGIN                                                                      \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")             \
      _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")
#define ORDO_INTRINSICS_END _Pragma("GCC diagnostic pop")
#endif
#endif

namespace ordo::cpu {

/// In ascending order of what is needed.
enum class isa { portable, avx2, avx512 };

/// Whether this processor and this build have the instructions.
inline bool supported(isa level) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  static const bool avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0;
  return level == isa::portable || (level == isa::avx2 ? avx2 : avx512);
#else
  return level == isa::portable;
#endif
}

/// The best one that is supported.
inline isa best_isa() {
  return supported(isa::avx512) ? isa::avx512 : supported(isa::avx2) ? isa::avx2 : isa::portable;
}

namespace detail {

inline std::atomic<isa>& chosen_isa() {
  static std::atomic<isa> chosen{best_isa()};
  return chosen;
}

} // namespace detail

/// The one that kernels use: the best, unless `force_isa` chose another.
inline isa active_isa() {
  return detail::chosen_isa().load(std::memory_order_relaxed);
}

/// Makes kernels use `level` from now on, for tests and measurements.
/// Throws: if this processor does not have it.
inline void force_isa(isa level) {
  require(supported(level), "ordo::cpu::force_isa", "this processor lacks the instructions",
          "ask ordo::cpu::supported first");
  detail::chosen_isa().store(level, std::memory_order_relaxed);
}

} // namespace ordo::cpu
