// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Shape of an Open-1B model and the table of its tensors.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ordo/core/error.hpp>

namespace ordo::model {

/// Longest contraction of rotated int8 operands: the largest multiple of the rotation's block among
/// the 133,144 products that int32 holds.
inline constexpr std::int64_t longest_rotated = 133120;

/// Longest contraction of the sliced head (gemm_sliced.hpp), which runs over the vocabulary.
inline constexpr std::int64_t longest_sliced = 132104;

/// Sizes of one model. All tensors follow from them.
struct config {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t feed_forward = 0;
  std::int64_t vocabulary = 0;        ///< words that take part in the loss
  std::int64_t padded_vocabulary = 0; ///< rows of the embedding and the head
  std::int64_t window = 0;     ///< keys a query of a sliding-window layer sees, itself included
  std::int64_t full_every = 5; ///< every so many layers, and the last, attend to everything

  std::int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }

  /// Whether layer `layer` (from 0) attends to the whole sequence.
  bool full_attention(std::int64_t layer) const {
    return (full_every > 0 && (layer + 1) % full_every == 0) || layer + 1 == layers;
  }

  /// Throws an error naming the key that is impossible and what would be possible.
  void check() const {
    const auto positive = [](std::int64_t value, const char* key) {
      require(value > 0 && value <= std::int64_t{1} << 24, "configuration",
              std::string("model.") + key + " is " + std::to_string(value),
              "it must lie between 1 and 16777216");
    };
    require(layers > 0 && layers <= 65536, "configuration",
            "model.layers is " + std::to_string(layers), "it must lie between 1 and 65536");
    positive(hidden, "hidden");
    positive(heads, "heads");
    positive(kv_heads, "kv_heads");
    positive(head_dim, "head_dim");
    positive(feed_forward, "feed_forward");
    positive(vocabulary, "vocabulary");
    positive(padded_vocabulary, "padded_vocabulary");
    positive(window, "window");
    require(heads % kv_heads == 0, "configuration",
            "model.heads is " + std::to_string(heads) + " and model.kv_heads " +
                std::to_string(kv_heads),
            "heads must be a multiple of kv_heads");
    require(head_dim % 16 == 0 && head_dim <= 256, "configuration",
            "model.head_dim is " + std::to_string(head_dim),
            "it must be a multiple of 16, at most 256");
    require(padded_vocabulary >= vocabulary, "configuration",
            "model.padded_vocabulary " + std::to_string(padded_vocabulary) +
                " is below model.vocabulary " + std::to_string(vocabulary));
    require(full_every >= 0, "configuration", "model.full_every is negative");
    require(vocabulary <= longest_sliced && hidden <= longest_sliced, "configuration",
            "the head multiplies " + shape(vocabulary, hidden) + " in int8 slices",
            "keep model.vocabulary and model.hidden at most " + std::to_string(longest_sliced));
    for (const std::int64_t k : {hidden, qkv_rows(), 2 * feed_forward, padded_vocabulary}) {
      require(k <= longest_rotated, "configuration",
              "a contraction over " + std::to_string(k) + " int8 products does not fit int32",
              "keep model.hidden, (heads + 2 kv_heads) * head_dim, 2 * feed_forward and "
              "padded_vocabulary at most " +
                  std::to_string(longest_rotated));
    }
  }
};

/// One parameter tensor: its conventional name, shape, and place in the flat parameter vector.
struct tensor {
  std::string name;
  std::int64_t rows = 0, columns = 0; ///< columns is 0 for a vector of `rows`
  std::int64_t offset = 0;
  bool decays = false; ///< weight decay applies (matrices)

  std::int64_t size() const { return columns == 0 ? rows : rows * columns; }
  std::vector<std::uint64_t> extents() const {
    if (columns == 0)
      return {static_cast<std::uint64_t>(rows)};
    return {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)};
  }
};

/// The tensors of a model in the order of the flat vector. q, k and v of a layer are neighbours, as
/// are gate and up, so that each group is one product.
inline std::vector<tensor> tensors(const config& c) {
  std::vector<tensor> all;
  std::int64_t offset = 0;
  const auto add = [&](std::string name, std::int64_t rows, std::int64_t columns) {
    all.push_back({std::move(name), rows, columns, offset, columns > 0});
    offset += all.back().size();
  };
  add("model.embed_tokens.weight", c.padded_vocabulary, c.hidden);
  add("model.embed_norm.weight", c.hidden, 0);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", c.hidden, 0);
    add(prefix + "self_attn.q_proj.weight", c.heads * c.head_dim, c.hidden);
    add(prefix + "self_attn.k_proj.weight", c.kv_heads * c.head_dim, c.hidden);
    add(prefix + "self_attn.v_proj.weight", c.kv_heads * c.head_dim, c.hidden);
    add(prefix + "self_attn.o_proj.weight", c.hidden, c.heads * c.head_dim);
    add(prefix + "post_attention_layernorm.weight", c.hidden, 0);
    add(prefix + "mlp.gate_proj.weight", c.feed_forward, c.hidden);
    add(prefix + "mlp.up_proj.weight", c.feed_forward, c.hidden);
    add(prefix + "mlp.down_proj.weight", c.hidden, c.feed_forward);
  }
  add("model.norm.weight", c.hidden, 0);
  add("lm_head.weight", c.padded_vocabulary, c.hidden);
  return all;
}

/// Tensors [first, second) of the table that a pass uses together: embedding and its norm, then
/// block by block, then the final norm and the head.
inline std::vector<std::pair<std::size_t, std::size_t>> layer_groups(const config& c) {
  std::vector<std::pair<std::size_t, std::size_t>> groups{{0, 2}};
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    groups.emplace_back(groups.back().second, groups.back().second + 9);
  groups.emplace_back(groups.back().second, groups.back().second + 2);
  return groups;
}

/// Parameters in all.
inline std::int64_t parameter_count(const config& c) {
  std::int64_t count = 0;
  for (const tensor& t : tensors(c))
    count += t.size();
  return count;
}

} // namespace ordo::model
