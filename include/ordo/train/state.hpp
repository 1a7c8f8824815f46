// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The state of a run between two steps: parameters, moments, counters.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ordo/digest/state.hpp>
#include <ordo/model/open1b.hpp>
#include <ordo/random/initializers.hpp>
#include <ordo/train/partition.hpp>
#include <ordo/train/run_config.hpp>

namespace ordo::train {

/// Counters that go on from step to step. `adam_step` counts updates, `step` steps.
struct progress {
  std::uint64_t step = 0, tokens = 0, windows = 0, adam_step = 0;
  spike_state spikes;
  friend bool operator==(const progress&, const progress&) = default;
};

/// What one process holds of a run's state: everything, or its pieces of every tensor. Flat vectors
/// in the order of the partition, on the memory of `Space`.
template <execution_space Space>
struct train_state {
  using memory = typename Space::memory_space;

  std::shared_ptr<const partition> parts;
  int process = 0;
  std::vector<model::tensor> table;
  Kokkos::View<bf16*, memory> parameters;
  Kokkos::View<float*, memory> master; ///< empty without a master copy
  Kokkos::View<float*, memory> first, second;
  progress at;

  /// The whole state.
  explicit train_state(const run_config& run)
      : train_state(run, std::make_shared<const partition>(run.model, 1), 0) {}

  train_state(const run_config& run, std::shared_ptr<const partition> divided, int own)
      : parts(std::move(divided)), process(own), table(parts->table()) {
    const auto n = static_cast<std::size_t>(parts->entries(process));
    parameters = decltype(parameters)("ordo::train::parameters", n);
    if (run.master)
      master = decltype(master)("ordo::train::master", n);
    first = decltype(first)("ordo::train::first_moment", n);
    second = decltype(second)("ordo::train::second_moment", n);
  }

  const std::vector<tensor_piece>& pieces() const { return parts->pieces(process); }
};

/// Initial parameters: gains 1, matrices a truncated normal whose element i is a function of
/// (seed, tensor name, i); moments +0. With a master copy, the copy holds the binary32 values.
template <execution_space Space>
void initialise(const Space& space, const run_config& run, train_state<Space>& state) {
  Kokkos::View<float*, typename Space::memory_space> drawn;
  for (const tensor_piece& piece : state.pieces()) {
    const model::tensor& t = state.table[piece.tensor];
    const auto n = static_cast<std::size_t>(piece.size);
    if (drawn.extent(0) < n)
      drawn = decltype(drawn)("ordo::train::drawn", n);
    const vector_view<float, Space> values(drawn.data(), n);
    if (t.columns > 0) {
      random::truncated_normal<Space>(space, run.seed, t.name, values, run.initial_std.rounded(),
                                      static_cast<std::uint64_t>(piece.first));
    } else {
      Kokkos::deep_copy(space, values, 1.0f);
    }
    bf16* const target = state.parameters.data() + piece.offset;
    float* const master = state.master.extent(0) > 0 ? state.master.data() + piece.offset : nullptr;
    ordo::detail::for_blocks(
        space, "ordo::train::initialise", piece.size, 1 << 14,
        KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            target[i] = arith::to_bf16(values[i]);
            if (master != nullptr)
              master[i] = values[i];
          }
        });
  }
  Kokkos::deep_copy(state.first, 0.0f);
  Kokkos::deep_copy(state.second, 0.0f);
  state.at = {};
}

/// A vector over a partition's entries, as digests and files see it: its tensors are called
/// `prefix` + the parameter's name.
struct state_vector {
  std::string prefix;
  digest::dtype type = digest::dtype::f32;
  const std::byte* data = nullptr; ///< of the process's own entries

  std::int64_t entry_bytes() const { return static_cast<std::int64_t>(digest::dtype_bytes(type)); }
  std::span<const std::byte> bytes(std::int64_t offset, std::int64_t entries) const {
    return {data + offset * entry_bytes(), static_cast<std::size_t>(entries * entry_bytes())};
  }
  digest::tensor_ref whole(const model::tensor& t, std::span<const std::byte> values) const {
    return {prefix + t.name, type, t.extents(), values};
  }
};

template <class View>
state_vector gradient_vector(const View& gradients) {
  return {"", digest::dtype::f32, reinterpret_cast<const std::byte*>(gradients.data())};
}
template <execution_space Space>
std::vector<state_vector> parameter_vectors(const train_state<Space>& state) {
  return {{"", digest::dtype::bf16, reinterpret_cast<const std::byte*>(state.parameters.data())}};
}
/// Moments ("exp_avg.", "exp_avg_sq.") and, where there is one, the master copy ("master.").
template <execution_space Space>
std::vector<state_vector> optimizer_vectors(const train_state<Space>& state) {
  std::vector<state_vector> all;
  const auto add = [&](const char* prefix, const auto& view) {
    if (view.extent(0) > 0)
      all.push_back({prefix, digest::dtype::f32, reinterpret_cast<const std::byte*>(view.data())});
  };
  add("exp_avg.", state.first);
  add("exp_avg_sq.", state.second);
  add("master.", state.master);
  return all;
}

namespace detail {

/// Every tensor of a state that is whole.
inline std::vector<digest::tensor_ref> whole_tensors(const std::vector<model::tensor>& table,
                                                     std::span<const state_vector> vectors) {
  std::vector<digest::tensor_ref> all;
  for (const model::tensor& t : table)
    for (const state_vector& v : vectors)
      all.push_back(v.whole(t, v.bytes(t.offset, t.size())));
  return all;
}

} // namespace detail

/// The tensors of a whole state under their conventional names, for digests and checkpoints.
template <execution_space Space>
std::vector<digest::tensor_ref> parameter_tensors(const train_state<Space>& state) {
  return detail::whole_tensors(state.table, parameter_vectors(state));
}
template <execution_space Space>
std::vector<digest::tensor_ref> optimizer_tensors(const train_state<Space>& state) {
  return detail::whole_tensors(state.table, optimizer_vectors(state));
}

/// Gradients, or anything of their shape, under the parameters' names: those of tensors
/// [first, last), whose entries are `gradients`.
template <execution_space Space>
std::vector<digest::tensor_ref> gradient_tensors(const std::vector<model::tensor>& table,
                                                 vector_view<const float, Space> gradients,
                                                 std::size_t first, std::size_t last) {
  std::vector<digest::tensor_ref> all;
  const state_vector v = gradient_vector(gradients);
  for (std::size_t t = first; t < last; ++t)
    all.push_back(
        v.whole(table[t], v.bytes(table[t].offset - table[first].offset, table[t].size())));
  return all;
}

} // namespace ordo::train
