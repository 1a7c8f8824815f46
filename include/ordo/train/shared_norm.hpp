// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The norm of a gradient whose entries the processes of a job share.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <ordo/comm/communicator.hpp>
#include <ordo/reduce/norm.hpp>
#include <ordo/train/partition.hpp>

namespace ordo::train {

/// reduce::global_norm over the tensors of a partition, of which `gradient` holds this process's
/// entries. The same on every process. Collective.
///
/// Bits: reduce::global_norm's, not of the partition. Cost: 4 bytes for every 16 KiB of gradient.
template <execution_space Space>
reduce::norm_result shared_norm(const Space& space, comm::communicator& processes,
                                const partition& parts, vector_view<const float, Space> gradient,
                                reduce::norm_memory<Space>& memory) {
  const std::vector<model::tensor>& table = parts.table();
  if (processes.size() == 1) {
    std::vector<reduce::named_values<Space>> named;
    for (const model::tensor& t : table) {
      named.push_back(
          {t.name, vector_view<const float, Space>(gradient.data() + t.offset,
                                                   static_cast<std::size_t>(t.size()))});
    }
    return reduce::global_norm<Space>(space, named, memory);
  }
  const auto chunks_of = [](std::int64_t entries) {
    return static_cast<std::size_t>((entries + reduce::norm_chunk - 1) / reduce::norm_chunk);
  };
  const auto& own = parts.pieces(processes.rank());
  std::size_t count = 0;
  for (const tensor_piece& piece : own)
    count += chunks_of(piece.size);
  if (memory.scratch.extent(0) < count) {
    memory.scratch = Kokkos::View<float*, typename Space::memory_space>(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string("ordo::train::chunk_sums")),
        count);
  }
  std::size_t at = 0;
  for (const tensor_piece& piece : own) {
    reduce::chunk_sums<Space>(
        space,
        vector_view<const float, Space>(gradient.data() + piece.offset,
                                        static_cast<std::size_t>(piece.size)),
        vector_view<float, Space>(memory.scratch.data() + at, chunks_of(piece.size)));
    at += chunks_of(piece.size);
  }
  std::string bytes(count * sizeof(float), '\0');
  Kokkos::deep_copy(space,
                    Kokkos::View<float*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                        reinterpret_cast<float*>(bytes.data()), count),
                    vector_view<const float, Space>(memory.scratch.data(), count));
  space.fence();
  const std::vector<std::string> all = comm::gather(processes, bytes);

  // Tensors in the order of their names, each one's chunks ascending, whoever summed them.
  std::vector<std::size_t> order(table.size()), first(table.size());
  for (std::size_t t = 0; t < order.size(); ++t)
    order[t] = t;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return table[a].name < table[b].name; });
  std::size_t total = 0;
  for (const std::size_t t : order) {
    first[t] = total;
    total += chunks_of(table[t].size());
  }
  std::vector<float> sums(total);
  for (std::size_t p = 0; p < all.size(); ++p) {
    std::size_t from = 0;
    for (const tensor_piece& piece : parts.pieces(static_cast<int>(p))) {
      const std::size_t length = chunks_of(piece.size) * sizeof(float);
      require(from + length <= all[p].size(), "process " + std::to_string(p),
              "it summed other chunks than this one expects");
      std::memcpy(sums.data() + first[piece.tensor] + chunks_of(piece.first), all[p].data() + from,
                  length);
      from += length;
    }
  }
  return reduce::join_chunk_sums(sums);
}

} // namespace ordo::train
