// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Aligned memory for packed operands, kept by the calling thread from one call to the next.

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace ordo::cpu {

/// `bytes` of memory aligned to 64 for the length of a scope. A nested scope gets its own.
class scratch {
public:
  explicit scratch(std::size_t bytes) : block_(std::move(kept())) {
    if (block_.size >= bytes)
      return;
    block_ = {};
    block_.memory.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    block_.size = bytes;
  }
  ~scratch() {
    if (block_.size > kept().size && block_.size <= most_kept)
      kept() = std::move(block_);
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;

  template <class T>
  T* at(std::size_t byte) const {
    return reinterpret_cast<T*>(block_.memory.get() + byte);
  }

private:
  static constexpr std::size_t most_kept = std::size_t{64} << 20;

  struct release {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  struct block {
    std::unique_ptr<std::byte, release> memory;
    std::size_t size = 0;

    block() = default;
    block(block&& other) noexcept
        : memory(std::move(other.memory)), size(std::exchange(other.size, 0)) {}
    block& operator=(block&& other) noexcept {
      memory = std::move(other.memory);
      size = std::exchange(other.size, 0);
      return *this;
    }
  };
  static block& kept() {
    thread_local block of_this_thread;
    return of_this_thread;
  }

  block block_;
};

/// `bytes` up to the next multiple of the alignment.
constexpr std::size_t aligned_size(std::size_t bytes) {
  return (bytes + 63) & ~std::size_t{63};
}

} // namespace ordo::cpu
