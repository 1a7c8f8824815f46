// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What attention keeps between the forward and the backward pass, and the scratch it works in.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/nn/attention_shape.hpp>

#if defined(ORDO_CUDA)
#include <ordo/cuda/attention_forward.hpp>
#include <ordo/cuda/attention_gradient.hpp>
#endif

namespace ordo::nn {

/// What one layer's backward pass needs besides qkv and out: the log-sum-exp of each query row,
/// -infinity for a row that sees nothing, NaN for one that is NaN.
///
/// Shape: log_sum_exp [batch, heads, seq] as one row-major vector.
template <class Space>
struct attention_saved {
  Kokkos::View<float*, Kokkos::LayoutRight, typename Space::memory_space> log_sum_exp;

  attention_saved() = default;
  explicit attention_saved(const attention_shape& s)
      : log_sum_exp("ordo::nn::attention_saved",
                    static_cast<std::size_t>(s.batch * s.heads * s.seq)) {}
};

namespace detail {

/// Pointers into the scratch. A "pair" layout holds entry (k, j) of a matrix with n columns at
/// [k/2][j][k%2]; blocks are padded with zeros. Every `[2]` is a low and a high part, low +
/// 128 high, so that products over a block stay within int32.
struct attention_buffers {
  std::int8_t* v8;            ///< [batch, kv_heads, key block][key/4][hd][4]
  float* v_weight;            ///< [batch, kv_heads, key block]: step * (1/127)
  std::int16_t* k_dims;       ///< [batch, kv_heads, key block], pairs of dims, by keys
  std::uint8_t* key_bad;      ///< [batch, kv_heads, seq]
  std::int16_t* k_keys[2];    ///< [batch, kv_heads, key block], pairs of keys, by dims
  std::int16_t* v_dims;       ///< [batch, kv_heads, key block], pairs of dims, by keys
  float* v_scale;             ///< [batch, kv_heads, padded keys]: 2^-shift of the row
  std::uint32_t* v_largest;   ///< [batch, kv_heads, key block]
  std::int16_t* q_rows;       ///< [batch, heads, padded queries, hd]
  std::int16_t* q_columns[2]; ///< [batch, heads, query block, hd, query]
  std::int16_t* o_rows;       ///< dO, as q_rows
  std::int16_t* o_columns[2]; ///< dO, as q_columns
  float *o_scale, *delta;     ///< [batch, heads, padded queries]
  std::int32_t* o_shift;      ///< [batch, heads, query block]
  std::uint32_t* o_largest;   ///< [batch, heads, query block]
  std::uint8_t* poisoned;     ///< [batch, heads, seq]
  std::int64_t* d_q;          ///< [batch, heads, padded queries, hd]
  std::int64_t *d_k, *d_v;    ///< [batch, heads, key block, hd, key]
};

} // namespace detail

/// Scratch of attention for one shape, shared by all layers (their windows may differ).
///
/// Cost: about (36 heads + 10 kv_heads) * hd bytes a token; the forward pass alone touches
/// 3 kv_heads * hd of them. On CUDA the kernels lay the memory out themselves
/// (cuda/attention_integers.hpp, cuda/attention_gradient.hpp); forward and backward share it.
template <class Space, class Blocks>
class attention_scratch {
public:
  attention_scratch() = default;
  explicit attention_scratch(const attention_shape& s) : shape_(s) {
    require_shape(s, "ordo::nn::attention_scratch");
    if constexpr (ordo::detail::on_cuda<Space>) {
      static_assert(Blocks::query == 64 && Blocks::key == 64,
                    "ordo::nn::attention_scratch: CUDA has kernels for blocks of 64 queries and 64 "
                    "keys; use AttentionBlocks<64, 64>");
#if defined(ORDO_CUDA)
      const std::size_t forward = cuda::attention_forward_scratch_bytes(s);
      const std::size_t backward = cuda::attention_backward_scratch_bytes(s);
      allocate(forward > backward ? forward : backward);
#endif
    } else {
      place_buffers();
    }
  }

  /// Whether this scratch was made for `s`, whatever the window.
  bool fits(attention_shape s) const {
    s.window = shape_.window;
    return s == shape_;
  }
  /// Null pointers on CUDA.
  const detail::attention_buffers& buffers() const {
    return b_;
  }
  std::byte* memory() const {
    return memory_.data();
  }

private:
  using bytes = Kokkos::View<std::byte*, Kokkos::LayoutRight, typename Space::memory_space>;

  void allocate(std::size_t count) {
    memory_ = bytes(Kokkos::view_alloc(Kokkos::WithoutInitializing, "ordo::nn::attention_scratch"),
                    count);
  }
  void place_buffers() {
    const attention_shape& s = shape_;
    const std::size_t dim = static_cast<std::size_t>(s.head_dim);
    const auto blocks = [](std::int64_t n, int b) {
      return static_cast<std::size_t>((n + b - 1) / b);
    };
    const std::size_t kv = static_cast<std::size_t>(s.batch * s.kv_heads);
    const std::size_t heads = static_cast<std::size_t>(s.batch * s.heads);
    const std::size_t key_blocks = blocks(s.seq, Blocks::key), keys = key_blocks * Blocks::key;
    const std::size_t query_blocks = blocks(s.seq, Blocks::query);
    const std::size_t queries = query_blocks * Blocks::query;
    // Twice: first to count the bytes, then to hand them out.
    for (const bool place : {false, true}) {
      std::size_t used = 0;
      const auto take = [&](auto*& pointer, std::size_t count) {
        using element = std::remove_reference_t<decltype(*pointer)>;
        if (place)
          pointer = reinterpret_cast<element*>(memory_.data() + used);
        used += (count * sizeof(element) + 63) / 64 * 64;
      };
      take(b_.v8, kv * keys * dim);
      take(b_.v_weight, kv * key_blocks);
      take(b_.k_dims, kv * keys * dim);
      take(b_.key_bad, kv * keys);
      for (auto& part : b_.k_keys)
        take(part, kv * keys * dim);
      take(b_.v_dims, kv * keys * dim);
      take(b_.v_scale, kv * keys);
      take(b_.v_largest, kv * key_blocks);
      take(b_.q_rows, heads * queries * dim);
      for (auto& part : b_.q_columns)
        take(part, heads * queries * dim);
      take(b_.o_rows, heads * queries * dim);
      for (auto& part : b_.o_columns)
        take(part, heads * queries * dim);
      take(b_.o_scale, heads * queries);
      take(b_.delta, heads * queries);
      take(b_.o_shift, heads * query_blocks);
      take(b_.o_largest, heads * query_blocks);
      take(b_.poisoned, heads * queries);
      take(b_.d_q, heads * queries * dim);
      take(b_.d_k, heads * keys * dim);
      take(b_.d_v, heads * keys * dim);
      if (!place)
        allocate(used);
    }
  }

  attention_shape shape_;
  bytes memory_;
  detail::attention_buffers b_{};
};

} // namespace ordo::nn
