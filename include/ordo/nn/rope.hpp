// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Rotary position embedding over interleaved pairs: the table in a space's memory.

#include <cstdint>
#include <span>
#include <vector>

#include <ordo/core/execution.hpp>
#include <ordo/reference/rope.hpp>

namespace ordo::nn {

/// Cosines and sines of `positions` positions, as `reference::rope_table` defines them: computed
/// once on the host in binary64 and rounded to binary32, never to bf16.
///
/// Shape: cosine, sine [positions, head_dim / 2].
template <class Space>
struct rope_table {
  using view = Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space>;

  view cosine, sine;

  rope_table() = default;
  rope_table(double theta, std::int64_t head_dim, std::int64_t positions) {
    const auto rows = static_cast<std::size_t>(positions);
    const auto pairs = static_cast<std::size_t>(head_dim / 2);
    cosine = view("ordo::nn::rope_table::cosine", rows, pairs);
    sine = view("ordo::nn::rope_table::sine", rows, pairs);
    const auto c = Kokkos::create_mirror_view(cosine), s = Kokkos::create_mirror_view(sine);
    reference::rope_table(theta, head_dim, positions, std::span<float>(c.data(), rows * pairs),
                          std::span<float>(s.data(), rows * pairs));
    Kokkos::deep_copy(cosine, c);
    Kokkos::deep_copy(sine, s);
  }
};

} // namespace ordo::nn
