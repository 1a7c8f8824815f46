// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Token embedding: gather forward, ordered scatter backward.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/order/policies.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/embedding.hpp>
#endif

namespace ordo::nn {

/// y_i = table[ids_i].
///
/// Shape: ids [m]; table [v, d] bf16; y [m, d] bf16. Bits: copied.
/// Ids must be below v; `embedding_order` checks them for a whole micro-batch.
template <execution_space Space>
void embedding(const Space& space, vector_view<const std::uint32_t, Space> ids,
               matrix_view<const bf16, Space> table, matrix_view<bf16, Space> y) {
  const std::int64_t d = static_cast<std::int64_t>(table.extent(1));
  require(y.extent(0) == ids.extent(0) && y.extent(1) == table.extent(1), "ordo::nn::embedding",
          "y is " + shape(y.extent(0), y.extent(1)) + " for " + shape(ids.extent(0)) +
              " ids and rows of " + shape(d));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::embedding(space.cuda_stream(), ids.data(), table.data(), y.data(),
                    static_cast<std::int64_t>(ids.extent(0)), d);
    return;
  }
#endif
  const bf16* const in = table.data();
  bf16* const out = y.data();
  ordo::detail::for_blocks(
      space, "ordo::nn::embedding", static_cast<std::int64_t>(ids.extent(0)), 32,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const bf16* ORDO_RESTRICT row = in + static_cast<std::int64_t>(ids[i]) * d;
          for (std::int64_t j = 0; j < d; ++j)
            out[i * d + j] = row[j];
        }
      });
}

/// The positions of a micro-batch sorted by id, positions ascending within an id.
template <execution_space Space>
struct embedding_positions {
  Kokkos::View<std::uint32_t*, typename Space::memory_space> position; ///< [m]
  Kokkos::View<std::uint32_t*, typename Space::memory_space> start;    ///< [v + 1]
  Kokkos::View<std::uint32_t*, typename Space::memory_space> scratch;  ///< of grouping on a device

  embedding_positions() = default;
  embedding_positions(std::int64_t m, std::int64_t v)
      : position("ordo::nn::embedding_positions::position", static_cast<std::size_t>(m)),
        start("ordo::nn::embedding_positions::start", static_cast<std::size_t>(v) + 1) {
#if defined(ORDO_CUDA)
    if constexpr (ordo::detail::on_cuda<Space>) {
      scratch = decltype(scratch)("ordo::nn::embedding_positions::scratch",
                                  static_cast<std::size_t>(cuda::group_scratch(v)));
    }
#endif
  }

  /// Groups ids of which `on_space` is the copy in the memory of `space`: on CUDA in its stream,
  /// without waiting. Throws when an id is not below the vocabulary.
  template <class Ids>
  void assign(const Space& space, const Ids& ids,
              vector_view<const std::uint32_t, Space> on_space) {
#if defined(ORDO_CUDA)
    if constexpr (ordo::detail::on_cuda<Space>) {
      check(ids);
      require(on_space.extent(0) == position.extent(0), "ordo::nn::embedding",
              std::to_string(on_space.extent(0)) + " ids on the device for " +
                  std::to_string(position.extent(0)) + " positions");
      cuda::group_positions(space.cuda_stream(), on_space.data(),
                            static_cast<std::int64_t>(position.extent(0)),
                            static_cast<std::int64_t>(start.extent(0)) - 1, start.data(),
                            position.data(), scratch.data());
      return;
    }
#endif
    static_cast<void>(space);
    static_cast<void>(on_space);
    assign(ids);
  }

  /// Counting sort on the host. Throws when an id is not below the vocabulary.
  template <class Ids>
  void assign(const Ids& ids) {
    check(ids);
    const auto v = start.extent(0) - 1;
    auto host_start = Kokkos::create_mirror_view(start);
    auto host_position = Kokkos::create_mirror_view(position);
    Kokkos::deep_copy(host_start, 0u);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ++host_start(ids[i] + 1);
    for (std::size_t w = 0; w < v; ++w)
      host_start(w + 1) += host_start(w);
    for (std::size_t i = ids.size(); i-- > 0;) {
      // Filled from each id's end, so positions ascend; restored by the shift below.
      host_position(--host_start(ids[i] + 1)) = static_cast<std::uint32_t>(i);
    }
    // start[w + 1] now holds the first place of id w: shift back by one.
    for (std::size_t w = 0; w < v; ++w)
      host_start(w) = host_start(w + 1);
    host_start(v) = static_cast<std::uint32_t>(ids.size());
    Kokkos::deep_copy(start, host_start);
    Kokkos::deep_copy(position, host_position);
  }

private:
  template <class Ids>
  void check(const Ids& ids) const {
    require(start.extent(0) > 0 && ids.size() == position.extent(0), "ordo::nn::embedding",
            std::to_string(ids.size()) + " ids for " + std::to_string(position.extent(0)) +
                " positions");
    const auto v = start.extent(0) - 1;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= v) {
        throw error("ordo::nn::embedding",
                    "token " + std::to_string(i) + " has id " + std::to_string(ids[i]) +
                        " in a vocabulary of " + std::to_string(v),
                    "use the tokenizer the model was configured for");
      }
    }
  }
};

/// dtable[w] = sum of dy_i over the positions i whose id is w; overwritten.
///
/// Shape: dy [m, d] bf16; dtable [v, d] binary32.
/// Order: Sequential over ascending positions, starting from +0.
/// Bits: depend on dy and the ids alone.
template <execution_space Space>
void embedding_backward(const Space& space, order::Sequential, matrix_view<const bf16, Space> dy,
                        const embedding_positions<Space>& positions,
                        matrix_view<float, Space> dtable) {
  const std::int64_t d = static_cast<std::int64_t>(dy.extent(1));
  require(dtable.extent(1) == dy.extent(1) && positions.position.extent(0) == dy.extent(0) &&
              positions.start.extent(0) == dtable.extent(0) + 1,
          "ordo::nn::embedding_backward",
          "dy is " + shape(dy.extent(0), d) + ", dtable " +
              shape(dtable.extent(0), dtable.extent(1)) + ", the positions are of " +
              shape(positions.position.extent(0)) + " ids");
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::embedding_backward(space.cuda_stream(), dy.data(), positions.position.data(),
                             positions.start.data(), dtable.data(),
                             static_cast<std::int64_t>(dtable.extent(0)), d);
    return;
  }
#endif
  const bf16* const grad = dy.data();
  float* const out = dtable.data();
  const auto position = positions.position;
  const auto start = positions.start;
  constexpr std::int64_t columns = 64; // tuning: the slice of a row that one work item owns
  const std::int64_t slices = (d + columns - 1) / columns;
  ordo::detail::for_blocks(
      space, "ordo::nn::embedding_backward", static_cast<std::int64_t>(dtable.extent(0)) * slices,
      32, KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
          const std::int64_t w = item / slices, j0 = item % slices * columns;
          const std::int64_t j1 = j0 + columns < d ? j0 + columns : d;
          float* ORDO_RESTRICT row = out + w * d;
          for (std::int64_t j = j0; j < j1; ++j)
            row[j] = 0.0f;
          for (std::uint32_t p = start[w]; p < start[w + 1]; ++p) {
            const bf16* ORDO_RESTRICT g = grad + static_cast<std::int64_t>(position[p]) * d;
            for (std::int64_t j = j0; j < j1; ++j) {
              row[j] = arith::add(row[j], arith::to_f32(g[j]));
            }
          }
        }
      });
}

} // namespace ordo::nn
