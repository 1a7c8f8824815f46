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

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ordo/data/corpus.hpp>
#include <ordo/data/permutation.hpp>
#include <ordo/digest/merkle.hpp>

namespace ordo::data {

/// Where the stream stands in one source.
struct source_cursor {
  std::uint64_t windows = 0;   ///< windows taken from it
  std::uint64_t epoch = 0;     ///< of the next token
  std::uint64_t place = 0;     ///< place in the epoch's order of the next token's document
  std::uint64_t offset = 0;    ///< of the next token in its document
  friend bool operator==(const source_cursor&, const source_cursor&) = default;
};

/// Everything that resuming needs; constant size.
struct stream_cursor {
  std::uint64_t window = 0;  ///< the next window
  std::vector<source_cursor> sources;
  friend bool operator==(const stream_cursor&, const stream_cursor&) = default;

  io::json to_json() const {
    io::json list = io::json::array();
    for (const source_cursor& s : sources) list.push_back({s.windows, s.epoch, s.place, s.offset});
    return {{"window", window}, {"sources", std::move(list)}};
  }
};

class window_stream {
 public:
  /// Windows train on `length` tokens and hold one more. Throws when a source has fewer tokens than
  /// a window.
  window_stream(const corpus& from, std::uint64_t seed, std::uint64_t length)
      : corpus_(&from), seed_(seed), length_(length), draws_(seed, "ordo.data.source") {
    for (const source_info& s : from.contents().sources) {
      require(s.tokens >= length + 1, from.path().string(),
              "source '" + s.name + "' has " + std::to_string(s.tokens) + " tokens, a window needs " +
                  std::to_string(length + 1),
              "give it more text or train on shorter windows (data.sequence)");
      total_share_ += s.share;
    }
    cursor_.sources.resize(from.contents().sources.size());
  }

  std::uint64_t window_tokens() const { return length_ + 1; }
  const stream_cursor& cursor() const { return cursor_; }

  /// Goes on from a cursor that somebody else kept: every number is checked against the corpus.
  void resume(const io::json& json, const std::string& where) {
    stream_cursor next;
    next.window = io::get_u64(json, "window", where);
    const io::json& list = io::get_array(json, "sources", where);
    require(list.size() == cursor_.sources.size(), where,
            "the cursor has " + std::to_string(list.size()) + " sources, the corpus " +
                std::to_string(cursor_.sources.size()));
    std::uint64_t windows = 0;
    for (std::size_t s = 0; s < list.size(); ++s) {
      const io::json& entry = list[s];
      require(entry.is_array() && entry.size() == 4, where, "a cursor has four numbers a source");
      std::uint64_t n[4];
      for (std::size_t i = 0; i < 4; ++i) {
        require(entry[i].is_number_unsigned(), where, "a cursor's number is no count");
        n[i] = entry[i].get<std::uint64_t>();
      }
      next.sources.push_back({n[0], n[1], n[2], n[3]});
      windows += n[0];
      require(n[2] < corpus_->contents().sources[s].documents &&
                  n[3] < corpus_->document_length(s, order(s, n[1])(n[2])),
              where, "the cursor of source " + std::to_string(s) + " lies outside the corpus");
    }
    require(windows == next.window, where, "the cursor's windows do not add up");
    cursor_ = next;
  }

  /// Goes to window `window` without a cursor: counts the choices before it, then walks document
  /// lengths of one epoch a source.
  void seek(std::uint64_t window) {
    stream_cursor next;
    next.window = window;
    next.sources.resize(cursor_.sources.size());
    for (std::uint64_t w = 0; w < window; ++w) ++next.sources[source_of(w)].windows;
    for (std::size_t s = 0; s < next.sources.size(); ++s) {
      source_cursor& at = next.sources[s];
      const source_info& info = corpus_->contents().sources[s];
      __extension__ using wide = unsigned __int128;
      const wide position = static_cast<wide>(at.windows) * (length_ + 1);
      at.epoch = static_cast<std::uint64_t>(position / info.tokens);
      at.offset = static_cast<std::uint64_t>(position % info.tokens);
      const permutation documents = order(s, at.epoch);
      for (;; ++at.place) {
        const std::uint64_t n = corpus_->document_length(s, documents(at.place));
        if (at.offset < n) break;
        at.offset -= n;
      }
    }
    cursor_ = next;
  }

  /// The source of window `w`.
  std::size_t source_of(std::uint64_t w) const {
    __extension__ using wide = unsigned __int128;
    auto drawn = static_cast<std::uint64_t>((static_cast<wide>(draws_.word64(w)) * total_share_) >> 64);
    std::size_t s = 0;
    for (; drawn >= corpus_->contents().sources[s].share; ++s) {
      drawn -= corpus_->contents().sources[s].share;
    }
    return s;
  }

  /// Takes the next window; `out` has room for length + 1 tokens.
  void next(std::span<std::uint32_t> out) {
    require(out.size() == length_ + 1, "ordo::data::window_stream",
            "a window has " + std::to_string(length_ + 1) + " tokens, room for " +
                std::to_string(out.size()) + " was given");
    const std::size_t s = source_of(cursor_.window);
    source_cursor& at = cursor_.sources[s];
    const source_info& info = corpus_->contents().sources[s];
    while (!out.empty()) {
      const std::uint64_t document = order(s, at.epoch)(at.place);
      const std::uint64_t left = corpus_->document_length(s, document) - at.offset;
      const auto taken = static_cast<std::size_t>(std::min<std::uint64_t>(left, out.size()));
      corpus_->read(s, document, at.offset, out.first(taken));
      out = out.subspan(taken);
      at.offset += taken;
      if (taken < left) continue;
      at.offset = 0;
      if (++at.place == info.documents) {
        at.place = 0;
        ++at.epoch;
      }
    }
    ++at.windows;
    ++cursor_.window;
  }

 private:
  permutation order(std::size_t s, std::uint64_t epoch) const {
    const source_info& info = corpus_->contents().sources[s];
    return permutation(seed_, "ordo.data.order." + info.name, epoch, info.documents);
  }

  const corpus* corpus_;
  std::uint64_t seed_, length_;
  random::stream draws_;
  std::uint64_t total_share_ = 0;
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
  digest::merkle_accumulator tree;
  for (std::uint64_t at = 0; at < tokens.size(); at += window_tokens) {
    tree.append(window_leaf(first++, tokens.subspan(static_cast<std::size_t>(at),
                                                    static_cast<std::size_t>(window_tokens))));
  }
  return tree.root();
}

}  // namespace ordo::data
