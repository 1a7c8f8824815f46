// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Reductions over the ranks of a virtual mesh, one arriving after the other, in one process.

#include <utility>
#include <vector>

#include <ordo/comm/add_into.hpp>
#include <ordo/comm/fold_program.hpp>

namespace ordo::comm {

/// Vectors of one length that are used again and again.
template <execution_space Space>
class vector_pool {
public:
  using vector = gradient_vector<Space>;

  /// A vector of `n` entries, whatever they are.
  vector take(std::int64_t n) {
    for (std::size_t i = free_.size(); i-- > 0;) {
      if (free_[i].extent(0) == static_cast<std::size_t>(n)) {
        const vector found = free_[i];
        free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
        return found;
      }
    }
    return vector(
        Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string("ordo::comm::vector")),
        static_cast<std::size_t>(n));
  }
  void give(const vector& v) {
    if (v.extent(0) > 0)
      free_.push_back(v);
  }

  std::size_t size() const { return free_.size(); }

private:
  std::vector<vector> free_;
};

/// The slots of a fold_program over vectors.
template <execution_space Space>
class fold_slots {
public:
  using vector = gradient_vector<Space>;

  /// Takes a step on entries [begin, begin + n) with the rank's values for them. Slots must be
  /// there: see `hold`.
  void take(const Space& space, const fold_step& step, std::int64_t begin, std::int64_t n,
            const float* values) const {
    const auto entries = [&](int slot) {
      return vector_view<float, Space>(at(slot).data() + begin, static_cast<std::size_t>(n));
    };
    const vector_view<float, Space> to = entries(step.slot);
    const vector_view<const float, Space> from(values, static_cast<std::size_t>(n));
    switch (step.what) {
    case fold_step::load:
      Kokkos::deep_copy(space, to, from);
      break;
    case fold_step::add:
      add_into<Space>(space, to, from);
      break;
    case fold_step::join:
      add_into<Space>(space, to, entries(step.from));
      break;
    case fold_step::scale:
      scale<Space>(space, to, step.factor);
      break;
    }
  }

  /// Makes `vector` slot `slot`.
  void hold(int slot, vector value) {
    if (slots_.size() <= static_cast<std::size_t>(slot))
      slots_.resize(static_cast<std::size_t>(slot) + 1);
    slots_[static_cast<std::size_t>(slot)] = std::move(value);
  }
  bool holds(int slot) const {
    return static_cast<std::size_t>(slot) < slots_.size() && at(slot).data() != nullptr;
  }
  const vector& at(int slot) const { return slots_[static_cast<std::size_t>(slot)]; }
  vector release(int slot) { return std::exchange(slots_[static_cast<std::size_t>(slot)], {}); }
  int count() const { return static_cast<int>(slots_.size()); }

private:
  std::vector<vector> slots_;
};

/// fold_program over whole vectors, holding only log2(replicas) + 2 of them.
///
/// Order: fold_program. Bits: of the vectors pushed, in their order.
template <execution_space Space>
class mesh_fold {
public:
  using vector = gradient_vector<Space>;

  mesh_fold(std::uint64_t replicas, std::uint64_t shards, fold_result result)
      : program_(replicas, shards, result) {}

  /// Takes the next rank's vector, whose memory from now on is the fold's; vectors that the fold no
  /// longer needs go to `pool`.
  void push(const Space& space, const vector& value, vector_pool<Space>& pool) {
    bool kept = false;
    for (const fold_step& step : program_.push()) {
      if (step.what == fold_step::load) {
        slots_.hold(step.slot, value);
        kept = true;
      } else {
        take(space, step, value.data(), pool);
      }
    }
    if (!kept)
      pool.give(value);
  }

  /// The result. Empties the fold.
  vector finish(const Space& space, vector_pool<Space>& pool) {
    for (const fold_step& step : program_.finish())
      take(space, step, nullptr, pool);
    return slots_.release(0);
  }

private:
  void take(const Space& space, const fold_step& step, const float* values,
            vector_pool<Space>& pool) {
    slots_.take(space, step, 0, static_cast<std::int64_t>(slots_.at(step.slot).extent(0)), values);
    if (step.what == fold_step::join)
      pool.give(slots_.release(step.from));
  }

  fold_program program_;
  fold_slots<Space> slots_;
};

} // namespace ordo::comm
