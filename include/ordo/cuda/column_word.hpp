// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What a column's scale follows from, in one word, for passes over a matrix that share nothing
/// else: the place of the scale holds it until the scale is known.
///
/// The upper eight bits order alignments as the largest magnitudes do (0: all zeros; 151 - s for
/// the shift s in [-100, 150]; 255: not finite), the lower 24 hold the largest rotated magnitude.
/// Integer maxima of words, first of the upper part alone and then of both, so make the word of the
/// whole column, and the upper part may be read while the lower part grows.

#include <cstdint>

#include <ordo/cuda/runtime.hpp>
#include <ordo/quant/rotation.hpp>

namespace ordo::cuda::detail {

/// The word of a column, or of a part of it, whose largest magnitude has these bits.
__device__ __forceinline__ std::uint32_t column_word(std::uint32_t largest) {
  if (largest == 0)
    return 0;
  if (!arith::is_finite(arith::from_bits(largest)))
    return 255u << 24;
  const int shift = quant::alignment_shift(largest, quant::rotation_limit);
  return static_cast<std::uint32_t>(151 - shift) << 24;
}

__device__ __forceinline__ std::uint32_t word_with(std::uint32_t word, std::int32_t top) {
  return (word & 0xff000000u) | static_cast<std::uint32_t>(top);
}
__device__ __forceinline__ std::int32_t top_of(std::uint32_t word) {
  return static_cast<std::int32_t>(word & 0x00ffffffu);
}
__device__ __forceinline__ bool finite_of(std::uint32_t word) {
  return word >> 24 != 255;
}
__device__ __forceinline__ int shift_of(std::uint32_t word) {
  const int upper = static_cast<int>(word >> 24);
  return upper == 0 || upper == 255 ? 0 : 151 - upper;
}
__device__ __forceinline__ quant::detail::alignment alignment_of(std::uint32_t word) {
  return {shift_of(word), finite_of(word)};
}

/// The scale of a column.
__device__ __forceinline__ float scale_of(std::uint32_t largest, std::int32_t top, int shift,
                                          const float* common) {
  const float scale = quant::rotated_scale(largest, top, shift);
  return quant::column_scale(scale, common != nullptr ? *common : 1.0f);
}

/// Words to scales, in place.
template <int Threads>
__global__ __launch_bounds__(Threads) void column_scale_kernel(float* scale, std::int64_t columns,
                                                               const float* common) {
  const std::int64_t c = std::int64_t{blockIdx.x} * Threads + threadIdx.x;
  if (c >= columns)
    return;
  const std::uint32_t word = arith::bits(scale[c]);
  const std::uint32_t infinity = 0x7f800000u;
  scale[c] = scale_of(finite_of(word) ? 0u : infinity, top_of(word), shift_of(word), common);
}

/// The passes over x: `align` raises the upper parts of the words, `measure` the lower, `write`
/// writes the codes. int8 needs no `align`.
enum class column_pass { align, measure, write };

/// Runs the passes, each of which is `run(pass, words)`, between zero words and scales.
template <class Run>
void in_passes(cudaStream_t stream, bool integers, std::int64_t columns, const float* common,
               float* scale, const Run& run) {
  const char* const where = "ordo::cuda::rotate_columns";
  auto* const words = reinterpret_cast<std::uint32_t*>(scale);
  check(cudaMemsetAsync(words, 0, static_cast<std::size_t>(columns) * sizeof *words, stream),
        where);
  if (!integers)
    run(column_pass::align, words);
  run(column_pass::measure, words);
  run(column_pass::write, words);
  launch(where, column_scale_kernel<256>,
         dim3(static_cast<unsigned>(pieces<std::int64_t>(columns, 256))), dim3(256), 0, stream,
         scale, columns, common);
}

} // namespace ordo::cuda::detail
