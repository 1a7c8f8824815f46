// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// One training step: the only implementation, run by trainer and auditor alike, by one process or
/// many.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ordo/comm/communicator.hpp>
#include <ordo/comm/mesh_reduction.hpp>
#include <ordo/core/side_stream.hpp>
#include <ordo/optim/adamw.hpp>
#include <ordo/train/gathered_parameters.hpp>
#include <ordo/train/rank_gradients.hpp>
#include <ordo/train/shared_norm.hpp>
#include <ordo/train/state_digest.hpp>

namespace ordo::train {

/// What a step hands to its record, roots of the state after it included; roots are known to
/// process 0 alone.
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
  /// Steps by the processes of a job, all of which call the same members in the same order.
  step_runner(const Space& space, const run_config& run,
              std::shared_ptr<comm::communicator> processes, std::shared_ptr<const partition> parts,
              gathering gathered = gathering::layer);
  /// Steps by this process alone.
  step_runner(const Space& space, const run_config& run)
      : step_runner(space, run, std::make_shared<comm::self_communicator>(),
                    std::make_shared<const partition>(run.model, 1)) {}

  /// The window, counted from the step's first, of place `slot` of micro-batch `accumulation` of
  /// the virtual rank `rank` = replica * shards + shard.
  static std::uint64_t window_of(const run_config& run, std::uint64_t rank,
                                 std::uint64_t accumulation, std::uint64_t slot) {
    return (accumulation * run.ranks() + rank) * run.micro_batch + slot;
  }

  /// Advances `state` by one step on `windows`: windows_at(state.at.tokens) windows of
  /// sequence + 1 tokens each, from window state.at.windows on.
  ///
  /// Order: contract, sections 11 and 12: micro-batches sequentially on a virtual rank; shards in
  /// ascending order, times 1/shards; replicas by order::Tree, times 1/replicas; the norm as
  /// reduce::global_norm.
  /// Bits: depend on the configuration, the state and the windows alone, not on the processes.
  step_result run(train_state<Space>& state, std::span<const std::uint32_t> windows);

  const run_config& configuration() const { return run_; }

private:
  using vector = comm::gradient_vector<Space>;

  void prepare_weights(const train_state<Space>& state, std::uint64_t accumulation);
  void gather_all(const train_state<Space>& state);
  bool by_layer() const { return processes_->size() > 1 && gathering_ == gathering::layer; }
  vector reduce_ranks(std::span<const std::uint32_t> windows, std::uint64_t accumulation,
                      float token_scale, loss::loss_sum& total);
  void micro_batches(std::span<const std::uint32_t> windows, std::uint64_t rank,
                     std::uint64_t accumulation, float token_scale,
                     const typename rank_gradients<Space>::delivery& deliver,
                     loss::loss_sum& total);
  /// What a process without a rank in a round does for the others: fetches and reduces what they
  /// fetch and reduce.
  template <class Reduce>
  void accompany(std::uint64_t accumulation, const Reduce& reduce);
  void share_losses(loss::loss_sum& total) const;
  std::vector<digest::hash256> join_microbatch_roots(std::uint64_t accumulation);
  void update_and_digest(train_state<Space>& state, const vector& gradient, step_result& result,
                         std::vector<std::vector<digest::hash256>>& hashes);
  void update(train_state<Space>& state, std::span<const tensor_piece> pieces,
              const vector& gradient, const optim::adamw_scalars& scalars);
  void phase(const progress& at, const char* what) {
    processes_->enter("step " + std::to_string(at.step + 1) + ", " + what);
  }

  /// Entries of the state whose update and digest go one after the other while those of others go
  /// on beside them. Tuning: fewer than fill a device leave a part of it idle.
  static constexpr std::int64_t part_entries = std::int64_t{1} << 29;

  Space space_;
  side_stream<Space> side_;
  run_config run_;
  std::shared_ptr<comm::communicator> processes_;
  std::shared_ptr<const partition> parts_;
  gathering gathering_;
  model::numerics numerics_;
  model::prepared_weights<Space> weights_;
  model::workspace<Space> workspace_;
  comm::vector_pool<Space> pool_;
  comm::exchange_memory<Space> exchange_;
  rank_gradients<Space> rank_gradients_;
  piece_digester<Space> gradient_digester_;
  std::vector<piece_digester<Space>> part_digesters_;
  reduce::norm_memory<Space> norm_memory_;
  gathered_parameters<Space> gathered_;
  Kokkos::View<bf16*, typename Space::memory_space> all_parameters_; ///< with gathering::step
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

} // namespace ordo::train

#include <ordo/train/step_run.hpp>
