// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The backward pass of attention on CUDA. Definition: reference/attention_backward.hpp.

#include <cstdint>

#include <ordo/cuda/attention_finish.hpp>
#include <ordo/cuda/attention_gradient.hpp>
#include <ordo/cuda/attention_gradient_rows.hpp>
#include <ordo/cuda/attention_gradient_sums.hpp>
#include <ordo/cuda/attention_gradient_tiles.hpp>
#include <ordo/cuda/attention_gradient_tiles_wgmma.hpp>
#include <ordo/cuda/attention_gradient_wgmma.hpp>

namespace ordo::cuda {

#if defined(__CUDACC__)
namespace detail {

/// Calls `f` with the passes that cover all tiles, each of at most `most` tiles.
template <class F>
void for_passes(const nn::attention_shape& s, std::int64_t most, const F& f) {
  const tile_numbers numbers = make_tile_numbers(s);
  const std::int64_t heads = s.batch * s.heads, each = numbers.before(numbers.blocks);
  const std::int64_t group = s.group();
  std::int64_t together = most / each; // heads
  together = together >= group ? together / group * group : together;
  const auto pass = [&](std::int64_t head, std::int64_t count, std::int32_t begin,
                        std::int32_t end) {
    f(tile_pass{numbers, static_cast<std::int32_t>(head), static_cast<std::int32_t>(count), begin,
                end});
  };
  if (together > 0) {
    for (std::int64_t h = 0; h < heads;) {
      // Some heads of one group, or some whole groups.
      const std::int64_t left = together < group ? group - h % group : heads - h;
      const std::int64_t count = together < left ? together : left;
      pass(h, count, 0, numbers.blocks);
      h += count;
    }
    return;
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int32_t begin = 0; begin < numbers.blocks;) {
      std::int32_t end = begin + 1;
      while (end < numbers.blocks && numbers.before(end + 1) - numbers.before(begin) <= most)
        ++end;
      pass(h, 1, begin, end);
      begin = end;
    }
  }
}

template <int Dim>
void gradient_tiles(cudaStream_t stream, const attention_inputs& a,
                    const attention_gradient& gradient, const gradient_buffers& b,
                    const tile_pass& pass, bool warpgroups) {
  if constexpr (Dim == 128) {
    if (warpgroups && hopper::available())
      return gradient_tiles_wgmma(stream, a, gradient, b, pass);
  }
  gradient_tiles_mma<Dim>(stream, a, gradient, b, pass);
}
template <int Dim>
void gradient_sums(cudaStream_t stream, const attention_inputs& a, const gradient_buffers& b,
                   const tile_pass& pass, bool warpgroups) {
  if constexpr (Dim % sums_ring::columns == 0) {
    if (warpgroups && sums_by_warpgroups<Dim>())
      return gradient_sums_wgmma<Dim>(stream, a, b, pass);
  }
  gradient_sums_mma<Dim>(stream, a, b, pass);
}

template <int Dim>
void attention_backward(cudaStream_t stream, const attention_inputs& a,
                        const attention_gradient& gradient, const gradient_buffers& b,
                        std::int64_t most, bool warpgroups) {
  prepare_gradient<Dim>(stream, a, gradient, b);
  if (a.s.window > 0) {
    for_passes(a.s, most, [&](const tile_pass& pass) {
      gradient_tiles<Dim>(stream, a, gradient, b, pass, warpgroups);
      gradient_sums<Dim>(stream, a, b, pass, warpgroups);
    });
  } else {
    const std::size_t entries = static_cast<std::size_t>(a.s.batch * a.blocks() * 64 * Dim);
    const char* const where = "ordo::cuda::attention_backward";
    const std::size_t heads = static_cast<std::size_t>(a.s.heads);
    const std::size_t kv_heads = static_cast<std::size_t>(a.s.kv_heads);
    check(cudaMemsetAsync(b.d_q, 0, heads * entries * sizeof(float), stream), where);
    check(cudaMemsetAsync(b.d_k, 0, kv_heads * entries * 8, stream), where);
    check(cudaMemsetAsync(b.d_v, 0, kv_heads * entries * 8, stream), where);
  }
  finish_gradient<Dim>(stream, a, b, gradient.d_qkv);
}

} // namespace detail

/// d_qkv from d_out, the forward pass's inputs, `out` and `log_sum_exp`. Blocks of 64 queries and
/// 64 keys.
///
/// Bits: those of the definition. Cost: 20 int8 products of the head dimension for each pair of a
/// query and a key in the tiles that are seen, which pass through scratch as 6 bytes a pair.
/// `scratch` has attention_backward_scratch_bytes, 256-byte aligned; `most_tiles`, at least the
/// blocks of a sequence and at most what scratch holds, is how many tiles one pass computes, and
/// `warpgroups` whether to use their instructions where there are any: tuning.
inline void attention_backward(cudaStream_t stream, const attention_inputs& a,
                               const attention_gradient& gradient, void* scratch,
                               std::int64_t most_tiles = detail::most_tiles,
                               bool warpgroups = true) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  require(aligned(gradient.out) && aligned(gradient.d_out) && aligned(gradient.d_qkv),
          "ordo::cuda::attention_backward", "out, d_out or d_qkv is not aligned",
          "each needs 16 bytes; whole allocations have that");
  if (a.s.tokens() == 0)
    return;
  detail::scratch_layout layout(scratch);
  const detail::gradient_buffers b = detail::place_gradient(a.s, layout);
  const std::int64_t held = detail::tiles_at_once(a.s);
  const std::int64_t most = most_tiles < held ? most_tiles : held;
  switch (attention_padded_dim(a.s.head_dim)) {
  case 32:
    return detail::attention_backward<32>(stream, a, gradient, b, most, warpgroups);
  case 64:
    return detail::attention_backward<64>(stream, a, gradient, b, most, warpgroups);
  case 128:
    return detail::attention_backward<128>(stream, a, gradient, b, most, warpgroups);
  default:
    return detail::attention_backward<256>(stream, a, gradient, b, most, warpgroups);
  }
}

#endif // __CUDACC__

} // namespace ordo::cuda
