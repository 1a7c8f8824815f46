// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The reduction over the ranks of a virtual mesh by the processes of a job: each adds up its share
/// of the entries, in the mesh's order, rank after rank.

#include <cstdint>
#include <span>
#include <vector>

#include <ordo/comm/mesh_fold.hpp>
#include <ordo/comm/scatter_blocks.hpp>

namespace ordo::comm {

/// fold_program over all ranks of a mesh, whose values arrive in rounds: in round j process p of P
/// has the values of rank j P + p, if there is such a rank. So ranks arrive in ascending order, and
/// a process holds log2(replicas) + 2 vectors of its own entries, however many ranks there are.
///
/// Order, Bits: fold_program's; not of the processes. One process takes whole vectors: mesh_fold.
template <execution_space Space>
class mesh_reduction {
public:
  using vector = gradient_vector<Space>;

  /// `entries`: what the process holds of the result.
  mesh_reduction(communicator& processes, exchange_memory<Space>& memory, vector_pool<Space>& pool,
                 const fold_program& program, std::int64_t entries)
      : processes_(processes), memory_(memory), pool_(pool), program_(program), entries_(entries) {}

  /// Begins the next round.
  void begin_round() {
    const auto size = static_cast<std::size_t>(processes_.size());
    steps_.assign(size, {});
    active_.assign(size, false);
    for (std::size_t p = 0; p < size && program_.pushed() < program_.ranks(); ++p) {
      active_[p] = true;
      steps_[p] = program_.push();
    }
    for (int slot = 0; slot < program_.slots(); ++slot)
      if (slot >= slots_.count())
        slots_.hold(slot, pool_.take(entries_));
  }

  /// Takes in the round's values of a group of entries. Collective: every process calls it for
  /// every group, in the same order.
  ///
  /// `mine` are all entries of the group, null where the process has no rank in this round; of them
  /// [cuts[p], cuts[p + 1]) go to process p, and the process's own to entries from `own` on.
  void reduce(const Space& space, const float* mine, std::span<const std::int64_t> cuts,
              std::int64_t own) {
    scatter_blocks<Space>(space, processes_, mine, cuts, active_, nullptr, memory_,
                          [&](std::int64_t begin, std::int64_t n, std::span<float* const> values) {
                            for (std::size_t p = 0; p < values.size(); ++p)
                              for (const fold_step& step : steps_[p])
                                slots_.take(space, step, own + begin, n, values[p]);
                          });
  }

  /// The process's entries of the result. Empties the reduction.
  vector finish(const Space& space) {
    for (const fold_step& step : program_.finish())
      slots_.take(space, step, 0, entries_, nullptr);
    for (int slot = 1; slot < slots_.count(); ++slot)
      pool_.give(slots_.release(slot));
    return slots_.release(0);
  }

private:
  communicator& processes_;
  exchange_memory<Space>& memory_;
  vector_pool<Space>& pool_;
  fold_program program_;
  std::int64_t entries_;
  fold_slots<Space> slots_;
  std::vector<std::vector<fold_step>> steps_; ///< of the round, by process
  std::vector<bool> active_;
};

} // namespace ordo::comm
