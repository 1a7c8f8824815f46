// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The global norm of named tensors, in an order that knows nothing of how they are sharded.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/order/sum.hpp>
#include <ordo/reduce/norm_chunk.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/sum_squares.hpp>
#endif

namespace ordo::reduce {

/// A tensor's elements, as the norm sees them.
template <execution_space Space>
struct named_values {
  std::string_view name;
  vector_view<const float, Space> values;
};

struct norm_result {
  float norm;        ///< square root of the sum
  float sum_squares; ///< infinity if a square or the sum overflows: the caller's event
};

/// Memory that global_norm keeps from call to call, so that a device does not stop to allocate it.
template <execution_space Space>
struct norm_memory {
  Kokkos::View<float*, typename Space::memory_space> scratch;
};

namespace detail {
struct norm_part {
  const float* from;
  std::int64_t n;
};
} // namespace detail

/// Joins the chunk sums of all tensors (names ascending as bytes, chunks ascending) by order::Tree
/// and takes the square root. NaN becomes the canonical NaN.
inline norm_result join_chunk_sums(std::span<const float> sums) {
  const arith::float_mode mode;
  const float sum = order::sum(order::Tree{}, static_cast<std::int64_t>(sums.size()),
                               [=](auto i) { return sums[static_cast<std::size_t>(i)]; });
  return {mode.pinned(arith::canonical(arith::sqrt(sum))), mode.pinned(arith::canonical(sum))};
}

namespace detail {

/// The tensors in the order of their names.
template <execution_space Space>
std::vector<const named_values<Space>*> by_name(std::span<const named_values<Space>> tensors) {
  std::vector<const named_values<Space>*> sorted;
  for (const auto& tensor : tensors)
    sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->name < b->name; });
  for (std::size_t t = 1; t < sorted.size(); ++t) {
    require(sorted[t - 1]->name != sorted[t]->name, "ordo::reduce::global_norm",
            "two tensors are called '" + std::string(sorted[t]->name) + "'",
            "names give the order, so they must differ");
  }
  return sorted;
}

#if defined(ORDO_CUDA)
/// global_norm on CUDA: all of it on the device, then one copy of two numbers, which waits.
inline norm_result norm_on_cuda(const Kokkos::Cuda& space,
                                const std::vector<const named_values<Kokkos::Cuda>*>& sorted,
                                norm_memory<Kokkos::Cuda>& memory) {
  std::vector<cuda::norm_tensor> list;
  for (const auto* tensor : sorted)
    list.push_back({tensor->values.data(), static_cast<std::int64_t>(tensor->values.extent(0))});
  const auto count = static_cast<std::int64_t>(list.size());
  const auto needed = static_cast<std::size_t>(cuda::norm_scratch(list.data(), count));
  if (memory.scratch.extent(0) < needed + 2) {
    memory.scratch = Kokkos::View<float*, Kokkos::CudaSpace>(
        Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "ordo::reduce::global_norm"),
        needed + 2);
  }
  float* const result = memory.scratch.data() + needed;
  cuda::global_norm(space.cuda_stream(), list.data(), count, memory.scratch.data(), result);
  float host[2];
  cuda::check(
      cudaMemcpyAsync(host, result, sizeof host, cudaMemcpyDeviceToHost, space.cuda_stream()),
      "ordo::reduce::global_norm");
  space.fence();
  return {host[0], host[1]};
}
#endif

/// global_norm where the host reaches the elements.
template <execution_space Space>
norm_result norm_on_host(const Space& space,
                         const std::vector<const named_values<Space>*>& sorted) {
  static_assert(
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible,
      "ordo::reduce::global_norm: the list of chunks is built by the host; use chunk_sum_squares "
      "and join_chunk_sums on a device");
  std::vector<norm_part> parts;
  for (const auto* tensor : sorted) {
    const auto& values = tensor->values;
    const std::int64_t n = static_cast<std::int64_t>(values.extent(0));
    for (std::int64_t i = 0; i < n; i += norm_chunk) {
      parts.push_back({values.data() + i, std::min(norm_chunk, n - i)});
    }
  }
  std::vector<float> sums(parts.size());
  const norm_part* const part = parts.data();
  float* const sum = sums.data();
  ordo::detail::for_blocks(space, "ordo::reduce::global_norm",
                           static_cast<std::int64_t>(parts.size()), 16,
                           [=](std::int64_t begin, std::int64_t end) {
                             for (std::int64_t c = begin; c < end; ++c)
                               sum[c] = chunk_sum_squares(part[c].from, part[c].n);
                           });
  return join_chunk_sums(sums);
}

} // namespace detail

/// The sums of squares of the chunks of `values` [n], whose first element begins a chunk of its
/// tensor: sums [ceil(n / norm_chunk)]. What a process computes of the chunks that it holds.
template <execution_space Space>
void chunk_sums(const Space& space, vector_view<const float, Space> values,
                vector_view<float, Space> sums) {
  const auto n = static_cast<std::int64_t>(values.extent(0));
  const float* const from = values.data();
  float* const to = sums.data();
  ordo::detail::for_each(
      space, "ordo::reduce::chunk_sums", (n + norm_chunk - 1) / norm_chunk,
      KOKKOS_LAMBDA(std::int64_t c) {
        const std::int64_t rest = n - c * norm_chunk;
        to[c] = chunk_sum_squares(from + c * norm_chunk, rest < norm_chunk ? rest : norm_chunk);
      });
}

/// The square root of the sum of the squares of all elements of all tensors.
///
/// Order: tensors by name (bytes ascending, whatever their order in the argument); each cut into
/// chunks of 4096 elements, the last may be shorter, an empty tensor has none; inside a chunk
/// Lanes<32> over mul(x, x); the sequence of all chunk sums by order::Tree.
/// Bits: of names and elements only: not of sharding, threads or argument order.
/// Throws: ordo::error if two tensors have the same name.
/// Source: contract, section 11, point 4.
template <execution_space Space>
norm_result global_norm(const Space& space, std::span<const named_values<Space>> tensors,
                        [[maybe_unused]] norm_memory<Space>& memory) {
  const auto sorted = detail::by_name(tensors);
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    return detail::norm_on_cuda(space, sorted, memory);
  } else
#endif
  {
    return detail::norm_on_host(space, sorted);
  }
}

template <execution_space Space>
norm_result global_norm(const Space& space, std::span<const named_values<Space>> tensors) {
  norm_memory<Space> memory;
  return global_norm(space, tensors, memory);
}

} // namespace ordo::reduce
