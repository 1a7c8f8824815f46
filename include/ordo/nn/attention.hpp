// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Grouped-query attention over causal sliding windows, with RMS-normalised and rotated q and k,
/// forward and backward. The definition is reference/attention.hpp and attention_backward.hpp.

#include <cstdint>

#include <ordo/core/execution.hpp>
#include <ordo/cpu/attention.hpp>
#include <ordo/nn/attention_backward.hpp>
#include <ordo/nn/rope.hpp>

#if defined(ORDO_CUDA)
#include <ordo/cuda/attention_backward.hpp>
#include <ordo/cuda/attention_forward.hpp>
#endif

namespace ordo::nn {

namespace detail {

template <class Space>
inline constexpr bool is_host_space =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible != 0 &&
    Kokkos::SpaceAccessibility<Space, Kokkos::HostSpace>::accessible != 0;

/// Runs every item of a stage; where the host computes, with the instructions that it has.
template <execution_space Space, class Stage>
requires(is_host_space<Space>) void run_stage(const Space& space, const char* label,
                                              std::int64_t items, const Stage& stage) {
  const cpu::isa level = cpu::active_isa();
  ordo::detail::for_each(space, label, items,
                         [=](std::int64_t item) { cpu::run_attention(stage, level, item); });
}
template <execution_space Space, class Stage>
requires(!is_host_space<Space>) void run_stage(const Space& space, const char* label,
                                               std::int64_t items, const Stage& stage) {
  ordo::detail::for_each(
      space, label, items,
      KOKKOS_LAMBDA(std::int64_t item) { stage.template run<portable_engine>(item); });
}

template <class Space, class Blocks>
attention_problem
make_problem(const char* where, const attention_shape& s, const rope_table<Space>& rope, float eps,
             matrix_view<const bf16, Space> qkv, const attention_saved<Space>& saved,
             const attention_scratch<Space, Blocks>& scratch) {
  require_shape(s, where);
  require(static_cast<std::int64_t>(qkv.extent(0)) == s.tokens() &&
              static_cast<std::int64_t>(qkv.extent(1)) == s.qkv_width(),
          where,
          "qkv is " + shape(qkv.extent(0), qkv.extent(1)) + ", the shape asks for " +
              shape(s.tokens(), s.qkv_width()));
  require(static_cast<std::int64_t>(rope.cosine.extent(0)) >= s.seq &&
              static_cast<std::int64_t>(rope.cosine.extent(1)) == s.head_dim / 2,
          where,
          "the rope table is " + shape(rope.cosine.extent(0), rope.cosine.extent(1)) + " for " +
              shape(s.seq, s.head_dim / 2),
          "make it with the head_dim and at least seq positions");
  require(scratch.fits(s), where, "the scratch was made for another shape",
          "only the window may differ");
  require(static_cast<std::int64_t>(saved.log_sum_exp.extent(0)) == s.batch * s.heads * s.seq,
          where, "saved was made for another shape");
  attention_shape within = s;
  within.window = s.window < s.seq ? s.window : s.seq;
  return {within,
          make_attention_scales(s),
          rope.cosine.data(),
          rope.sine.data(),
          eps,
          qkv.data(),
          (s.seq + Blocks::key - 1) / Blocks::key,
          (s.seq + Blocks::query - 1) / Blocks::query,
          scratch.buffers()};
}

} // namespace detail

/// o_i = sum over the visible keys of softmax(q_i . k_j / sqrt(hd)) v_j, for every query head.
///
/// q and k are normalised per head (no gain) and rotated first. Logits are exact dot products of
/// fixed-point rows; each block of `Blocks::key` keys is multiplied in int8.
///
/// Shape: qkv [batch * seq, (heads + 2 kv_heads) * head_dim]: q heads, k heads, v heads; out
/// [batch * seq, heads * head_dim]; saved and scratch made for the shape.
/// Order: binary32 sums run over key blocks, ascending; all others are integers.
/// Bits: of a query row depend on that row, the keys and values it sees and the largest value
/// magnitude in each key block it sees a part of. NaN and infinities in other rows change nothing;
/// a row that sees one is NaN. A row that sees nothing is +0. Error: 1.5% of the row's norm, from
/// the int8 product; the log-sum-exp is within 2^-11 absolute. Sync: returns when done. Throws: on
/// shapes that disagree.
template <execution_space Space, int QueryBlock, int KeyBlock>
void attention_forward(const Space& space, AttentionBlocks<QueryBlock, KeyBlock>,
                       const attention_shape& s, const rope_table<Space>& rope, float eps,
                       matrix_view<const bf16, Space> qkv, matrix_view<bf16, Space> out,
                       attention_saved<Space>& saved,
                       attention_scratch<Space, AttentionBlocks<QueryBlock, KeyBlock>>& scratch) {
  using blocks = AttentionBlocks<QueryBlock, KeyBlock>;
  const char* const where = "ordo::nn::attention_forward";
  const auto a = detail::make_problem(where, s, rope, eps, qkv, saved, scratch);
  require(static_cast<std::int64_t>(out.extent(0)) == s.tokens() &&
              static_cast<std::int64_t>(out.extent(1)) == s.out_width(),
          where,
          "out is " + shape(out.extent(0), out.extent(1)) + ", the shape asks for " +
              shape(s.tokens(), s.out_width()));
  if constexpr (ordo::detail::on_cuda<Space>) {
#if defined(ORDO_CUDA)
    cuda::attention_forward(
        space.cuda_stream(),
        cuda::make_attention_inputs(s, rope.cosine.data(), rope.sine.data(), eps, qkv.data()),
        out.data(), saved.log_sum_exp.data(), scratch.memory());
#endif
  } else {
    detail::run_stage(space, "ordo::nn::attention_forward::keys",
                      s.batch * s.kv_heads * a.key_blocks, detail::forward_keys<blocks>{a});
    detail::run_stage(space, "ordo::nn::attention_forward::queries",
                      s.batch * s.heads * a.query_blocks,
                      detail::forward_queries<blocks>{a, out.data(), saved.log_sum_exp.data()});
  }
}

/// d_qkv from d_out, through softmax, rotation and normalisation.
///
/// Shape: as forward; `out` and `saved` are those of the forward pass; d_out like out, d_qkv like
/// qkv.
/// Order: gradients are 64-bit integers until a row is finished: order-free over tiles, heads and
/// threads. Row sums by order::Lanes<32>.
/// Bits: depend on the inputs and the block sizes. The units follow the largest magnitudes of d_out
/// and v of a sequence and head group. A query row that is NaN, or whose d_out is, makes its own dq
/// and dk, dv of all keys it sees NaN. d_out above 2^91 in magnitude makes its head group NaN.
/// Error: relative to binary64, in norm: dq and dk 2%, of which nearly all is the int8 error of
/// `out` inside D = d_out . out; dv 0.4%, of which most is its rounding to bf16.
/// Throws: on shapes that disagree.
template <execution_space Space, int QueryBlock, int KeyBlock>
void attention_backward(const Space& space, AttentionBlocks<QueryBlock, KeyBlock>,
                        const attention_shape& s, const rope_table<Space>& rope, float eps,
                        matrix_view<const bf16, Space> qkv, matrix_view<const bf16, Space> out,
                        const attention_saved<Space>& saved, matrix_view<const bf16, Space> d_out,
                        matrix_view<bf16, Space> d_qkv,
                        attention_scratch<Space, AttentionBlocks<QueryBlock, KeyBlock>>& scratch) {
  using blocks = AttentionBlocks<QueryBlock, KeyBlock>;
  const char* const where = "ordo::nn::attention_backward";
  const auto a = detail::make_problem(where, s, rope, eps, qkv, saved, scratch);
  require(out.extent(0) == qkv.extent(0) && d_out.extent(0) == qkv.extent(0) &&
              static_cast<std::int64_t>(out.extent(1)) == s.out_width() &&
              d_out.extent(1) == out.extent(1) && d_qkv.extent(0) == qkv.extent(0) &&
              d_qkv.extent(1) == qkv.extent(1),
          where,
          "out is " + shape(out.extent(0), out.extent(1)) + ", d_out " +
              shape(d_out.extent(0), d_out.extent(1)) + ", d_qkv " +
              shape(d_qkv.extent(0), d_qkv.extent(1)),
          "they must be like out and qkv of the forward pass");
  if constexpr (ordo::detail::on_cuda<Space>) {
#if defined(ORDO_CUDA)
    cuda::attention_backward(
        space.cuda_stream(),
        cuda::make_attention_inputs(s, rope.cosine.data(), rope.sine.data(), eps, qkv.data()),
        cuda::attention_gradient{out.data(), d_out.data(), saved.log_sum_exp.data(), d_qkv.data()},
        scratch.memory());
#endif
  } else {
    const detail::attention_gradient g{out.data(), d_out.data(), saved.log_sum_exp.data(),
                                       d_qkv.data()};
    const std::int64_t key_items = s.batch * s.kv_heads * a.key_blocks;
    const std::int64_t query_items = s.batch * s.heads * a.query_blocks;
    detail::run_stage(space, "ordo::nn::attention_backward::keys", key_items,
                      detail::backward_keys<blocks>{a});
    detail::run_stage(space, "ordo::nn::attention_backward::magnitudes", query_items,
                      detail::backward_magnitudes<blocks>{a, g});
    // Whole groups where that keeps every thread busy.
    const std::int64_t groups = s.batch * s.kv_heads;
    const std::int64_t together = groups >= 4 * std::int64_t{space.concurrency()} ? s.group() : 1;
    detail::run_stage(space, "ordo::nn::attention_backward::heads", s.batch * s.heads / together,
                      detail::backward_heads<blocks>{a, g, together});
    detail::run_stage(space, "ordo::nn::attention_backward::finish_keys", key_items,
                      detail::backward_finish_keys<blocks>{a, g, together});
  }
}

} // namespace ordo::nn
