// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Columns rotated and quantized along their length (quant/rotated.hpp); the result is transposed.

#include <cstdint>

#include <ordo/arith/bf16.hpp>
#include <ordo/cuda/abs_max.hpp>
#include <ordo/cuda/rotate_columns_plain.hpp>
#include <ordo/cuda/rotate_columns_tiles.hpp>
#include <ordo/cuda/runtime.hpp>

namespace ordo::cuda {
namespace detail {

/// The ways to the same bits, by what the device must have: nothing, matrix units (8.0), clusters
/// of thread blocks (9.0).
enum class column_way { plain, tiles, cluster };

/// The architecture that the kernel's code was written for, 90 for 9.0: device code asks
/// __CUDA_ARCH__, which is this number and not the device's.
template <class Kernel>
int compiled_for(Kernel kernel) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
        "ordo::cuda::compiled_for");
  return attributes.ptxVersion;
}

template <class T, bool Whole>
void rotate_columns_by(column_way way, cudaStream_t stream, const T* x, std::int64_t m,
                       std::int64_t columns, const float* common, std::int8_t* codes,
                       float* scale) {
  if (way == column_way::cluster)
    rotate_columns_in_cluster<T, Whole>(stream, cluster_shape::of(m), x, m, columns, common, codes,
                                        scale);
  else if (way == column_way::tiles)
    rotate_columns_by_tiles<T, Whole>(stream, x, m, columns, common, codes, scale);
  else
    rotate_columns_plainly<T, Whole>(stream, x, m, columns, common, codes, scale);
}

/// The way that this device, this program and these sizes allow.
template <class T, bool Whole>
column_way best_column_way(std::int64_t m, std::int64_t columns) {
  const int capability = limits().capability();
  const std::int64_t width = 32; // of the narrowest cluster
  if (capability >= 90 && compiled_for(tile_cluster_kernel<T, Whole>) >= 90 && m > 0 &&
      cluster_shape::of(m).blocks > 0 && columns <= 65535 * width / 2)
    return column_way::cluster;
  if (capability >= 80 && compiled_for(tile_pass_kernel<T, Whole, column_pass::write>) >= 80)
    return column_way::tiles;
  return column_way::plain;
}

/// Whether words and 16-byte pieces may be read and written.
template <class T>
bool whole_columns(const T* x, std::int64_t columns, const std::int8_t* codes) {
  return columns % hadamard_tile<T>::columns == 0 && aligned(x, 4) && aligned(codes, 16);
}

} // namespace detail

/// Rotates and quantizes columns along their length; the result is transposed.
///
/// Shape: x [m, columns] bf16 or int8; codes [columns, rotated_length(m)]; scale [columns], each
/// multiplied by `common[0]` unless `common` is null (the step of int8 input).
/// Bits: column by column, see quant/rotated.hpp.
template <class T>
void rotate_columns(cudaStream_t stream, const T* x, std::int64_t m, std::int64_t columns,
                    const float* common, std::int8_t* codes, float* scale) {
  if (columns == 0)
    return;
  const auto run = [&]<bool Whole>(std::bool_constant<Whole>) {
    detail::rotate_columns_by<T, Whole>(detail::best_column_way<T, Whole>(m, columns), stream, x, m,
                                        columns, common, codes, scale);
  };
  if (detail::whole_columns(x, columns, codes))
    run(std::true_type{});
  else
    run(std::false_type{});
}

} // namespace ordo::cuda
