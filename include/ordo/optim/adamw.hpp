// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// AdamW in binary32 on bf16 parameters, with or without a binary32 master copy.

#include <algorithm>
#include <cstdint>
#include <span>

#include <ordo/arith/bf16.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/optim/adamw_entry.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/adamw.hpp>
#endif

namespace ordo::optim {

/// One AdamW update, entry by entry:
///   g = grad * clip;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) (g g);
///   p' = p - lr * ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + wd * p ).
/// With a master copy p is the master and the bf16 parameter is its rounding; without one p is the
/// bf16 parameter itself, rounded back once.
///
/// Shape: all views [n]; `master` empty for parameters without a master copy.
/// Order: none across entries. Bits: entry by entry, from the inputs and scalars alone.
/// Source: OPEN-1B, section 3; contract, section 9.
template <execution_space Space>
void adamw(const Space& space, const adamw_scalars& scalars, vector_view<const float, Space> grad,
           vector_view<bf16, Space> parameter, vector_view<float, Space> master,
           vector_view<float, Space> first, vector_view<float, Space> second) {
  const std::int64_t n = static_cast<std::int64_t>(grad.extent(0));
  const bool mastered = master.extent(0) > 0;
  require(parameter.extent(0) == grad.extent(0) && first.extent(0) == grad.extent(0) &&
              second.extent(0) == grad.extent(0) &&
              (!mastered || master.extent(0) == grad.extent(0)),
          "ordo::optim::adamw",
          "gradient of " + shape(n) + " for parameters of " + shape(parameter.extent(0)));
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    cuda::adamw(space.cuda_stream(), scalars, grad.data(), parameter.data(),
                mastered ? master.data() : nullptr, first.data(), second.data(), n);
    return;
  }
#endif
  const float* const g_in = grad.data();
  bf16* const p_out = parameter.data();
  float* const p_master = mastered ? master.data() : nullptr;
  float* const m_io = first.data();
  float* const v_io = second.data();
  ordo::detail::for_blocks(
      space, "ordo::optim::adamw", n, 1 << 13, KOKKOS_LAMBDA(std::int64_t begin, std::int64_t end) {
        const adamw_scalars s = scalars; // a copy that no store can change, so the loop vectorizes
        const float* ORDO_RESTRICT gs = g_in;
        bf16* ORDO_RESTRICT ps = p_out;
        float* ORDO_RESTRICT ms = m_io;
        float* ORDO_RESTRICT vs = v_io;
        const auto update = [&](std::int64_t i, float p) {
          moments at{ms[i], vs[i]};
          const float next = adamw_entry(s, s.weight_decay, gs[i], p, at);
          ms[i] = at.first;
          vs[i] = at.second;
          return next;
        };
        if (p_master != nullptr) {
          float* ORDO_RESTRICT masters = p_master;
          for (std::int64_t i = begin; i < end; ++i) {
            masters[i] = update(i, masters[i]);
            ps[i] = arith::to_bf16(masters[i]);
          }
        } else {
          for (std::int64_t i = begin; i < end; ++i) {
            ps[i] = arith::to_bf16(update(i, arith::to_f32(ps[i])));
          }
        }
      });
}

/// The same for a flat vector of many tensors, of which the entries in the ranges `undecayed`
/// (ascending, apart) have no weight decay. On CUDA one launch.
template <execution_space Space>
void adamw(const Space& space, const adamw_scalars& scalars, std::span<const index_range> undecayed,
           vector_view<const float, Space> grad, vector_view<bf16, Space> parameter,
           vector_view<float, Space> master, vector_view<float, Space> first,
           vector_view<float, Space> second) {
  const std::int64_t n = static_cast<std::int64_t>(grad.extent(0));
  std::int64_t done = 0;
  for (const index_range& r : undecayed) {
    require(done <= r.begin && r.begin <= r.end && r.end <= n, "ordo::optim::adamw",
            "range " + std::to_string(r.begin) + " to " + std::to_string(r.end) + " of " +
                std::to_string(n) + " entries",
            "ranges ascend and do not overlap");
    done = r.end;
  }
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    require(parameter.extent(0) == grad.extent(0) && first.extent(0) == grad.extent(0) &&
                second.extent(0) == grad.extent(0) &&
                (master.extent(0) == 0 || master.extent(0) == grad.extent(0)),
            "ordo::optim::adamw",
            "gradient of " + shape(n) + " for parameters of " + shape(parameter.extent(0)));
    cuda::adamw(space.cuda_stream(), scalars, grad.data(), parameter.data(),
                master.extent(0) > 0 ? master.data() : nullptr, first.data(), second.data(), n,
                undecayed.data(), static_cast<std::int64_t>(undecayed.size()));
    return;
  }
#endif
  const auto run = [&](std::int64_t begin, std::int64_t end, float decay) {
    const auto part = [&](const auto& flat) {
      using view = std::remove_cvref_t<decltype(flat)>;
      return flat.extent(0) == 0 ? view()
                                 : view(flat.data() + begin, static_cast<std::size_t>(end - begin));
    };
    adamw_scalars here = scalars;
    here.weight_decay = decay;
    if (begin < end)
      adamw(space, here, part(grad), part(parameter), part(master), part(first), part(second));
  };
  done = 0;
  for (const index_range& r : undecayed) {
    run(done, r.begin, scalars.weight_decay);
    run(r.begin, r.end, 0.0f);
    done = r.end;
  }
  run(done, n, scalars.weight_decay);
}

} // namespace ordo::optim
