// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Definition of `ordo::comm::tree_fold`: order::Tree over vectors, entry by entry.

#include <cstddef>
#include <span>
#include <vector>

#include <ordo/reference/sum.hpp>

namespace ordo::reference {

/// The sum of the ranks' vectors, all of one length.
inline std::vector<float> tree_fold(std::span<const std::vector<float>> ranks) {
  std::vector<float> total(ranks.front().size());
  for (std::size_t i = 0; i < total.size(); ++i) {
    std::vector<float> addends;
    for (const std::vector<float>& rank : ranks)
      addends.push_back(rank[i]);
    total[i] = sum(order::Tree(), std::span<const float>(addends));
  }
  return total;
}

} // namespace ordo::reference
