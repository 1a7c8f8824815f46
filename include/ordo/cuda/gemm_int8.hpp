// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Product of two int8 matrices on CUDA devices, exact in int32, with an epilogue.

#include <cstdint>

#include <ordo/core/error.hpp>
#include <ordo/cuda/gemm_int8_dot.hpp>
#include <ordo/cuda/gemm_int8_mma.hpp>
#include <ordo/cuda/gemm_int8_wgmma.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda {

/// The instructions of a product.
enum class gemm_int8_kernel { choose, wgmma, mma, dot };

/// The kernel that `gemm_int8` runs: `wanted` where it can, otherwise the next that can.
inline gemm_int8_kernel gemm_int8_choice(const int8_operands& x,
                                         gemm_int8_kernel wanted = gemm_int8_kernel::choose) {
  using enum gemm_int8_kernel;
  if ((wanted == choose || wanted == wgmma) && gemm_int8_wgmma_serves(x))
    return wgmma;
  return wanted != dot && gemm_mma::available() ? mma : dot;
}

/// C[m, n] = sum over k of A[m, k] * B[n, k], handed to `epilogue`, which device code can call:
/// `epilogue(std::int64_t m, std::int64_t n0, int count, const std::int32_t* c)` for disjoint
/// pieces that cover C. Of a `scaled_store` the results are stored in another way where the output
/// has its base and rows at multiples of 16 bytes; the bits are those of its operator().
///
/// Shape: A is M x K, B is N x K, rows along k, row strides in entries.
/// Order: Exact; no order exists. K is at most 133,144 for codes within [-127, 127].
/// Bits: depend on the entries and the epilogue, not on the kernel or its tiles.
template <class Epilogue>
void gemm_int8(cudaStream_t stream, const int8_operands& x, const Epilogue& epilogue,
               gemm_int8_kernel wanted = gemm_int8_kernel::choose) {
  if (x.m <= 0 || x.n <= 0)
    return;
  switch (gemm_int8_choice(x, wanted)) {
  case gemm_int8_kernel::wgmma:
    gemm_int8_wgmma(stream, x, epilogue);
    break;
  case gemm_int8_kernel::mma:
    gemm_mma::run(stream, x, epilogue);
    break;
  default:
    gemm_dot::run(stream, x, epilogue);
  }
}

} // namespace ordo::cuda
