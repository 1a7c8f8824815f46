// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The canonical stream: windows W_0, W_1, ... of a corpus as a function of (seed, manifest).
///
/// Window w holds length + 1 tokens of one source: source s with the first cumulative share above
/// floor(word * total share / 2^64), word the 64-bit word w of the stream "ordo.data.source". A
/// source's tokens are its documents, each with its separator, in the order of a keyed permutation
/// that every epoch draws anew, epochs one after another without end; each window of a source takes
/// the next length + 1 of them. No process, rank or batch size enters.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ordo/data/corpus.hpp>
#include <ordo/data/permutation.hpp>
#include <ordo/data/seek_index.hpp>
#include <ordo/digest/merkle.hpp>

namespace ordo::data {

/// Where the stream stands in one source.
struct source_cursor {
  std::uint64_t windows = 0; ///< windows taken from it
  std::uint64_t epoch = 0;   ///< of the next token
  std::uint64_t place = 0;   ///< place in the epoch's order of the next token's document
  std::uint64_t offset = 0;  ///< of the next token in its document
  friend bool operator==(const source_cursor&, const source_cursor&) = default;
};

/// Everything that resuming needs; constant size.
struct stream_cursor {
  std::uint64_t window = 0; ///< the next window
  std::vector<source_cursor> sources;
  friend bool operator==(const stream_cursor&, const stream_cursor&) = default;

  io::json to_json() const {
    io::json list = io::json::array();
    for (const source_cursor& s : sources)
      list.push_back({s.windows, s.epoch, s.place, s.offset});
    return {{"window", window}, {"sources", std::move(list)}};
  }
};

/// Windows that a stream may reach: more than any run has, few enough that no count overflows.
inline constexpr std::uint64_t window_limit = std::uint64_t{1} << 48;

/// The stream of one corpus, which must outlive it.
///
/// Bits: of the seed, the manifest and the window's number alone. Cost: constant memory; next reads
/// an index entry and a range a document; resume an index entry a source; seek counts the draws
/// before the window and reads the index entries of the documents before it in its epoch, the
/// second time from the nearest mark on.
class window_stream {
public:
  /// Windows train on `length` tokens and hold one more. Throws when a source has fewer tokens than
  /// a window.
  window_stream(const corpus& from, std::uint64_t seed, std::uint64_t length)
      : corpus_(&from), length_(length), source_of_(seed, shares_of(from)) {
    require(length >= 1 && length < UINT32_MAX, "ordo::data::window_stream",
            "windows of " + std::to_string(length) + " tokens are asked for",
            "data.sequence (--seq) is at least 1 and below 2^32 - 1");
    for (const source_info& s : from.contents().sources) {
      require(s.tokens > length, from.path().string(),
              "source '" + s.name + "' has " + std::to_string(s.tokens) +
                  " tokens, a window needs " + std::to_string(length + 1),
              "give it more text or train on shorter windows (data.sequence)");
      orders_.emplace_back(seed, "ordo.data.order." + s.name, 0, s.documents);
      marks_.push_back({0, {0, 64}});
    }
    cursor_.sources.resize(orders_.size());
  }

  std::uint64_t window_tokens() const { return length_ + 1; }
  const stream_cursor& cursor() const { return cursor_; }

  /// Goes on from a cursor that somebody else kept: every number is checked against the corpus.
  /// What only a walk could tell (that the documents before have so many tokens) the batch root of
  /// the next step does.
  void resume(const io::json& json, const std::string& where) {
    stream_cursor next;
    next.window = io::get_u64(json, "window", where);
    require(next.window <= window_limit, where, "the cursor's window is beyond 2^48");
    const io::json& list = io::get_array(json, "sources", where);
    require(list.size() == orders_.size(), where,
            "the cursor has " + std::to_string(list.size()) + " sources, the corpus " +
                std::to_string(orders_.size()));
    std::uint64_t windows = 0;
    for (std::size_t s = 0; s < list.size(); ++s) {
      next.sources.push_back(checked_cursor(s, list[s], where));
      windows += next.sources.back().windows; // at most 2^48 each, 256 sources
    }
    require(windows == next.window, where, "the cursor's windows do not add up");
    check_choices(next, where);
    cursor_ = std::move(next);
  }

  /// Goes to window `window` without a cursor.
  void seek(std::uint64_t window) {
    require(window <= window_limit, "ordo::data::window_stream",
            "window " + std::to_string(window) + " is beyond 2^48");
    stream_cursor next;
    next.window = window;
    const std::vector<std::uint64_t> windows = source_of_.windows_before(window);
    for (std::size_t s = 0; s < windows.size(); ++s)
      next.sources.push_back(walk(s, windows[s]));
    cursor_ = std::move(next);
  }

  /// The source of window `w`.
  std::size_t source_of(std::uint64_t w) const { return source_of_(w); }

  /// Takes the next window; `out` has room for length + 1 tokens.
  void next(std::span<std::uint32_t> out) {
    if (out.size() != length_ + 1) {
      throw error("ordo::data::window_stream", "a window has " + std::to_string(length_ + 1) +
                                                   " tokens, room for " +
                                                   std::to_string(out.size()) + " was given");
    }
    const std::size_t s = source_of(cursor_.window);
    source_cursor at = cursor_.sources[s];
    while (!out.empty()) {
      const document_place document = corpus_->locate(s, orders_[s].at_epoch(at.epoch)(at.place));
      if (at.offset >= document.tokens)
        refuse_index(s);
      const std::uint64_t left = document.tokens - at.offset;
      const auto taken = static_cast<std::size_t>(std::min<std::uint64_t>(left, out.size()));
      corpus_->read(document, at.offset, out.first(taken));
      out = out.subspan(taken);
      at.offset += taken;
      if (taken < left)
        continue;
      at.offset = 0;
      if (++at.place == source(s).documents) {
        at.place = 0;
        ++at.epoch;
      }
    }
    ++at.windows;
    cursor_.sources[s] = at; // not before: a window that could not be read is not taken
    ++cursor_.window;
  }

private:
  /// Tokens before the places of one epoch's order.
  struct order_marks {
    std::uint64_t epoch;
    sparse_marks<std::uint64_t> tokens;
  };

  static std::vector<std::uint64_t> shares_of(const corpus& from) {
    std::vector<std::uint64_t> shares;
    for (const source_info& s : from.contents().sources)
      shares.push_back(s.share);
    return shares;
  }

  const source_info& source(std::size_t s) const { return corpus_->contents().sources[s]; }

  [[noreturn]] void refuse_index(std::size_t s) const {
    throw error((corpus_->path() / source(s).name).string(),
                "its indexes and the manifest's count of tokens disagree",
                "run 'ordo-data inspect --verify' and fetch the damaged shard again");
  }

  /// Epoch, and token within it, at which window `windows` of source s begins.
  std::pair<std::uint64_t, std::uint64_t> position(std::size_t s, std::uint64_t windows) const {
    __extension__ using wide = unsigned __int128;
    const wide token = static_cast<wide>(windows) * (length_ + 1);
    return {static_cast<std::uint64_t>(token / source(s).tokens),
            static_cast<std::uint64_t>(token % source(s).tokens)};
  }

  source_cursor checked_cursor(std::size_t s, const io::json& json,
                               const std::string& where) const {
    require(json.is_array() && json.size() == 4, where, "a cursor has four numbers a source");
    std::uint64_t n[4];
    for (std::size_t i = 0; i < 4; ++i) {
      require(json[i].is_number_unsigned(), where, "a cursor's number is no count");
      n[i] = json[i].get<std::uint64_t>();
    }
    const source_cursor at{n[0], n[1], n[2], n[3]};
    const std::string name = "the cursor of source '" + source(s).name + "'";
    require(at.windows <= window_limit && at.place < source(s).documents &&
                at.offset < corpus_->document_length(s, orders_[s].at_epoch(at.epoch)(at.place)),
            where, name + " lies outside the corpus");
    const auto [epoch, token] = position(s, at.windows);
    // Each document before the place has a token at least, the first place none before it.
    require(at.epoch == epoch && at.offset <= token && at.place <= token - at.offset &&
                (at.place > 0 || at.offset == token),
            where, name + " contradicts its count of windows");
    return at;
  }

  /// Throws unless each source has the windows that the seed gives it. A count that would take
  /// longer than a few seconds is left to the batch root.
  void check_choices(const stream_cursor& next, const std::string& where) {
    if (next.window > std::uint64_t{1} << 28)
      return;
    const std::vector<std::uint64_t> windows = source_of_.windows_before(next.window);
    for (std::size_t s = 0; s < windows.size(); ++s) {
      require(next.sources[s].windows == windows[s], where,
              "the cursor has " + std::to_string(next.sources[s].windows) + " windows of source '" +
                  source(s).name + "', the seed gives it " + std::to_string(windows[s]),
              "it belongs to another run or was changed");
    }
  }

  /// The cursor before window `windows` of source s.
  source_cursor walk(std::size_t s, std::uint64_t windows) {
    const auto [epoch, token] = position(s, windows);
    if (marks_[s].epoch != epoch)
      marks_[s] = {epoch, {0, 64}};
    const permutation order = orders_[s].at_epoch(epoch);
    auto [place, start] = marks_[s].tokens.before_value(token);
    for (;; ++place) {
      if (place == source(s).documents)
        refuse_index(s);
      const std::uint64_t length = corpus_->document_length(s, order(place));
      if (token - start < length)
        return {windows, epoch, place, token - start};
      start += length;
      marks_[s].tokens.offer(place + 1, start);
    }
  }

  const corpus* corpus_;
  std::uint64_t length_;
  source_choice source_of_;
  std::vector<permutation> orders_; ///< of epoch 0
  std::vector<order_marks> marks_;
  stream_cursor cursor_;
};

/// The leaf of a window in a batch root: RFC 9162 leaf hash of its number and its tokens, both
/// little-endian (64 and 32 bits).
inline digest::hash256 window_leaf(std::uint64_t window, std::span<const std::uint32_t> tokens) {
  std::vector<std::uint32_t> framed{static_cast<std::uint32_t>(window),
                                    static_cast<std::uint32_t>(window >> 32)};
  framed.insert(framed.end(), tokens.begin(), tokens.end());
  return digest::leaf_hash(std::as_bytes(std::span(framed)));
}

/// Merkle root over windows [first, first + n) that lie one after another in `tokens`.
inline digest::hash256 batch_root(std::uint64_t first, std::uint64_t window_tokens,
                                  std::span<const std::uint32_t> tokens) {
  require(window_tokens > 0 && tokens.size() % window_tokens == 0, "ordo::data::batch_root",
          std::to_string(tokens.size()) + " tokens are no whole windows of " +
              std::to_string(window_tokens));
  digest::merkle_accumulator tree;
  for (std::uint64_t at = 0; at < tokens.size(); at += window_tokens) {
    tree.append(window_leaf(first++, tokens.subspan(static_cast<std::size_t>(at),
                                                    static_cast<std::size_t>(window_tokens))));
  }
  return tree.root();
}

} // namespace ordo::data
