// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Which process of a job holds which entries of a model's parameters, moments and gradients. It
/// decides memory and traffic; no bit depends on it.

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ordo/model/config.hpp>

namespace ordo::train {

/// Entries of one tensor that one process holds.
struct tensor_piece {
  std::size_t tensor = 0; ///< index into model::tensors
  std::int64_t first = 0; ///< the first of them in the tensor
  std::int64_t size = 0;
  std::int64_t offset = 0; ///< of the first of them in the process's own vectors
};

/// Neighbouring tensors that are gathered, reduced and let go together.
struct tensor_group {
  std::size_t first_tensor = 0, last_tensor = 0; ///< tensors [first, last)
  std::int64_t offset = 0, size = 0;             ///< entries of the model's flat vectors
  /// Of the group's entries, [cuts[p], cuts[p + 1]) are process p's; they begin at own[p] in its
  /// vectors.
  std::vector<std::int64_t> cuts, own;
};

/// Every group of model::layer_groups is divided evenly among the processes. One process holds
/// everything, as one group.
class partition {
public:
  /// Processes' entries begin at multiples of this in a tensor: whole chunks of the norm, and of
  /// digests in bf16 and binary32.
  static constexpr std::int64_t grain = 8192;

  partition(const model::config& shape, int processes) : table_(model::tensors(shape)) {
    std::vector<std::int64_t> held(static_cast<std::size_t>(processes));
    pieces_.resize(held.size());
    for (const auto& [first, last] : model::layer_groups(shape)) {
      if (processes == 1 && !groups_.empty()) {
        groups_.front().last_tensor = last;
        continue;
      }
      tensor_group g;
      g.first_tensor = first;
      g.last_tensor = last;
      groups_.push_back(g);
    }
    for (tensor_group& g : groups_) {
      g.offset = table_[g.first_tensor].offset;
      g.size = table_[g.last_tensor - 1].offset + table_[g.last_tensor - 1].size() - g.offset;
      for (std::int64_t p = 0; p <= processes; ++p)
        g.cuts.push_back(cut_near(g, g.size / processes * p + g.size % processes * p / processes));
      for (std::size_t p = 0; p < held.size(); ++p) {
        g.own.push_back(held[p]);
        add_pieces(g, p);
        held[p] += g.cuts[p + 1] - g.cuts[p];
      }
    }
    entries_ = held;
  }

  int processes() const { return static_cast<int>(entries_.size()); }
  const std::vector<model::tensor>& table() const { return table_; }
  const std::vector<tensor_group>& groups() const { return groups_; }
  /// Entries that a process holds in each of its vectors.
  std::int64_t entries(int process) const { return entries_[static_cast<std::size_t>(process)]; }
  /// What they are, in the order of the vectors.
  const std::vector<tensor_piece>& pieces(int process) const {
    return pieces_[static_cast<std::size_t>(process)];
  }

private:
  /// The entry of the group nearest to `target` at which a process may begin.
  std::int64_t cut_near(const tensor_group& g, std::int64_t target) const {
    for (std::size_t t = g.first_tensor; t < g.last_tensor; ++t) {
      const std::int64_t begin = table_[t].offset - g.offset, end = begin + table_[t].size();
      if (target < end)
        return std::min(end, begin + (target - begin + grain / 2) / grain * grain);
    }
    return g.size;
  }
  void add_pieces(const tensor_group& g, std::size_t process) {
    const std::int64_t from = g.cuts[process], to = g.cuts[process + 1];
    for (std::size_t t = g.first_tensor; t < g.last_tensor; ++t) {
      const std::int64_t begin = table_[t].offset - g.offset, end = begin + table_[t].size();
      const std::int64_t first = std::max(begin, from), last = std::min(end, to);
      if (first < last)
        pieces_[process].push_back({t, first - begin, last - first, g.own[process] + first - from});
    }
  }

  std::vector<model::tensor> table_;
  std::vector<tensor_group> groups_;
  std::vector<std::int64_t> entries_;
  std::vector<std::vector<tensor_piece>> pieces_;
};

} // namespace ordo::train
