// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Reductions over the ranks of a virtual mesh, one arriving after the other.

#include <cstdint>
#include <utility>
#include <vector>

#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/elementwise.hpp>
#endif

namespace ordo::comm {

template <execution_space Space>
using gradient_vector = Kokkos::View<float*, typename Space::memory_space>;

/// a_i = a_i + b_i.
template <execution_space Space>
void add_into(const Space& space, vector_view<float, Space> a, vector_view<const float, Space> b) {
  require(a.extent(0) == b.extent(0), "ordo::comm::add_into",
          "a holds " + std::to_string(a.extent(0)) + " values, b " + std::to_string(b.extent(0)));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::add_into(space.cuda_stream(), a.data(), b.data(), static_cast<std::int64_t>(a.extent(0)));
    return;
  }
#endif
  float* const left = a.data();
  const float* const right = b.data();
  ordo::detail::for_blocks(
      space, "ordo::comm::add_into", static_cast<std::int64_t>(a.extent(0)), 1 << 14,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        float* ORDO_RESTRICT to = left;
        const float* ORDO_RESTRICT from = right;
        for (std::int64_t i = begin; i < end; ++i)
          to[i] = arith::add(to[i], from[i]);
      });
}

/// a_i = a_i * factor: an average multiplies by the reciprocal, rounded beforehand.
template <execution_space Space>
void scale(const Space& space, vector_view<float, Space> a, float factor) {
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::scale(space.cuda_stream(), a.data(), factor, static_cast<std::int64_t>(a.extent(0)));
    return;
  }
#endif
  float* const values = a.data();
  ordo::detail::for_blocks(
      space, "ordo::comm::scale", static_cast<std::int64_t>(a.extent(0)), 1 << 14,
      KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          values[i] = arith::mul(values[i], factor);
        }
      });
}

/// The sum of vectors pushed one after the other, by order::Tree, holding only log2(n) + 1 of them.
///
/// Order: order::Tree over the pushed vectors, entry by entry.
/// Source: OPEN-1B, Algorithm 1 and appendix A.1.
template <execution_space Space>
class tree_fold {
public:
  using vector = gradient_vector<Space>;

  /// Takes the next addend, whose memory from now on is the fold's. Returns vectors that the fold
  /// no longer needs.
  std::vector<vector> push(const Space& space, vector value) {
    std::vector<vector> released;
    std::uint64_t size = 1;
    while (!stack_.empty() && stack_.back().first == size) {
      add_into<Space>(space, stack_.back().second, value);
      released.push_back(value);
      value = stack_.back().second;
      stack_.pop_back();
      size *= 2;
    }
    stack_.emplace_back(size, value);
    return released;
  }

  /// The sum of everything pushed (the blocks, largest first, folded from the left) and the
  /// vectors that are free again. Empties the fold.
  std::pair<vector, std::vector<vector>> finish(const Space& space) {
    require(!stack_.empty(), "ordo::comm::tree_fold", "nothing was pushed");
    std::pair<vector, std::vector<vector>> result{stack_.front().second, {}};
    for (std::size_t i = 1; i < stack_.size(); ++i) {
      add_into<Space>(space, result.first, stack_[i].second);
      result.second.push_back(stack_[i].second);
    }
    stack_.clear();
    return result;
  }

private:
  std::vector<std::pair<std::uint64_t, vector>> stack_;
};

} // namespace ordo::comm
