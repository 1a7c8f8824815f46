// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// One training step: the only implementation, run by trainer and auditor alike.

#include <cstdint>
#include <span>
#include <vector>

#include <ordo/comm/mesh_fold.hpp>
#include <ordo/core/side_stream.hpp>
#include <ordo/digest/state.hpp>
#include <ordo/optim/adamw.hpp>
#include <ordo/reduce/norm.hpp>
#include <ordo/train/state.hpp>

namespace ordo::train {

/// What a step hands to its record, roots of the state after it included.
struct step_result {
  std::uint64_t first_window = 0, last_window = 0; ///< windows [first, last)
  float loss = 0, norm = 0, learning_rate = 0, clip = 0;
  spike_decision spike;
  std::vector<digest::hash256> microbatch_roots; ///< rank by rank, each's in order
  std::vector<digest::named_root> gradients, parameters, optimizer;
};

/// Runs steps on `Space`; owns the memory for them.
template <execution_space Space>
class step_runner {
public:
  step_runner(const Space& space, const run_config& run);

  /// The window, counted from the step's first, of place `slot` of micro-batch `accumulation` of
  /// the virtual rank (replica, shard).
  static std::uint64_t window_of(const run_config& run, std::uint64_t replica, std::uint64_t shard,
                                 std::uint64_t accumulation, std::uint64_t slot) {
    return ((accumulation * run.replicas + replica) * run.shards + shard) * run.micro_batch + slot;
  }

  /// Advances `state` by one step on `windows`: windows_at(state.at.tokens) windows of
  /// sequence + 1 tokens each, from window state.at.windows on.
  ///
  /// Order: contract, sections 9 and 10: micro-batches sequentially on a virtual rank; shards in
  /// ascending order, times 1/shards; replicas by order::Tree, times 1/replicas; the norm as
  /// reduce::global_norm.
  /// Bits: depend on the configuration, the state and the windows alone.
  step_result run(train_state<Space>& state, std::span<const std::uint32_t> windows);

  const run_config& configuration() const { return run_; }

private:
  using vector = comm::gradient_vector<Space>;

  vector take() { return pool_.take(model::parameter_count(run_.model)); }
  vector reduce_ranks(std::span<const std::uint32_t> windows, std::uint64_t accumulation,
                      float token_scale, step_result& result, loss::loss_sum& total);
  void micro_batch(std::span<const std::uint32_t> windows, std::uint64_t replica,
                   std::uint64_t shard, std::uint64_t accumulation, float token_scale,
                   const vector& into, loss::loss_sum& total);
  void update_and_digest(train_state<Space>& state, const vector& gradient, step_result& result);
  void update(train_state<Space>& state, std::span<const model::tensor> tensors,
              const vector& gradient, const optim::adamw_scalars& scalars);

  /// Entries of the state whose update and digest go one after the other while those of others go
  /// on beside them. Tuning: fewer than fill a device leave a part of it idle.
  static constexpr std::int64_t part_entries = std::int64_t{1} << 29;

  Space space_;
  side_stream<Space> side_;
  run_config run_;
  model::numerics numerics_;
  model::prepared_weights<Space> weights_;
  model::workspace<Space> workspace_;
  digest::tensor_digester<Space> gradient_digester_;
  std::vector<digest::tensor_digester<Space>> part_digesters_;
  reduce::norm_memory<Space> norm_memory_;
  comm::vector_pool<Space> pool_;
  std::vector<std::uint32_t> ids_, labels_;
};

/// The constants of `run` as the model takes them.
inline model::numerics numerics_of(const run_config& run) {
  return {run.linear, run.weight_steps, run.rope_theta.value, run.norm_epsilon.rounded(),
          run.z_loss.rounded()};
}

/// The scalars of AdamW's update number `update` (from 1).
inline optim::adamw_scalars adamw_scalars_of(const run_config& run, std::uint64_t update,
                                             float learning_rate, float clip) {
  const auto inverse_bias = [&](double beta) {
    return static_cast<float>(1.0 / (1.0 - host::power(beta, update)));
  };
  const double b1 = run.beta1.value, b2 = run.beta2.value;
  return {learning_rate,
          run.beta1.rounded(),
          static_cast<float>(1.0 - b1),
          run.beta2.rounded(),
          static_cast<float>(1.0 - b2),
          run.epsilon.rounded(),
          run.weight_decay.rounded(),
          inverse_bias(b1),
          inverse_bias(b2),
          clip};
}

template <execution_space Space>
step_runner<Space>::step_runner(const Space& space, const run_config& run)
    : space_(space), side_(space), run_(run), numerics_(numerics_of(run)),
      weights_(run.model, numerics_),
      workspace_(run.model, numerics_, static_cast<std::int64_t>(run.micro_batch),
                 static_cast<std::int64_t>(run.sequence)) {}

template <execution_space Space>
void step_runner<Space>::micro_batch(std::span<const std::uint32_t> windows, std::uint64_t replica,
                                     std::uint64_t shard, std::uint64_t accumulation,
                                     float token_scale, const vector& into, loss::loss_sum& total) {
  const std::size_t stride = run_.sequence + 1;
  ids_.clear();
  labels_.clear();
  for (std::uint64_t slot = 0; slot < run_.micro_batch; ++slot) {
    const auto window =
        windows.subspan(window_of(run_, replica, shard, accumulation, slot) * stride, stride);
    ids_.insert(ids_.end(), window.begin(), window.end() - 1);
    labels_.insert(labels_.end(), window.begin() + 1, window.end());
  }
  total += workspace_.forward_backward(space_, weights_, ids_, labels_, token_scale, into);
}

template <execution_space Space>
typename step_runner<Space>::vector
step_runner<Space>::reduce_ranks(std::span<const std::uint32_t> windows, std::uint64_t accumulation,
                                 float token_scale, step_result& result, loss::loss_sum& total) {
  comm::mesh_fold<Space> ranks(run_.replicas, run_.shards, comm::fold_result::mean);
  for (std::uint64_t replica = 0; replica < run_.replicas; ++replica) {
    for (std::uint64_t shard = 0; shard < run_.shards; ++shard) {
      const vector rank = take();
      Kokkos::deep_copy(space_, rank, 0.0f);
      const vector contribution = take();
      for (std::uint64_t a = 0; a < accumulation; ++a) {
        micro_batch(windows, replica, shard, a, token_scale, contribution, total);
        if (a > 0) // hashed by now; the device had the next micro-batch to go on with
          result.microbatch_roots.push_back(digest::state_root(gradient_digester_.finish()));
        side_.follow(space_);
        gradient_digester_.start(space_, gradient_tensors<Space>(weights_.table(), contribution));
        comm::add_into<Space>(side_.space(), rank, contribution);
        side_.join(space_);
      }
      result.microbatch_roots.push_back(digest::state_root(gradient_digester_.finish()));
      pool_.give(contribution);
      ranks.push(space_, rank, pool_);
    }
  }
  return ranks.finish(space_, pool_);
}

template <execution_space Space>
void step_runner<Space>::update(train_state<Space>& state, std::span<const model::tensor> tensors,
                                const vector& gradient, const optim::adamw_scalars& scalars) {
  for (const model::tensor& t : tensors) {
    const auto n = static_cast<std::size_t>(t.size());
    const auto part = [&](const auto& flat) {
      using element = std::remove_pointer_t<decltype(flat.data())>;
      return flat.extent(0) == 0 ? vector_view<element, Space>()
                                 : vector_view<element, Space>(flat.data() + t.offset, n);
    };
    optim::adamw_scalars here = scalars;
    if (!t.decays)
      here.weight_decay = 0.0f;
    optim::adamw(side_.space(), here,
                 vector_view<const float, Space>(gradient.data() + t.offset, n),
                 part(state.parameters), part(state.master), part(state.first), part(state.second));
  }
}

template <execution_space Space>
void step_runner<Space>::update_and_digest(train_state<Space>& state, const vector& gradient,
                                           step_result& result) {
  if (!result.spike.skip)
    ++state.at.adam_step;
  const optim::adamw_scalars scalars =
      adamw_scalars_of(run_, state.at.adam_step, result.learning_rate, result.clip);
  const std::span<const model::tensor> all(state.table);
  std::vector<std::span<const model::tensor>> parts;
  for (std::size_t first = 0, last = 0; first < all.size(); first = last) {
    std::int64_t entries = 0;
    while (last < all.size() && entries < part_entries)
      entries += all[last++].size();
    parts.push_back(all.subspan(first, last - first));
  }
  part_digesters_.resize(parts.size());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!result.spike.skip)
      update(state, parts[p], gradient, scalars);
    side_.join(space_);
    auto tensors = parameter_tensors(state, parts[p]);
    for (auto& tensor : optimizer_tensors(state, parts[p]))
      tensors.push_back(std::move(tensor));
    part_digesters_[p].start(space_, tensors);
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::vector<digest::named_root> roots = part_digesters_[p].finish();
    const auto middle = roots.begin() + static_cast<std::ptrdiff_t>(parts[p].size());
    result.parameters.insert(result.parameters.end(), roots.begin(), middle);
    result.optimizer.insert(result.optimizer.end(), middle, roots.end());
  }
}

template <execution_space Space>
step_result step_runner<Space>::run(train_state<Space>& state,
                                    std::span<const std::uint32_t> windows) {
  progress& at = state.at;
  const std::uint64_t accumulation = accumulation_at(run_.ramp, at.tokens);
  const std::uint64_t count = run_.windows_at(at.tokens);
  const std::uint64_t tokens = count * run_.sequence;
  require(windows.size() == count * (run_.sequence + 1), "ordo::train::step",
          "step " + std::to_string(at.step + 1) + " takes " + std::to_string(count) +
              " windows, was given " + std::to_string(windows.size()) + " tokens");
  step_result result;
  result.first_window = at.windows;
  result.last_window = at.windows + count;
  result.learning_rate =
      run_.schedule().at(run_.clock == schedule_clock::before ? at.tokens : at.tokens + tokens);

  weights_.prepare(space_, state.parameters);
  // The mean over ranks multiplies by 1 / ranks, so that a token weighs 1 / tokens in the end.
  const float token_scale =
      static_cast<float>(static_cast<double>(run_.ranks()) / static_cast<double>(tokens));
  loss::loss_sum total;
  const vector gradient = reduce_ranks(windows, accumulation, token_scale, result, total);
  result.loss = total.mean();
  side_.follow(space_);
  gradient_digester_.start(space_, gradient_tensors<Space>(state.table, gradient));

  std::vector<reduce::named_values<Space>> named;
  for (const model::tensor& t : state.table) {
    named.push_back({t.name, vector_view<const float, Space>(gradient.data() + t.offset,
                                                             static_cast<std::size_t>(t.size()))});
  }
  result.norm = reduce::global_norm<Space>(side_.space(), named, norm_memory_).norm;
  const float room = arith::div(run_.max_norm.rounded(), arith::add(result.norm, 1e-6f));
  result.clip = room < 1.0f ? room : 1.0f;
  ++at.step;
  at.tokens += tokens;
  at.windows += count;
  result.spike = decide_spike(run_.spikes(), at.spikes, at.step, result.norm, result.loss);
  update_and_digest(state, gradient, result);
  pool_.give(gradient);
  result.gradients = gradient_digester_.finish();
  return result;
}

} // namespace ordo::train
