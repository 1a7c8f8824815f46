// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The loss under Sliced<2, 2> on Kokkos::Cuda: its memory, and the calls of the kernels in
/// ordo/cuda. Included by cross_entropy.hpp; other policies take the loops written there.

#include <ordo/core/execution.hpp>

#if defined(ORDO_CUDA)

#include <cstdint>
#include <string>

#include <ordo/cuda/cross_entropy.hpp>
#include <ordo/loss/head.hpp>
#include <ordo/loss/loss_scratch.hpp>
#include <ordo/loss/loss_sum.hpp>

namespace ordo::loss {

/// As the primary template. `wanted_rows` is larger here, as the kernels want thousands of rows.
///
/// Cost: 8 bytes per word and 8 per feature for each row of a chunk; 2.1 GB for 2,048 rows of
/// 128,256 words.
template <>
struct loss_scratch<Sliced<2, 2>, Kokkos::Cuda> : loss_extents {
  Kokkos::View<unsigned char*, Kokkos::Cuda::memory_space> bytes;
  cuda::head::chunk_memory memory;

  loss_scratch(std::int64_t max_tokens_, std::int64_t vocabulary_, std::int64_t width_,
               std::int64_t wanted_rows = 2048)
      : loss_extents(max_tokens_, vocabulary_, width_, wanted_rows),
        bytes(detail::uninitialized("ordo::cross_entropy::scratch"),
              cuda::cross_entropy_scratch_bytes(chunk_rows, max_tokens, vocabulary, width)),
        memory(
            cuda::cross_entropy_memory(bytes.data(), chunk_rows, max_tokens, vocabulary, width)) {}
};

namespace detail {

template <class Policy, class Space>
inline constexpr bool device_loss = false;
template <>
inline constexpr bool device_loss<Sliced<2, 2>, Kokkos::Cuda> = true;

/// The arguments of a checked call; `Task` is head_task.
template <class Task>
cuda::loss_task device_task(const Task& task) {
  cuda::loss_task out{};
  out.tokens = task.tokens();
  out.width = task.head.width();
  out.vocabulary = task.head.vocabulary();
  out.padded = static_cast<std::int64_t>(task.head.words().extent(0));
  out.h = task.h.data();
  out.words = task.head.words().data();
  out.by_word = ordo::detail::device_slices(task.head.by_word().matrix());
  out.by_feature = ordo::detail::device_slices(task.head.by_feature().matrix());
  out.labels = task.labels.data();
  out.token_scale = task.token_scale;
  out.z = task.z_coefficient;
  return out;
}

/// The integers of a call, once all of it is done.
/// Throws: a label that is neither a word nor `ignore_label`. It is found with the results, and
/// counted as ignored until then.
template <class Task>
loss_sum collect_on_device(const Kokkos::Cuda& space, const Task& task,
                           const cuda::head::chunk_memory& memory) {
  const char* where = "ordo::cross_entropy";
  std::int64_t totals[loss_totals];
  std::uint32_t label = 0;
  const auto read = [&](void* to, const void* from, std::size_t size) {
    cuda::check(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, space.cuda_stream()),
                where);
    cuda::check(cudaStreamSynchronize(space.cuda_stream()), where);
  };
  read(totals, memory.totals, sizeof totals);
  const std::int64_t row = totals[first_bad_row];
  if (row < task.tokens()) {
    read(&label, task.labels.data() + row, sizeof label);
    throw bad_label(row, label, task.head.vocabulary());
  }
  return sum_of(totals);
}

} // namespace detail
} // namespace ordo::loss

#endif // ORDO_CUDA
