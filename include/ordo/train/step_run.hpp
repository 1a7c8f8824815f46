// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The parts of a step of step.hpp, in the order in which they happen.

#include <string>

#include <ordo/train/step.hpp>

namespace ordo::train {

template <execution_space Space>
step_runner<Space>::step_runner(const Space& space, const run_config& run,
                                std::shared_ptr<comm::communicator> processes,
                                std::shared_ptr<const partition> parts, gathering gathered)
    : space_(space), side_(space), run_(run), processes_(std::move(processes)),
      parts_(std::move(parts)), gathering_(gathered), numerics_(numerics_of(run)),
      weights_(run.model, numerics_,
               by_layer() ? model::prepared_weights<Space>::residency::layer
                          : model::prepared_weights<Space>::residency::all),
      workspace_(run.model, numerics_, static_cast<std::int64_t>(run.micro_batch),
                 static_cast<std::int64_t>(run.sequence)),
      rank_gradients_(space, run.model, *parts_, pool_),
      gathered_(space, run.model, *processes_, *parts_) {}

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

  phase(at, "gathering parameters");
  prepare_weights(state, accumulation);
  // The mean over ranks multiplies by 1 / ranks, so that a token weighs 1 / tokens in the end.
  const float token_scale =
      static_cast<float>(static_cast<double>(run_.ranks()) / static_cast<double>(tokens));
  loss::loss_sum total;
  phase(at, "micro-batches and the reduction of their gradients");
  const vector gradient = reduce_ranks(windows, accumulation, token_scale, total);
  phase(at, "loss and norm");
  share_losses(total);
  result.loss = total.mean();
  side_.follow(space_);
  const state_vector gradients = gradient_vector(gradient);
  gradient_digester_.start(space_, state.table, state.pieces(), std::span(&gradients, 1));
  result.norm =
      shared_norm<Space>(side_.space(), *processes_, *parts_, gradient, norm_memory_).norm;
  const float room = arith::div(run_.max_norm.rounded(), arith::add(result.norm, 1e-6f));
  result.clip = room < 1.0f ? room : 1.0f;
  phase(at, "update and digests");
  ++at.step;
  at.tokens += tokens;
  at.windows += count;
  result.spike = decide_spike(run_.spikes(), at.spikes, at.step, result.norm, result.loss);

  std::vector<state_vector> vectors{gradients};
  for (const auto& part : {parameter_vectors(state), optimizer_vectors(state)})
    vectors.insert(vectors.end(), part.begin(), part.end());
  std::vector<std::vector<digest::hash256>> hashes(vectors.size());
  update_and_digest(state, gradient, result, hashes);
  pool_.give(gradient);
  gradient_digester_.finish(std::span(hashes).first(1));
  auto roots = join_roots(*processes_, *parts_, vectors, hashes);
  result.gradients = std::move(roots[0]);
  result.parameters = std::move(roots[1]);
  for (std::size_t v = 2; v < roots.size(); ++v)
    result.optimizer.insert(result.optimizer.end(), roots[v].begin(), roots[v].end());
  result.microbatch_roots = join_microbatch_roots(accumulation);
  return result;
}

template <execution_space Space>
void step_runner<Space>::prepare_weights(const train_state<Space>& state,
                                         std::uint64_t accumulation) {
  const auto size = static_cast<std::uint64_t>(processes_->size());
  if (size == 1) {
    weights_.prepare(space_, state.parameters);
  } else if (by_layer()) {
    gathered_.begin(state.parameters, (run_.ranks() + size - 1) / size * accumulation);
    weights_.prepare(gathered_);
  } else {
    gather_all(state);
    weights_.prepare(space_, all_parameters_);
  }
}

template <execution_space Space>
void step_runner<Space>::gather_all(const train_state<Space>& state) {
  const auto n = static_cast<std::size_t>(model::parameter_count(run_.model));
  if (all_parameters_.extent(0) < n)
    all_parameters_ = decltype(all_parameters_)("ordo::train::all_parameters", n);
  const auto all = Kokkos::create_mirror_view(all_parameters_);
  const auto own = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), state.parameters);
  const auto rank = static_cast<std::size_t>(processes_->rank());
  for (const tensor_group& g : parts_->groups()) {
    std::vector<std::size_t> cuts;
    for (const std::int64_t cut : g.cuts)
      cuts.push_back(static_cast<std::size_t>(cut) * sizeof(bf16));
    const std::span<std::byte> bytes = comm::detail::bytes_of(all.data() + g.offset, g.size);
    std::memcpy(bytes.data() + cuts[rank], own.data() + g.own[rank], cuts[rank + 1] - cuts[rank]);
    comm::gather(*processes_, bytes, cuts);
  }
  Kokkos::deep_copy(space_, all_parameters_, all);
  space_.fence();
}

template <execution_space Space>
void step_runner<Space>::micro_batches(std::span<const std::uint32_t> windows, std::uint64_t rank,
                                       std::uint64_t accumulation, float token_scale,
                                       const typename rank_gradients<Space>::delivery& deliver,
                                       loss::loss_sum& total) {
  const std::size_t stride = run_.sequence + 1;
  for (std::uint64_t a = 0; a < accumulation; ++a) {
    ids_.clear();
    labels_.clear();
    for (std::uint64_t slot = 0; slot < run_.micro_batch; ++slot) {
      const auto window = windows.subspan(window_of(run_, rank, a, slot) * stride, stride);
      ids_.insert(ids_.end(), window.begin(), window.end() - 1);
      labels_.insert(labels_.end(), window.begin() + 1, window.end());
    }
    rank_gradients_.begin(a, accumulation, deliver);
    total +=
        workspace_.forward_backward(space_, weights_, ids_, labels_, token_scale, rank_gradients_);
  }
}

template <execution_space Space>
typename step_runner<Space>::vector
step_runner<Space>::reduce_ranks(std::span<const std::uint32_t> windows, std::uint64_t accumulation,
                                 float token_scale, loss::loss_sum& total) {
  const auto size = static_cast<std::uint64_t>(processes_->size());
  const auto own = static_cast<std::uint64_t>(processes_->rank());
  if (size == 1) { // whole vectors change hands
    comm::mesh_fold<Space> ranks(run_.replicas, run_.shards, comm::fold_result::mean);
    for (std::uint64_t rank = 0; rank < run_.ranks(); ++rank) {
      micro_batches(
          windows, rank, accumulation, token_scale,
          [&](std::size_t, const vector& sum) { ranks.push(space_, sum, pool_); }, total);
    }
    return ranks.finish(space_, pool_);
  }
  comm::mesh_reduction<Space> ranks(
      *processes_, exchange_, pool_,
      comm::fold_program(run_.replicas, run_.shards, comm::fold_result::mean),
      parts_->entries(processes_->rank()));
  const auto reduce = [&](std::size_t group, const float* sum) {
    const tensor_group& g = parts_->groups()[group];
    ranks.reduce(space_, sum, g.cuts, g.own[own]);
  };
  for (std::uint64_t first = 0; first < run_.ranks(); first += size) {
    ranks.begin_round();
    if (first + own < run_.ranks()) {
      micro_batches(
          windows, first + own, accumulation, token_scale,
          [&](std::size_t group, const vector& sum) {
            reduce(group, sum.data());
            pool_.give(sum);
          },
          total);
    } else {
      accompany(accumulation, [&](std::size_t group) { reduce(group, nullptr); });
    }
  }
  return ranks.finish(space_);
}

template <execution_space Space>
template <class Reduce>
void step_runner<Space>::accompany(std::uint64_t accumulation, const Reduce& reduce) {
  const std::vector<std::size_t> order = model::fetched_groups(run_.model);
  const std::size_t last = parts_->groups().size() - 1;
  for (std::uint64_t a = 0; a < accumulation; ++a) {
    const bool reducing = a + 1 == accumulation;
    bool turned = false; // the backward pass has begun
    for (const std::size_t group : order) {
      if (by_layer())
        gathered_.skip(group);
      if (reducing && (turned || group == last))
        reduce(group);
      turned = turned || group == last;
    }
    if (reducing)
      reduce(0);
  }
}

template <execution_space Space>
void step_runner<Space>::share_losses(loss::loss_sum& total) const {
  const std::int64_t own[3] = {total.sum, total.tokens, total.finite ? 1 : 0};
  const std::string bytes(reinterpret_cast<const char*>(own), sizeof own);
  total = {};
  for (const std::string& part : comm::gather(*processes_, bytes)) {
    std::int64_t numbers[3];
    require(part.size() == sizeof numbers, "ordo::train::step", "a process sent no loss");
    std::memcpy(numbers, part.data(), sizeof numbers);
    total += loss::loss_sum{numbers[0], numbers[1], numbers[2] == 1};
  }
}

template <execution_space Space>
std::vector<digest::hash256> step_runner<Space>::join_microbatch_roots(std::uint64_t accumulation) {
  const std::vector<digest::hash256> own = rank_gradients_.take_roots();
  const std::string bytes(reinterpret_cast<const char*>(own.data()),
                          own.size() * sizeof(digest::hash256));
  const std::vector<std::string> all = comm::gather(*processes_, bytes, 0);
  std::vector<digest::hash256> roots;
  if (processes_->rank() != 0)
    return roots;
  for (std::uint64_t rank = 0; rank < run_.ranks(); ++rank) {
    const std::string& from = all[rank % all.size()];
    for (std::uint64_t a = 0; a < accumulation; ++a) {
      const std::uint64_t at = (rank / all.size() * accumulation + a) * sizeof(digest::hash256);
      require(at + sizeof(digest::hash256) <= from.size(), "ordo::train::step",
              "a process sent too few micro-batch roots");
      std::memcpy(roots.emplace_back().data(), from.data() + at, sizeof(digest::hash256));
    }
  }
  return roots;
}

template <execution_space Space>
void step_runner<Space>::update(train_state<Space>& state, std::span<const tensor_piece> pieces,
                                const vector& gradient, const optim::adamw_scalars& scalars) {
  for (const tensor_piece& piece : pieces) {
    const auto n = static_cast<std::size_t>(piece.size);
    const auto part = [&](const auto& flat) {
      using element = std::remove_pointer_t<decltype(flat.data())>;
      return flat.extent(0) == 0 ? vector_view<element, Space>()
                                 : vector_view<element, Space>(flat.data() + piece.offset, n);
    };
    optim::adamw_scalars here = scalars;
    if (!state.table[piece.tensor].decays)
      here.weight_decay = 0.0f;
    optim::adamw(side_.space(), here,
                 vector_view<const float, Space>(gradient.data() + piece.offset, n),
                 part(state.parameters), part(state.master), part(state.first), part(state.second));
  }
}

template <execution_space Space>
void step_runner<Space>::update_and_digest(train_state<Space>& state, const vector& gradient,
                                           step_result& result,
                                           std::vector<std::vector<digest::hash256>>& hashes) {
  if (!result.spike.skip)
    ++state.at.adam_step;
  const optim::adamw_scalars scalars =
      adamw_scalars_of(run_, state.at.adam_step, result.learning_rate, result.clip);
  const std::span<const tensor_piece> all(state.pieces());
  std::vector<std::span<const tensor_piece>> parts;
  for (std::size_t first = 0, last = 0; first < all.size(); first = last) {
    std::int64_t entries = 0;
    while (last < all.size() && entries < part_entries)
      entries += all[last++].size;
    parts.push_back(all.subspan(first, last - first));
  }
  if (part_digesters_.size() < parts.size())
    part_digesters_.resize(parts.size());
  std::vector<state_vector> vectors = parameter_vectors(state);
  for (state_vector& v : optimizer_vectors(state))
    vectors.push_back(std::move(v));
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!result.spike.skip)
      update(state, parts[p], gradient, scalars);
    side_.join(space_);
    part_digesters_[p].start(space_, state.table, parts[p], vectors);
  }
  for (std::size_t p = 0; p < parts.size(); ++p)
    part_digesters_[p].finish(std::span(hashes).subspan(1));
}

} // namespace ordo::train
