// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Runs a piece of code compiled for the widest vectors the processor has.

#include <ordo/core/macros.hpp>
#include <ordo/cpu/isa.hpp>

/// Marks the lambdas given to `vectorized`: they must become part of the function that calls them.
#define ORDO_VECTORIZED __attribute__((always_inline))

namespace ordo::cpu {
#if defined(ORDO_CPU_X86)
namespace detail {

template <class F>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void call_avx512(const F& f) {
  f();
}

template <class F>
__attribute__((target("avx2"))) void call_avx2(const F& f) {
  f();
}

} // namespace detail
#endif

/// Calls `f()`, a lambda marked `ORDO_VECTORIZED` whose loops the compiler can vectorize, in a copy
/// compiled for the processor's instruction set. Products and sums stay apart in every copy.
///
/// Bits: those of `f()`.
template <class F>
ORDO_FORCE_FUNCTION void vectorized(const F& f) {
#if defined(ORDO_CPU_X86)
  switch (active_isa()) {
  case isa::avx512:
    return detail::call_avx512(f);
  case isa::avx2:
    return detail::call_avx2(f);
  case isa::portable:
    break;
  }
#endif
  f();
}

} // namespace ordo::cpu
