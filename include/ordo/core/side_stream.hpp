// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// A second stream of one device, for work that need not wait for the first: sums, which the memory
/// bounds, beside digests, which the integer units bound.

#include <ordo/core/execution.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/runtime.hpp>
#endif

namespace ordo {

/// On the host there is one order of work: everything is done on return.
template <execution_space Space>
class side_stream {
public:
  explicit side_stream(const Space& main) : space_(main) {}

  /// Where the side's work is launched.
  const Space& space() const { return space_; }
  /// What the side is given from now on waits for everything that `main` has.
  void follow(const Space&) {}
  /// What `main` is given from now on waits for everything that the side has.
  void join(const Space&) {}

private:
  Space space_;
};

#if defined(ORDO_CUDA)
namespace detail {

/// A stream that the device prefers to those of ordinary priority, and an event.
class urgent_stream {
public:
  urgent_stream() {
    int least = 0, greatest = 0;
    cuda::check(cudaDeviceGetStreamPriorityRange(&least, &greatest), where);
    cuda::check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), where);
    const cudaError_t made = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    if (made != cudaSuccess)
      cudaStreamDestroy(stream_);
    cuda::check(made, where);
  }
  urgent_stream(const urgent_stream&) = delete;
  urgent_stream& operator=(const urgent_stream&) = delete;
  ~urgent_stream() {
    cudaEventDestroy(event_);
    cudaStreamDestroy(stream_);
  }

  cudaStream_t stream() const { return stream_; }
  /// What `later` is given from now on waits for everything that `earlier` has.
  void order(cudaStream_t earlier, cudaStream_t later) const {
    cuda::check(cudaEventRecord(event_, earlier), where);
    cuda::check(cudaStreamWaitEvent(later, event_, 0), where);
  }

private:
  static constexpr const char* where = "ordo::side_stream";
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

} // namespace detail

template <>
class side_stream<Kokkos::Cuda> {
public:
  explicit side_stream(const Kokkos::Cuda&) : space_(stream_.stream()) {}

  const Kokkos::Cuda& space() const { return space_; }
  void follow(const Kokkos::Cuda& main) { stream_.order(main.cuda_stream(), stream_.stream()); }
  void join(const Kokkos::Cuda& main) { stream_.order(stream_.stream(), main.cuda_stream()); }

private:
  detail::urgent_stream stream_; // outlives the space that refers to it
  Kokkos::Cuda space_;
};
#endif

} // namespace ordo
