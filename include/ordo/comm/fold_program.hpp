// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The order in which the values of virtual ranks become one, written down as elementary steps, so
/// that whoever holds a part of the values takes the same steps on that part.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <ordo/arith/value.hpp>
#include <ordo/core/error.hpp>

namespace ordo::comm {

/// One step on a block of entries. Slots are accumulators; the rank's values are those pushed.
struct fold_step {
  enum kind {
    load,  ///< slot = the rank's values
    add,   ///< slot = slot + the rank's values
    join,  ///< slot = slot + slot `from`, which is free from then on
    scale, ///< slot = slot * factor
  };
  kind what;
  int slot;
  int from = 0;
  float factor = 1.0f;
};

/// 1 / n in binary32, by which averages multiply.
inline float reciprocal(std::uint64_t n) {
  return static_cast<float>(1.0 / static_cast<double>(n));
}

enum class fold_result { sum, mean };

/// The reduction over the ranks of a mesh of `replicas` x `shards`, rank by rank in ascending order
/// (a replica's shards are neighbours): shards of a replica sequentially from the first, for the
/// mean times 1/shards; replicas by order::Tree, for the mean times 1/replicas.
///
/// A mesh of n x 1 is order::Tree over n ranks, one of 1 x n is order::Sequential without its +0.
/// Source: contract, section 12; OPEN-1B, Algorithm 1 and appendix A.1.
class fold_program {
public:
  fold_program(std::uint64_t replicas, std::uint64_t shards, fold_result result)
      : replicas_(replicas), shards_(shards), result_(result) {
    require(replicas > 0 && shards > 0, "ordo::comm::fold_program", "a mesh has no ranks");
  }

  std::uint64_t ranks() const { return replicas_ * shards_; }
  std::uint64_t pushed() const { return pushed_; }
  /// Slots that the steps so far refer to: at most log2(replicas) + 2.
  int slots() const { return slots_; }

  /// The steps that take the next rank in.
  std::vector<fold_step> push() {
    require(pushed_ < ranks(), "ordo::comm::fold_program", "every rank was pushed already");
    const auto top = static_cast<int>(sizes_.size());
    const std::uint64_t shard = pushed_++ % shards_;
    slots_ = std::max(slots_, top + 1);
    std::vector<fold_step> steps{{shard == 0 ? fold_step::load : fold_step::add, top, 0, 1.0f}};
    if (shard + 1 < shards_)
      return steps;
    if (shards_ > 1 && result_ == fold_result::mean)
      steps.push_back({fold_step::scale, top, 0, reciprocal(shards_)});
    std::uint64_t size = 1;
    while (!sizes_.empty() && sizes_.back() == size) {
      sizes_.pop_back();
      const auto slot = static_cast<int>(sizes_.size());
      steps.push_back({fold_step::join, slot, slot + 1, 1.0f});
      size *= 2;
    }
    sizes_.push_back(size);
    return steps;
  }

  /// The steps that leave the result in slot 0, after the last rank.
  std::vector<fold_step> finish() {
    require(pushed_ == ranks(), "ordo::comm::fold_program",
            std::to_string(pushed_) + " of " + std::to_string(ranks()) + " ranks were pushed");
    std::vector<fold_step> steps;
    for (std::size_t i = 1; i < sizes_.size(); ++i) // blocks, largest first, from the left
      steps.push_back({fold_step::join, 0, static_cast<int>(i), 1.0f});
    if (replicas_ > 1 && result_ == fold_result::mean)
      steps.push_back({fold_step::scale, 0, 0, reciprocal(replicas_)});
    sizes_.clear();
    pushed_ = 0;
    return steps;
  }

private:
  std::uint64_t replicas_, shards_;
  fold_result result_;
  std::uint64_t pushed_ = 0;
  int slots_ = 0;
  std::vector<std::uint64_t> sizes_; ///< replicas joined in each slot
};

} // namespace ordo::comm
