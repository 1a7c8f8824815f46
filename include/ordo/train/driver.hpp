// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// A run going on: state, stream and steps together. The trainer drives it forward, the auditor
/// over steps that are already recorded; both call the same `advance`.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ordo/data/stream.hpp>
#include <ordo/train/checkpoint.hpp>
#include <ordo/train/genesis.hpp>
#include <ordo/train/record.hpp>
#include <ordo/train/step.hpp>

namespace ordo::train {

/// A step as `advance` hands it over; record and commitments are process 0's alone.
struct advanced {
  json record, commitments;
  step_result result;
  std::uint64_t tokens = 0; ///< trained on in this step
  comm::traffic exchanged;  ///< of this process
};

/// What programs see of a run, whatever space it is on and however many processes drive it.
///
/// Members that are not const are collective: all processes of the job call them in the same order,
/// with the same arguments. Files are read and written by process 0 alone.
class driver {
public:
  virtual ~driver() = default;

  /// Initial parameters, step 0.
  virtual void initialise() = 0;
  /// Loads a checkpoint and verifies it (`load_checkpoint`).
  virtual checkpoint_info load(const std::filesystem::path& checkpoints, std::uint64_t step,
                               const digest::hash256& genesis) = 0;
  virtual void save(const std::filesystem::path& checkpoints, const digest::hash256& genesis,
                    const digest::hash256& record) = 0;
  /// Runs the next step; `previous` is the root of the record before it.
  virtual advanced advance(const digest::hash256& previous) = 0;
  virtual const progress& at() const = 0;
  /// Roots of parameters and optimizer as they are, on process 0.
  virtual std::vector<digest::named_root> parameter_roots() = 0;
  virtual std::vector<digest::named_root> optimizer_roots() = 0;
  /// The logits of the word after `ids`, with the parameters as they are. For one process.
  virtual std::vector<float> next_logits(std::span<const std::uint32_t> ids) = 0;
};

template <execution_space Space>
class run_driver final : public driver {
public:
  /// `corpus` may be null where no step is run.
  run_driver(const Space& space, const run_config& run, std::shared_ptr<const data::corpus> corpus,
             std::shared_ptr<comm::communicator> processes)
      : space_(space), run_(run), corpus_(std::move(corpus)), processes_(std::move(processes)),
        parts_(std::make_shared<const partition>(run.model, processes_->size())),
        state_(run, parts_, processes_->rank()) {
    if (!corpus_)
      return;
    const std::uint32_t words = corpus_->contents().vocabulary;
    require(words == run.model.vocabulary, corpus_->path().string(),
            "its tokenizer has " + std::to_string(words) + " words, the model " +
                std::to_string(run.model.vocabulary),
            "set model.vocabulary to the tokenizer's");
    stream_ = std::make_unique<data::window_stream>(*corpus_, run.seed, run.sequence);
  }

  void initialise() override {
    const arith::float_mode mode;
    train::initialise(space_, run_, state_);
    if (stream_)
      stream_->seek(0);
  }

  checkpoint_info load(const std::filesystem::path& checkpoints, std::uint64_t step,
                       const digest::hash256& genesis) override {
    const checkpoint_info info =
        load_checkpoint(space_, *processes_, checkpoints, step, genesis, state_);
    if (stream_) {
      const std::string where = (checkpoints / step_name(step) / "state.json").string();
      stream_->resume(info.cursor, where);
      require(stream_->cursor().window == state_.at.windows, where,
              "its cursor and its count of windows disagree");
    }
    return info;
  }

  void save(const std::filesystem::path& checkpoints, const digest::hash256& genesis,
            const digest::hash256& record) override {
    checkpoint_info info;
    info.cursor = stream_->cursor().to_json();
    info.genesis = genesis;
    info.record = record;
    save_checkpoint(space_, *processes_, checkpoints, state_, info);
  }

  advanced advance(const digest::hash256& previous) override {
    const arith::float_mode mode; // for the scalars between kernels
    if (!runner_)
      runner_ = std::make_unique<step_runner<Space>>(space_, run_, processes_, parts_);
    const std::uint64_t count = run_.windows_at(state_.at.tokens);
    const auto stride = static_cast<std::size_t>(run_.sequence + 1);
    windows_.resize(static_cast<std::size_t>(count) * stride);
    for (std::uint64_t w = 0; w < count; ++w) {
      stream_->next(std::span(windows_).subspan(static_cast<std::size_t>(w) * stride, stride));
    }
    const std::uint64_t first_window = state_.at.windows;
    advanced step;
    processes_->take_traffic();
    step.result = runner_->run(state_, windows_);
    step.exchanged = processes_->take_traffic();
    step.tokens = count * run_.sequence;
    if (processes_->rank() != 0)
      return step;
    const digest::hash256 batch = data::batch_root(first_window, stride, windows_);
    step.record = make_record(step.result, state_.at, previous, batch, stream_->cursor().to_json());
    step.commitments = make_commitments(step.result);
    return step;
  }

  const progress& at() const override { return state_.at; }

  std::vector<digest::named_root> parameter_roots() override {
    return state_roots<Space>(space_, *processes_, state_, parameter_vectors(state_));
  }
  std::vector<digest::named_root> optimizer_roots() override {
    return state_roots<Space>(space_, *processes_, state_, optimizer_vectors(state_));
  }

  std::vector<float> next_logits(std::span<const std::uint32_t> ids) override {
    require(processes_->size() == 1, "ordo::train::next_logits", "it is for one process");
    const model::numerics numerics = numerics_of(run_);
    if (!weights_ || prepared_at_ != state_.at) {
      weights_ = std::make_unique<model::prepared_weights<Space>>(run_.model, numerics);
      weights_->prepare(space_, state_.parameters);
      prepared_at_ = state_.at;
    }
    model::workspace<Space> work(run_.model, numerics, 1, static_cast<std::int64_t>(ids.size()));
    work.forward(space_, *weights_, ids);
    Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space> logits(
        "ordo::train::logits", 1, static_cast<std::size_t>(run_.model.vocabulary));
    const auto d = work.hidden().extent(1);
    const matrix_view<const bf16, Space> last(work.hidden().data() + (ids.size() - 1) * d, 1, d);
    weights_->with_head([&](const auto& head) {
      loss::logits(space_, model::detail::policy_of(head), last, head, logits);
    });
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), logits);
    return {host.data(), host.data() + host.size()};
  }

private:
  Space space_;
  run_config run_;
  std::shared_ptr<const data::corpus> corpus_;
  std::shared_ptr<comm::communicator> processes_;
  std::shared_ptr<const partition> parts_;
  std::unique_ptr<data::window_stream> stream_;
  train_state<Space> state_;
  std::unique_ptr<step_runner<Space>> runner_;
  std::vector<std::uint32_t> windows_;
  std::unique_ptr<model::prepared_weights<Space>> weights_;
  progress prepared_at_;
};

} // namespace ordo::train
