// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Integers of 16 bits as two bytes, multiplied by tensor cores, and the order in which the
/// backward pass of attention keeps them in memory.
///
/// Bytes: v = low + 256 high, low in [0, 255], high in [-64, 63] for |v| <= 16319. Balanced digits
/// (v = low + 128 high, low in [-64, 63]) are used where all four products are summed over the head
/// dimension in int32.
///
/// Core matrices: a matrix [rows, k] of bytes lies as [k / 16][rows] pieces of 16 bytes, so that
/// eight rows of 16 bytes are 128 bytes in a row; all of the low digits, then all of the high ones.
///
/// Fragment order: a matrix [rows, k] is cut into pieces of [16 rows, 32 k]; a piece is 16 bytes
/// for each lane of a warp. With g = lane / 4 and t = lane % 4, word w of a lane holds k = 16 (w /
/// 2)
/// + 4t ... 4t + 3 of row g + 8 (w % 2). That is the a fragment of attention_mma.hpp, and words 0,
/// 2 and 1, 3 are the b fragments of two tiles of 8 columns. Low and high digits of a piece follow
/// each other: [piece][low, high][lane]. Half order is the same
/// with the words of k < 16 of all lanes before the others: [piece][low, high][k / 16][lane].

#include <cstdint>

#include <ordo/arith/functions.hpp>
#include <ordo/cuda/attention_mma.hpp>

namespace ordo::cuda::detail {

/// 16-byte words of one piece: two digits, 32 lanes.
inline constexpr int piece_words = 64;

/// 64 rows of Dim digits in core matrices: pieces from a low digit to its high one.
template <int Dim>
inline constexpr int row_digit = 4 * Dim;

#if defined(__CUDACC__)

/// The operands of `mma_bytes`: signed high bytes, unsigned low bytes.
enum class byte_kind { high, low };

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
/// One [8, 16] x [16, 8] tile.
template <byte_kind A, byte_kind B>
__device__ __forceinline__ void mma_bytes_quarter(std::int32_t& c0, std::int32_t& c1,
                                                  std::uint32_t a, std::uint32_t b) {
  if constexpr (A == byte_kind::high && B == byte_kind::high) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
  } else if constexpr (A == byte_kind::high) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
  } else if constexpr (B == byte_kind::high) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
  } else {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
  }
}
#endif

/// c += a b for one a fragment and one b fragment of bytes.
template <byte_kind A, byte_kind B>
__device__ __forceinline__ void mma_bytes(std::int32_t (&c)[4], const uint4& a, std::uint32_t b0,
                                          std::uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (A == byte_kind::high && B == byte_kind::high) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else if constexpr (A == byte_kind::high) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else if constexpr (B == byte_kind::high) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
#else
  mma_bytes_quarter<A, B>(c[0], c[1], a.x, b0);
  mma_bytes_quarter<A, B>(c[2], c[3], a.y, b0);
  mma_bytes_quarter<A, B>(c[0], c[1], a.z, b1);
  mma_bytes_quarter<A, B>(c[2], c[3], a.w, b1);
#endif
}

/// Transposes an 8 x 8 tile of 16-bit entries: lane (g, t) passes entries 2t, 2t+1 of row g, the
/// first in the lower half, and receives entries 2t, 2t+1 of column g.
__device__ __forceinline__ std::uint32_t transpose_tile(std::uint32_t pair) {
  std::uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
  return r;
}

/// Two integers as a pair of 16 bits, the first in the lower half.
__device__ __forceinline__ std::uint32_t pair_of(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x5410);
}
/// The low bytes, and the high bytes, of two pairs.
__device__ __forceinline__ std::uint32_t low_bytes(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x6420);
}
__device__ __forceinline__ std::uint32_t high_bytes(std::uint32_t first, std::uint32_t second) {
  return __byte_perm(first, second, 0x7531);
}

/// c + a b, in the form that becomes one instruction.
__device__ __forceinline__ std::int64_t add_product(std::int64_t c, std::int32_t a,
                                                    std::int32_t b) {
  asm("{\n.reg .b32 lower, upper;\nmov.b64 {lower, upper}, %0;\n"
      "mad.lo.cc.s32 lower, %1, %2, lower;\nmadc.hi.s32 upper, %1, %2, upper;\n"
      "mov.b64 %0, {lower, upper};\n}"
      : "+l"(c)
      : "r"(a), "r"(b));
  return c;
}

/// An integer near x * scale in the low 16 bits of a word: nearest even, for |x * scale| <= 2^15.
__device__ __forceinline__ std::uint32_t low_integer(float x, float scale) {
  return arith::bits(arith::detail::add_rn(arith::detail::mul_rn(x, scale), 0x1.8p23f));
}

/// arith::detail::exp_bounded: power * 0x1.62e4p-1 is exact, so that one fused operation rounds the
/// difference as the definition does.
__device__ __forceinline__ float exp_fused(float x) {
  using arith::detail::add_rn, arith::detail::fma_rn, arith::detail::mul_rn;
  const float shifted = add_rn(mul_rn(x, 0x1.715476p+0f), 0x1.8p23f);
  const float k = add_rn(shifted, -0x1.8p23f);
  const float r = add_rn(fma_rn(k, -0x1.62e4p-1f, x), mul_rn(k, -0x1.7f7d1cp-20f));
  float p = 0x1.6ac36cp-10f;
  p = add_rn(mul_rn(p, r), 0x1.123da6p-7f);
  p = add_rn(mul_rn(p, r), 0x1.555858p-5f);
  p = add_rn(mul_rn(p, r), 0x1.55548cp-3f);
  p = add_rn(mul_rn(p, r), 0x1.fffffcp-2f);
  const float fraction = add_rn(1.0f, add_rn(r, mul_rn(mul_rn(r, r), p)));
  return arith::from_bits(arith::bits(fraction) + (arith::bits(shifted) << 23));
}

/// Word w of a lane in fragment order.
__device__ __forceinline__ std::uint32_t& word(uint4& v, int w) {
  return w == 0 ? v.x : w == 1 ? v.y : w == 2 ? v.z : v.w;
}

/// The fragment of 16 rows and 32 k of core matrices; lane l passes row l % 16, 16 (l / 16) of k.
__device__ __forceinline__ void load_piece(uint4& v, const uint4* core) {
  std::uint32_t r[4];
  load_tiles(r, core);
  v = {r[0], r[1], r[2], r[3]};
}
/// The fragment of a lane at a piece's digit.
__device__ __forceinline__ uint4 load_fragment(const uint4* digit, int lane, bool half_order) {
  if (!half_order)
    return digit[lane];
  const uint2* halves = reinterpret_cast<const uint2*>(digit);
  const uint2 first = halves[lane], second = halves[32 + lane];
  return {first.x, first.y, second.x, second.y};
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
