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
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/quant/hadamard.hpp>
#include <ordo/quant/int8.hpp>
#include <ordo/quant/rotation.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/rotate_columns.hpp>
#include <ordo/cuda/rotate_rows.hpp>
#endif

namespace ordo::quant {

namespace detail {

/// One row as a work item rotates it.
class row_rotation {
public:
  ORDO_FORCE_FUNCTION row_rotation(const bf16* x, const float* factors, std::int64_t length)
      : source_(x), factor_(factors), n_(length), largest_(largest_of(x, factors, length)),
        align_(largest_) {}

  /// Writes the codes; returns the scale.
  ORDO_FORCE_FUNCTION float run(std::int8_t* codes) {
    std::int32_t top = 0;
    if (n_ <= kept) {
      alignas(64) std::int32_t rotated[kept];
      for (std::int64_t k0 = 0; k0 < n_; k0 += rotation_block) {
        rotate(k0, rotated + k0);
        top = larger(top, rotated + k0);
      }
      const float inverse = rotated_inverse(top);
      for (std::int64_t k0 = 0; k0 < n_; k0 += rotation_block) {
        store(rotated + k0, inverse, codes + k0);
      }
    } else {
      alignas(64) std::int32_t rotated[rotation_block];
      for (std::int64_t k0 = 0; k0 < n_; k0 += rotation_block) {
        rotate(k0, rotated);
        top = larger(top, rotated);
      }
      const float inverse = rotated_inverse(top);
      for (std::int64_t k0 = 0; k0 < n_; k0 += rotation_block) {
        rotate(k0, rotated);
        store(rotated, inverse, codes + k0);
      }
    }
    return rotated_scale(largest_, top, align_.shift);
  }

private:
  static constexpr int kept = 4096; ///< entries of a row whose rotated integers are kept

  /// Bits of the largest magnitude; flushing the largest product is flushing them all.
  static ORDO_FORCE_FUNCTION std::uint32_t
  largest_of(const bf16* ORDO_RESTRICT x, const float* ORDO_RESTRICT factors, std::int64_t n) {
    std::uint32_t largest = 0;
    for (std::int64_t k = 0; k < n; ++k) {
      const float product = arith::detail::mul_rn(arith::to_f32(x[k]), factors[k]);
      const std::uint32_t u = arith::bits(product) & 0x7fffffffu;
      largest = u > largest ? u : largest;
    }
    return arith::bits(arith::detail::flush_rounded(arith::from_bits(largest)));
  }

  ORDO_FORCE_FUNCTION void rotate(std::int64_t k0, std::int32_t* ORDO_RESTRICT rotated) const {
    alignas(64) std::int32_t v[rotation_block];
    const int count = static_cast<int>(n_ - k0 < rotation_block ? n_ - k0 : rotation_block);
    const bf16* ORDO_RESTRICT x = source_ + k0;
    const float* ORDO_RESTRICT f = factor_ + k0;
    if (align_.plain) {
      const float power = arith::pow2(align_.shift);
      for (int i = 0; i < count; ++i) {
        const float product = arith::detail::mul_rn(arith::to_f32(x[i]), f[i]);
        v[i] = nearest(arith::detail::mul_rn(product, power));
      }
    } else {
      for (int i = 0; i < count; ++i)
        v[i] = align_(arith::mul(arith::to_f32(x[i]), f[i]));
    }
    for (int i = count; i < rotation_block; ++i)
      v[i] = 0;
    hadamard_row(v, rotated);
  }

  static ORDO_FORCE_FUNCTION std::int32_t larger(std::int32_t top, const std::int32_t* r) {
    for (int i = 0; i < rotation_block; ++i)
      top = magnitude(r[i]) > top ? magnitude(r[i]) : top;
    return top;
  }
  static ORDO_FORCE_FUNCTION void store(const std::int32_t* ORDO_RESTRICT r, float inverse,
                                        std::int8_t* ORDO_RESTRICT codes) {
    for (int i = 0; i < rotation_block; ++i)
      codes[i] = rotated_code(r[i], inverse);
  }

  const bf16* source_;
  const float* factor_;
  std::int64_t n_;
  std::uint32_t largest_;
  alignment align_;
};

} // namespace detail

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
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::rotate_rows(space.cuda_stream(), x.data(), static_cast<std::int64_t>(x.extent(0)), n,
                      factor.data(), codes.data(), scale.data());
    return;
  }
#endif
  const bf16* const in = x.data();
  const float* const factors = factor.data();
  std::int8_t* const out = codes.data();
  ordo::detail::for_blocks(
      space, "ordo::quant::rotate_rows", static_cast<std::int64_t>(x.extent(0)), 4,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          detail::row_rotation rotation(in + row * n, factors, n);
          scale[row] = rotation.run(out + row * padded);
        }
      });
}

namespace detail {

/// Perfect shuffle: y[2 i] = x[i], y[2 i + 1] = x[i + N / 2]. Four of them in turn transpose
/// x[16][N / 16].
template <int N>
ORDO_FORCE_FUNCTION void interleave(const std::int8_t* ORDO_RESTRICT x,
                                    std::int8_t* ORDO_RESTRICT y) {
  for (int i = 0; i < N / 2; ++i) {
    y[2 * i] = x[i];
    y[2 * i + 1] = x[i + N / 2];
  }
}

/// `Width` neighbouring columns of x [m, columns] from column c0 on, as one work item rotates them;
/// `Width` 0: fewer, at the right edge.
template <class T, int Width>
struct column_slab {
  static constexpr int lanes = 32;
  static constexpr bool integers = sizeof(T) == 1;
  using integer = std::conditional_t<integers, std::int16_t, std::int32_t>; // 256 * 127 < 2^15

  const T* in; ///< x[0][c0]
  std::int64_t m, columns;
  int width;
  std::uint32_t largest[lanes] = {};
  std::int32_t top[lanes] = {};
  bool plain = true;
  float power[lanes];
  alignas(64) integer tile[rotation_block * lanes];

  ORDO_FORCE_FUNCTION column_slab(const T* x, std::int64_t rows, std::int64_t stride, int used)
      : in(x), m(rows), columns(stride), width(used) {}

  ORDO_FORCE_FUNCTION int used() const { return Width == lanes ? lanes : width; }

  ORDO_FORCE_FUNCTION void larger_magnitudes(const T* ORDO_RESTRICT source,
                                             std::uint16_t* ORDO_RESTRICT most) const {
    for (int j = 0; j < used(); ++j) {
      const std::uint16_t u = source[j].bits & 0x7fffu;
      most[j] = u > most[j] ? u : most[j];
    }
  }

  ORDO_FORCE_FUNCTION void align() {
    if constexpr (!integers) {
      alignas(64) std::uint16_t most[lanes] = {};
      for (std::int64_t i = 0; i < m; ++i) {
        larger_magnitudes(in + i * columns, most);
      }
      for (int j = 0; j < lanes; ++j) {
        largest[j] = arith::bits(arith::to_f32(bf16{most[j]}));
        const alignment to(largest[j]);
        plain = plain && to.plain;
        power[j] = arith::pow2(to.plain ? to.shift : 0);
      }
    }
  }

  /// Row `source` as aligned integers.
  ORDO_FORCE_FUNCTION void read(const T* ORDO_RESTRICT source, integer* ORDO_RESTRICT line) const {
    if constexpr (integers) {
      for (int j = 0; j < used(); ++j)
        line[j] = source[j];
    } else if (plain) {
      for (int j = 0; j < used(); ++j) {
        const float x = arith::from_bits(static_cast<std::uint32_t>(source[j].bits) << 16);
        line[j] = nearest(arith::detail::mul_rn(x, power[j]));
      }
    } else {
      for (int j = 0; j < used(); ++j)
        line[j] = alignment(largest[j])(arith::to_f32(source[j]));
    }
    for (int j = used(); j < lanes; ++j)
      line[j] = 0;
  }

  /// Fills the tile with rows [i0, i0 + 256) and rotates it along them.
  ORDO_FORCE_FUNCTION void rotate(std::int64_t i0) {
    const int count = static_cast<int>(m - i0 < rotation_block ? m - i0 : rotation_block);
    for (int i = 0; i < count; ++i)
      read(in + (i0 + i) * columns, tile + i * lanes);
    for (int i = count * lanes; i < rotation_block * lanes; ++i)
      tile[i] = 0;
    hadamard_columns<lanes>(tile);
  }

  ORDO_FORCE_FUNCTION void measure() {
    alignas(64) integer highest[lanes] = {};
    for (int i = 0; i < rotation_block; ++i) {
      for (int j = 0; j < lanes; ++j) {
        const integer r = tile[i * lanes + j], a = r < 0 ? static_cast<integer>(-r) : r;
        highest[j] = a > highest[j] ? a : highest[j];
      }
    }
    for (int j = 0; j < lanes; ++j)
      top[j] = highest[j] > top[j] ? highest[j] : top[j];
  }

  /// Codes of the tile in the rotated order, to out[j][0 ... 256) with rows `stride` apart.
  ORDO_FORCE_FUNCTION void store(const float* ORDO_RESTRICT inverse, std::int8_t* out,
                                 std::int64_t stride) const {
    alignas(64) std::int8_t transposed[lanes * rotation_block];
    for (int b = 0; b < 16; ++b) {
      alignas(64) std::int8_t coded[16 * lanes], shuffled[16 * lanes]; // [a][j], in the end [j][a]
      for (int a = 0; a < 16; ++a) {
        const integer* ORDO_RESTRICT line = tile + (16 * a + b) * lanes;
        for (int j = 0; j < lanes; ++j) {
          coded[a * lanes + j] = rotated_code(line[j], inverse[j]);
        }
      }
      interleave<16 * lanes>(coded, shuffled);
      interleave<16 * lanes>(shuffled, coded);
      interleave<16 * lanes>(coded, shuffled);
      interleave<16 * lanes>(shuffled, coded);
      for (int j = 0; j < lanes; ++j) {
        std::int8_t* ORDO_RESTRICT target = transposed + j * rotation_block + 16 * b;
        for (int a = 0; a < 16; ++a)
          target[a] = coded[16 * j + a];
      }
    }
    for (int j = 0; j < used(); ++j) {
      std::int8_t* ORDO_RESTRICT target = out + j * stride;
      for (int i = 0; i < rotation_block; ++i)
        target[i] = transposed[j * rotation_block + i];
    }
  }

  ORDO_FORCE_FUNCTION void run(std::int8_t* codes, std::int64_t stride, float* scale,
                               float common) {
    align();
    for (std::int64_t i0 = 0; i0 < m; i0 += rotation_block) {
      rotate(i0);
      measure();
    }
    float inverse[lanes];
    for (int j = 0; j < lanes; ++j)
      inverse[j] = rotated_inverse(top[j]);
    for (std::int64_t i0 = 0; i0 < m; i0 += rotation_block) {
      if (m > rotation_block)
        rotate(i0); // a single block is still there
      store(inverse, codes + i0, stride);
    }
    for (int j = 0; j < used(); ++j) {
      const int shift = integers ? 0 : alignment_shift(largest[j], rotation_limit);
      scale[j] = column_scale(rotated_scale(largest[j], top[j], shift), common);
    }
  }
};

} // namespace detail

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
  require(static_cast<std::int64_t>(codes.extent(1)) == padded && codes.extent(0) == x.extent(1) &&
              scale.extent(0) == x.extent(1),
          "ordo::quant::rotate_columns",
          "x is " + shape(m, columns) + " but codes are " + shape(codes.extent(0), codes.extent(1)),
          "codes need one row a column and rotated_length(m) columns");
  const T* const in = x.data();
  std::int8_t* const out = codes.data();
  float* const scales = scale.data();
  const float* const factor = common.extent(0) > 0 ? common.data() : nullptr;
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::rotate_columns(space.cuda_stream(), in, m, columns, factor, out, scales);
    return;
  }
#endif
  ordo::detail::for_each(
      space, "ordo::quant::rotate_columns", (columns + lanes - 1) / lanes,
      KOKKOS_LAMBDA(std::int64_t slab) {
        const std::int64_t c0 = slab * lanes;
        const float both = factor != nullptr ? factor[0] : 1.0f;
        const int width = static_cast<int>(columns - c0 < lanes ? columns - c0 : lanes);
        const auto run = [&](auto&& part) {
          part.run(out + c0 * padded, padded, scales + c0, both);
        };
        if (width == lanes) {
          run(detail::column_slab<T, lanes>(in + c0, m, columns, width));
        } else {
          run(detail::column_slab<T, 0>(in + c0, m, columns, width));
        }
      });
}

} // namespace ordo::quant
