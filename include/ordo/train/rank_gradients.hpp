// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The gradients of one virtual rank on their way from the backward pass into the reduction.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ordo/comm/mesh_fold.hpp>
#include <ordo/core/side_stream.hpp>
#include <ordo/digest/state.hpp>
#include <ordo/model/open1b.hpp>
#include <ordo/train/state.hpp>

namespace ordo::train {

/// Takes the gradients of micro-batch after micro-batch of a rank, group by group of a partition:
/// hashes each contribution and adds it to the rank's sum.
///
/// Order: a rank's sum starts from +0 and takes its micro-batches in ascending order (contract,
/// section 12).
template <execution_space Space>
class rank_gradients final : public model::gradient_sink<Space> {
public:
  using vector = comm::gradient_vector<Space>;
  /// Takes over the rank's sum over the entries of a partition's group.
  using delivery = std::function<void(std::size_t group, const vector& sum)>;

  rank_gradients(const Space& space, const model::config& shape, const partition& parts,
                 comm::vector_pool<Space>& pool)
      : space_(space), side_(space), layers_(model::layer_groups(shape)), parts_(parts),
        pool_(pool), digesters_(parts.groups().size()), sums_(digesters_.size()),
        hashing_(digesters_.size(), false) {
    std::size_t group = 0;
    for (const auto& layer : layers_) {
      if (layer.first >= parts.groups()[group].last_tensor)
        ++group;
      group_of_.push_back(group);
    }
  }

  /// The next pass is the rank's micro-batch number `accumulation` of `count`; sums that it
  /// completes are handed to `deliver`.
  void begin(std::uint64_t accumulation, std::uint64_t count, delivery deliver) {
    first_ = accumulation == 0;
    last_ = accumulation + 1 == count;
    deliver_ = std::move(deliver);
  }

  vector_view<float, Space> start(std::size_t layer) override {
    const tensor_group& group = parts_.groups()[group_of_[layer]];
    if (contribution_.extent(0) == 0)
      contribution_ = pool_.take(group.size);
    const auto [first, last] = layers_[layer];
    const std::vector<model::tensor>& table = parts_.table();
    const std::int64_t begin = table[first].offset;
    const std::int64_t end = table[last - 1].offset + table[last - 1].size();
    return vector_view<float, Space>(contribution_.data() + (begin - group.offset),
                                     static_cast<std::size_t>(end - begin));
  }

  void finish(std::size_t layer) override {
    const std::size_t g = group_of_[layer];
    const tensor_group& group = parts_.groups()[g];
    if (layers_[layer].first != group.first_tensor)
      return;   // more layers of the group are to come
    collect(g); // of the micro-batch before; the device had this one to go on with
    side_.follow(space_);
    digesters_[g].start(space_, gradient_tensors<Space>(parts_.table(), contribution_,
                                                        group.first_tensor, group.last_tensor));
    hashing_[g] = true;
    if (first_) {
      sums_[g] = pool_.take(group.size);
      Kokkos::deep_copy(side_.space(), sums_[g], 0.0f);
    }
    comm::add_into<Space>(side_.space(), sums_[g], contribution_);
    side_.join(space_);
    pool_.give(std::exchange(contribution_, {}));
    if (last_)
      deliver_(g, std::exchange(sums_[g], {}));
  }

  /// The roots of all micro-batches so far, in their order; forgets them.
  std::vector<digest::hash256> take_roots() {
    for (std::size_t g = digesters_.size(); g-- > 0;)
      collect(g);
    return std::exchange(roots_, {});
  }

private:
  /// Groups are collected from the last to the first, as passes go: the first completes a root.
  void collect(std::size_t g) {
    if (!hashing_[g])
      return;
    for (digest::named_root& root : digesters_[g].finish())
      tensors_.push_back(std::move(root));
    hashing_[g] = false;
    if (g == 0) {
      roots_.push_back(digest::state_root(tensors_));
      tensors_.clear();
    }
  }

  Space space_;
  side_stream<Space> side_;
  std::vector<std::pair<std::size_t, std::size_t>> layers_;
  const partition& parts_;
  comm::vector_pool<Space>& pool_;
  std::vector<std::size_t> group_of_; ///< a layer's group of the partition
  std::vector<digest::tensor_digester<Space>> digesters_;
  std::vector<vector> sums_;
  std::vector<bool> hashing_;
  vector contribution_;
  delivery deliver_;
  bool first_ = true, last_ = true;
  std::vector<digest::named_root> tensors_;
  std::vector<digest::hash256> roots_;
};

} // namespace ordo::train
