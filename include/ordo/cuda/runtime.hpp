// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What the CUDA kernels share: checked calls, the device's limits, and the launch.
///
/// Headers of this folder need the CUDA runtime and nvcc, not Kokkos. Their entry points take a
/// stream first, then pointers to device memory with extents, return when the work is in the
/// stream, and throw ordo::error where the runtime reports a failure.

#include <cstdint>
#include <string>

#include <cuda_runtime.h>

#include <ordo/core/error.hpp>

namespace ordo::cuda {

/// Throws unless `status` is success.
inline void check(cudaError_t status, const char* where) {
  if (status != cudaSuccess) {
    throw error(where,
                std::string("CUDA reports ") + cudaGetErrorName(status) + " (" +
                    cudaGetErrorString(status) + ")",
                "see docs/backends.md for the devices and drivers that were tried");
  }
}

/// What kernels ask of the device that is current.
struct device_limits {
  int multiprocessors, shared_per_block, major, minor;

  /// 90 for compute capability 9.0.
  int capability() const { return 10 * major + minor; }
};

/// The limits of the current device; asked once for each device.
inline const device_limits& limits() {
  constexpr int most_devices = 64;
  static device_limits known[most_devices];
  static bool asked[most_devices] = {};
  int device = 0;
  check(cudaGetDevice(&device), "ordo::cuda::limits");
  require(device < most_devices, "ordo::cuda::limits", "device " + std::to_string(device),
          "devices 0 to 63 are supported; set CUDA_VISIBLE_DEVICES");
  if (!asked[device]) {
    const auto get = [&](cudaDeviceAttr attribute) {
      int value = 0;
      check(cudaDeviceGetAttribute(&value, attribute, device), "ordo::cuda::limits");
      return value;
    };
    known[device] = {
        get(cudaDevAttrMultiProcessorCount), get(cudaDevAttrMaxSharedMemoryPerBlockOptin),
        get(cudaDevAttrComputeCapabilityMajor), get(cudaDevAttrComputeCapabilityMinor)};
    asked[device] = true;
  }
  return known[device];
}

/// Launches `kernel` with `shared` bytes of dynamic shared memory and reports what the launch says.
/// An empty grid is no launch.
template <class... Parameters, class... Arguments>
void launch(const char* where, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared, cudaStream_t stream, const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return;
  if (shared > 48 * 1024) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)),
          where);
  }
  kernel<<<grid, block, shared, stream>>>(arguments...);
  check(cudaGetLastError(), where);
}

/// The number of pieces of `size` that cover `n`.
template <class T>
__host__ __device__ constexpr T pieces(T n, T size) {
  return (n + size - 1) / size;
}

} // namespace ordo::cuda
