// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The warp instructions that the attention kernels share: int8 products of small tiles, loads of
/// their operands from shared memory, and copies from global to shared memory.
///
/// Fragments, for lane l of a warp with g = l / 4 and t = l % 4:
///   a [16 rows, 32 k]: a[0] row g, a[1] row g + 8, k = 4t ... 4t+3; a[2], a[3] the same rows,
///                      k = 16 + 4t ...; four codes a register, the lowest k in the lowest byte
///   b [32 k, 8 columns]: b[0] column g, k = 4t ... 4t+3; b[1] column g, k = 16 + 4t ...
///   c [16 rows, 8 columns]: c[0], c[1] row g, columns 2t, 2t+1; c[2], c[3] row g + 8
///
/// The c fragments of four column tiles hold, lane by lane, the places of one a fragment with k as
/// columns in another order: `attention_place`. A sum over k has no order, so a product whose left
/// operand was just computed needs no exchange between lanes if its right operand is stored in that
/// order.

#include <cstdint>

#include <cuda_runtime.h>

namespace ordo::cuda::detail {

/// The place of column j of a computed tile when it becomes the k of an a fragment: within each 16,
/// 8a + 2t + b goes to 4t + 2a + b.
__host__ __device__ constexpr int attention_place(int j) {
  return (j & ~15) | (j >> 1 & 3) << 2 | (j >> 3 & 1) << 1 | (j & 1);
}

#if defined(__CUDACC__)

/// d = c + a b in int32, signed int8 operands. `c` and `d` may be the same.
__device__ __forceinline__ void mma_s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4],
                                       std::uint32_t b0, std::uint32_t b1,
                                       const std::int32_t (&c)[4]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
#else
  // The same product of four [8, 16] x [16, 8] tiles, whose fragments are the halves of these.
  const auto tile = [](std::int32_t& d0, std::int32_t& d1, std::uint32_t x, std::uint32_t y,
                       std::int32_t c0, std::int32_t c1) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%4,%5};"
        : "=r"(d0), "=r"(d1)
        : "r"(x), "r"(y), "r"(c0), "r"(c1));
  };
  std::int32_t upper[2], lower[2];
  tile(upper[0], upper[1], a[0], b0, c[0], c[1]);
  tile(lower[0], lower[1], a[1], b0, c[2], c[3]);
  tile(d[0], d[1], a[2], b1, upper[0], upper[1]);
  tile(d[2], d[3], a[3], b1, lower[0], lower[1]);
#endif
}
__device__ __forceinline__ void mma_s8(std::int32_t (&c)[4], const std::uint32_t (&a)[4],
                                       std::uint32_t b0, std::uint32_t b1) {
  mma_s8(c, a, b0, b1, c);
}

/// Four 8 x 16-byte tiles: lane l passes the address of row l % 8 of tile l / 8 (16-byte aligned,
/// shared memory); register i of lane l receives bytes 4 (l % 4) ... of row l / 4 of tile i.
__device__ __forceinline__ void load_tiles(std::uint32_t (&r)[4], const void* row) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// 16 bytes from global to shared memory, complete after `copies_wait` and a barrier.
__device__ __forceinline__ void copy_16(void* shared, const void* global) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(address), "l"(global)
               : "memory");
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}
/// Closes the group of copies that this thread has started since the last call.
__device__ __forceinline__ void copies_commit() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}
/// Waits until all but the `Pending` newest groups of this thread are complete.
template <int Pending>
__device__ __forceinline__ void copies_wait() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
#endif
}

/// The lowest bytes of four words, the first in the lowest byte.
__device__ __forceinline__ std::uint32_t pack_bytes(std::uint32_t x0, std::uint32_t x1,
                                                    std::uint32_t x2, std::uint32_t x3) {
  return __byte_perm(__byte_perm(x0, x1, 0x0040), __byte_perm(x2, x3, 0x0040), 0x5410);
}

/// arith::add and arith::mul_exact as one instruction each. Both follow flush rule 1, and their
/// results below 2^-126 are exact, so that flushing by the hardware is that rule; its flush of
/// operands does nothing to values, and is `arith::to_f32` for widened bf16.
__device__ __forceinline__ float add_flushed(float a, float b) {
  float r;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float mul_exact_flushed(float a, float b) {
  float r;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
