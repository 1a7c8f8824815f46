// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The Open-1B architecture: pre-norm blocks without biases, a normalised embedding, grouped-query
/// attention with gain-free QK-norm, SwiGLU, an untied head. Source: OPEN-1B, section 2.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ordo/model/prepared_weights.hpp>
#include <ordo/nn/attention.hpp>
#include <ordo/nn/embedding.hpp>
#include <ordo/nn/rms_norm.hpp>
#include <ordo/nn/swiglu.hpp>

namespace ordo::model {

/// Blocks of queries and keys in attention. Part of the contract.
using attention_blocks = nn::AttentionBlocks<64, 64>;

template <execution_space Space>
using bf16_matrix = Kokkos::View<bf16**, Kokkos::LayoutRight, typename Space::memory_space>;
template <execution_space Space>
using f32_vector = Kokkos::View<float*, typename Space::memory_space>;

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
  void forward(const Space& space, prepared_weights<Space>& weights,
               std::span<const std::uint32_t> ids);

  /// Forward and backward of one micro-batch.
  ///
  /// `gradients` takes, in binary32, the gradient of token_scale * (sum of the token losses).
  /// Returns the exact loss sum.
  /// Order: as each operation states; the policies are those named in this header.
  /// Bits: depend on the parameters, ids, labels and token_scale alone.
  loss::loss_sum forward_backward(const Space& space, prepared_weights<Space>& weights,
                                  std::span<const std::uint32_t> ids,
                                  std::span<const std::uint32_t> labels, float token_scale,
                                  gradient_sink<Space>& gradients);

  /// Loss alone. Scratch is that of `forward_backward`.
  loss::loss_sum loss_of(const Space& space, prepared_weights<Space>& weights,
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
  void backward_block(const Space& space, prepared_weights<Space>& weights, std::int64_t layer,
                      vector_view<float, Space> gradients);
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
