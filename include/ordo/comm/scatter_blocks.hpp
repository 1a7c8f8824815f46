// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The exchange under every deterministic reduction: each process gets all values of its share of
/// the entries, block by block, and may hand its results to everybody while the next come in.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <ordo/comm/communicator.hpp>
#include <ordo/core/execution.hpp>

namespace ordo::comm {

/// Entries [cuts[p], cuts[p + 1]) are process p's share. Even shares of `n` entries.
inline std::vector<std::int64_t> even_cuts(std::int64_t n, int processes) {
  std::vector<std::int64_t> cuts;
  for (std::int64_t p = 0; p <= processes; ++p)
    cuts.push_back(n / processes * p + std::min<std::int64_t>(p, n % processes));
  return cuts;
}

/// Memory that scatter_blocks keeps from call to call.
template <execution_space Space>
class exchange_memory {
public:
  /// Entries of a block. Tuning: two blocks of every process should stay in a cache.
  static constexpr std::int64_t block = 1 << 16;

#if defined(ORDO_CUDA)
  using staging_space = std::conditional_t<ordo::detail::on_cuda<Space>,
                                           Kokkos::CudaHostPinnedSpace, Kokkos::HostSpace>;
#else
  using staging_space = Kokkos::HostSpace;
#endif

  struct part {
    Kokkos::View<float*, typename Space::memory_space> received;
    Kokkos::View<float*, staging_space> to_send, arrived; // on a device
  };

  /// Memory for the blocks under way in every other turn, from `size` processes.
  part& turn(std::int64_t number, int size) {
    part& p = parts_[number % 2];
    const auto entries = static_cast<std::size_t>(size) * static_cast<std::size_t>(block);
    if (p.received.extent(0) < entries) {
      using Kokkos::view_alloc, Kokkos::WithoutInitializing;
      const std::string label = "ordo::comm::exchange";
      p.received = decltype(p.received)(view_alloc(WithoutInitializing, label), entries);
      if constexpr (!ordo::detail::on_host<Space>) {
        p.to_send = decltype(p.to_send)(view_alloc(WithoutInitializing, label), entries);
        p.arrived = decltype(p.arrived)(view_alloc(WithoutInitializing, label), entries);
      }
    }
    return p;
  }

private:
  part parts_[2];
};

namespace detail {

template <class T>
using host_entries = Kokkos::View<T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;

/// Messages between entries of `Space`. Those of the host are sent from where they are; a device's
/// go through pinned memory.
template <execution_space Space>
class entry_messages {
public:
  explicit entry_messages(const Space& space) : space_(space) {}

  void send(int to, const float* from, std::int64_t n, float* staged) {
    if constexpr (!ordo::detail::on_host<Space>) {
      Kokkos::deep_copy(space_, host_entries<float>(staged, static_cast<std::size_t>(n)),
                        vector_view<const float, Space>(from, static_cast<std::size_t>(n)));
      from = staged;
    }
    sends_.push_back({to, bytes_of(from, n)});
  }
  void receive(int from, float* to, std::int64_t n, float* staged) {
    if constexpr (!ordo::detail::on_host<Space>) {
      arrivals_.push_back({to, staged, n});
      to = staged;
    }
    receives_.push_back({from, bytes_of(to, n)});
  }
  void start(communicator& processes) {
    if constexpr (!ordo::detail::on_host<Space>)
      space_.fence();
    ticket_ = processes.start(sends_, receives_);
    started_ = true;
  }
  /// What has come in is in the memory of `Space`, in the order of its stream.
  void finish(communicator& processes) {
    if (!started_)
      return;
    processes.finish(ticket_);
    for (const arrival& a : arrivals_) {
      Kokkos::deep_copy(space_, vector_view<float, Space>(a.to, static_cast<std::size_t>(a.n)),
                        host_entries<const float>(a.staged, static_cast<std::size_t>(a.n)));
    }
    if constexpr (!ordo::detail::on_host<Space>) {
      if (!arrivals_.empty())
        space_.fence(); // the staging memory serves the turn after the next
    }
    sends_.clear();
    receives_.clear();
    arrivals_.clear();
    started_ = false;
  }

private:
  struct arrival {
    float* to;
    const float* staged;
    std::int64_t n;
  };
  Space space_;
  std::vector<outgoing> sends_;
  std::vector<incoming> receives_;
  std::vector<arrival> arrivals_;
  communicator::ticket ticket_ = 0;
  bool started_ = false;
};

} // namespace detail

/// Gives every process all processes' entries of its share.
///
/// `mine` [cuts.back()] are this process's entries; a process p with active[p] false has none.
/// `consume(begin, n, values)` is called for blocks of the own share in ascending order: values[p]
/// are process p's n entries from entry `begin` of the share on, null where p has none. It may
/// overwrite those of others.
/// With `results` [cuts.back()], which may be `mine`, consume leaves its results in the share's
/// entries there, and all processes end with the results of all.
///
/// Cost: a process sends size - 1 shares of its entries, and with `results` its own share size - 1
/// times: 2 (size - 1) / size of the entries where shares are even.
template <execution_space Space, class Consume>
void scatter_blocks(const Space& space, communicator& processes, const float* mine,
                    std::span<const std::int64_t> cuts, const std::vector<bool>& active,
                    float* results, exchange_memory<Space>& memory, const Consume& consume) {
  constexpr std::int64_t block = exchange_memory<Space>::block;
  const int size = processes.size(), rank = processes.rank();
  require(cuts.size() == static_cast<std::size_t>(size) + 1 &&
              active.size() == static_cast<std::size_t>(size),
          "ordo::comm::scatter_blocks", "cuts or active processes are of another job");
  std::int64_t longest = 0;
  for (int p = 0; p < size; ++p)
    longest = std::max(longest,
                       cuts[static_cast<std::size_t>(p) + 1] - cuts[static_cast<std::size_t>(p)]);
  const auto first_of = [&](int p) { return cuts[static_cast<std::size_t>(p)]; };
  const auto entries_of = [&](int p, std::int64_t turn) {
    const std::int64_t share = cuts[static_cast<std::size_t>(p) + 1] - first_of(p);
    return std::clamp<std::int64_t>(share - turn * block, 0, block);
  };
  const auto is_active = [&](int p) { return active[static_cast<std::size_t>(p)]; };
  const auto place = [&](auto& view, int p) {
    return view.data() == nullptr ? nullptr : view.data() + p * block;
  };
  const std::int64_t turns = (longest + block - 1) / block;
  detail::entry_messages<Space> scattered[2] = {detail::entry_messages<Space>(space),
                                                detail::entry_messages<Space>(space)};
  detail::entry_messages<Space> spread[2] = {detail::entry_messages<Space>(space),
                                             detail::entry_messages<Space>(space)};
  std::vector<float*> values(static_cast<std::size_t>(size));
  for (std::int64_t turn = 0; turn <= turns; ++turn) {
    if (turn < turns) {
      auto& memory_of = memory.turn(turn, size);
      auto& messages = scattered[turn % 2];
      spread[turn % 2].finish(processes); // its staging memory is needed again
      for (int k = 1; k < size; ++k) {
        const int to = (rank + k) % size, from = (rank - k + size) % size;
        if (is_active(from) && entries_of(rank, turn) > 0)
          messages.receive(from, place(memory_of.received, from), entries_of(rank, turn),
                           place(memory_of.arrived, from));
        if (is_active(rank) && entries_of(to, turn) > 0)
          messages.send(to, mine + first_of(to) + turn * block, entries_of(to, turn),
                        place(memory_of.to_send, to));
      }
      messages.start(processes);
    }
    if (turn == 0)
      continue;
    const std::int64_t done = turn - 1, n = entries_of(rank, done), begin = done * block;
    auto& memory_of = memory.turn(done, size);
    scattered[done % 2].finish(processes);
    if (n > 0) {
      for (int p = 0; p < size; ++p) {
        float* const own = const_cast<float*>(mine) + first_of(rank) + begin;
        values[static_cast<std::size_t>(p)] = !is_active(p) ? nullptr
                                              : p == rank   ? own
                                                            : place(memory_of.received, p);
      }
      consume(begin, n, values);
    }
    if (results == nullptr)
      continue;
    auto& messages = spread[done % 2];
    for (int k = 1; k < size; ++k) {
      const int to = (rank + k) % size, from = (rank - k + size) % size;
      if (entries_of(from, done) > 0)
        messages.receive(from, results + first_of(from) + begin, entries_of(from, done),
                         place(memory_of.arrived, from));
      if (n > 0)
        messages.send(to, results + first_of(rank) + begin, n, place(memory_of.to_send, rank));
    }
    messages.start(processes);
  }
  for (auto& messages : spread)
    messages.finish(processes);
}

} // namespace ordo::comm
