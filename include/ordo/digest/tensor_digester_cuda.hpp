// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Roots of tensors in the memory of a CUDA device: hashed there, 32 bytes a tensor come back.

#include <ordo/core/execution.hpp>

#if defined(ORDO_CUDA)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <ordo/cuda/tensor_digest.hpp>
#include <ordo/digest/tensor.hpp>

namespace ordo::digest {

static_assert(cuda::digest_chunk == tensor_chunk_bytes);

/// tensor_digester of Kokkos::Cuda (state.hpp).
class cuda_tensor_digester {
public:
  void start(const Kokkos::Cuda& space, std::span<const tensor_ref> tensors,
             nans known = nans::any) {
    if (started_) // of a call that never came to its end
      space_.fence();
    tensors_.assign(tensors.begin(), tensors.end());
    const plan p = make_plan(known);
    const std::size_t tables =
        p.sources.size() * sizeof(cuda::digest_source) + p.joins.size() * sizeof(cuda::digest_join);
    const std::size_t hashes = static_cast<std::size_t>(p.leaves + p.joined);
    const std::size_t results = p.sources.size() * sizeof(cuda::sha256_words);
    grow(device_, tables + hashes * sizeof(cuda::sha256_words));
    grow(host_, tables + results);
    if (!p.sources.empty()) {
      std::byte* const to = host_.data();
      const std::size_t first = p.sources.size() * sizeof(cuda::digest_source);
      std::memcpy(to, p.sources.data(), first);
      std::memcpy(to + first, p.joins.data(), tables - first);
      enqueue(space.cuda_stream(), p, tables, first, results);
    }
    space_ = space;
    results_at_ = tables;
    started_ = true;
  }

  std::vector<named_root> finish() {
    require(started_, where, "nothing was started", "call start first");
    space_.fence();
    started_ = false;
    std::vector<named_root> roots;
    std::size_t next = 0;
    for (const tensor_ref& tensor : tensors_) {
      hash256 chunks = sha256_of(std::string_view());
      if (!tensor.bytes.empty()) {
        cuda::sha256_words words;
        std::memcpy(&words, host_.data() + results_at_ + next++ * sizeof words, sizeof words);
        for (std::size_t i = 0; i < chunks.size(); ++i)
          chunks[i] = static_cast<std::uint8_t>(words.h[i / 4] >> (24 - 8 * (i % 4)));
      }
      roots.push_back({tensor.name, tensor_root(tensor, chunks)});
    }
    return roots;
  }

private:
  static constexpr const char* where = "ordo::digest::tensor_digester";

  /// What is hashed and joined, level after level. Sources and joins are in the order of tensors.
  struct plan {
    std::vector<cuda::digest_source> sources;
    std::vector<cuda::digest_join> joins;
    std::vector<std::int64_t> levels; ///< joins of each
    std::int64_t leaves = 0, joined = 0;
  };

  plan make_plan(nans known) const {
    plan p;
    std::vector<std::int64_t> sizes; // hashes of each tensor on the level
    for (const tensor_ref& t : tensors_) {
      require_filled(t, where);
      if (t.bytes.empty())
        continue;
      const auto bytes = static_cast<std::int64_t>(t.bytes.size());
      cuda::digest_element element = cuda::digest_element::any;
      if (known == nans::any && t.type == dtype::f32)
        element = cuda::digest_element::f32;
      if (known == nans::any && t.type == dtype::bf16)
        element = cuda::digest_element::bf16;
      p.sources.push_back(
          {reinterpret_cast<const unsigned char*>(t.bytes.data()), bytes, p.leaves, element});
      sizes.push_back(cuda::pieces(bytes, cuda::digest_chunk));
      p.leaves += sizes.back();
    }
    bool whole = sizes.empty();
    while (!whole) {
      whole = true;
      std::int64_t first = 0, joins = 0;
      for (std::int64_t& size : sizes) {
        for (std::int64_t i = 0; i < size; i += cuda::digest_joined) {
          const std::int64_t count = std::min(cuda::digest_joined, size - i);
          p.joins.push_back({first + i, static_cast<std::int32_t>(count)});
        }
        first += size;
        size = cuda::pieces(size, cuda::digest_joined);
        joins += size;
        whole = whole && size == 1;
      }
      p.levels.push_back(joins);
      p.joined += joins;
    }
    return p;
  }

  void enqueue(cudaStream_t stream, const plan& p, std::size_t tables, std::size_t first_join,
               std::size_t results) {
    std::byte* const device = device_.data();
    cuda::check(cudaMemcpyAsync(device, host_.data(), tables, cudaMemcpyHostToDevice, stream),
                where);
    // Hashes first in `words`, so that they are aligned; the tables are multiples of 8 bytes.
    auto* from = reinterpret_cast<cuda::sha256_words*>(device + tables);
    const auto* join = reinterpret_cast<const cuda::digest_join*>(device + first_join);
    cuda::digest_leaves(stream, reinterpret_cast<const cuda::digest_source*>(device),
                        static_cast<int>(p.sources.size()), p.leaves, from);
    std::int64_t below = p.leaves;
    for (const std::int64_t joins : p.levels) {
      cuda::digest_joins(stream, join, joins, from, from + below);
      from += below;
      join += joins;
      below = joins;
    }
    cuda::check(
        cudaMemcpyAsync(host_.data() + tables, from, results, cudaMemcpyDeviceToHost, stream),
        where);
  }

  template <class View>
  static void grow(View& view, std::size_t bytes) {
    if (view.extent(0) < bytes)
      view = View(Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(where)), bytes);
  }

  std::vector<tensor_ref> tensors_;
  Kokkos::Cuda space_;
  Kokkos::View<std::byte*, Kokkos::CudaSpace> device_;
  Kokkos::View<std::byte*, Kokkos::CudaHostPinnedSpace> host_;
  std::size_t results_at_ = 0;
  bool started_ = false;
};

} // namespace ordo::digest

#endif // ORDO_CUDA
