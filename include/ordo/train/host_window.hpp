// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Tensors that may lie on a device, as files see them: one at a time in the host's memory.

#include <cstddef>
#include <span>
#include <string>

#include <ordo/core/execution.hpp>
#include <ordo/digest/state.hpp>

namespace ordo::train {

/// A window through which the host reads and writes the tensors of `Space`. On the host it is the
/// tensor itself; otherwise a buffer as large as the largest tensor that was looked at.
template <execution_space Space>
class host_window {
public:
  explicit host_window(const Space& space) : space_(space) {}

  /// The bytes of `tensor`, until the next call.
  std::span<const std::byte> read(const digest::tensor_ref& tensor) {
    if constexpr (ordo::detail::on_host<Space>) {
      return tensor.bytes;
    } else {
      const std::span<std::byte> window = buffer(tensor.bytes.size());
      Kokkos::deep_copy(space_, host_bytes(window.data(), window.size()),
                        device_bytes(address(tensor), window.size()));
      space_.fence();
      return window;
    }
  }

  /// Memory for the new bytes of `tensor`, to be filled and then given to `commit`.
  std::span<std::byte> begin_write(const digest::tensor_ref& tensor) {
    if constexpr (ordo::detail::on_host<Space>) {
      return {address(tensor), tensor.bytes.size()};
    } else {
      return buffer(tensor.bytes.size());
    }
  }
  void commit(const digest::tensor_ref& tensor) {
    if constexpr (!ordo::detail::on_host<Space>) {
      Kokkos::deep_copy(space_, device_bytes(address(tensor), tensor.bytes.size()),
                        host_bytes(buffer_.data(), tensor.bytes.size()));
      space_.fence();
    }
  }

private:
  using host_bytes = Kokkos::View<std::byte*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;
  using device_bytes =
      Kokkos::View<std::byte*, typename Space::memory_space, Kokkos::MemoryUnmanaged>;

  /// The tensors are a state's own memory; tensor_ref only lends them read-only to digests.
  static std::byte* address(const digest::tensor_ref& tensor) {
    return const_cast<std::byte*>(tensor.bytes.data());
  }
  std::span<std::byte> buffer(std::size_t bytes) {
    if (buffer_.extent(0) < bytes) {
      buffer_ = {};
      buffer_ = decltype(buffer_)(
          Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string("ordo::train::host_window")),
          bytes);
    }
    return {buffer_.data(), bytes};
  }

  Space space_;
  Kokkos::View<std::byte*, Kokkos::HostSpace> buffer_;
};

} // namespace ordo::train
