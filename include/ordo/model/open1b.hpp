// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The Open-1B architecture: pre-norm blocks without biases, a normalised embedding, grouped-query
/// attention with gain-free QK-norm, SwiGLU, an untied head. Source: OPEN-1B, section 2.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ordo/loss/cross_entropy.hpp>
#include <ordo/model/config.hpp>
#include <ordo/nn/attention.hpp>
#include <ordo/nn/embedding.hpp>
#include <ordo/nn/linear_layer.hpp>
#include <ordo/nn/rms_norm.hpp>
#include <ordo/nn/swiglu.hpp>

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

/// Blocks of queries and keys in attention. Part of the contract.
using attention_blocks = nn::AttentionBlocks<64, 64>;

namespace detail {

/// The policy that a head was prepared for.
template <class Policy, class Space>
constexpr Policy policy_of(const loss::head_weights<Policy, Space>&) {
  return {};
}

} // namespace detail

template <execution_space Space>
using bf16_matrix = Kokkos::View<bf16**, Kokkos::LayoutRight, typename Space::memory_space>;
template <execution_space Space>
using f32_vector = Kokkos::View<float*, typename Space::memory_space>;

/// The parameters of a step in the form that its products take; `prepare` is called once a step.
template <execution_space Space>
class prepared_weights {
public:
  struct block {
    nn::linear_layer<Space> qkv, out, gate_up, down;
    vector_view<const bf16, Space> attention_gain, feed_forward_gain;
    std::int64_t first_tensor = 0; ///< index of the block's first tensor in `tensors`
  };

  prepared_weights(const config& c, const numerics& n)
      : config_(c), numerics_(n), tensors_(tensors(c)) {
    for (std::int64_t i = 0; i < c.layers; ++i) {
      block b;
      b.qkv = {n.linear, n.weight_steps, c.qkv_rows(), c.hidden};
      b.out = {n.linear, n.weight_steps, c.hidden, c.heads * c.head_dim};
      b.gate_up = {n.linear, n.weight_steps, 2 * c.feed_forward, c.hidden};
      b.down = {n.linear, n.weight_steps, c.hidden, c.feed_forward};
      b.first_tensor = 2 + 9 * i;
      blocks_.push_back(b);
    }
    if (n.linear == nn::linear_kind::int8) {
      sliced_head_ = std::make_unique<sliced_head>(c.vocabulary, c.hidden);
    } else {
      binary32_head_ = std::make_unique<binary32_head>(c.vocabulary, c.hidden);
    }
  }

  using head_policy = Sliced<2, 2>;
  using sliced_head = loss::head_weights<head_policy, Space>;
  using binary32_head = loss::head_weights<nn::product_order, Space>;

  /// Recomputes steps, codes and slices. `parameters` must stay where it is until the next call.
  void prepare(const Space& space, vector_view<const bf16, Space> parameters) {
    parameters_ = parameters;
    for (block& b : blocks_) {
      b.attention_gain = vector_of(b.first_tensor);
      b.qkv.prepare(space, matrix_of(b.first_tensor + 1, config_.qkv_rows()));
      b.out.prepare(space, matrix_of(b.first_tensor + 4, config_.hidden));
      b.feed_forward_gain = vector_of(b.first_tensor + 5);
      b.gate_up.prepare(space, matrix_of(b.first_tensor + 6, 2 * config_.feed_forward));
      b.down.prepare(space, matrix_of(b.first_tensor + 8, config_.hidden));
    }
    if (sliced_head_)
      sliced_head_->prepare(space, head_matrix());
    if (binary32_head_)
      binary32_head_->prepare(space, head_matrix());
  }

  const config& shape() const { return config_; }
  const numerics& constants() const { return numerics_; }
  const std::vector<tensor>& table() const { return tensors_; }
  const std::vector<block>& blocks() const { return blocks_; }
  matrix_view<const bf16, Space> embedding() const {
    return matrix_of(0, config_.padded_vocabulary);
  }
  vector_view<const bf16, Space> embedding_gain() const { return vector_of(1); }
  vector_view<const bf16, Space> final_gain() const { return vector_of(index_of_final_gain()); }
  std::int64_t index_of_final_gain() const { return 2 + 9 * config_.layers; }

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
  matrix_view<const bf16, Space> head_matrix() const {
    return matrix_of(index_of_final_gain() + 1, config_.padded_vocabulary);
  }
  vector_view<const bf16, Space> vector_of(std::int64_t index) const {
    const tensor& t = tensors_[static_cast<std::size_t>(index)];
    return vector_view<const bf16, Space>(parameters_.data() + t.offset,
                                          static_cast<std::size_t>(t.size()));
  }
  /// `rows` rows from tensor `index` on: one tensor, or a group of neighbours as one matrix.
  matrix_view<const bf16, Space> matrix_of(std::int64_t index, std::int64_t rows) const {
    const tensor& t = tensors_[static_cast<std::size_t>(index)];
    return matrix_view<const bf16, Space>(parameters_.data() + t.offset,
                                          static_cast<std::size_t>(rows),
                                          static_cast<std::size_t>(t.columns));
  }

  config config_;
  numerics numerics_;
  std::vector<tensor> tensors_;
  std::vector<block> blocks_;
  std::unique_ptr<sliced_head> sliced_head_;
  std::unique_ptr<binary32_head> binary32_head_;
  vector_view<const bf16, Space> parameters_;
};

/// Where a backward pass leaves its gradients: group after group of layer_groups, from the last to
/// the first.
template <execution_space Space>
class gradient_sink {
public:
  virtual ~gradient_sink() = default;
  /// Memory for the gradients of the group's tensors, in the order of the table. It is overwritten.
  virtual vector_view<float, Space> start(std::size_t group) = 0;
  /// They are there, in the order of the stream that the pass runs on.
  virtual void finish(std::size_t group) = 0;
};

/// One vector of all parameters' gradients.
template <execution_space Space>
class whole_gradients final : public gradient_sink<Space> {
public:
  whole_gradients(const config& c, vector_view<float, Space> gradients)
      : groups_(layer_groups(c)), table_(tensors(c)), gradients_(gradients) {}

  vector_view<float, Space> start(std::size_t group) override {
    const auto [first, last] = groups_[group];
    const std::int64_t begin = table_[first].offset;
    const std::int64_t end = table_[last - 1].offset + table_[last - 1].size();
    return vector_view<float, Space>(gradients_.data() + begin,
                                     static_cast<std::size_t>(end - begin));
  }
  void finish(std::size_t) override {}

private:
  std::vector<std::pair<std::size_t, std::size_t>> groups_;
  std::vector<tensor> table_;
  vector_view<float, Space> gradients_;
};

/// Activations and scratch of one micro-batch of `batch` sequences of `length` tokens.
template <execution_space Space>
class workspace {
public:
  workspace(const config& c, const numerics& n, std::int64_t batch, std::int64_t length);

  /// Hidden states after the final norm for `ids` (batch * length of them, sequence by sequence).
  /// Throws: an id outside the vocabulary.
  void forward(const Space& space, const prepared_weights<Space>& weights,
               std::span<const std::uint32_t> ids);

  /// Forward and backward of one micro-batch.
  ///
  /// `gradients` takes, in binary32, the gradient of token_scale * (sum of the token losses).
  /// Returns the exact loss sum.
  /// Order: as each operation states; the policies are those named in this header.
  /// Bits: depend on the parameters, ids, labels and token_scale alone.
  loss::loss_sum forward_backward(const Space& space, const prepared_weights<Space>& weights,
                                  std::span<const std::uint32_t> ids,
                                  std::span<const std::uint32_t> labels, float token_scale,
                                  gradient_sink<Space>& gradients);

  /// Loss alone. Scratch is that of `forward_backward`.
  loss::loss_sum loss_of(const Space& space, const prepared_weights<Space>& weights,
                         std::span<const std::uint32_t> ids, std::span<const std::uint32_t> labels);

  matrix_view<const bf16, Space> hidden() const { return normalised_; }

  /// What entered a weight gradient of the first block: the output gradient [tokens, n] and the
  /// int8 input. Valid from `forward_backward` to the next call, for measuring; int8 models only.
  struct weight_gradient_operands {
    const char* layer;
    matrix_view<const bf16, Space> dy;
    nn::int8_activations<Space> x;
  };
  std::vector<weight_gradient_operands> first_block_operands() const {
    const layer_state& s = layers_.front();
    return {{"self_attn.qkv", d_qkv_, {s.qkv_input.codes, s.qkv_input.step}},
            {"mlp.gate_up", d_gate_up_, {s.gate_up_input.codes, s.gate_up_input.step}}};
  }

private:
  using tokens_view = Kokkos::View<std::uint32_t*, typename Space::memory_space>;
  struct layer_state {
    bf16_matrix<Space> entry, middle; ///< the residual stream before attention, before the SwiGLU
    bf16_matrix<Space> qkv, attended, gate_up;
    f32_vector<Space> entry_inverse_rms, middle_inverse_rms;
    nn::linear_input<Space> qkv_input, out_input, gate_up_input, down_input;
    nn::attention_saved<Space> attention;
  };

  nn::attention_shape attention_shape_of(std::int64_t layer) const;
  template <class T>
  static void upload(const Space& space, std::span<const T> from,
                     Kokkos::View<T*, typename Space::memory_space> to);
  void backward_block(const Space& space, const prepared_weights<Space>& weights,
                      std::int64_t layer, vector_view<float, Space> gradients);
  /// Where in its group's memory a tensor's gradient lies: [rows, columns], or [size].
  static matrix_view<float, Space> gradient_matrix(vector_view<float, Space> group,
                                                   const tensor& first, const tensor& t,
                                                   std::int64_t rows) {
    return matrix_view<float, Space>(group.data() + (t.offset - first.offset),
                                     static_cast<std::size_t>(rows),
                                     static_cast<std::size_t>(t.columns));
  }
  static vector_view<float, Space> gradient_vector(vector_view<float, Space> group,
                                                   const tensor& first, const tensor& t) {
    return vector_view<float, Space>(group.data() + (t.offset - first.offset),
                                     static_cast<std::size_t>(t.size()));
  }
  template <class Head>
  auto& scratch_of(const Head&);

  config config_;
  numerics numerics_;
  std::int64_t batch_, length_, tokens_;
  std::vector<layer_state> layers_;
  tokens_view ids_, labels_;
  nn::embedding_positions<Space> positions_;
  nn::rope_table<Space> rope_;
  nn::attention_scratch<Space, attention_blocks> attention_scratch_;
  nn::linear_scratch<Space> linear_scratch_;
  bf16_matrix<Space> embedded_, normalised_, final_entry_, normal_, branch_, activated_;
  bf16_matrix<Space> d_stream_, d_branch_, d_normal_, d_qkv_, d_attended_, d_gate_up_, d_activated_;
  f32_vector<Space> embedding_inverse_rms_, final_inverse_rms_;
  Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space> gain_partial_;
  std::unique_ptr<loss::loss_scratch<Sliced<2, 2>, Space>> sliced_scratch_;
  std::unique_ptr<loss::loss_scratch<nn::product_order, Space>> binary32_scratch_;
};

} // namespace ordo::model

#include <ordo/model/open1b_workspace.hpp>
