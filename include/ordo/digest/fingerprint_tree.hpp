// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// XXH3-128 over chunks, so that many threads and devices can make it: for accidents, not for
/// claims (fingerprint.hpp).

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ordo/core/execution.hpp>
#include <ordo/digest/fingerprint.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/xxh3.hpp>
#endif

namespace ordo::digest {

/// Bytes of one leaf.
inline constexpr std::size_t fingerprint_chunk = 16384;

namespace detail {

/// Leaf fingerprints of bytes that the host reaches.
template <execution_space Space>
std::vector<hash128> fingerprint_leaves(const Space& space, std::span<const std::byte> bytes) {
  std::vector<hash128> leaves((bytes.size() + fingerprint_chunk - 1) / fingerprint_chunk);
  hash128* const out = leaves.data();
  ordo::detail::for_each(space, "ordo::digest::fingerprint_tree",
                         static_cast<std::int64_t>(leaves.size()), [=](std::int64_t i) {
                           const auto rest =
                               bytes.subspan(static_cast<std::size_t>(i) * fingerprint_chunk);
                           out[i] =
                               fingerprint_of(rest.first(std::min(rest.size(), fingerprint_chunk)));
                         });
  return leaves;
}

#if defined(ORDO_CUDA)
static_assert(cuda::xxh3_chunk == fingerprint_chunk);

/// Of bytes on a CUDA device; a short end is copied and hashed by the host.
inline std::vector<hash128> fingerprint_leaves(const Kokkos::Cuda& space,
                                               std::span<const std::byte> bytes) {
  const char* const where = "ordo::digest::fingerprint_tree";
  const std::size_t rest = bytes.size() % fingerprint_chunk;
  const bool by_host = rest > 0 && rest < static_cast<std::size_t>(cuda::xxh3_shortest);
  const auto head = bytes.first(bytes.size() - (by_host ? rest : 0));
  const std::size_t n = (head.size() + fingerprint_chunk - 1) / fingerprint_chunk;
  std::vector<hash128> leaves(n);
  if (n > 0) {
    const Kokkos::View<cuda::xxh3_words*, Kokkos::CudaSpace> device(
        Kokkos::view_alloc(space, Kokkos::WithoutInitializing, std::string(where)), n);
    cuda::xxh3_leaves(space.cuda_stream(), head.data(), static_cast<std::int64_t>(head.size()),
                      device.data());
    const auto host = Kokkos::create_mirror_view(device);
    Kokkos::deep_copy(space, host, device);
    space.fence();
    for (std::size_t i = 0; i < n; ++i)
      leaves[i] = canonical(XXH128_hash_t{host(i).low, host(i).high});
  }
  if (by_host) {
    std::byte end[cuda::xxh3_shortest];
    cuda::check(cudaMemcpyAsync(end, bytes.data() + head.size(), rest, cudaMemcpyDeviceToHost,
                                space.cuda_stream()),
                where);
    space.fence();
    leaves.push_back(fingerprint_of(std::span<const std::byte>(end, rest)));
  }
  return leaves;
}
#endif

} // namespace detail

/// XXH3-128 of the concatenated fingerprints, in canonical form, of the chunks of `bytes`, which
/// lie in the memory of `space`.
///
/// Bits: of the bytes alone. Sync: returns when done.
template <execution_space Space>
hash128 fingerprint_tree(const Space& space, std::span<const std::byte> bytes) {
  const std::vector<hash128> leaves = detail::fingerprint_leaves(space, bytes);
  return fingerprint_of(std::as_bytes(std::span(leaves)));
}

} // namespace ordo::digest
