// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Roots over chunks in the memory of a CUDA device: hashed there, 32 bytes a range come back.

#include <ordo/core/execution.hpp>

#if defined(ORDO_CUDA)

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <ordo/cuda/tensor_digest.hpp>
#include <ordo/digest/tensor.hpp>

namespace ordo::digest {

static_assert(cuda::digest_chunk == tensor_chunk_bytes);

/// range_digester of Kokkos::Cuda (state.hpp).
class cuda_range_digester {
public:
  void start(const Kokkos::Cuda& space, std::span<const chunk_range> ranges,
             nans known = nans::any) {
    if (started_) // of a call that never came to its end
      space_.fence();
    ranges_.assign(ranges.begin(), ranges.end());
    const cuda::digest_plan p = make_plan(known);
    const std::size_t tables =
        p.sources.size() * sizeof(cuda::digest_source) + p.joins.size() * sizeof(cuda::digest_join);
    const std::size_t hashes = static_cast<std::size_t>(p.hashes());
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

  std::vector<hash256> finish() {
    require(started_, where, "nothing was started", "call start first");
    space_.fence();
    started_ = false;
    std::vector<hash256> roots;
    std::size_t next = 0;
    for (const chunk_range& range : ranges_) {
      if (range.bytes.empty()) {
        roots.push_back(sha256_of(std::string_view()));
        continue;
      }
      cuda::sha256_words words;
      std::memcpy(&words, host_.data() + results_at_ + next++ * sizeof words, sizeof words);
      roots.push_back(words.bytes());
    }
    return roots;
  }

private:
  static constexpr const char* where = "ordo::digest::range_digester";

  cuda::digest_plan make_plan(nans known) const {
    cuda::digest_plan p;
    for (const chunk_range& t : ranges_) {
      if (t.bytes.empty())
        continue;
      cuda::digest_element element = cuda::digest_element::any;
      if (known == nans::any && t.type == dtype::f32)
        element = cuda::digest_element::f32;
      if (known == nans::any && t.type == dtype::bf16)
        element = cuda::digest_element::bf16;
      p.add(t.bytes.data(), static_cast<std::int64_t>(t.bytes.size()), element);
    }
    p.join();
    return p;
  }

  /// The tables go to the device, and its memory after them holds the hashes; the tables' sizes are
  /// multiples of 8 bytes.
  void enqueue(cudaStream_t stream, const cuda::digest_plan& p, std::size_t tables,
               std::size_t first_join, std::size_t results) {
    std::byte* const device = device_.data();
    cuda::check(cudaMemcpyAsync(device, host_.data(), tables, cudaMemcpyHostToDevice, stream),
                where);
    const cuda::sha256_words* const roots =
        cuda::digest_roots(stream, p, reinterpret_cast<const cuda::digest_source*>(device),
                           reinterpret_cast<const cuda::digest_join*>(device + first_join),
                           reinterpret_cast<cuda::sha256_words*>(device + tables));
    cuda::check(
        cudaMemcpyAsync(host_.data() + tables, roots, results, cudaMemcpyDeviceToHost, stream),
        where);
  }

  template <class View>
  static void grow(View& view, std::size_t bytes) {
    if (view.extent(0) < bytes)
      view = View(Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(where)), bytes);
  }

  std::vector<chunk_range> ranges_;
  Kokkos::Cuda space_;
  Kokkos::View<std::byte*, Kokkos::CudaSpace> device_;
  Kokkos::View<std::byte*, Kokkos::CudaHostPinnedSpace> host_;
  std::size_t results_at_ = 0;
  bool started_ = false;
};

} // namespace ordo::digest

#endif // ORDO_CUDA
