// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The forward and backward pass of open1b.hpp, operation by operation.

#include <algorithm>

#include <ordo/model/open1b.hpp>

namespace ordo::model {

template <execution_space Space>
workspace<Space>::workspace(const config& c, const numerics& n, std::int64_t batch,
                            std::int64_t length)
    : config_(c), numerics_(n), batch_(batch), length_(length), tokens_(batch * length),
      ids_("ordo::model::ids", static_cast<std::size_t>(tokens_)),
      labels_("ordo::model::labels", static_cast<std::size_t>(tokens_)),
      positions_(tokens_, c.padded_vocabulary), rope_(n.rope_theta, c.head_dim, length),
      attention_scratch_(attention_shape_of(0)) {
  const auto matrix = [&](const std::string& label, std::int64_t columns) {
    return bf16_matrix<Space>(label, static_cast<std::size_t>(tokens_),
                              static_cast<std::size_t>(columns));
  };
  const auto vector = [&](const std::string& label) {
    return f32_vector<Space>(label, static_cast<std::size_t>(tokens_));
  };
  const std::int64_t d = c.hidden, attended = c.heads * c.head_dim, f = c.feed_forward;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    layer_state s;
    s.entry = matrix("ordo::model::entry", d);
    s.middle = matrix("ordo::model::middle", d);
    s.qkv = matrix("ordo::model::qkv", c.qkv_rows());
    s.attended = matrix("ordo::model::attended", attended);
    s.gate_up = matrix("ordo::model::gate_up", 2 * f);
    s.entry_inverse_rms = vector("ordo::model::entry_inverse_rms");
    s.middle_inverse_rms = vector("ordo::model::middle_inverse_rms");
    s.qkv_input = {n.linear, tokens_, d};
    s.out_input = {n.linear, tokens_, attended};
    s.gate_up_input = {n.linear, tokens_, d};
    s.down_input = {n.linear, tokens_, f};
    s.attention = nn::attention_saved<Space>(attention_shape_of(i));
    layers_.push_back(std::move(s));
  }
  const std::int64_t widest = std::max({c.qkv_rows(), 2 * f, d, attended});
  linear_scratch_ = nn::linear_scratch<Space>(n.linear, tokens_, widest);
  embedded_ = matrix("ordo::model::embedded", d);
  normalised_ = matrix("ordo::model::normalised", d);
  final_entry_ = matrix("ordo::model::final_entry", d);
  normal_ = matrix("ordo::model::normal", d);
  branch_ = matrix("ordo::model::branch", d);
  activated_ = matrix("ordo::model::activated", f);
  d_stream_ = matrix("ordo::model::d_stream", d);
  // What the forward pass is done with serves the backward pass.
  d_branch_ = branch_;
  d_normal_ = normal_;
  d_qkv_ = matrix("ordo::model::d_qkv", c.qkv_rows());
  d_attended_ = matrix("ordo::model::d_attended", attended);
  d_gate_up_ = matrix("ordo::model::d_gate_up", 2 * f);
  d_activated_ = activated_;
  embedding_inverse_rms_ = vector("ordo::model::embedding_inverse_rms");
  final_inverse_rms_ = vector("ordo::model::final_inverse_rms");
  gain_partial_ = decltype(gain_partial_)(
      "ordo::model::gain_partial",
      static_cast<std::size_t>((tokens_ + nn::gain_block - 1) / nn::gain_block),
      static_cast<std::size_t>(d));
  if (n.linear == nn::linear_kind::int8) {
    sliced_scratch_ =
        std::make_unique<loss::loss_scratch<Sliced<2, 2>, Space>>(tokens_, c.vocabulary, c.hidden);
  } else {
    binary32_scratch_ = std::make_unique<loss::loss_scratch<nn::product_order, Space>>(
        tokens_, c.vocabulary, c.hidden);
  }
}

template <execution_space Space>
nn::attention_shape workspace<Space>::attention_shape_of(std::int64_t layer) const {
  const std::int64_t window =
      config_.full_attention(layer) ? length_ : std::min(config_.window, length_);
  return {batch_, length_, config_.heads, config_.kv_heads, config_.head_dim, window};
}

template <execution_space Space>
template <class T>
void workspace<Space>::upload(const Space& space, std::span<const T> from,
                              Kokkos::View<T*, typename Space::memory_space> to) {
  require(from.size() == to.extent(0), "ordo::model",
          std::to_string(from.size()) + " tokens given to a workspace of " +
              std::to_string(to.extent(0)));
  Kokkos::deep_copy(
      space, to,
      Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(from.data(), from.size()));
}

template <execution_space Space>
void workspace<Space>::forward(const Space& space, prepared_weights<Space>& weights,
                               std::span<const std::uint32_t> ids) {
  constexpr nn::row_order rows;
  const float eps = numerics_.norm_epsilon;
  upload(space, ids, ids_);
  positions_.assign(space, ids, vector_view<const std::uint32_t, Space>(ids_));
  nn::embedding(space, vector_view<const std::uint32_t, Space>(ids_), weights.embedding(space),
                matrix_view<bf16, Space>(embedded_));
  nn::rms_norm(space, rows, embedded_, weights.embedding_gain(), eps, layers_.front().entry,
               embedding_inverse_rms_);
  const auto* at = &weights.layer(space, 0);
  nn::rms_norm(space, rows, layers_.front().entry, at->attention_gain, eps, normal_,
               layers_.front().entry_inverse_rms);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    layer_state& s = layers_[i];
    const auto& block = *at;
    block.qkv.forward(space, normal_, s.qkv_input, s.qkv, linear_scratch_);
    nn::attention_forward(space, attention_blocks{},
                          attention_shape_of(static_cast<std::int64_t>(i)), rope_, eps, s.qkv,
                          s.attended, s.attention, attention_scratch_);
    block.out.forward(space, s.attended, s.out_input, branch_, linear_scratch_);
    nn::residual_rms_norm<Space>(space, rows, s.entry, branch_, block.feed_forward_gain, eps,
                                 s.middle, normal_, s.middle_inverse_rms);
    block.gate_up.forward(space, normal_, s.gate_up_input, s.gate_up, linear_scratch_);
    nn::swiglu<Space>(space, s.gate_up, activated_);
    block.down.forward(space, activated_, s.down_input, branch_, linear_scratch_);
    if (i + 1 < layers_.size()) {
      layer_state& next = layers_[i + 1];
      at = &weights.layer(space, static_cast<std::int64_t>(i) + 1);
      nn::residual_rms_norm<Space>(space, rows, s.middle, branch_, at->attention_gain, eps,
                                   next.entry, normal_, next.entry_inverse_rms);
    } else {
      nn::residual_rms_norm<Space>(space, rows, s.middle, branch_, weights.final_gain(space), eps,
                                   final_entry_, normalised_, final_inverse_rms_);
    }
  }
}

template <execution_space Space>
template <class Head>
auto& workspace<Space>::scratch_of(const Head&) {
  if constexpr (std::is_same_v<Head, typename prepared_weights<Space>::sliced_head>) {
    return *sliced_scratch_;
  } else {
    return *binary32_scratch_;
  }
}

template <execution_space Space>
loss::loss_sum workspace<Space>::loss_of(const Space& space, prepared_weights<Space>& weights,
                                         std::span<const std::uint32_t> ids,
                                         std::span<const std::uint32_t> labels) {
  forward(space, weights, ids);
  upload(space, labels, labels_);
  loss::loss_sum sum;
  loss::options options;
  options.z_coefficient = numerics_.z_loss;
  weights.with_head([&](const auto& head) {
    sum = loss::cross_entropy_forward(space, detail::policy_of(head), normalised_, head, labels_,
                                      {}, scratch_of(head), options);
  });
  return sum;
}

template <execution_space Space>
loss::loss_sum workspace<Space>::forward_backward(
    const Space& space, prepared_weights<Space>& weights, std::span<const std::uint32_t> ids,
    std::span<const std::uint32_t> labels, float token_scale, gradient_sink<Space>& gradients) {
  forward(space, weights, ids);
  upload(space, labels, labels_);
  const auto& table = weights.table();
  const auto index = static_cast<std::size_t>(weights.index_of_final_gain());
  const tensor &gain = table[index], &head_tensor = table[index + 1];
  const auto last_group = static_cast<std::size_t>(config_.layers) + 1;
  loss::pending_loss sum;
  loss::options options;
  options.token_scale = token_scale;
  options.z_coefficient = numerics_.z_loss;
  const vector_view<float, Space> last = gradients.start(last_group);
  weights.with_head([&](const auto& head) {
    sum = loss::start_cross_entropy_forward_backward(
        space, detail::policy_of(head), normalised_, head, labels_, d_normal_,
        gradient_matrix(last, gain, head_tensor, head_tensor.rows), scratch_of(head), options);
  });
  nn::rms_norm_backward(space, nn::row_order{}, d_normal_, final_entry_, weights.final_gain(),
                        final_inverse_rms_, {}, d_stream_, gradient_vector(last, gain, gain),
                        gain_partial_);
  gradients.finish(last_group);
  for (std::int64_t layer = config_.layers; layer-- > 0;) {
    const auto group = static_cast<std::size_t>(layer) + 1;
    backward_block(space, weights, layer, gradients.start(group));
    gradients.finish(group);
  }
  const vector_view<float, Space> first = gradients.start(0);
  nn::rms_norm_backward(space, nn::row_order{}, d_stream_, embedded_, weights.embedding_gain(),
                        embedding_inverse_rms_, {}, d_branch_,
                        gradient_vector(first, table[0], table[1]), gain_partial_);
  nn::embedding_backward(space, order::Sequential{}, d_branch_, positions_,
                         gradient_matrix(first, table[0], table[0], table[0].rows));
  const loss::loss_sum total = sum.get(); // before the last group's sums and digests are launched
  gradients.finish(0);
  return total;
}

template <execution_space Space>
void workspace<Space>::backward_block(const Space& space, prepared_weights<Space>& weights,
                                      std::int64_t layer, vector_view<float, Space> gradients) {
  layer_state& s = layers_[static_cast<std::size_t>(layer)];
  const auto& block = weights.layer(space, layer);
  const std::size_t first_tensor = layer_groups(config_)[static_cast<std::size_t>(layer) + 1].first;
  const auto at = [&](std::size_t index) -> const tensor& {
    return weights.table()[first_tensor + index];
  };
  const auto matrix = [&](std::size_t index, std::int64_t rows) {
    return gradient_matrix(gradients, at(0), at(index), rows);
  };
  const auto vector = [&](std::size_t index) {
    return gradient_vector(gradients, at(0), at(index));
  };
  constexpr nn::row_order rows;
  block.down.backward(space, d_stream_, s.down_input, d_activated_, matrix(8, config_.hidden),
                      linear_scratch_);
  nn::swiglu_backward<Space>(space, d_activated_, s.gate_up, d_gate_up_);
  block.gate_up.backward(space, d_gate_up_, s.gate_up_input, d_normal_,
                         matrix(6, 2 * config_.feed_forward), linear_scratch_);
  nn::rms_norm_backward(space, rows, d_normal_, s.middle, block.feed_forward_gain,
                        s.middle_inverse_rms, d_stream_, d_stream_, vector(5), gain_partial_);
  block.out.backward(space, d_stream_, s.out_input, d_attended_, matrix(4, config_.hidden),
                     linear_scratch_);
  nn::attention_backward(space, attention_blocks{}, attention_shape_of(layer), rope_,
                         numerics_.norm_epsilon, s.qkv, s.attended, s.attention, d_attended_,
                         d_qkv_, attention_scratch_);
  block.qkv.backward(space, d_qkv_, s.qkv_input, d_normal_, matrix(1, config_.qkv_rows()),
                     linear_scratch_);
  nn::rms_norm_backward(space, rows, d_normal_, s.entry, block.attention_gain, s.entry_inverse_rms,
                        d_stream_, d_stream_, vector(0), gain_partial_);
}

} // namespace ordo::model
