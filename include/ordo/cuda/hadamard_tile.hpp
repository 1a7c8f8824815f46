// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The rotation of a block of 256 rows and a few columns by one warp, on int8 matrix units and
/// without shared memory.
///
/// Row i of the block is 32 b + j. The matrix unit transforms j (32 entries, five stages at once),
/// three stages of additions transform b. bf16 entries are aligned to 16-bit integers, which are
/// multiplied as two digits, v = 256 high + low with low unsigned. With lane = 4 g + q:
///   in    m = g, g + 8: two neighbouring columns of a word; k: j = 16 h + 4 s + q, where (h, s)
///   are
///         word and byte of the operand;
///   out   n = 2 q' + e: j = 16 e + 4 t + q', t the number of the product.
/// A thread so reads words of its columns in rows q, q + 4, ..., and ends with the entries
/// i = 32 b + 16 e + (4 t + q), for all b and e: in the rotated order 16 neighbouring bytes, while
/// the four lanes of a g hold 64.
///
/// The factors are +-4 and the accumulators start from the bits of 3 * 2^20, so that they end as
/// the bits of the binary32 number 3 * 2^20 + r with |r| <= 32 * 32767 < 2^20: no conversion.

#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/abs_max.hpp>
#include <ordo/cuda/quantize.hpp>
#include <ordo/quant/rotation.hpp>

namespace ordo::cuda::detail {

/// c += a b^T of a [16, 32] bytes, unsigned or signed, and b [8, 32] signed bytes.
template <bool Signed>
__device__ __forceinline__ void multiply_bytes(std::uint32_t (&c)[4], std::uint32_t a0,
                                               std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                               const std::uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (Signed) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[0]), "r"(b[1]));
  }
#endif
}

/// The operand of signs of one lane: +4, or -4 where output and input index share an odd number of
/// set bits.
struct hadamard_signs {
  std::uint32_t of[4][2]; ///< [t][h]

  __device__ __forceinline__ hadamard_signs() {
    const unsigned g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (unsigned t = 0; t < 4; ++t) {
#pragma unroll
      for (unsigned h = 0; h < 2; ++h) {
        const unsigned out = 16 * (g % 2) + 4 * t + g / 2;
        of[t][h] = 0;
#pragma unroll
        for (unsigned s = 0; s < 4; ++s) {
          const unsigned in = 16 * h + 4 * s + q;
          of[t][h] |= (__popc(out & in) % 2 == 0 ? 0x04u : 0xfcu) << (8 * s);
        }
      }
    }
  }
};

/// Four words of four bytes, transposed.
__device__ __forceinline__ void transpose_bytes(std::uint32_t (&w)[4]) {
  const std::uint32_t low01 = __byte_perm(w[0], w[1], 0x5140);
  const std::uint32_t high01 = __byte_perm(w[0], w[1], 0x7362);
  const std::uint32_t low23 = __byte_perm(w[2], w[3], 0x5140);
  const std::uint32_t high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

/// 256 rows of `warp_columns` columns of T, bf16 or int8, in the registers of a warp.
template <class T>
struct hadamard_tile {
  static constexpr bool integers = sizeof(T) == 1;
  static constexpr int columns = 4 / static_cast<int>(sizeof(T)); ///< of a thread, neighbours
  static constexpr int warp_columns = 8 * columns;
  static constexpr int pairs = columns / 2; ///< of columns, each the two halves of an m

  /// [b][h][.]: at first the words of s = 0 ... 3; then bytes of s: the digits low, low, high, high
  /// of the two columns, or the four columns.
  std::uint32_t word[8][2][4];

  static __device__ __forceinline__ unsigned g() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ unsigned q() { return threadIdx.x % 4; }

  /// Reads x [m, stride] from row `row0` and the thread's column `c`; what lies beyond is +0.
  /// Words: the columns are a multiple of those of a thread and x is aligned.
  template <bool Words>
  __device__ __forceinline__ void read(const T* ORDO_RESTRICT x, std::int64_t m,
                                       std::int64_t stride, std::int64_t row0, std::int64_t c) {
    const std::int64_t rows = c < stride ? m - row0 - q() : 0;
    const T* from = x + (row0 + q()) * stride + c;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      std::uint32_t w = 0;
      if (4 * i < rows) {
        if constexpr (Words) {
          w = __ldg(reinterpret_cast<const std::uint32_t*>(from));
        } else {
          for (int j = 0; j < columns; ++j) {
            if (c + j < stride)
              w |= byte_or_half(from[j]) << (32 / columns * j);
          }
        }
      }
      word[i / 8][i / 4 % 2][i % 4] = w;
      from += 4 * stride;
    }
  }
  static __device__ __forceinline__ std::uint32_t byte_or_half(T x) {
    if constexpr (integers)
      return static_cast<std::uint8_t>(x);
    else
      return x.bits;
  }

  /// Bits of the largest magnitude of each column of a thread, over the block (bf16).
  __device__ __forceinline__ void largest(std::uint32_t (&top)[2]) const {
    std::uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i)
      most = __vmaxu2(most, word[i / 8][i / 4 % 2][i % 4] & 0x7fff7fffu);
    most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = __vmaxu2(most, __shfl_xor_sync(0xffffffffu, most, 2));
    top[0] = arith::bits(arith::flush(low_bf16(most)));
    top[1] = arith::bits(arith::flush(high_bf16(most)));
  }

  /// Aligned integers of 16 bits as digits (bf16).
  __device__ __forceinline__ void align(const quant::detail::alignment& to0,
                                        const quant::detail::alignment& to1) {
    if (__all_sync(0xffffffffu, to0.plain && to1.plain)) {
      // x * 2^s lies within 32767, and is either exact or so small that it rounds to 0 whether or
      // not x is flushed: one rounding does what two would do.
      const float power0 = arith::pow2(to0.shift), power1 = arith::pow2(to1.shift);
      using quant::detail::rounder;
      digits([=](float x) { return arith::bits(arith::detail::fma_rn(x, power0, rounder)); },
             [=](float x) { return arith::bits(arith::detail::fma_rn(x, power1, rounder)); });
    } else {
      digits([&](float x) { return static_cast<std::uint32_t>(to0(arith::flush(x))); },
             [&](float x) { return static_cast<std::uint32_t>(to1(arith::flush(x))); });
    }
  }
  template <class Low, class High>
  __device__ __forceinline__ void digits(const Low& low, const High& high) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      std::uint32_t(&w)[4] = word[i / 2][i % 2];
      std::uint32_t v0[4], v1[4];
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        v0[s] = low(low_bf16(w[s]));
        v1[s] = high(high_bf16(w[s]));
      }
      const std::uint32_t a01 = __byte_perm(v0[0], v0[1], 0x5140);
      const std::uint32_t a23 = __byte_perm(v0[2], v0[3], 0x5140);
      const std::uint32_t b01 = __byte_perm(v1[0], v1[1], 0x5140);
      const std::uint32_t b23 = __byte_perm(v1[2], v1[3], 0x5140);
      w[0] = __byte_perm(a01, a23, 0x5410);
      w[1] = __byte_perm(b01, b23, 0x5410);
      w[2] = __byte_perm(a01, a23, 0x7632);
      w[3] = __byte_perm(b01, b23, 0x7632);
    }
  }

  /// Codes as operands (int8).
  __device__ __forceinline__ void transpose() {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      transpose_bytes(word[i / 2][i % 2]);
  }

  /// r[b][2 p + e]: the rotated entries 32 b + 16 e + 4 t + q of column 2 pair + p.
  __device__ __forceinline__ void rotate(const hadamard_signs& signs, int pair, int t,
                                         float (&r)[8][4]) const {
    constexpr std::uint32_t offset = 0x4a400000u; // the bits of 3 * 2^20
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      const std::uint32_t(&low)[4] = word[b][0];
      const std::uint32_t(&high)[4] = word[b][1];
      std::uint32_t c[4];
      if constexpr (integers) {
        c[0] = c[1] = c[2] = c[3] = offset;
        multiply_bytes<true>(c, low[2 * pair], low[2 * pair + 1], high[2 * pair],
                             high[2 * pair + 1], signs.of[t]);
      } else {
        c[0] = c[1] = c[2] = c[3] = offset >> 8;
        multiply_bytes<true>(c, low[2], low[3], high[2], high[3], signs.of[t]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          c[i] <<= 8;
        multiply_bytes<false>(c, low[0], low[1], high[0], high[1], signs.of[t]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        r[b][i] = arith::from_bits(c[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      butterflies(r, i);
  }

  /// The stages of b. Sums carry offsets: 2 * 3 * 2^20 after the first stage, where numbers are
  /// multiples of 1/2 below 2^23, and twice that after the second, where they are integers below
  /// 2^24; differences lose them. Every addition here is exact.
  static __device__ __forceinline__ void butterflies(float (&r)[8][4], int i) {
    using arith::detail::add_rn;
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        if ((b & step) == 0) {
          const float x = r[b][i], y = r[b + step][i];
          r[b][i] = add_rn(x, y);
          r[b + step][i] = add_rn(x, -y);
        }
      }
    }
    constexpr float offset = 12.0f * 0x1p20f; // of r[0] and r[4]; the sum is to carry none
    const float x = r[0][i], y = r[4][i];
    r[0][i] = add_rn(x, add_rn(y, -2.0f * offset));
    r[4][i] = add_rn(x, -y);
#pragma unroll
    for (int b = 1; b < 4; ++b) {
      const float u = r[b][i], v = r[b + 4][i];
      r[b][i] = add_rn(u, v);
      r[b + 4][i] = add_rn(u, -v);
    }
  }

  /// The largest rotated magnitude of each column of a thread, over the block.
  __device__ __forceinline__ void measure(const hadamard_signs& signs,
                                          std::int32_t (&top)[columns]) const {
    float most[columns] = {};
#pragma unroll
    for (int pair = 0; pair < pairs; ++pair) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        float r[8][4];
        rotate(signs, pair, t, r);
#pragma unroll
        for (int b = 0; b < 8; ++b) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            raise(most[2 * pair + i / 2], r[b][i]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      raise(most[j], __shfl_xor_sync(0xffffffffu, most[j], 1));
      raise(most[j], __shfl_xor_sync(0xffffffffu, most[j], 2));
      top[j] = static_cast<std::int32_t>(most[j]);
    }
  }

  /// The codes of the block, to codes[j][0 ... 256) of the first `used` of the thread's columns,
  /// `padded` apart.
  template <bool Pieces>
  __device__ __forceinline__ void write(const hadamard_signs& signs,
                                        const float (&inverse)[columns], std::int8_t* codes,
                                        std::int64_t padded, std::int64_t used) const {
#pragma unroll
    for (int pair = 0; pair < pairs; ++pair) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        float r[8][4];
        rotate(signs, pair, t, r);
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const int j = 2 * pair + p;
          const auto code = [&](int b, int e) {
            return byte_of_nearest(arith::detail::mul_rn(r[b][2 * p + e], inverse[j]));
          };
          const auto four = [&](int b) {
            return four_bytes(code(b, 0), code(b, 1), code(b + 1, 0), code(b + 1, 1));
          };
          if (j < used)
            write_piece<Pieces>(codes + j * padded + 64 * t + 16 * q(),
                                make_uint4(four(0), four(2), four(4), four(6)));
        }
      }
    }
  }
};

} // namespace ordo::cuda::detail
