// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// What makes any window reachable without walking from the start: sums kept at a few places, and
/// the sources of many windows counted at once.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ordo/random/philox.hpp>

namespace ordo::data {

/// Values of a running sum at places 0, stride, 2 * stride, ... as far as somebody has walked. When
/// there are `mark_limit` of them every second is dropped: memory stays, the stride doubles.
template <class Value>
class sparse_marks {
public:
  static constexpr std::size_t mark_limit = 4096;

  /// `origin` is the value at place 0.
  sparse_marks(Value origin, std::uint64_t stride) : stride_(stride), values_{std::move(origin)} {}

  std::uint64_t stride() const { return stride_; }

  /// Keeps the value at `place` if it is the place of the next mark.
  void offer(std::uint64_t place, const Value& value) {
    if (place != values_.size() * stride_)
      return;
    if (values_.size() == mark_limit) {
      for (std::size_t i = 0; i < mark_limit / 2; ++i)
        values_[i] = std::move(values_[2 * i]);
      values_.resize(mark_limit / 2);
      stride_ *= 2;
    }
    values_.push_back(value);
  }

  /// The last mark at or before `place`: its place and value.
  std::pair<std::uint64_t, Value> before_place(std::uint64_t place) const {
    const auto i =
        static_cast<std::size_t>(std::min<std::uint64_t>(place / stride_, values_.size() - 1));
    return {i * stride_, values_[i]};
  }

  /// The last mark whose value is at most `value`, which is no less than the first.
  std::pair<std::uint64_t, Value> before_value(const Value& value) const {
    const auto i = static_cast<std::size_t>(
        std::upper_bound(values_.begin(), values_.end(), value) - values_.begin() - 1);
    return {i * stride_, values_[i]};
  }

private:
  std::uint64_t stride_;
  std::vector<Value> values_;
};

/// Which source each window takes. Source s has the points of [0, total share) from the shares
/// before it on; window w has the point floor(word * total / 2^64), word the 64-bit word w of the
/// stream "ordo.data.source". The point is at least c exactly where word >= ceil(c * 2^64 / total),
/// so that a window costs comparisons alone.
class source_choice {
public:
  /// Shares are at least 1, their sum at most 2^40.
  source_choice(std::uint64_t seed, const std::vector<std::uint64_t>& shares)
      : draws_(seed, "ordo.data.source"), marks_({}, 1 << 14) {
    __extension__ using wide = unsigned __int128;
    wide total = 0, end = 0;
    for (const std::uint64_t share : shares)
      total += share;
    for (std::size_t s = 0; s + 1 < shares.size(); ++s) {
      end += shares[s];
      thresholds_.push_back(static_cast<std::uint64_t>(((end << 64) + total - 1) / total));
    }
    marks_ = {counts(thresholds_.size()), 1 << 14};
  }

  /// The source of window `w`.
  std::size_t operator()(std::uint64_t w) const {
    const std::uint64_t word = draws_.word64(w);
    std::size_t s = 0;
    while (s < thresholds_.size() && word >= thresholds_[s])
      ++s;
    return s;
  }

  /// Of windows 0 ... w - 1, how many each source has. Keeps marks for the next call.
  std::vector<std::uint64_t> windows_before(std::uint64_t w) {
    auto [at, beyond] = marks_.before_place(w);
    while (at < w) {
      const std::uint64_t end = std::min(w, at + marks_.stride() - at % marks_.stride());
      count(at, end, beyond);
      at = end;
      marks_.offer(at, beyond);
    }
    std::vector<std::uint64_t> windows;
    std::uint64_t rest = w;
    for (const std::uint64_t n : beyond) {
      windows.push_back(rest - n);
      rest = n;
    }
    windows.push_back(rest);
    return windows;
  }

private:
  using counts = std::vector<std::uint64_t>; ///< windows beyond each threshold

  /// Adds windows [from, to) to `beyond`.
  void count(std::uint64_t from, std::uint64_t to, counts& beyond) const {
    constexpr int blocks = 32, words = 2 * blocks;
    const auto add = [&](const std::uint64_t* word, std::uint64_t n) {
      for (std::size_t s = 0; s < thresholds_.size(); ++s) {
        const std::uint64_t threshold = thresholds_[s];
        std::uint64_t more = 0;
        for (std::uint64_t i = 0; i < n; ++i)
          more += word[i] >= threshold ? 1 : 0;
        beyond[s] += more;
      }
    };
    std::uint64_t w = from;
    for (; w < to && (w % 2 != 0 || to - w < words); ++w) {
      const std::uint64_t word = draws_.word64(w);
      add(&word, 1);
    }
    for (; to - w >= words; w += words) {
      std::uint32_t drawn[4 * blocks];
      std::uint64_t word[words];
      draws_.blocks<blocks>(w / 2, drawn);
      for (int i = 0; i < words; ++i) {
        word[i] = std::uint64_t{drawn[2 * i + 1]} << 32 | drawn[2 * i];
      }
      add(word, words);
    }
    for (; w < to; ++w) {
      const std::uint64_t word = draws_.word64(w);
      add(&word, 1);
    }
  }

  random::stream draws_;
  counts thresholds_;
  sparse_marks<counts> marks_;
};

} // namespace ordo::data
