// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The parameters of a model in the form that its products take, all of them at once or layer by
/// layer.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ordo/loss/cross_entropy.hpp>
#include <ordo/model/config.hpp>
#include <ordo/nn/linear_layer.hpp>

namespace ordo::model {

static_assert(longest_sliced == gemm_sliced_max_k<2, 2>,
              "ordo::model: the longest vocabulary is what the sliced head can multiply");

/// Constants that, with the shape and the parameters, decide every bit of a forward pass.
struct numerics {
  nn::linear_kind linear = nn::linear_kind::int8;
  quant::step_rule weight_steps = quant::step_rule::mean_magnitude;
  double rope_theta = 500000;
  float norm_epsilon = 1e-5f;
  float z_loss = 1e-4f;
};

namespace detail {

/// The policy that a head was prepared for.
template <class Policy, class Space>
constexpr Policy policy_of(const loss::head_weights<Policy, Space>&) {
  return {};
}

} // namespace detail

/// Parameters that are fetched when they are needed: those of one group of layer_groups, in the
/// order of the table.
template <execution_space Space>
class parameter_source {
public:
  virtual ~parameter_source() = default;
  /// Valid, in the order of the stream, until the next call. Groups are asked for as
  /// `fetched_groups` lists them, pass after pass.
  virtual vector_view<const bf16, Space> fetch(std::size_t group) = 0;
};

/// The groups that a forward and backward pass asks a parameter_source for, in that order.
inline std::vector<std::size_t> fetched_groups(const config& c) {
  const auto layers = static_cast<std::size_t>(c.layers);
  std::vector<std::size_t> groups;
  for (std::size_t g = 0; g <= layers + 1; ++g)
    groups.push_back(g);
  for (std::size_t g = layers; g >= 1; --g)
    groups.push_back(g);
  return groups;
}

/// The parameters of a step. Members that take a space prepare what they return, if it is not.
template <execution_space Space>
class prepared_weights {
public:
  struct block {
    nn::linear_layer<Space> qkv, out, gate_up, down;
    vector_view<const bf16, Space> attention_gain, feed_forward_gain;
  };
  /// What is kept: every layer for the length of a step, or the one in use.
  enum class residency { all, layer };

  prepared_weights(const config& c, const numerics& n, residency kept = residency::all)
      : config_(c), numerics_(n), tensors_(tensors(c)), groups_(layer_groups(c)) {
    const std::int64_t count = kept == residency::all ? c.layers : 1;
    for (std::int64_t i = 0; i < count; ++i) {
      block b;
      b.qkv = {n.linear, n.weight_steps, c.qkv_rows(), c.hidden};
      b.out = {n.linear, n.weight_steps, c.hidden, c.heads * c.head_dim};
      b.gate_up = {n.linear, n.weight_steps, 2 * c.feed_forward, c.hidden};
      b.down = {n.linear, n.weight_steps, c.hidden, c.feed_forward};
      blocks_.push_back(b);
    }
    if (n.linear == nn::linear_kind::int8) {
      sliced_head_ = std::make_unique<sliced_head>(c.vocabulary, c.hidden);
    } else {
      binary32_head_ = std::make_unique<binary32_head>(c.vocabulary, c.hidden);
    }
    if (kept == residency::layer)
      kept_gain_ =
          decltype(kept_gain_)("ordo::model::embedding_gain", static_cast<std::size_t>(c.hidden));
  }

  using head_policy = Sliced<2, 2>;
  using sliced_head = loss::head_weights<head_policy, Space>;
  using binary32_head = loss::head_weights<nn::product_order, Space>;

  /// Takes a step's parameters [all of them], which must stay where they are until the next call;
  /// recomputes steps, codes and slices.
  void prepare(const Space& space, vector_view<const bf16, Space> parameters) {
    require(kept_gain_.extent(0) == 0, "ordo::model::prepared_weights",
            "there is room for one layer only", "give a parameter_source");
    source_ = nullptr;
    const auto part = [&](std::size_t group) {
      const std::int64_t begin = tensors_[groups_[group].first].offset;
      return vector_view<const bf16, Space>(parameters.data() + begin,
                                            parameters.extent(0) - static_cast<std::size_t>(begin));
    };
    take_embedding(part(0));
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      take_block(space, blocks_[i], i + 1, part(i + 1));
    take_head(space, part(groups_.size() - 1));
  }
  /// Takes a step's parameters layer by layer, as passes need them. The source must outlive them.
  void prepare(parameter_source<Space>& source) { source_ = &source; }

  const config& shape() const { return config_; }
  const numerics& constants() const { return numerics_; }
  const std::vector<tensor>& table() const { return tensors_; }
  std::int64_t index_of_final_gain() const { return 2 + 9 * config_.layers; }

  /// Embedding and its gain: what a pass begins with.
  matrix_view<const bf16, Space> embedding(const Space& space) {
    if (source_ != nullptr) {
      take_embedding(source_->fetch(0));
      Kokkos::deep_copy(space, kept_gain_, embedding_gain_);
      embedding_gain_ = kept_gain_; // the end of the pass needs it, too
    }
    return embedding_;
  }
  vector_view<const bf16, Space> embedding_gain() const { return embedding_gain_; }

  /// Layer `layer`, until the next one is asked for.
  const block& layer(const Space& space, std::int64_t layer) {
    if (source_ == nullptr)
      return blocks_[static_cast<std::size_t>(layer)];
    const auto group = static_cast<std::size_t>(layer) + 1;
    take_block(space, blocks_.front(), group, source_->fetch(group));
    return blocks_.front();
  }

  /// The final gain; with it comes the head.
  vector_view<const bf16, Space> final_gain(const Space& space) {
    if (source_ != nullptr)
      take_head(space, source_->fetch(groups_.size() - 1));
    return final_gain_;
  }
  vector_view<const bf16, Space> final_gain() const { return final_gain_; }
  /// Calls `use(head)` with the head that the run's arithmetic has.
  template <class Use>
  void with_head(const Use& use) const {
    if (sliced_head_) {
      use(*sliced_head_);
    } else {
      use(*binary32_head_);
    }
  }

private:
  /// Tensor `index` of a group whose parameters are `values`: as a vector, or as a matrix with the
  /// rows of the neighbours that belong to it.
  vector_view<const bf16, Space> vector_of(vector_view<const bf16, Space> values, std::size_t group,
                                           std::size_t index) const {
    const tensor& first = tensors_[groups_[group].first];
    const tensor& t = tensors_[groups_[group].first + index];
    return vector_view<const bf16, Space>(values.data() + (t.offset - first.offset),
                                          static_cast<std::size_t>(t.size()));
  }
  matrix_view<const bf16, Space> matrix_of(vector_view<const bf16, Space> values, std::size_t group,
                                           std::size_t index, std::int64_t rows) const {
    const tensor& t = tensors_[groups_[group].first + index];
    return matrix_view<const bf16, Space>(vector_of(values, group, index).data(),
                                          static_cast<std::size_t>(rows),
                                          static_cast<std::size_t>(t.columns));
  }

  void take_embedding(vector_view<const bf16, Space> values) {
    embedding_ = matrix_of(values, 0, 0, config_.padded_vocabulary);
    embedding_gain_ = vector_of(values, 0, 1);
  }
  void take_block(const Space& space, block& b, std::size_t group,
                  vector_view<const bf16, Space> values) const {
    b.attention_gain = vector_of(values, group, 0);
    b.qkv.prepare(space, matrix_of(values, group, 1, config_.qkv_rows()));
    b.out.prepare(space, matrix_of(values, group, 4, config_.hidden));
    b.feed_forward_gain = vector_of(values, group, 5);
    b.gate_up.prepare(space, matrix_of(values, group, 6, 2 * config_.feed_forward));
    b.down.prepare(space, matrix_of(values, group, 8, config_.hidden));
  }
  void take_head(const Space& space, vector_view<const bf16, Space> values) {
    const std::size_t group = groups_.size() - 1;
    final_gain_ = vector_of(values, group, 0);
    const auto head = matrix_of(values, group, 1, config_.padded_vocabulary);
    if (sliced_head_)
      sliced_head_->prepare(space, head);
    if (binary32_head_)
      binary32_head_->prepare(space, head);
  }

  config config_;
  numerics numerics_;
  std::vector<tensor> tensors_;
  std::vector<std::pair<std::size_t, std::size_t>> groups_;
  std::vector<block> blocks_;
  std::unique_ptr<sliced_head> sliced_head_;
  std::unique_ptr<binary32_head> binary32_head_;
  parameter_source<Space>* source_ = nullptr;
  matrix_view<const bf16, Space> embedding_;
  vector_view<const bf16, Space> embedding_gain_, final_gain_;
  Kokkos::View<bf16*, typename Space::memory_space> kept_gain_; ///< where layers come and go
};

} // namespace ordo::model
