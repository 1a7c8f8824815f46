// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Digests of named tensors that do not depend on how the tensors are sharded: chunks of 16 KiB,
/// tensors in name order. SHA-256, because a run's claims are made of them.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ordo/core/execution.hpp>
#include <ordo/digest/merkle.hpp>
#include <ordo/digest/tensor.hpp>
#include <ordo/digest/tensor_digester_cuda.hpp>

namespace ordo::digest {

namespace detail {

/// Chunks of a work item. A power of two, so that the roots of a tensor's blocks have the tensor's
/// root as theirs; which one is tuning.
inline constexpr std::size_t block_chunks = 32;
inline constexpr std::size_t block_bytes = block_chunks * tensor_chunk_bytes;

/// The Merkle root over the chunks of `bytes`, at least one byte and at most a block.
inline bool block_root(dtype type, std::span<const std::byte> bytes, nans known, hash256& out) {
  tree_hasher& hasher = tree_hasher::of_thread();
  hash256 leaves[block_chunks];
  std::byte replaced[tensor_chunk_bytes];
  std::size_t n = 0;
  for (; !bytes.empty(); ++n) {
    const auto chunk = bytes.first(std::min(bytes.size(), tensor_chunk_bytes));
    bytes = bytes.subspan(chunk.size());
    if (!hasher.leaf(chunk, leaves[n]))
      return false;
    // Hashed first, so that the search finds the chunk in the cache; few are hashed twice.
    if (known == nans::any && holds_nan(type, chunk)) {
      const std::span<std::byte> copy(replaced, chunk.size());
      std::memcpy(copy.data(), chunk.data(), chunk.size());
      canonicalize(type, copy);
      if (!hasher.leaf(copy, leaves[n]))
        return false;
    }
  }
  return hasher.reduce(std::span(leaves, n), out);
}

/// The Merkle root over the chunks of each range, where the host reaches the bytes; blocks of
/// chunks of all of them are hashed in parallel.
template <execution_space Space>
std::vector<hash256> range_roots_on_host(const Space& space, std::span<const chunk_range> ranges,
                                         nans known) {
  std::vector<std::size_t> first_block{0};
  for (const chunk_range& r : ranges)
    first_block.push_back(first_block.back() + (r.bytes.size() + block_bytes - 1) / block_bytes);
  std::vector<hash256> blocks(first_block.back());
  std::atomic<bool> hashed{true};
  std::atomic<bool>* const all_hashed = &hashed;
  hash256* const out = blocks.data();
  const std::size_t* const first = first_block.data();
  const std::size_t* const last = first + first_block.size();
  const chunk_range* const all = ranges.data();
  ordo::detail::for_each(
      space, "ordo::digest::range_roots", static_cast<std::int64_t>(blocks.size()),
      [=](std::int64_t i) {
        const auto block = static_cast<std::size_t>(i);
        const auto range =
            static_cast<std::size_t>(std::upper_bound(first, last, block) - first) - 1;
        const auto rest = all[range].bytes.subspan((block - first[range]) * block_bytes);
        const auto bytes = rest.first(std::min(rest.size(), block_bytes));
        if (!block_root(all[range].type, bytes, known, out[block]))
          *all_hashed = false;
      });
  require_hashed(hashed);
  std::vector<hash256> roots;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    roots.push_back(merkle_root(std::span(blocks).subspan(first[r], first[r + 1] - first[r])));
  }
  return roots;
}

} // namespace detail

/// Merkle roots over the chunks of ranges, waited for later: on a device `start` leaves the work in
/// the order of its stream, elsewhere it is done on return. Keeps its memory from call to call.
///
/// The bytes lie in the memory of `space` and must stay as they are until the stream has passed.
/// Cost: reads every byte once; 32 bytes of memory for 512 KiB.
template <execution_space Space>
class range_digester {
public:
  void start(const Space& space, std::span<const chunk_range> ranges, nans known = nans::any) {
    roots_ = detail::range_roots_on_host(space, ranges, known);
  }
  /// Of what `start` was given, in its order. Once after each `start`.
  std::vector<hash256> finish() { return std::move(roots_); }

private:
  std::vector<hash256> roots_;
};

#if defined(ORDO_CUDA)
template <>
class range_digester<Kokkos::Cuda> : public cuda_range_digester {};
#endif

/// Roots of tensors, waited for later: as range_digester, of which this is the one for tensors.
///
/// Bits: of names, types, shapes and bytes alone, NaNs being equal. Throws: bytes that do not fill
/// the shape.
template <execution_space Space>
class tensor_digester {
public:
  void start(const Space& space, std::span<const tensor_ref> tensors, nans known = nans::any) {
    std::vector<chunk_range> ranges;
    for (const tensor_ref& t : tensors) {
      require_filled(t, "ordo::digest::tensor_digester");
      ranges.push_back({t.type, t.bytes});
    }
    ranges_.start(space, ranges, known);
    tensors_.assign(tensors.begin(), tensors.end());
  }
  /// What `start` was given, in its order. Once after each `start`.
  std::vector<named_root> finish() {
    const std::vector<hash256> chunks = ranges_.finish();
    std::vector<named_root> roots;
    for (std::size_t t = 0; t < tensors_.size(); ++t)
      roots.push_back({tensors_[t].name, tensor_root(tensors_[t], chunks[t])});
    return roots;
  }

private:
  range_digester<Space> ranges_;
  std::vector<tensor_ref> tensors_;
};

/// Roots of tensors in the order given. Sync: returns when done. Otherwise as tensor_digester.
template <execution_space Space>
std::vector<named_root> tensor_roots(const Space& space, std::span<const tensor_ref> tensors,
                                     nans known = nans::any) {
  tensor_digester<Space> digester;
  digester.start(space, tensors, known);
  return digester.finish();
}

/// The root over tensor roots in ascending byte-wise order of their names, whatever the order
/// given. Throws: a name twice.
inline hash256 state_root(std::span<const named_root> roots) {
  std::vector<const named_root*> order;
  for (const named_root& entry : roots)
    order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const named_root* a, const named_root* b) { return a->name < b->name; });
  merkle_accumulator tree;
  for (std::size_t i = 0; i < order.size(); ++i) {
    require(i == 0 || order[i]->name != order[i - 1]->name, "ordo::digest::state_root",
            "two tensors are called '" + order[i]->name + "'", "names give the order");
    tree.append(leaf_hash(std::as_bytes(std::span(order[i]->root))));
  }
  return tree.root();
}

} // namespace ordo::digest
