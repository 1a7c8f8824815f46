// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Products of warpgroups for attention: the left operand in registers or shared memory, the right
/// one in shared memory, there as core matrices (attention_bytes.hpp); for sm_90a code only.

#include <cstdint>

#include <ordo/cuda/attention_bytes.hpp>
#include <ordo/cuda/hopper.hpp>

namespace ordo::cuda::detail {

#if defined(__CUDACC__)

/// How the hardware finds core matrices of an operand with `Rows` rows. `address`: of its first
/// piece, plus 32 Rows for each step of 32 along k.
template <int Rows>
__device__ __forceinline__ std::uint64_t core_operand(std::uint32_t address) {
  constexpr std::uint64_t along_k = Rows * 16, along_rows = 128;
  return static_cast<std::uint64_t>((address & 0x3ffffu) >> 4) | ((along_k >> 4) << 16) |
         ((along_rows >> 4) << 32);
}

// clang-format off
#define ORDO_WGMMA_SUMS                                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define ORDO_WGMMA(types)                                                                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                        \
               "wgmma.mma_async.sync.aligned.m64n64k32.s32." types " " ORDO_WGMMA_SUMS             \
               ", {%32, %33, %34, %35}, %36, p;\n}\n"                                              \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),           \
                 "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]),         \
                 "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]),     \
                 "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),     \
                 "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]),     \
                 "+r"(d[30]), "+r"(d[31])                                                          \
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b),                                   \
                 "r"(static_cast<std::int32_t>(add)))
// clang-format on

/// d (64 x 64) += a (64 x 32) b (64 x 32)^T of bytes, or d = a b^T where `add` is false. `a` is in
/// the fragment order of attention_bytes.hpp, 16 rows to a warp; d as hopper_wgmma.hpp says.
template <byte_kind A, byte_kind B>
__device__ __forceinline__ void multiply_rows(std::int32_t (&d)[32], const uint4& a,
                                              std::uint64_t b, bool add) {
  if constexpr (A == byte_kind::high && B == byte_kind::high)
    ORDO_WGMMA("s8.s8");
  else if constexpr (A == byte_kind::high)
    ORDO_WGMMA("s8.u8");
  else if constexpr (B == byte_kind::high)
    ORDO_WGMMA("u8.s8");
  else
    ORDO_WGMMA("u8.u8");
}
#undef ORDO_WGMMA
#undef ORDO_WGMMA_SUMS

/// `bytes` in a row from global to shared memory, both at multiples of 16; they count on `barrier`.
__device__ __forceinline__ void load_bytes(std::uint32_t to, const void* from, std::uint32_t bytes,
                                           std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// The items of one block: there and back through all items, so that each block has long and short
/// ones.
struct item_order {
  int item = static_cast<int>(blockIdx.x), round = 0;

  __device__ __forceinline__ void advance() {
    const int grid = static_cast<int>(gridDim.x), place = static_cast<int>(blockIdx.x);
    ++round;
    item = round * grid + (round % 2 != 0 ? grid - 1 - place : place);
  }
};

#endif // __CUDACC__

} // namespace ordo::cuda::detail
