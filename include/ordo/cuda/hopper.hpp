// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The instructions of compute capability 9.0a that have no C++ form: barriers in shared memory,
/// the tensor copy engine, clusters, and (in hopper_wgmma.hpp) the products of warpgroups.
///
/// Device functions here may be called only from code that is compiled under
/// `#if defined(__CUDA_ARCH_FEAT_SM90_ALL)`; a kernel keeps an empty body otherwise and its host
/// entry asks `hopper::available()` first. Addresses in shared memory are the 32-bit ones that
/// `shared_address` gives.

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime.h>

#include <ordo/core/error.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda::hopper {

// ---- host: what is there, tensor maps, launches of clusters

/// A kernel that has this much static shared memory exactly where it was compiled for sm_90a.
template <int Bytes = 8192>
__global__ void probe() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ volatile char present[Bytes];
  present[threadIdx.x % Bytes] = 1;
#endif
}

/// Whether the current device is of compute capability 9.0 and this program holds code for sm_90a.
inline bool available() {
  static signed char known[64] = {}; // 1 yes, -1 no; equal whichever thread asks first
  int device = 0;
  check(cudaGetDevice(&device), "ordo::cuda::hopper");
  if (device >= 64)
    return false;
  if (known[device] == 0) {
    bool found = false;
    if (limits().capability() == 90) {
      cudaFuncAttributes attributes{};
      const auto* const kernel = reinterpret_cast<const void*>(&probe<8192>);
      check(cudaFuncGetAttributes(&attributes, kernel), "ordo::cuda::hopper");
      found = attributes.sharedSizeBytes >= 8192;
    }
    known[device] = found ? 1 : -1;
  }
  return known[device] > 0;
}

/// How rows of a box lie in shared memory: `bytes_128` permutes the 16-byte pieces of each 128-byte
/// row by the row's number modulo 8 (boxes at multiples of 1024 bytes), and so on.
enum class swizzle : int { none = 0, bytes_32 = 1, bytes_64 = 2, bytes_128 = 3 };

/// Whether the copy engine can read or write a matrix: base and row stride at multiples of 16
/// bytes, extents that its coordinates can count.
template <class T>
bool mappable(const T* base, std::int64_t rows, std::int64_t columns, std::int64_t row_stride) {
  constexpr std::int64_t most = 0x7fffffff;
  const std::int64_t stride = row_stride * static_cast<std::int64_t>(sizeof(T));
  return reinterpret_cast<std::uintptr_t>(base) % 16 == 0 && stride % 16 == 0 && rows > 0 &&
         columns > 0 && rows <= most && columns <= most && stride < (std::int64_t{1} << 40) &&
         row_stride >= columns;
}

/// The map of a row-major matrix for boxes of `box_rows` x `box_columns` (at most 256 each; a box
/// row must not be longer than the swizzle). Reads beyond the matrix give zeros; writes end with
/// the 16 bytes that hold a row's last entry.
/// Throws: if the matrix is not `mappable`, or the driver refuses.
template <class T>
CUtensorMap tensor_map(const T* base, std::int64_t rows, std::int64_t columns,
                       std::int64_t row_stride, int box_rows, int box_columns, swizzle pattern) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4,
                "ordo::cuda::hopper::tensor_map: elements have 1, 2 or 4 bytes");
  using encode_function = decltype(&cuTensorMapEncodeTiled);
  static const encode_function encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &result),
          "ordo::cuda::hopper::tensor_map");
    return reinterpret_cast<encode_function>(found);
  }();
  require(encode != nullptr && mappable(base, rows, columns, row_stride),
          "ordo::cuda::hopper::tensor_map",
          "no map of " + shape(rows, columns) + " with row stride " + std::to_string(row_stride),
          "use a base and a row stride at multiples of 16 bytes");
  constexpr CUtensorMapDataType type = sizeof(T) == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                       : sizeof(T) == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_stride) * sizeof(T)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map{};
  const CUresult status =
      encode(&map, type, 2, const_cast<std::remove_const_t<T>*>(base), extents, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(pattern),
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(status == CUDA_SUCCESS, "ordo::cuda::hopper::tensor_map",
          "the driver refuses a map of " + shape(rows, columns) + " (code " +
              std::to_string(static_cast<int>(status)) + ")");
  return map;
}

/// As `cuda::launch`, with blocks in clusters of `cluster` along x; the grid is a multiple of it.
template <class... Parameters, class... Arguments>
void launch_clusters(const char* where, void (*kernel)(Parameters...), unsigned cluster, dim3 grid,
                     dim3 block, std::size_t shared, cudaStream_t stream,
                     const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return;
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        where);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), where);
}

// ---- device: addresses, roles, registers

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// True in one thread of a converged warp.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(elected));
  return elected != 0;
}

/// The warpgroup gives registers back, down to `Count` a thread (a multiple of 8, 24 to 256).
template <int Count>
__device__ __forceinline__ void registers_down_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
/// The warpgroup waits for registers, up to `Count` a thread.
template <int Count>
__device__ __forceinline__ void registers_up_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

/// A barrier of `threads` threads of the block (whole warps) under one of the numbers 1 to 15.
__device__ __forceinline__ void named_barrier(int number, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/// As `named_barrier`; true where every thread came with `condition`.
__device__ __forceinline__ bool named_barrier_and(int number, int threads, bool condition) {
  std::uint32_t result;
  asm volatile("{\n .reg .pred p, q;\n setp.ne.u32 p, %3, 0;\n"
               " barrier.cta.red.and.pred q, %1, %2, p;\n selp.u32 %0, 1, 0, q;\n}"
               : "=r"(result)
               : "r"(number), "r"(threads), "r"(static_cast<std::uint32_t>(condition))
               : "memory");
  return result != 0;
}

// ---- device: clusters

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// All threads of the cluster meet; what they wrote before is seen after.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n"
               "barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
/// The address in block `rank` of the cluster that corresponds to `address` in this one.
__device__ __forceinline__ std::uint32_t in_block(std::uint32_t address, std::uint32_t rank) {
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// ---- device: barriers in shared memory (64 bits each), phases counted by parity

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// After the `barrier_init`s, before other threads, the copy engine or other blocks use them.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives at the barrier of another block, given by `in_block`. Publishes nothing that this thread
/// has written: it says that products have read a buffer, which the copy engine may fill again. (A
/// release to the cluster would be a fence of the whole device, in every step of a product.)
__device__ __forceinline__ void barrier_arrive_cluster(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and lets the phase last until `bytes` more bytes have been copied.
__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Whether the phase of this parity is over; waits a little for it.
__device__ __forceinline__ bool barrier_try(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile("{\n .reg .pred p;\n"
               " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
/// Waits until the phase of this parity is over. A barrier that has had no phase counts as having
/// ended one of parity 1.
__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  while (!barrier_try(barrier, parity)) {
  }
}
/// A place in a ring of `Stages` buffers and the parity of its present round.
template <int Stages>
struct ring_place {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
};

/// Four 8 x 8 matrices of 16-bit entries from registers to shared memory: lane l gives the address
/// of row l % 8 of matrix l / 8, and holds entries 2 (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void store_matrices(std::uint32_t address, std::uint32_t m0,
                                               std::uint32_t m1, std::uint32_t m2,
                                               std::uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

// ---- device: the tensor copy engine; one thread issues a copy

/// Between ordinary stores to shared memory and what the copy engine or wgmma reads from there;
/// each writing thread, before the barrier that joins it to the issuing one.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// The box whose first entry is (row, column), to shared memory; its bytes count on `barrier`.
__device__ __forceinline__ void load_box(std::uint32_t to, const CUtensorMap& map, int row,
                                         int column, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
               "l"(&map), "r"(column), "r"(row), "r"(barrier)
               : "memory");
}
/// The same to the same place of every block of the cluster in `mask`, each with its own barrier.
__device__ __forceinline__ void load_box_multicast(std::uint32_t to, const CUtensorMap& map,
                                                   int row, int column, std::uint32_t barrier,
                                                   std::uint16_t mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
               ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
               "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(mask)
               : "memory");
}
/// The box at (row, column) from shared memory; `store_commit` and `store_wait` complete it.
__device__ __forceinline__ void store_box(const CUtensorMap& map, int row, int column,
                                          std::uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(column), "r"(row), "r"(from)
      : "memory");
}
__device__ __forceinline__ void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until at most `Pending` groups of this thread still read shared memory.
template <int Pending>
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
/// Until at most `Pending` groups of this thread are not yet written.
template <int Pending>
__device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}

} // namespace ordo::cuda::hopper

#include <ordo/cuda/hopper_wgmma.hpp>
