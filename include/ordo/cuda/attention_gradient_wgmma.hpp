// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The third stage of attention's backward pass by warpgroups, compute capability 9.0a: the sums of
/// attention_gradient_sums.hpp.
///
/// One thread copies tiles and slabs into a ring of stages; two warpgroups multiply and sum, 64
/// columns each. The grid stays and walks through the items.

#include <cstdint>

#include <ordo/cuda/attention_gradient_sums.hpp>
#include <ordo/cuda/attention_wgmma.hpp>

namespace ordo::cuda::detail {

/// Shared memory and threads. A stage: a tile, one part of a slab, the shifts of the tile's rows.
struct sums_ring {
  static constexpr int stages = 8, threads = 384, columns = 128;
  static constexpr int slab = tile_bytes, rest = slab + columns * 128;
  static constexpr int stage = rest + 128, copied = rest + attention_block;
  static constexpr int full = stages * stage, empty = full + 8 * stages, size = empty + 8 * stages;
};

/// Whether warpgroups can sum gradients of heads of this padded dimension.
template <int Dim>
bool sums_by_warpgroups() {
  return Dim % sums_ring::columns == 0 && hopper::available();
}

#if defined(__CUDACC__)

/// The copies of all items; one thread.
template <int Dim>
__device__ __forceinline__ void copy_tiles(const attention_inputs& a, const gradient_buffers& b,
                                           const tile_pass& pass, const sum_plan& plan, int items,
                                           std::uint32_t shared) {
  constexpr int parts = Dim / sums_ring::columns;
  hopper::ring_place<sums_ring::stages> ring;
  for (item_order order; order.item < items; order.advance()) {
    tile_walk w = start_walk<Dim>(a, b, pass, plan, order.item / parts);
    const uint4* right = w.right + order.item % parts * (sums_ring::columns * 8);
    for (int i = 0; i < w.count; ++i) {
      const std::uint32_t to = shared + ring.stage * sums_ring::stage;
      const std::uint32_t full = shared + sums_ring::full + 8 * ring.stage;
      hopper::barrier_wait(shared + sums_ring::empty + 8 * ring.stage, ring.parity ^ 1u);
      hopper::barrier_expect(full, sums_ring::copied);
      load_bytes(to, w.left + w.tile * tile_words, tile_bytes, full);
      load_bytes(to + sums_ring::slab, right + std::int64_t{w.slab} * (Dim * 8),
                 sums_ring::columns * 128, full);
      load_bytes(to + sums_ring::rest, w.rest + w.tile * (3 * 64), attention_block, full);
      w.advance(pass.numbers);
      ring.advance();
    }
  }
}

/// What a warpgroup does with its 64 columns. With the bytes' products hh, hl, lh, ll, the sum of a
/// row is y 2^8 + ll where y = hh 2^8 + hl + lh is below 2^27.
class sums_of_group {
public:
  __device__ __forceinline__ sums_of_group(const unsigned char* memory, int half)
      : memory_(memory), shared_(hopper::shared_address(memory)), half_(half),
        lane_(threadIdx.x % 32), strip_(threadIdx.x / 32 % 4) {}

  /// Sums `count` tiles, the next of the ring.
  __device__ __forceinline__ void add_tiles(int count, bool half_order) {
#pragma unroll
    for (int e = 0; e < 32; ++e)
      sum_[e] = 0;
    for (int i = 0; i < count; ++i) {
      const int stage = ring_.stage;
      const operands x = load(half_order);
      hopper::products_begin();
      multiply_low(x);
      hopper::products_commit();
      multiply_high(x);
      hopper::products_commit();
      hopper::products_wait<1>();
      hopper::products_settle(low_);
      add(low_, x.f, 0); // while the others run
      hopper::products_wait<0>();
      hopper::products_settle(high_);
      hopper::products_settle(middle_);
      release(stage);
#pragma unroll
      for (int e = 0; e < 32; ++e)
        high_[e] = high_[e] * 256 + middle_[e];
      add(high_, x.f, 8);
    }
  }

  /// The sums to the walk's result, from column `first` on.
  __device__ __forceinline__ void store(const attention_inputs& a, const tile_walk& w, int first,
                                        int dim) const {
    const std::int64_t at = (16 * strip_ + lane_ / 4) * dim + first + half_ * 64 + 2 * (lane_ % 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        store_pair(a, w, at + 8 * i + 8 * h * dim, sum_[4 * i + 2 * h], sum_[4 * i + 2 * h + 1]);
    }
  }

private:
  /// Left shifts of the lane's two rows.
  struct factors {
    int shift[2];
  };
  struct operands {
    uint4 low[2], high[2];
    std::uint64_t b_low, b_high;
    factors f;
  };

  /// Waits for the ring's next stage and reads the warp's 16 rows of the tile.
  __device__ __forceinline__ operands load(bool half_order) {
    hopper::barrier_wait(shared_ + sums_ring::full + 8 * ring_.stage, ring_.parity);
    const unsigned char* from = memory_ + ring_.stage * sums_ring::stage;
    const uint4* left = reinterpret_cast<const uint4*>(from) + strip_ * 2 * piece_words;
    const unsigned char* rest = from + sums_ring::rest + 16 * strip_ + lane_ / 4;
    operands x;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      x.low[k] = load_fragment(left + k * piece_words, lane_, half_order);
      x.high[k] = load_fragment(left + k * piece_words + 32, lane_, half_order);
    }
    x.f.shift[0] = rest[0];
    x.f.shift[1] = rest[8];
    const std::uint32_t slab =
        shared_ + ring_.stage * sums_ring::stage + sums_ring::slab + half_ * 64 * 16;
    x.b_low = core_operand<sums_ring::columns>(slab);
    x.b_high = core_operand<sums_ring::columns>(slab + sums_ring::columns * 64);
    ring_.advance();
    return x;
  }
  static constexpr int step = sums_ring::columns * 32 / 16; ///< of an operand, for 32 along k

  __device__ __forceinline__ void multiply_high(const operands& x) {
    using enum byte_kind;
    multiply_rows<high, high>(high_, x.high[0], x.b_high, false);
    multiply_rows<high, high>(high_, x.high[1], x.b_high + step, true);
    multiply_rows<high, low>(middle_, x.high[0], x.b_low, false);
    multiply_rows<low, high>(middle_, x.low[0], x.b_high, true);
    multiply_rows<high, low>(middle_, x.high[1], x.b_low + step, true);
    multiply_rows<low, high>(middle_, x.low[1], x.b_high + step, true);
  }
  __device__ __forceinline__ void multiply_low(const operands& x) {
    using enum byte_kind;
    multiply_rows<low, low>(low_, x.low[0], x.b_low, false);
    multiply_rows<low, low>(low_, x.low[1], x.b_low + step, true);
  }
  /// Adds x 2^(shift + more) modulo 2^64. Where a product of 32 bits does not do, four do: from
  /// 2^32 on, x 2^(n - 32) modulo 2^32 is enough.
  __device__ __forceinline__ void add(std::int32_t (&x)[32], const factors& f, int more) {
    const int n[2] = {f.shift[0] + more, f.shift[1] + more};
    const bool once = __all_sync(~0u, n[0] <= 30 && n[1] <= 30) != 0;
    std::int32_t scale[2] = {1 << min(n[0], 30), 1 << min(n[1], 30)};
    int left = 1;
    if (!once) {
      left = 4;
#pragma unroll
      for (int e = 0; e < 32; ++e) {
        const int above = n[e / 2 % 2] - 32;
        x[e] = above < 0 ? x[e] : above < 32 ? x[e] << above : 0;
      }
    }
#pragma unroll 1
    for (;;) {
#pragma unroll
      for (int e = 0; e < 32; ++e)
        sum_[e] = add_product(sum_[e], x[e], scale[e / 2 % 2]);
      if (--left == 0)
        return;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int times = n[h] < 31 ? 1 : n[h] < 32 ? 2 : 4;
        scale[h] = 4 - left < times ? scale[h] : 0;
      }
    }
  }
  __device__ __forceinline__ void release(int stage) const {
    if (lane_ == 0)
      hopper::barrier_arrive(shared_ + sums_ring::empty + 8 * stage);
  }

  const unsigned char* memory_;
  std::uint32_t shared_;
  int half_, lane_, strip_;
  hopper::ring_place<sums_ring::stages> ring_;
  std::int32_t high_[32], middle_[32], low_[32];
  std::int64_t sum_[32];
};

/// Items as those of gradient_sums_kernel, each with its parts of the head dimension.
template <int Dim>
__global__ void __launch_bounds__(sums_ring::threads, 1)
    gradient_sums_wgmma_kernel(__grid_constant__ const attention_inputs a,
                               __grid_constant__ const gradient_buffers b,
                               __grid_constant__ const tile_pass pass,
                               __grid_constant__ const sum_plan plan, int items) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(16) unsigned char shared[];
  const std::uint32_t base = hopper::shared_address(shared);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < sums_ring::stages; ++s) {
      hopper::barrier_init(base + sums_ring::full + 8 * s, 1);
      hopper::barrier_init(base + sums_ring::empty + 8 * s, 8); // one for each warp
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  if (group == 0) {
    hopper::registers_down_to<40>();
    if (threadIdx.x == 0)
      copy_tiles<Dim>(a, b, pass, plan, items, base);
  } else {
    hopper::registers_up_to<232>();
    constexpr int parts = Dim / sums_ring::columns;
    sums_of_group work(shared, group - 1);
    item_order order;
    tile_walk w = start_walk<Dim>(a, b, pass, plan, order.item / parts);
    while (order.item < items) {
      const int column = order.item % parts * sums_ring::columns;
      work.add_tiles(w.count, !w.by_key);
      order.advance();
      const tile_walk done = w;
      w = start_walk<Dim>(a, b, pass, plan, min(order.item, items - 1) / parts);
      work.store(a, done, column, Dim);
    }
  }
#endif
}

template <int Dim>
void gradient_sums_wgmma(cudaStream_t stream, const attention_inputs& a, const gradient_buffers& b,
                         const tile_pass& pass) {
  const sum_plan plan = make_sum_plan(a, pass);
  const int items = (2 * plan.key_items + plan.query_items) * (Dim / sums_ring::columns);
  const int grid = items < limits().multiprocessors ? items : limits().multiprocessors;
  launch("ordo::cuda::attention_backward", gradient_sums_wgmma_kernel<Dim>,
         dim3(static_cast<unsigned>(grid)), dim3(sums_ring::threads), sums_ring::size, stream, a, b,
         pass, plan, items);
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
