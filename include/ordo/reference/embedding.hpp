// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::nn::embedding_backward`.

#include <cstddef>
#include <cstdint>
#include <span>

#include <ordo/arith/bf16.hpp>

namespace ordo::reference {

/// Every word's row starts from +0; positions are visited in ascending order, each adding its
/// gradient to its word's row.
inline void embedding_backward(std::size_t d, std::span<const std::uint32_t> ids,
                               std::span<const bf16> dy, std::span<float> dtable) {
  for (float& entry : dtable)
    entry = 0.0f;
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (std::size_t j = 0; j < d; ++j)
      dtable[ids[i] * d + j] = arith::add(dtable[ids[i] * d + j], arith::to_f32(dy[i * d + j]));
}

} // namespace ordo::reference
