// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Parameters that the processes of a job share, gathered when they are needed.

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <ordo/comm/communicator.hpp>
#include <ordo/model/prepared_weights.hpp>
#include <ordo/train/partition.hpp>

namespace ordo::train {

/// How often parameters are gathered. Tuning: memory against traffic.
enum class gathering {
  layer, ///< a layer at a time, in every pass: memory for two layers, traffic twice a micro-batch
  step,  ///< all of them, once a step: memory for all
};

/// Gathers the groups of a partition in the order of model::fetched_groups, pass after pass; while
/// one is in use the next is on its way. Collective: every process fetches the same groups in the
/// same order, whether it computes with them or not.
template <execution_space Space>
class gathered_parameters final : public model::parameter_source<Space> {
public:
  gathered_parameters(const Space& space, const model::config& shape, comm::communicator& processes,
                      const partition& parts)
      : space_(space), processes_(processes), parts_(parts), order_(model::fetched_groups(shape)) {}

  /// Takes this process's parameters, which must stay as they are for so many passes.
  void begin(vector_view<const bf16, Space> own, std::uint64_t passes) {
    own_ = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), own);
    fetched_ = 0;
    fetches_ = passes * order_.size();
    if (fetches_ > 0)
      start(next_, order_[0]);
  }

  vector_view<const bf16, Space> fetch(std::size_t group) override {
    require(fetched_ < fetches_ && order_[fetched_ % order_.size()] == group,
            "ordo::train::gathered_parameters",
            "group " + std::to_string(group) + " is fetched out of turn");
    processes_.finish(next_.exchange);
    std::swap(current_, next_);
    const auto n = static_cast<std::size_t>(parts_.groups()[group].size);
    const vector_view<const bf16, Space> values = upload(n);
    if (++fetched_ < fetches_)
      start(next_, order_[fetched_ % order_.size()]);
    return values;
  }
  /// Takes part in a group's gathering for the sake of the others.
  void skip(std::size_t group) { fetch(group); }

private:
  using host_vector = Kokkos::View<bf16*, Kokkos::HostSpace>;
  struct slot {
    host_vector values;
    comm::communicator::ticket exchange = 0;
  };

  void start(slot& to, std::size_t group) {
    const tensor_group& g = parts_.groups()[group];
    const int size = processes_.size(), rank = processes_.rank();
    if (to.values.extent(0) < static_cast<std::size_t>(g.size))
      to.values = host_vector(
          Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string("ordo::train::gathered")),
          static_cast<std::size_t>(g.size));
    const auto share = [&](int p) {
      const auto at = static_cast<std::size_t>(p);
      return comm::detail::bytes_of(to.values.data() + g.cuts[at], g.cuts[at + 1] - g.cuts[at]);
    };
    const auto own = share(rank);
    std::memcpy(own.data(), own_.data() + g.own[static_cast<std::size_t>(rank)], own.size());
    std::vector<comm::outgoing> sends;
    std::vector<comm::incoming> receives;
    for (int k = 1; k < size; ++k) {
      sends.push_back({(rank + k) % size, own});
      receives.push_back({(rank - k + size) % size, share((rank - k + size) % size)});
    }
    to.exchange = processes_.start(sends, receives);
  }

  vector_view<const bf16, Space> upload(std::size_t n) {
    if constexpr (ordo::detail::on_host<Space>) {
      return vector_view<const bf16, Space>(current_.values.data(), n);
    } else {
      if (device_.extent(0) < n)
        device_ = decltype(device_)("ordo::train::gathered", n);
      const auto to = Kokkos::subview(device_, std::make_pair(std::size_t{0}, n));
      Kokkos::deep_copy(space_, to,
                        Kokkos::subview(current_.values, std::make_pair(std::size_t{0}, n)));
      space_.fence(); // the next group but one takes its place on the host
      return vector_view<const bf16, Space>(device_.data(), n);
    }
  }

  Space space_;
  comm::communicator& processes_;
  const partition& parts_;
  std::vector<std::size_t> order_;
  Kokkos::View<const bf16*, Kokkos::HostSpace> own_;
  slot current_, next_;
  Kokkos::View<bf16*, typename Space::memory_space> device_;
  std::uint64_t fetched_ = 0, fetches_ = 0;
};

} // namespace ordo::train
