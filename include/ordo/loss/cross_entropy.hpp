// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Output head, cross-entropy and z-loss in one pass over row chunks, with both gradients; logits
/// are never stored whole. reference/cross_entropy.hpp is the definition.

#include <cstdint>
#include <string>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/loss/cross_entropy_chunks.hpp>
#include <ordo/loss/cross_entropy_cuda.hpp>

namespace ordo::loss {

/// Sum over tokens of cross-entropy + z * (log-sum-exp)^2, and token_scale times its gradients.
///
/// Shape: h [tokens, width], labels [tokens], d_h [tokens, width]; d_w [padded, width] is written,
/// not added to.
/// Order: logits, d_h and d_w are contractions by `Policy`. The row maximum, the sum of
/// exponentials and the sum of losses are integers. d_w joins the contractions of consecutive
/// blocks of 256 rows by order::Sequential, then adds the labels' terms in ascending order of
/// tokens. Under Sliced, probabilities are aligned by row for d_h, and weighted by
/// token_scale * (1 + 2z * lse) by word within a block for d_w; the label's own is not among them
/// but goes with its one-hot, so that a probability near 1 neither dwarfs the rest nor cancels.
/// Bits: of the arguments only; not of the chunk, the threads or the space. Tokens with
/// `ignore_label` and rows of the weight after the vocabulary do not exist for it: their gradients
/// are +0, whatever they hold. A token with a non-finite logit makes the loss non-finite, its row
/// of d_h NaN (7fc0) and d_w NaN (7fc00000).
/// Error: under Sliced<2, 2>, relative to binary64 in the Frobenius norm, for 512 tokens, 2,048
/// words and 64 features: logits 1.7e-5; d_h before its rounding and d_w 9e-7 while nothing is
/// learned, 8e-5 and 3e-5 at a mean loss of 0.45.
/// Throws: shapes that disagree, a label that is neither a word nor `ignore_label`; nothing is
/// written then. On Kokkos::Cuda under Sliced<2, 2> a wrong label is found at the end of the call,
/// when gradients have been written that count it as ignored.
/// Sync: on the host all of it is done on return; on CUDA it is in the stream, and `get` reports a
/// label that is no word.
/// Source: contract, sections 5 and 9.
template <execution_space Space, class Policy>
pending_loss start_cross_entropy_forward_backward(
    const Space& space, Policy, std::type_identity_t<matrix_view<const bf16, Space>> h,
    const head_weights<Policy, Space>& head,
    std::type_identity_t<vector_view<const std::uint32_t, Space>> labels,
    std::type_identity_t<matrix_view<bf16, Space>> d_h,
    std::type_identity_t<matrix_view<float, Space>> d_w, loss_scratch<Policy, Space>& scratch,
    const options& options) {
  const detail::head_task<Policy, Space> task{
      h, head, labels, {}, options.token_scale, options.z_coefficient};
  detail::require_task(task, scratch);
  require(d_h.extent(0) == h.extent(0) && d_h.extent(1) == h.extent(1), "ordo::cross_entropy",
          "d_h " + shape(d_h.extent(0), d_h.extent(1)) + " for hidden states " +
              shape(h.extent(0), h.extent(1)),
          "both have the same shape");
  require(d_w.extent(0) == head.words().extent(0) && d_w.extent(1) == head.words().extent(1),
          "ordo::cross_entropy",
          "d_w " + shape(d_w.extent(0), d_w.extent(1)) + " for a weight " +
              shape(head.words().extent(0), head.words().extent(1)),
          "both have the same shape, padding included");
#if defined(ORDO_CUDA)
  if constexpr (detail::device_loss<Policy, Space>) {
    cuda::loss_task work = detail::device_task(task);
    work.d_h = d_h.data();
    work.d_w = d_w.data();
    cuda::cross_entropy_forward_backward(space.cuda_stream(), work, scratch.memory);
    return pending_loss([space, task, memory = scratch.memory] {
      return detail::collect_on_device(space, task, memory);
    });
  } else
#endif
  {
    const loss_sum sum = detail::forward_backward(space, task, d_h, d_w, scratch);
    return pending_loss([sum] { return sum; });
  }
}

/// As above, and waits for the loss.
template <execution_space Space, class Policy>
loss_sum
cross_entropy_forward_backward(const Space& space, Policy policy,
                               std::type_identity_t<matrix_view<const bf16, Space>> h,
                               const head_weights<Policy, Space>& head,
                               std::type_identity_t<vector_view<const std::uint32_t, Space>> labels,
                               std::type_identity_t<matrix_view<bf16, Space>> d_h,
                               std::type_identity_t<matrix_view<float, Space>> d_w,
                               loss_scratch<Policy, Space>& scratch, const options& options) {
  return start_cross_entropy_forward_backward(space, policy, h, head, labels, d_h, d_w, scratch,
                                              options)
      .get();
}

/// The loss alone, and every token's if `token_losses` is not empty (+0 for ignored ones).
///
/// Shape: token_losses [tokens] or empty. Bits: as cross_entropy_forward_backward.
template <execution_space Space, class Policy>
loss_sum cross_entropy_forward(const Space& space, Policy,
                               std::type_identity_t<matrix_view<const bf16, Space>> h,
                               const head_weights<Policy, Space>& head,
                               std::type_identity_t<vector_view<const std::uint32_t, Space>> labels,
                               std::type_identity_t<vector_view<float, Space>> token_losses,
                               loss_scratch<Policy, Space>& scratch, const options& options) {
  const detail::head_task<Policy, Space> task{
      h, head, labels, token_losses, options.token_scale, options.z_coefficient};
  detail::require_task(task, scratch);
#if defined(ORDO_CUDA)
  if constexpr (detail::device_loss<Policy, Space>) {
    cuda::loss_task work = detail::device_task(task);
    work.token_losses = token_losses.extent(0) == 0 ? nullptr : token_losses.data();
    cuda::cross_entropy_forward(space.cuda_stream(), work, scratch.memory);
    return detail::collect_on_device(space, task, scratch.memory);
  } else
#endif
    return detail::forward(space, task, scratch);
}

} // namespace ordo::loss
