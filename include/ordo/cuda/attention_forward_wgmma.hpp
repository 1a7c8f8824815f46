// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The forward pass of attention by warpgroups, compute capability 9.0a: heads of a padded
/// dimension of 128.
///
/// Three warpgroups hold neighbouring blocks of queries of one head; one thread copies the key
/// blocks that any of them sees into a ring that all read. The grid stays and walks through the
/// items; queries of the next item come while this one is computed.

#include <cstdint>

#include <ordo/cuda/attention_softmax.hpp>
#include <ordo/cuda/attention_wgmma.hpp>

namespace ordo::cuda::detail {

/// Shared memory and threads. A stage: a block of k and one of v.
struct forward_ring {
  static constexpr int groups = 3, stages = 5, threads = groups * 128 + 128;
  static constexpr int slab = 2 * 64 * 128, stage = slab + slab / 2;
  static constexpr int queries = groups * slab; ///< one item's; there are two
  static constexpr int ring = 2 * queries, full = ring + stages * stage;
  static constexpr int empty = full + 8 * stages, ready = empty + 8 * stages, done = ready + 16;
  static constexpr int size = done + 16;
};
static_assert(forward_ring::size <= 227 * 1024);

#if defined(__CUDACC__)

/// What follows from the shape: blocks of a sequence; heads of all sequences, of one, of a group.
struct forward_plan {
  std::int32_t blocks, heads, each, group, items;
};

/// One item: up to three blocks of queries of a head, the last of the sequence first.
struct forward_item {
  std::int32_t head, kv;
  std::int32_t last, lowest; ///< last block of queries, first block of keys that one of them sees

  __device__ __forceinline__ forward_item(const nn::attention_shape& s, const forward_plan& p,
                                          int item) {
    head = item % p.heads;
    kv = head / p.group;
    last = p.blocks - 1 - item / p.heads * forward_ring::groups;
    lowest = first(s, max(last - forward_ring::groups + 1, 0));
  }
  /// The first block of keys that a block of queries sees.
  static __device__ __forceinline__ std::int32_t first(const nn::attention_shape& s, int block) {
    return max(block * 64 - static_cast<int>(s.window) + 1, 0) / 64;
  }
};

/// The copies of all items; one thread.
__device__ __forceinline__ void copy_blocks(const attention_forward_arguments& a,
                                            const forward_plan& p, std::uint32_t shared) {
  hopper::ring_place<forward_ring::stages> ring;
  hopper::ring_place<2> turn;
  for (item_order order; order.item < p.items; order.advance()) {
    const forward_item of(a.s, p, order.item);
    const std::uint32_t ready = shared + forward_ring::ready + 8 * turn.stage;
    hopper::barrier_wait(shared + forward_ring::done + 8 * turn.stage, turn.parity ^ 1u);
    const int count = min(of.last + 1, forward_ring::groups);
    hopper::barrier_expect(ready, count * forward_ring::slab);
    for (int w = 0; w < count; ++w) {
      load_bytes(shared + turn.stage * forward_ring::queries + w * forward_ring::slab,
                 a.planes.q + (std::int64_t{of.head} * p.blocks + of.last - w) * forward_ring::slab,
                 forward_ring::slab, ready);
    }
    turn.advance();
    for (int kb = of.lowest; kb <= of.last; ++kb) {
      const std::uint32_t to = shared + forward_ring::ring + ring.stage * forward_ring::stage;
      const std::uint32_t full = shared + forward_ring::full + 8 * ring.stage;
      const std::int64_t block = std::int64_t{of.kv} * p.blocks + kb;
      hopper::barrier_wait(shared + forward_ring::empty + 8 * ring.stage, ring.parity ^ 1u);
      hopper::barrier_expect(full, forward_ring::stage);
      load_bytes(to, a.planes.k + block * forward_ring::slab, forward_ring::slab, full);
      load_bytes(to + forward_ring::slab, a.planes.v + block * (forward_ring::slab / 2),
                 forward_ring::slab / 2, full);
      ring.advance();
    }
  }
}

/// One warpgroup: a block of queries of each item.
class forward_group {
public:
  __device__ __forceinline__ forward_group(const attention_forward_arguments& a,
                                           const forward_plan& plan, int number,
                                           std::uint32_t shared)
      : a_(a), plan_(plan), number_(number), shared_(shared) {}

  __device__ __forceinline__ void run(int item) {
    const forward_item of(a_.s, plan_, item);
    const int block = of.last - number_;
    hopper::barrier_wait(shared_ + forward_ring::ready + 8 * turn_.stage, turn_.parity);
    attention_rows<128> rows;
    rows.begin(a_, block * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16);
    const int first = block < 0 ? of.last + 1 : forward_item::first(a_.s, block);
    for (int kb = of.lowest; kb <= of.last; ++kb) {
      const std::uint32_t stage = shared_ + forward_ring::ring + ring_.stage * forward_ring::stage;
      hopper::barrier_wait(shared_ + forward_ring::full + 8 * ring_.stage, ring_.parity);
      if (kb >= first && kb <= block)
        attend(rows, stage, kb, of.kv * plan_.blocks + kb);
      arrive(forward_ring::empty + 8 * ring_.stage);
      ring_.advance();
    }
    arrive(forward_ring::done + 8 * turn_.stage);
    turn_.advance();
    if (block >= 0)
      rows.finish(a_, of.head / plan_.each, of.head % plan_.each);
  }

private:
  __device__ __forceinline__ void arrive(int barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
      hopper::barrier_arrive(shared_ + barrier);
  }

  /// s = q k, exact, as y 128 + low with y = 128 high + mixed.
  __device__ __forceinline__ void dots(std::uint32_t keys, std::int32_t (&s)[8][4]) const {
    constexpr int digit = row_digit<128>, step = 128; // in 16 bytes
    const std::uint64_t b = core_operand<64>(keys);
    const std::uint64_t q = core_operand<64>(shared_ + turn_.stage * forward_ring::queries +
                                             number_ * forward_ring::slab);
    std::int32_t y[32], low[32];
    hopper::products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      hopper::multiply(y, q + digit + step * i, b + digit + step * i, i > 0);
    hopper::products_commit();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      hopper::multiply(low, q + step * i, b + step * i, i > 0);
    hopper::products_commit();
    hopper::products_wait<1>();
    hopper::products_settle(y);
#pragma unroll
    for (int e = 0; e < 32; ++e)
      y[e] *= 128;
    hopper::products_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      hopper::multiply(y, q + digit + step * i, b + step * i, true);
      hopper::multiply(y, q + step * i, b + digit + step * i, true);
    }
    hopper::products_commit();
    hopper::products_wait<0>();
    hopper::products_settle(y);
    hopper::products_settle(low);
#pragma unroll
    for (int e = 0; e < 32; ++e)
      s[e / 4][e % 4] = y[e] * 128 + low[e];
  }

  /// Takes in key block kb, which is `number` among all sequences' and heads'.
  __device__ __forceinline__ void attend(attention_rows<128>& rows, std::uint32_t stage, int kb,
                                         std::int64_t number) const {
    using enum byte_kind;
    const float weight = a_.planes.v_weight[number];
    const std::uint64_t bad = a_.planes.bad_key[number];
    std::int32_t s[8][4], product[2][32];
    std::uint32_t p[2][4];
    float w[2];
    dots(stage, s);
    rows.weigh(kb * 64, a_.logit, weight, bad, s, p, w);
    const std::uint64_t v = core_operand<128>(stage + forward_ring::slab);
    const uint4 codes[2] = {{p[0][0], p[0][1], p[0][2], p[0][3]},
                            {p[1][0], p[1][1], p[1][2], p[1][3]}};
    hopper::products_begin();
#pragma unroll
    for (int half = 0; half < 2; ++half) { // of the head dimension
      multiply_rows<high, high>(product[half], codes[0], v + 64 * half, false);
      multiply_rows<high, high>(product[half], codes[1], v + 64 * half + 256, true);
      hopper::products_commit();
    }
    hopper::products_wait<1>();
    add_values(rows, 0, product[0], w);
    hopper::products_wait<0>();
    add_values(rows, 8, product[1], w);
  }

  /// o = o + w I, as attention_forward.hpp.
  __device__ __forceinline__ static void add_values(attention_rows<128>& rows, int from,
                                                    std::int32_t (&product)[32],
                                                    const float (&w)[2]) {
    hopper::products_settle(product);
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const float term = arith::detail::mul_rn(w[e / 2 % 2], arith::from_int(product[e]));
      rows.o[from + e / 4][e % 4] = add_flushed(rows.o[from + e / 4][e % 4], term);
    }
  }

  const attention_forward_arguments& a_;
  const forward_plan& plan_;
  int number_;
  std::uint32_t shared_;
  hopper::ring_place<forward_ring::stages> ring_;
  hopper::ring_place<2> turn_;
};

template <int Dim>
__global__ void __launch_bounds__(forward_ring::threads, 1)
    attention_forward_wgmma_kernel(__grid_constant__ const attention_forward_arguments a,
                                   __grid_constant__ const forward_plan plan) {
  static_assert(Dim == 128);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(16) unsigned char shared[];
  const std::uint32_t base = hopper::shared_address(shared);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (threadIdx.x == 0) {
    for (int s = 0; s < forward_ring::stages; ++s) {
      hopper::barrier_init(base + forward_ring::full + 8 * s, 1);
      hopper::barrier_init(base + forward_ring::empty + 8 * s, 4 * forward_ring::groups);
    }
    for (int s = 0; s < 2; ++s) {
      hopper::barrier_init(base + forward_ring::ready + 8 * s, 1);
      hopper::barrier_init(base + forward_ring::done + 8 * s, 4 * forward_ring::groups);
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  if (group == forward_ring::groups) {
    hopper::registers_down_to<24>();
    if (threadIdx.x % 128 == 0)
      copy_blocks(a, plan, base);
  } else {
    hopper::registers_up_to<160>();
    forward_group work(a, plan, group, base);
    for (item_order order; order.item < plan.items; order.advance())
      work.run(order.item);
  }
#endif
}

inline void attend_wgmma(cudaStream_t stream, const attention_forward_arguments& a) {
  forward_plan plan{};
  plan.blocks = static_cast<std::int32_t>(pieces<std::int64_t>(a.s.seq, attention_block));
  plan.heads = static_cast<std::int32_t>(a.s.batch * a.s.heads);
  plan.each = static_cast<std::int32_t>(a.s.heads);
  plan.group = static_cast<std::int32_t>(a.s.group());
  plan.items = plan.heads * pieces(plan.blocks, forward_ring::groups);
  const int grid = plan.items < limits().multiprocessors ? plan.items : limits().multiprocessors;
  launch("ordo::cuda::attention_forward", attention_forward_wgmma_kernel<128>,
         dim3(static_cast<unsigned>(grid)), dim3(forward_ring::threads), forward_ring::size, stream,
         a, plan);
}

#endif // __CUDACC__

} // namespace ordo::cuda::detail
