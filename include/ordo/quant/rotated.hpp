// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Operands of the int8 gradient products: aligned to fixed point, rotated exactly, quantized.
///
/// A row (or column) x of length n becomes, in this order and all in integers but for the scales:
///   1. x_i * factor_i in binary32 (where factors are folded in), then nearest-even integers
///      v_i = x_i * 2^s, s the largest integer in [-100, 150] with max|x| * 2^s <= 32767
///      (int8 input is taken as it is, s = 0);
///   2. r = H v, block by block (hadamard.hpp), |r| <= 256 * 32767 < 2^23;
///   3. with A = max|r|: codes q_i = nearest even of r_i * (127 / A), scale = (A / 127) * 2^(-s-4).
/// Maxima and integer sums have no order, so the bits depend on x and the factors alone.
/// A non-finite entry makes the scale NaN. Source: OPEN-1B, section 4.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/quant/hadamard.hpp>
#include <ordo/quant/int8.hpp>

namespace ordo::quant {

/// Largest magnitude of the aligned integers.
inline constexpr std::int32_t rotation_limit = 32767;

/// The alignment shift of a row whose largest magnitude has the bits `largest` (see the file
/// comment); 0 for an all-zero or non-finite row.
ORDO_FORCE_FUNCTION int alignment_shift(std::uint32_t largest, std::int32_t limit) {
  const float top = arith::from_bits(largest);
  if (largest == 0 || !arith::is_finite(top)) return 0;
  // floor(log2(limit)) - exponent, one less when the significand exceeds the limit's.
  const float bound = static_cast<float>(limit);
  int shift = arith::exponent(bound) - arith::exponent(top);
  const std::uint32_t significand = largest & 0x007fffffu;
  if (significand > (arith::bits(bound) & 0x007fffffu)) --shift;
  return shift < -100 ? -100 : shift > 150 ? 150 : shift;
}

/// The part of the scale that the codes' maximum and the shift decide.
ORDO_FORCE_FUNCTION float rotated_scale(std::uint32_t largest, std::int32_t top, int shift) {
  if (!arith::is_finite(arith::from_bits(largest))) return arith::from_bits(arith::canonical_nan);
  return arith::scale_pow2(arith::div(arith::from_int(top), 127.0f), -shift - 4);
}

/// 127 / A, or 0 where A is 0.
ORDO_FORCE_FUNCTION float rotated_inverse(std::int32_t top) {
  return top == 0 ? 0.0f : arith::div(127.0f, arith::from_int(top));
}

ORDO_FORCE_FUNCTION std::int32_t magnitude(std::int32_t x) { return x < 0 ? -x : x; }

/// Rotates and quantizes rows along their length, entry k multiplied by `factor[k]` beforehand.
///
/// Shape: x [rows, n] bf16; factor [n]; codes [rows, rotated_length(n)]; scale [rows].
/// Bits: row by row, see the file comment.
template <execution_space Space>
void rotate_rows(const Space& space, matrix_view<const bf16, Space> x,
                 vector_view<const float, Space> factor, matrix_view<std::int8_t, Space> codes,
                 vector_view<float, Space> scale) {
  const std::int64_t n = static_cast<std::int64_t>(x.extent(1));
  const std::int64_t padded = rotated_length(n);
  require(static_cast<std::int64_t>(codes.extent(1)) == padded && codes.extent(0) == x.extent(0) &&
              static_cast<std::int64_t>(factor.extent(0)) == n && scale.extent(0) == x.extent(0),
          "ordo::quant::rotate_rows",
          "x is " + shape(x.extent(0), n) + " but codes are " +
              shape(codes.extent(0), codes.extent(1)),
          "codes need rotated_length(n) columns");
  const bf16* const in = x.data();
  const float* const factors = factor.data();
  std::int8_t* const out = codes.data();
  ordo::detail::for_blocks(
      space, "ordo::quant::rotate_rows", static_cast<std::int64_t>(x.extent(0)), 4,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const bf16* ORDO_RESTRICT source = in + row * n;
          std::uint32_t largest = 0;
          for (std::int64_t k = 0; k < n; ++k) {
            const float v = arith::mul(arith::to_f32(source[k]), factors[k]);
            const std::uint32_t u = arith::bits(v) & 0x7fffffffu;
            largest = u > largest ? u : largest;
          }
          const int shift = alignment_shift(largest, rotation_limit);
          const float low = arith::pow2(shift / 2), high = arith::pow2(shift - shift / 2);
          alignas(64) std::int32_t v[rotation_block], r[rotation_block];
          const auto rotate = [&](std::int64_t k0) {
            const int count = static_cast<int>(n - k0 < rotation_block ? n - k0 : rotation_block);
            for (int i = 0; i < count; ++i) {
              const float y = arith::mul(arith::to_f32(source[k0 + i]), factors[k0 + i]);
              v[i] = arith::to_int(arith::mul(arith::mul(y, low), high), rotation_limit);
            }
            for (int i = count; i < rotation_block; ++i) v[i] = 0;
            hadamard_row(v, r);
          };
          std::int32_t top = 0;
          for (std::int64_t k0 = 0; k0 < n; k0 += rotation_block) {
            rotate(k0);
            for (int i = 0; i < rotation_block; ++i) {
              top = magnitude(r[i]) > top ? magnitude(r[i]) : top;
            }
          }
          const float inverse = rotated_inverse(top);
          for (std::int64_t k0 = 0; k0 < n; k0 += rotation_block) {
            if (n > rotation_block) rotate(k0);  // a single block is still there
            std::int8_t* ORDO_RESTRICT target = out + row * padded + k0;
            for (int i = 0; i < rotation_block; ++i) {
              target[i] = to_code(arith::from_int(r[i]), inverse);
            }
          }
          scale[row] = rotated_scale(largest, top, shift);
        }
      });
}

namespace detail {

/// `Width` neighbouring columns of x [m, columns] from column c0 on, as one work item rotates them.
template <class T, int Width>
struct column_slab {
  static constexpr int lanes = 32;
  static constexpr bool integers = sizeof(T) == 1;

  const T* in;  ///< x[0][c0]
  std::int64_t m, columns;
  int width;  ///< Width, or fewer columns at the right edge
  std::uint32_t largest[lanes] = {};
  std::int32_t top[lanes] = {};
  float low[lanes] = {}, high[lanes] = {};
  int shift[lanes] = {};
  alignas(64) std::int32_t tile[rotation_block * lanes];

  ORDO_FUNCTION column_slab(const T* x, std::int64_t rows, std::int64_t stride, int used)
      : in(x), m(rows), columns(stride), width(used) {}

  ORDO_FORCE_FUNCTION int used() const { return Width == lanes ? lanes : width; }

  ORDO_FUNCTION void align() {
    if constexpr (!integers) {
      alignas(64) std::uint16_t most[lanes] = {};
      for (std::int64_t i = 0; i < m; ++i) {
        const T* ORDO_RESTRICT source = in + i * columns;
        for (int j = 0; j < used(); ++j) {
          const std::uint16_t u = source[j].bits & 0x7fffu;
          most[j] = u > most[j] ? u : most[j];
        }
      }
      for (int j = 0; j < lanes; ++j) {
        largest[j] = arith::bits(arith::to_f32(bf16{most[j]}));
      }
      for (int j = 0; j < lanes; ++j) {
        shift[j] = alignment_shift(largest[j], rotation_limit);
        low[j] = arith::pow2(shift[j] / 2);
        high[j] = arith::pow2(shift[j] - shift[j] / 2);
      }
    }
  }

  /// Fills the tile with rows [i0, i0 + 256) and rotates it along them.
  ORDO_FUNCTION void rotate(std::int64_t i0) {
    const int count = static_cast<int>(m - i0 < rotation_block ? m - i0 : rotation_block);
    for (int i = 0; i < count; ++i) {
      const T* ORDO_RESTRICT source = in + (i0 + i) * columns;
      std::int32_t* ORDO_RESTRICT line = tile + i * lanes;
      for (int j = 0; j < used(); ++j) {
        if constexpr (integers) {
          line[j] = source[j];
        } else {
          const float aligned = arith::mul(arith::mul(arith::to_f32(source[j]), low[j]), high[j]);
          line[j] = arith::to_int(aligned, rotation_limit);
        }
      }
      for (int j = used(); j < lanes; ++j) line[j] = 0;
    }
    for (int i = count * lanes; i < rotation_block * lanes; ++i) tile[i] = 0;
    hadamard_columns<lanes>(tile);
  }

  ORDO_FUNCTION void measure() {
    alignas(64) std::int32_t highest[lanes] = {};
    for (int i = 0; i < rotation_block; ++i) {
      for (int j = 0; j < lanes; ++j) {
        const std::int32_t a = magnitude(tile[i * lanes + j]);
        highest[j] = a > highest[j] ? a : highest[j];
      }
    }
    for (int j = 0; j < lanes; ++j) top[j] = highest[j] > top[j] ? highest[j] : top[j];
  }

  /// Codes of the tile in the rotated order, to out[j][0 ... 256) with rows `stride` apart.
  ORDO_FUNCTION void store(const float* ORDO_RESTRICT inverse, std::int8_t* out,
                           std::int64_t stride) const {
    alignas(64) std::int8_t coded[rotation_block * lanes];
    for (int i = 0; i < rotation_block; ++i) {
      for (int j = 0; j < lanes; ++j) {
        coded[i * lanes + j] = to_code(arith::from_int(tile[i * lanes + j]), inverse[j]);
      }
    }
    for (int j = 0; j < used(); ++j) {
      std::int8_t* ORDO_RESTRICT target = out + j * stride;
      for (int b = 0; b < 16; ++b) {
        for (int a = 0; a < 16; ++a) target[16 * b + a] = coded[(16 * a + b) * lanes + j];
      }
    }
  }

  ORDO_FUNCTION void run(std::int8_t* codes, std::int64_t stride, float* scale, float common) {
    align();
    for (std::int64_t i0 = 0; i0 < m; i0 += rotation_block) {
      rotate(i0);
      measure();
    }
    float inverse[lanes];
    for (int j = 0; j < lanes; ++j) inverse[j] = rotated_inverse(top[j]);
    for (std::int64_t i0 = 0; i0 < m; i0 += rotation_block) {
      if (m > rotation_block) rotate(i0);  // a single block is still there
      store(inverse, codes + i0, stride);
    }
    for (int j = 0; j < used(); ++j) {
      scale[j] = arith::mul(rotated_scale(largest[j], top[j], shift[j]), common);
    }
  }
};

}  // namespace detail

/// Rotates and quantizes columns along their length; the result is transposed.
///
/// Shape: x [m, columns] bf16 or int8; codes [columns, rotated_length(m)]; scale [columns], each
/// multiplied by `common[0]` where that view is not empty (the step of int8 input).
/// Bits: column by column, see the file comment.
template <class T, execution_space Space>
void rotate_columns(const Space& space, matrix_view<const T, Space> x,
                    vector_view<const float, Space> common, matrix_view<std::int8_t, Space> codes,
                    vector_view<float, Space> scale) {
  constexpr int lanes = detail::column_slab<T, 0>::lanes;
  const std::int64_t m = static_cast<std::int64_t>(x.extent(0));
  const std::int64_t columns = static_cast<std::int64_t>(x.extent(1));
  const std::int64_t padded = rotated_length(m);
  require(static_cast<std::int64_t>(codes.extent(1)) == padded &&
              codes.extent(0) == x.extent(1) && scale.extent(0) == x.extent(1),
          "ordo::quant::rotate_columns",
          "x is " + shape(m, columns) + " but codes are " +
              shape(codes.extent(0), codes.extent(1)),
          "codes need one row a column and rotated_length(m) columns");
  const T* const in = x.data();
  std::int8_t* const out = codes.data();
  float* const scales = scale.data();
  const float* const factor = common.extent(0) > 0 ? common.data() : nullptr;
  ordo::detail::for_each(
      space, "ordo::quant::rotate_columns", (columns + lanes - 1) / lanes,
      KOKKOS_LAMBDA(std::int64_t slab) {
        const std::int64_t c0 = slab * lanes;
        const float both = factor != nullptr ? factor[0] : 1.0f;
        const int width = static_cast<int>(columns - c0 < lanes ? columns - c0 : lanes);
        const auto run = [&](auto&& part) { part.run(out + c0 * padded, padded, scales + c0, both); };
        if (width == lanes) {
          run(detail::column_slab<T, lanes>(in + c0, m, columns, width));
        } else {
          run(detail::column_slab<T, 0>(in + c0, m, columns, width));
        }
      });
}

}  // namespace ordo::quant
