// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The global norm as plain loops.

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ordo/arith/value.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/reference/sum.hpp>

namespace ordo::reference {

/// Square root of: tensors in name order, chunks of 4096, squares of a chunk by Lanes<32>, all
/// chunk sums by Tree.
inline float global_norm(const std::map<std::string, std::vector<float>>& tensors) {
  std::vector<float> chunk_sums;
  for (const auto& [name, values] : tensors) {
    for (std::size_t begin = 0; begin < values.size(); begin += 4096) {
      const std::size_t end = std::min(begin + 4096, values.size());
      std::vector<float> squares;
      for (std::size_t i = begin; i < end; ++i) {
        const float x = arith::flush(values[i]);
        squares.push_back(arith::mul(x, x));
      }
      chunk_sums.push_back(sum(order::Lanes<32>{}, squares));
    }
  }
  return arith::canonical(arith::sqrt(sum(order::Tree{}, chunk_sums)));
}

} // namespace ordo::reference
