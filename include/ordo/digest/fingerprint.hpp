// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// XXH3-128 fingerprints: the digest where only accidents matter.
///
/// Which digest is which: SHA-256 (sha256.hpp, state.hpp) wherever somebody may be lying: records,
/// checkpoints, kits, manifests. XXH3-128 where the question is only whether memory, disk or a
/// kernel went wrong and the bytes pass by often: fingerprints of intermediate tensors, which
/// localise a difference, and integrity of shards while they are read. It is about ten times as
/// quick as SHA-256, but anybody can make two inputs with one fingerprint, so nothing that is
/// published, signed or compared between parties may rest on it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <xxhash.h>

#include <ordo/core/error.hpp>

namespace ordo::digest {

/// 16 bytes in XXH3's canonical (big-endian) form, which `hex` prints as 32 digits.
using hash128 = std::array<std::uint8_t, 16>;

namespace detail {

inline hash128 canonical(const XXH128_hash_t& hash) {
  XXH128_canonical_t form;
  XXH128_canonicalFromHash(&form, hash);
  hash128 out;
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = form.digest[i];
  return out;
}

} // namespace detail

/// Incremental XXH3-128, seed 0. `finish` ends the message and makes the object ready for the next.
///
/// Bits: of the bytes alone, not of how they are divided among updates.
class fingerprint {
public:
  fingerprint() : state_(XXH3_createState(), &XXH3_freeState) {
    require(state_ != nullptr, "ordo::digest::fingerprint", "xxHash is out of memory");
    XXH3_128bits_reset(state_.get());
  }
  fingerprint& update(std::span<const std::byte> bytes) {
    // The oldest xxHash in use refuses a null pointer even with a size of 0.
    if (!bytes.empty())
      XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
    return *this;
  }
  fingerprint& update(std::string_view text) { return update(std::as_bytes(std::span(text))); }
  hash128 finish() {
    const hash128 out = detail::canonical(XXH3_128bits_digest(state_.get()));
    XXH3_128bits_reset(state_.get());
    return out;
  }

private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

/// XXH3-128 of one message.
inline hash128 fingerprint_of(std::span<const std::byte> bytes) {
  return detail::canonical(XXH3_128bits(bytes.data(), bytes.size()));
}
inline hash128 fingerprint_of(std::string_view text) {
  return fingerprint_of(std::as_bytes(std::span(text)));
}

} // namespace ordo::digest
