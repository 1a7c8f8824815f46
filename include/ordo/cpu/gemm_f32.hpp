// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Blocking of the fixed-order binary32 product.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/cpu/f32_tile.hpp>
#include <ordo/cpu/isa.hpp>
#include <ordo/cpu/scratch.hpp>

namespace ordo::cpu {

/// Rows of float or bf16, `stride` elements apart.
template <class T>
struct real_rows {
  const T* data;
  std::int64_t rows, columns, stride;
};

/// One operand cut into strips of `Width` rows, packed chunk by chunk.
template <int Width, class T>
struct packed_strips {
  real_rows<T> x;
  std::int64_t strips, chunk;
  std::size_t strip_bytes;

  explicit packed_strips(const real_rows<T>& rows)
      : x(rows), strips((rows.rows + Width - 1) / Width),
        strip_bytes(aligned_size(static_cast<std::size_t>(rows.columns) * Width * 4)) {
    constexpr std::size_t chunk_bytes = std::size_t{16} << 20;
    const auto most =
        static_cast<std::int64_t>(chunk_bytes / std::max(strip_bytes, std::size_t{64}));
    chunk = std::clamp<std::int64_t>(most, 1, std::max<std::int64_t>(strips, 1));
  }
  std::size_t packed_bytes() const { return static_cast<std::size_t>(chunk) * strip_bytes; }
  std::size_t least_bytes() const { return aligned_size(static_cast<std::size_t>(chunk) * 4); }
};

/// One product of M x K by N x K with the register tile `Tile`. A work item is `block` strips of A
/// by one panel of B.
template <class Tile, class TA, class TB>
class lane_product {
  static constexpr int block = 4;
  static constexpr bool exact = std::is_same_v<TA, bf16> && std::is_same_v<TB, bf16>;

public:
  lane_product(const real_rows<TA>& a, const real_rows<TB>& b, int lanes)
      : a_(a), b_(b), order_{a.columns, lanes},
        memory_(a_.packed_bytes() + b_.packed_bytes() + a_.least_bytes() + b_.least_bytes()),
        packed_a_(memory_.at<float>(0)), packed_b_(memory_.at<float>(a_.packed_bytes())),
        least_a_(memory_.at<std::uint32_t>(a_.packed_bytes() + b_.packed_bytes())),
        least_b_(
            memory_.at<std::uint32_t>(a_.packed_bytes() + b_.packed_bytes() + a_.least_bytes())) {}

  template <execution_space Space, class Epilogue>
  void run(const Space& space, const Epilogue& epilogue) const {
    for (std::int64_t a0 = 0; a0 < a_.strips; a0 += a_.chunk) {
      const std::int64_t a_count = std::min(a_.chunk, a_.strips - a0);
      const std::int64_t blocks = (a_count + block - 1) / block;
      for (std::int64_t b0 = 0; b0 < b_.strips; b0 += b_.chunk) {
        const std::int64_t b_count = std::min(b_.chunk, b_.strips - b0);
        ordo::detail::for_each(space, "ordo::gemm_f32::pack", b_count + (b0 == 0 ? a_count : 0),
                               [&](std::int64_t i) {
                                 if (i < b_count)
                                   pack(b_, b0, i, packed_b_, least_b_);
                                 else
                                   pack(a_, a0, i - b_count, packed_a_, least_a_);
                               });
        ordo::detail::for_each(space, "ordo::gemm_f32::tiles", blocks * b_count,
                               [&](std::int64_t i) {
                                 const std::int64_t first = i % blocks * block;
                                 const std::int64_t last = std::min(first + block, a_count);
                                 for (std::int64_t strip = first; strip < last; ++strip)
                                   multiply(a0, strip, b0, i / blocks, epilogue);
                               });
      }
    }
  }

private:
  template <int Width, class T>
  void pack(const packed_strips<Width, T>& operand, std::int64_t from, std::int64_t strip,
            float* packed, std::uint32_t* least) const {
    const std::int64_t row = (from + strip) * Width;
    least[strip] = Tile::template pack<Width>(
        operand.x.data + row * operand.x.stride, operand.x.stride,
        std::min<std::int64_t>(Width, operand.x.rows - row), order_,
        packed + static_cast<std::size_t>(strip) * (operand.strip_bytes / 4));
  }

  template <class Epilogue>
  void multiply(std::int64_t a0, std::int64_t a_strip, std::int64_t b0, std::int64_t b_strip,
                const Epilogue& epilogue) const {
    alignas(64) float c[Tile::rows * Tile::columns];
    const float* a = packed_a_ + static_cast<std::size_t>(a_strip) * (a_.strip_bytes / 4);
    const float* b = packed_b_ + static_cast<std::size_t>(b_strip) * (b_.strip_bytes / 4);
    if (exact || products_are_normal(least_a_[a_strip], least_b_[b_strip]))
      Tile::template run<false>(order_, a, b, c);
    else
      Tile::template run<true>(order_, a, b, c);
    const std::int64_t m0 = (a0 + a_strip) * Tile::rows, n0 = (b0 + b_strip) * Tile::columns;
    const int rows = static_cast<int>(std::min<std::int64_t>(Tile::rows, a_.x.rows - m0));
    const int count = static_cast<int>(std::min<std::int64_t>(Tile::columns, b_.x.rows - n0));
    for (int r = 0; r < rows; ++r)
      epilogue(m0 + r, n0, count, static_cast<const float*>(c + r * Tile::columns));
  }

  packed_strips<Tile::rows, TA> a_;
  packed_strips<Tile::columns, TB> b_;
  lane_order order_;
  scratch memory_;
  float* packed_a_;
  float* packed_b_;
  std::uint32_t* least_a_;
  std::uint32_t* least_b_;
};

/// The product with `lanes` lanes, at most 128, handed to `epilogue(m, n0, count, c)`.
template <execution_space Space, class TA, class TB, class Epilogue>
void multiply_f32(const Space& space, const real_rows<TA>& a, const real_rows<TB>& b, int lanes,
                  const Epilogue& epilogue) {
  if (a.rows == 0 || b.rows == 0)
    return;
  switch (active_isa()) {
#if defined(__x86_64__)
  case isa::avx512:
    return lane_product<avx512::f32_tile, TA, TB>(a, b, lanes).run(space, epilogue);
  case isa::avx2:
    return lane_product<avx2::f32_tile, TA, TB>(a, b, lanes).run(space, epilogue);
#endif
  default:
    return lane_product<portable::f32_tile, TA, TB>(a, b, lanes).run(space, epilogue);
  }
}

} // namespace ordo::cpu
