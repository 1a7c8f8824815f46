// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Softmax of whole rows of logits: a block reads a row once, after its largest logit is known.

#include <cstdint>

#include <ordo/arith/functions.hpp>
#include <ordo/cuda/fixed_point.hpp>
#include <ordo/cuda/loss_task.hpp>
#include <ordo/loss/loss_sum.hpp>
#include <ordo/loss/partition.hpp>

namespace ordo::cuda::head {

/// The rows of a chunk, whose first row is `labels[0]`, `pulls[0]` and `token_losses[0]`.
struct rows_task {
  const float* logits;
  std::int64_t pitch, rows, vocabulary;
  const std::int32_t* largest_key;
  const std::uint32_t* labels;
  row_terms terms;
  float* pulls;
  float* token_losses;
  std::int64_t* totals;
  float token_scale, z;
};

inline constexpr std::int32_t damaged_key = 0x7fffffff;

/// What a thread adds up over its share of a row.
struct row_share {
  std::int64_t sum = 0; ///< of exponentials in units of 2^-40
  float other = 0.0f;   ///< the largest of them, the label's apart
  float least = 0.0f;   ///< the least difference to the largest logit
};

/// Adds exponentials u of at most 1 in units of 2^-40, each to the nearest even: 12 + u rounds u to
/// units of 2^-20, the rest is exact, and 1.5 * 2^-17 + rest rounds it to units of 2^-40. The upper
/// part is even in these units, so the sum of both is arith::to_int64(arith::mul(u, 2^40)).
template <int Count>
__device__ __forceinline__ std::int64_t units_of(const float (&u)[Count]) {
  constexpr float upper_magic = 12.0f, lower_magic = 0x1.8p-17f;
  std::uint32_t upper = 0, lower = 0;
#pragma unroll
  for (int e = 0; e < Count; ++e) {
    const float high = __fadd_rn(u[e], upper_magic);
    const float rest = __fadd_rn(u[e], -__fadd_rn(high, -upper_magic));
    upper += arith::bits(high) - 0x41400000u;
    lower += arith::bits(__fadd_rn(rest, lower_magic)) - 0x37400000u;
  }
  return std::int64_t{static_cast<std::int32_t>(upper)} * (1 << 20) +
         static_cast<std::int32_t>(lower);
}

/// Takes four logits of consecutive words, of which `label_at` (0 to 3, or another number) is the
/// label.
__device__ __forceinline__ void take_four(const float4& logits, float largest,
                                          std::int64_t label_at, row_share& share) {
  float x[4] = {sliced::sub_values(logits.x, largest), sliced::sub_values(logits.y, largest),
                sliced::sub_values(logits.z, largest), sliced::sub_values(logits.w, largest)};
  const float least = fminf(fminf(x[0], x[1]), fminf(x[2], x[3]));
  share.least = fminf(share.least, least);
  float u[4];
  if (least >= -86.0f) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      u[e] = arith::detail::exp_bounded(x[e]);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      u[e] = arith::exp(x[e]);
  }
  share.sum += units_of(u);
  if (label_at >= 0 && label_at < 4) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      u[e] = e == label_at ? 0.0f : u[e];
  }
  share.other = fmaxf(share.other, fmaxf(fmaxf(u[0], u[1]), fmaxf(u[2], u[3])));
}

/// Threads of a block that works on one row.
inline constexpr int row_threads = 512;

/// The calling thread's share of a row of finite logits.
__device__ __forceinline__ row_share share_of_row(const float* row, std::int64_t vocabulary,
                                                  float largest, std::int64_t label) {
  constexpr int together = 4;
  row_share share;
  const std::int64_t whole = vocabulary & ~std::int64_t{3};
  for (std::int64_t j = 4 * threadIdx.x; j < whole; j += 4 * row_threads * together) {
    float4 logits[together];
#pragma unroll
    for (int c = 0; c < together; ++c) {
      const std::int64_t at = j + 4 * row_threads * c;
      logits[c] = at < whole ? *reinterpret_cast<const float4*>(row + at) : float4{};
    }
#pragma unroll
    for (int c = 0; c < together; ++c) {
      const std::int64_t at = j + 4 * row_threads * c;
      if (at < whole)
        take_four(logits[c], largest, label - at, share);
    }
  }
  const std::int64_t tail = whole + threadIdx.x;
  if (tail < vocabulary) {
    const float x = sliced::sub_values(row[tail], largest);
    const float u[1] = {arith::exp(x)};
    share.least = fminf(share.least, x);
    share.sum += units_of(u);
    share.other = tail == label ? share.other : fmaxf(share.other, u[0]);
  }
  return share;
}

/// The share of the whole block, in thread 0.
__device__ __forceinline__ row_share join_shares(row_share share) {
  constexpr int warps = row_threads / 32;
  __shared__ std::int64_t sum_of[warps];
  __shared__ float other_of[warps], least_of[warps];
  const auto join = [&](const row_share& other) {
    share.sum += other.sum;
    share.other = fmaxf(share.other, other.other);
    share.least = fminf(share.least, other.least);
  };
  constexpr unsigned all = 0xffffffffu;
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1)
    join({static_cast<std::int64_t>(__shfl_xor_sync(all, static_cast<long long>(share.sum), apart)),
          __shfl_xor_sync(all, share.other, apart), __shfl_xor_sync(all, share.least, apart)});
  if (threadIdx.x % 32 == 0) {
    const auto warp = threadIdx.x / 32;
    sum_of[warp] = share.sum, other_of[warp] = share.other, least_of[warp] = share.least;
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < warps; ++w)
      join({sum_of[w], other_of[w], least_of[w]});
  return share;
}

/// Adds a token's loss to the integers of the call.
__device__ inline void count_token(std::int64_t* totals, float token_loss) {
  const auto add = [&](loss::detail::loss_total which, std::int64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(totals + which),
              static_cast<unsigned long long>(value));
  };
  const bool finite = loss::token_is_finite(token_loss);
  const std::int64_t units = finite ? loss::token_units(token_loss) : 0;
  add(loss::detail::counted, 1);
  add(loss::detail::damaged, finite ? 0 : 1);
  add(loss::detail::whole, units >> 32);
  add(loss::detail::fraction, units & 0xffffffff);
}

/// 2^shift if the row's probabilities p and factor * p can be computed without a special case:
/// exponentials need no clamp, no product is as small as 2^-126, and digits need no clamp. An
/// exponential may be an ulp below that of the least logit; two binades are left for that.
__device__ inline float power_of_row(std::int32_t shift, float least, float inverse, float factor) {
  if (!sliced::plain_shift(shift) || !(least >= -86.0f) || !arith::is_finite(factor) ||
      factor == 0.0f)
    return 0.0f;
  const int of_factor = arith::exponent(factor);
  const int smallest = arith::exponent(arith::exp(least)) + arith::exponent(inverse) +
                       (of_factor < 0 ? of_factor : 0);
  return smallest >= -123 ? arith::pow2(shift) : 0.0f;
}

/// The rest of a row's work, by one thread, once the row is added up (or is not finite).
template <bool Keep>
__device__ inline void finish_row(const rows_task& task, std::int64_t row, std::uint32_t label,
                                  float largest, const row_share& share) {
  const float at_label = task.logits[row * task.pitch + label];
  loss::detail::partition part{largest, largest, largest}; // NaN
  if (arith::is_finite(largest)) {
    const float sum = arith::scale_pow2(arith::from_int(share.sum), -40);
    part = loss::detail::partition_of(largest, sum, at_label, task.z);
  }
  count_token(task.totals, part.token_loss);
  if (task.token_losses != nullptr)
    task.token_losses[row] = part.token_loss;
  if constexpr (Keep) {
    const float factor = loss::detail::factor_of(part.log_sum_exp, task.token_scale, task.z);
    const float p = arith::mul(arith::exp(arith::sub(at_label, largest)), part.inverse);
    // Rounding keeps the order of products with one factor.
    const float other = arith::is_finite(largest) || task.vocabulary == 1
                            ? arith::mul(share.other, part.inverse)
                            : largest;
    const std::int32_t shift = ordo::detail::alignment<2>(task.vocabulary == 1 ? 0.0f : other);
    task.pulls[row] = loss::detail::pull_of(factor, p, task.token_scale);
    task.terms.largest[row] = largest;
    task.terms.inverse[row] = part.inverse;
    task.terms.factor[row] = factor;
    task.terms.power[row] =
        arith::is_finite(largest) ? power_of_row(shift, share.least, part.inverse, factor) : 0.0f;
    task.terms.shift[row] = shift;
    task.terms.label[row] = label;
  }
}

/// A row without a token that counts: probabilities of +0.
template <bool Keep>
__device__ inline void skip_row(const rows_task& task, std::int64_t row) {
  const bool exists = row < task.rows;
  if (exists && task.token_losses != nullptr)
    task.token_losses[row] = 0.0f;
  if constexpr (Keep) {
    if (exists)
      task.pulls[row] = 0.0f;
    task.terms.largest[row] = task.terms.inverse[row] = task.terms.factor[row] = 0.0f;
    // Logits of a zero row are +0 or NaN: if none is NaN, 1 * inverse is the +0 that is wanted.
    task.terms.power[row] = exists && task.largest_key[row] == 0 ? 1.0f : 0.0f;
    task.terms.shift[row] = 0;
    task.terms.label[row] = loss::ignore_label;
  }
}

/// A block for each row; with `Keep` also for those that fill up the last block of 256. A label
/// that is no word counts as ignored here: the call ends with an error.
template <bool Keep>
__global__ void __launch_bounds__(row_threads) rows_kernel(const rows_task task) {
  const std::int64_t row = blockIdx.x;
  const std::uint32_t label = row < task.rows ? task.labels[row] : loss::ignore_label;
  if (label >= task.vocabulary) {
    if (threadIdx.x == 0)
      skip_row<Keep>(task, row);
    return;
  }
  const std::int32_t key = task.largest_key[row];
  const float largest =
      key == damaged_key
          ? arith::from_bits(arith::canonical_nan)
          : arith::from_bits(static_cast<std::uint32_t>(loss::detail::order_key(key)));
  row_share share;
  if (key != damaged_key)
    share =
        join_shares(share_of_row(task.logits + row * task.pitch, task.vocabulary, largest, label));
  if (threadIdx.x == 0)
    finish_row<Keep>(task, row, label, largest, share);
}

} // namespace ordo::cuda::head
