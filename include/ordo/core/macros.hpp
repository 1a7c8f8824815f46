// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The macros of the library, and the refusal of compiler flags under which it has no contract.

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) ||     \
    defined(__NO_SIGNED_ZEROS__)
#error "ordo: -ffast-math (or a part of it) reorders sums; compile without it"
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "ordo: -ffinite-math-only removes the treatment of NaN; compile without it"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
#error "ordo: float is evaluated in a wider type; on 32-bit x86 use -msse2 -mfpmath=sse"
#endif

/// A function that host and device code may call.
#if defined(__CUDACC__)
#define ORDO_FUNCTION __host__ __device__ inline
#define ORDO_FORCE_FUNCTION __host__ __device__ __forceinline__
#else
#define ORDO_FUNCTION inline
#define ORDO_FORCE_FUNCTION inline __attribute__((always_inline))
#endif

/// Pointers that do not alias, so that loops over them can be vectorized.
#define ORDO_RESTRICT __restrict__
