// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Blocking of the integer products: int8 matrices, one or several slices on each side.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ordo/core/execution.hpp>
#include <ordo/cpu/int8_avx2.hpp>
#include <ordo/cpu/int8_avx512.hpp>
#include <ordo/cpu/int8_slices.hpp>
#include <ordo/cpu/isa.hpp>
#include <ordo/cpu/scratch.hpp>

namespace ordo::cpu {

#if defined(__x86_64__)
namespace avx512 {

/// One product: A of M x K by B of N x K, blocked as follows. Columns of C come in panels as wide
/// as the register tile, whose part of B is packed once; panels come in chunks that fit
/// `chunk_bytes`. A work item is `block_rows` rows of one panel; K is cut into pieces of `k_bytes`,
/// so that the panel's piece stays in the first-level cache while all tiles of the item use it.
template <int SA, int SB>
class slice_product {
  using tile = int8_tile<SA, SB>;
  static constexpr int strips = 48 / tile::rows, block_rows = strips * tile::rows;
  static constexpr std::int64_t k_bytes = 512;
  static constexpr std::size_t chunk_bytes = std::size_t{8} << 20;
  static constexpr std::size_t group_bytes = std::size_t{1} << 20;
  static constexpr int plane = block_rows * tile::columns;
  static_assert(tile::columns <= most_piece);

public:
  slice_product(const int8_slices<SA>& a, const int8_slices<SB>& b)
      : a_(a), b_(b), k_(a.columns), groups_((a.columns + 3) / 4),
        panels_((b.rows + tile::columns - 1) / tile::columns),
        panel_bytes_(static_cast<std::size_t>(groups_ * tile::group_bytes)),
        chunk_(std::clamp<std::int64_t>(
            static_cast<std::int64_t>(chunk_bytes / std::max(panel_bytes_, std::size_t{1})), 1,
            std::max<std::int64_t>(panels_, 1))),
        starts_bytes_(aligned_size(static_cast<std::size_t>(tile::weights * a.rows) * 4)),
        memory_(starts_bytes_ + static_cast<std::size_t>(chunk_) * panel_bytes_),
        starts_(memory_.at<std::int32_t>(0)), packed_(memory_.at<std::uint8_t>(starts_bytes_)) {}

  /// Calls `finish(m, n0, count, sums, plane)` for pieces of rows that together are C; the sum of
  /// weight w of column n0 + j is `sums[w * plane + j]`.
  template <execution_space Space, class Finish>
  void run(const Space& space, const Finish& finish) const {
    const std::int64_t row_blocks = (a_.rows + block_rows - 1) / block_rows;
    for (std::int64_t first = 0; first < panels_; first += chunk_) {
      const std::int64_t count = std::min(chunk_, panels_ - first);
      ordo::detail::for_each(space, "ordo::gemm_slices::pack",
                             count + (first == 0 ? row_blocks : 0), [&](std::int64_t i) {
                               if (i < count)
                                 pack(first + i,
                                      packed_ + static_cast<std::size_t>(i) * panel_bytes_);
                               else
                                 sum_rows(i - count);
                             });
      ordo::detail::for_each(
          space, "ordo::gemm_slices::tiles", count * row_blocks, [&](std::int64_t i) {
            const auto [block, panel] = item(i, row_blocks, count);
            multiply(block * block_rows, first + panel,
                     packed_ + static_cast<std::size_t>(panel) * panel_bytes_, finish);
          });
    }
  }

private:
  struct row_block_and_panel {
    std::int64_t block, panel;
  };

  /// Item i of a chunk of `panels`: groups of panels that stay in the second-level cache; within a
  /// group block by block of rows; within a block panel by panel.
  row_block_and_panel item(std::int64_t i, std::int64_t row_blocks, std::int64_t panels) const {
    const std::int64_t group = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(group_bytes / std::max(panel_bytes_, std::size_t{1})), 1, panels);
    const std::int64_t start = i / (group * row_blocks) * group;
    const std::int64_t width = std::min(group, panels - start), within = i - start * row_blocks;
    return {within / width, start + within % width};
  }

  void pack(std::int64_t panel, std::uint8_t* out) const {
    for (int j = 0; j < SB; ++j)
      for (int v = 0; v < tile::vectors; ++v) {
        const std::int64_t n = std::min(panel * tile::columns + v * 16, b_.rows - 1);
        pack_int8(b_.slice[j] + n * b_.stride, b_.stride, b_.rows - n, k_,
                  reinterpret_cast<std::uint32_t*>(out + (j * tile::vectors + v) * 64),
                  tile::group_bytes / 4);
      }
  }

  /// Where the sums of the rows of a block start, for each weight: what the offset of B adds.
  void sum_rows(std::int64_t block) const {
    const std::int64_t end = std::min((block + 1) * block_rows, a_.rows);
    for (std::int64_t m = block * block_rows; m < end; ++m) {
      std::uint32_t sum[tile::weights] = {};
      for (int i = 0; i < SA; ++i) {
        const std::uint32_t of_row = start_of_row(a_.slice[i] + m * a_.stride, k_);
        for (int j = 0; j < SB; ++j)
          sum[i + j] += of_row;
      }
      for (int w = 0; w < tile::weights; ++w)
        starts_[w * a_.rows + m] = static_cast<std::int32_t>(sum[w]);
    }
  }

  template <class Finish>
  void multiply(std::int64_t m0, std::int64_t panel, const std::uint8_t* b,
                const Finish& finish) const {
    alignas(64) std::int32_t c[tile::weights * plane];
    const std::int64_t rows = std::min<std::int64_t>(block_rows, a_.rows - m0);
    for (int w = 0; w < tile::weights; ++w)
      for (int r = 0; r < block_rows; ++r)
        std::fill_n(c + w * plane + r * tile::columns, tile::columns,
                    starts_[w * a_.rows + m0 + std::min<std::int64_t>(r, rows - 1)]);
    const std::int64_t n0 = panel * tile::columns;
    const int count = static_cast<int>(std::min<std::int64_t>(tile::columns, b_.rows - n0));
    std::int64_t k0 = 0;
    do {
      const std::int64_t k1 = std::min(k0 + k_bytes, k_);
      for (std::int64_t r0 = 0; r0 < rows; r0 += tile::rows) {
        add_tile(m0, r0, rows, k0, k1, b + k0 / 4 * tile::group_bytes, c + r0 * tile::columns);
        if (k1 < k_)
          continue;
        for (std::int64_t r = r0; r < std::min(r0 + tile::rows, rows); ++r)
          finish(m0 + r, n0, count, static_cast<const std::int32_t*>(c + r * tile::columns), plane);
      }
      k0 = k1;
    } while (k0 < k_);
  }

  /// Adds the products of k0 .. k1 to one tile. Rows past the last repeat it.
  void add_tile(std::int64_t m0, std::int64_t r0, std::int64_t rows, std::int64_t k0,
                std::int64_t k1, const std::uint8_t* b, std::int32_t* c) const {
    const std::int8_t* row[SA][tile::rows];
    for (int i = 0; i < SA; ++i)
      for (int r = 0; r < tile::rows; ++r)
        row[i][r] = a_.slice[i] + (m0 + std::min(r0 + r, rows - 1)) * a_.stride + k0;
    const std::int64_t groups = (k1 - k0) / 4, tail = (k1 - k0) % 4;
    int8_kernel<SA, SB>(groups, row, b, c, plane);
    if (tail == 0)
      return;
    std::int8_t last[SA][tile::rows][4] = {};
    for (int i = 0; i < SA; ++i)
      for (int r = 0; r < tile::rows; ++r) {
        std::memcpy(last[i][r], row[i][r] + 4 * groups, static_cast<std::size_t>(tail));
        row[i][r] = last[i][r];
      }
    int8_kernel<SA, SB>(1, row, b + groups * tile::group_bytes, c, plane);
  }

  int8_slices<SA> a_;
  int8_slices<SB> b_;
  std::int64_t k_, groups_, panels_;
  std::size_t panel_bytes_;
  std::int64_t chunk_;
  std::size_t starts_bytes_;
  scratch memory_;
  std::int32_t* starts_;
  std::uint8_t* packed_;
};

} // namespace avx512

/// Products of the slices of A and B as exact sums, one for each weight, handed to
/// `finish(m, n0, count, sums, plane)`: see `slice_product::run`. False, and nothing is done, if
/// this processor has no suitable instructions.
template <int SA, int SB, execution_space Space, class Finish>
bool multiply_slices(const Space& space, const int8_slices<SA>& a, const int8_slices<SB>& b,
                     const Finish& finish) {
  if (a.rows == 0 || b.rows == 0)
    return true;
  switch (active_isa()) {
  case isa::avx512:
    avx512::slice_product<SA, SB>(a, b).run(space, finish);
    return true;
  case isa::avx2:
    avx2::multiply_slices(space, a, b, finish);
    return true;
  default:
    return false;
  }
}
#endif

} // namespace ordo::cpu
