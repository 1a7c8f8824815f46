// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The state of a run between two steps: parameters, moments, counters.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ordo/digest/state.hpp>
#include <ordo/model/open1b.hpp>
#include <ordo/random/initializers.hpp>
#include <ordo/train/run_config.hpp>

namespace ordo::train {

/// Counters that go on from step to step. `adam_step` counts updates, `step` steps.
struct progress {
  std::uint64_t step = 0, tokens = 0, windows = 0, adam_step = 0;
  spike_state spikes;
  friend bool operator==(const progress&, const progress&) = default;
};

/// Flat vectors in the order of `model::tensors`, on the memory of `Space`.
template <execution_space Space>
struct train_state {
  using memory = typename Space::memory_space;

  std::vector<model::tensor> table;
  Kokkos::View<bf16*, memory> parameters;
  Kokkos::View<float*, memory> master; ///< empty without a master copy
  Kokkos::View<float*, memory> first, second;
  progress at;

  explicit train_state(const run_config& run) : table(model::tensors(run.model)) {
    const auto n = static_cast<std::size_t>(model::parameter_count(run.model));
    parameters = decltype(parameters)("ordo::train::parameters", n);
    if (run.master)
      master = decltype(master)("ordo::train::master", n);
    first = decltype(first)("ordo::train::first_moment", n);
    second = decltype(second)("ordo::train::second_moment", n);
  }
};

/// Initial parameters: gains 1, matrices a truncated normal whose element i is a function of
/// (seed, tensor name, i); moments +0. With a master copy, the copy holds the binary32 values.
template <execution_space Space>
void initialise(const Space& space, const run_config& run, train_state<Space>& state) {
  Kokkos::View<float*, typename Space::memory_space> drawn;
  for (const model::tensor& t : state.table) {
    const auto n = static_cast<std::size_t>(t.size());
    if (drawn.extent(0) < n)
      drawn = decltype(drawn)("ordo::train::drawn", n);
    const vector_view<float, Space> values(drawn.data(), n);
    if (t.columns > 0) {
      random::truncated_normal<Space>(space, run.seed, t.name, values, run.initial_std.rounded());
    } else {
      Kokkos::deep_copy(space, values, 1.0f);
    }
    bf16* const target = state.parameters.data() + t.offset;
    float* const master = state.master.extent(0) > 0 ? state.master.data() + t.offset : nullptr;
    ordo::detail::for_blocks(
        space, "ordo::train::initialise", t.size(), 1 << 14,
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

namespace detail {

template <class T>
digest::tensor_ref reference_to(const model::tensor& t, const std::string& prefix,
                                digest::dtype type, const T* flat) {
  return {prefix + t.name, type, t.extents(),
          std::as_bytes(std::span(flat + t.offset, static_cast<std::size_t>(t.size())))};
}

} // namespace detail

/// The model's tensors under their conventional names, for digests and checkpoints: those of
/// `tensors`, a part of the table.
template <execution_space Space>
std::vector<digest::tensor_ref> parameter_tensors(const train_state<Space>& state,
                                                  std::span<const model::tensor> tensors) {
  std::vector<digest::tensor_ref> all;
  for (const model::tensor& t : tensors) {
    all.push_back(detail::reference_to(t, "", digest::dtype::bf16, state.parameters.data()));
  }
  return all;
}

/// Moments ("exp_avg.", "exp_avg_sq.") and, where there is one, the master copy ("master.").
template <execution_space Space>
std::vector<digest::tensor_ref> optimizer_tensors(const train_state<Space>& state,
                                                  std::span<const model::tensor> tensors) {
  std::vector<digest::tensor_ref> all;
  for (const model::tensor& t : tensors) {
    all.push_back(detail::reference_to(t, "exp_avg.", digest::dtype::f32, state.first.data()));
    all.push_back(detail::reference_to(t, "exp_avg_sq.", digest::dtype::f32, state.second.data()));
    if (state.master.extent(0) > 0) {
      all.push_back(detail::reference_to(t, "master.", digest::dtype::f32, state.master.data()));
    }
  }
  return all;
}

/// Those of all tensors.
template <execution_space Space>
std::vector<digest::tensor_ref> parameter_tensors(const train_state<Space>& state) {
  return parameter_tensors(state, state.table);
}
template <execution_space Space>
std::vector<digest::tensor_ref> optimizer_tensors(const train_state<Space>& state) {
  return optimizer_tensors(state, state.table);
}

/// Gradients, or anything of their shape, under the parameters' names.
template <execution_space Space>
std::vector<digest::tensor_ref> gradient_tensors(const std::vector<model::tensor>& table,
                                                 vector_view<const float, Space> gradients) {
  std::vector<digest::tensor_ref> all;
  for (const model::tensor& t : table) {
    all.push_back(detail::reference_to(t, "", digest::dtype::f32, gradients.data()));
  }
  return all;
}

} // namespace ordo::train
