// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Documents out of text files: plain or JSON lines, compressed or not, a piece at a time.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>

namespace ordo::program {

namespace detail {

/// The extension of a name in lower case: ".GZ" means what ".gz" does.
inline std::string extension_of(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z')
      c = static_cast<char>(c + 32);
  }
  return extension;
}

/// The name of what a compressed file holds; any other name as it is.
inline std::filesystem::path decompressed_name(std::filesystem::path path) {
  const std::string extension = extension_of(path);
  if (extension == ".gz" || extension == ".zst")
    path.replace_extension();
  return path;
}

} // namespace detail

/// The bytes of a file, decompressed when its name ends in .gz or .zst. A compressed file that ends
/// within its stream, or has something else after it, is an error, never a shorter text.
class byte_source {
public:
  explicit byte_source(const std::filesystem::path& path) : path_(path) {
    std::error_code ignored;
    require(!std::filesystem::is_directory(path, ignored), path.string(), "it is a folder",
            "list the files in the order in which they are to be read: NAME=SHARE:FILE,FILE");
    const std::string extension = detail::extension_of(path);
    const std::string inner = detail::extension_of(detail::decompressed_name(path));
    for (const char* other : {".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z", ".parquet"}) {
      require(inner != other, path.string(), std::string(other) + " files are not read",
              "convert it to .txt or .jsonl, plain or compressed as .gz or .zst");
    }
    file_ = io::open_regular(path);
    size_ = file_.size();
    if (extension == ".gz") {
      gzip_.reset(new z_stream{});
      constexpr int gzip_of_any_window = 16 + MAX_WBITS;
      require(inflateInit2(gzip_.get(), gzip_of_any_window) == Z_OK, path.string(),
              "zlib cannot be started", "there may be too little memory");
    } else if (extension == ".zst") {
      zstd_.reset(ZSTD_createDCtx());
      require(zstd_ != nullptr, path.string(), "zstd cannot be started",
              "there may be too little memory");
    }
    if (gzip_ || zstd_)
      input_.resize(std::size_t{1} << 17);
  }

  /// Fills `out` from its start; returns how much, 0 at the end. Throws on damaged compression.
  std::size_t read(std::span<char> out) {
    if (!gzip_ && !zstd_)
      return read_file(out);
    while (true) {
      if (used_ == filled_ && !holds_more_) {
        used_ = 0;
        filled_ = read_file(input_);
        if (filled_ == 0) {
          require(ended_, path_.string(), "it ends within a compressed stream", "the file was cut");
          return 0;
        }
      }
      const std::size_t n = gzip_ ? inflate_some(out) : decompress_some(out);
      holds_more_ = n == out.size(); // it may have stopped for lack of room
      if (n > 0)
        return n;
    }
  }

private:
  struct end_inflate {
    void operator()(z_stream* stream) const {
      inflateEnd(stream);
      delete stream;
    }
  };
  struct free_context {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  std::size_t read_file(std::span<char> out) {
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(size_ - at_, out.size()));
    file_.read_at(at_, std::as_writable_bytes(out.first(n)));
    at_ += n;
    return n;
  }

  [[noreturn]] void refuse(const char* why) const {
    throw error(path_.string(), "it cannot be decompressed: " + std::string(why),
                "the file is damaged or not what its name says");
  }

  /// One call of the decoder on what is left of the input; returns the bytes made. Streams may
  /// follow one another.
  std::size_t inflate_some(std::span<char> out) {
    z_stream& z = *gzip_;
    const std::size_t before = used_;
    z.next_in = reinterpret_cast<Bytef*>(input_.data() + used_);
    z.avail_in = static_cast<uInt>(filled_ - used_);
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    const int result = inflate(&z, Z_NO_FLUSH);
    used_ = filled_ - z.avail_in;
    const std::size_t made = out.size() - z.avail_out;
    if (result == Z_STREAM_END) {
      ended_ = true;
      if (inflateReset(&z) != Z_OK)
        refuse("zlib cannot go on");
    } else if (result == Z_OK || result == Z_BUF_ERROR) {
      if (used_ != before)
        ended_ = false;
    } else {
      refuse(z.msg != nullptr ? z.msg : "no gzip stream");
    }
    return made;
  }

  std::size_t decompress_some(std::span<char> out) {
    ZSTD_inBuffer from{input_.data(), filled_, used_};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const std::size_t result = ZSTD_decompressStream(zstd_.get(), &to, &from);
    if (ZSTD_isError(result) != 0)
      refuse(ZSTD_getErrorName(result));
    if (result == 0) {
      ended_ = true;
    } else if (from.pos != used_) {
      ended_ = false;
    }
    used_ = from.pos;
    return to.pos;
  }

  std::filesystem::path path_;
  io::file file_;
  std::uint64_t size_ = 0, at_ = 0;
  std::unique_ptr<z_stream, end_inflate> gzip_;
  std::unique_ptr<ZSTD_DCtx, free_context> zstd_;
  std::vector<char> input_;
  std::size_t used_ = 0, filled_ = 0;
  bool holds_more_ = false; ///< the decoder may make more without input
  bool ended_ = false;      ///< the last stream is complete
};

/// Whether a path holds JSON lines, compressed or not.
inline bool is_json_lines(const std::filesystem::path& path) {
  return detail::extension_of(detail::decompressed_name(path)) == ".jsonl";
}

/// Largest document, so that a hostile file cannot take all memory.
inline constexpr std::size_t document_limit = std::size_t{1} << 30;

/// The text of one JSON line: the fields named, joined by line breaks.
inline std::string text_of_line(const std::string& line, const std::vector<std::string>& fields,
                                const std::string& where) {
  const io::json object = io::parse_json(line, where, document_limit);
  require(object.is_object(), where, "it is no JSON object", "write one object a line");
  std::string text;
  for (const std::string& field : fields) {
    const auto found = object.find(field);
    if (found == object.end() || !found->is_string()) {
      std::string there;
      for (const auto& item : object.items()) {
        if (there.size() > 200)
          break;
        there += (there.empty() ? "" : ", ") + io::printable(item.key());
      }
      throw error(where, "it has no text field '" + field + "'",
                  "its fields are: " + there + "; name the right ones with --text-field");
    }
    if (&field != &fields.front())
      text += '\n';
    text += found->get_ref<const std::string&>();
  }
  return text;
}

namespace detail {

/// A piece of text and what separates it from the next: [begin, end), then [end, next).
struct piece_end {
  std::size_t end, next;
};

/// The end of the line that is searched from `from` on; npos when the text ends before it.
inline piece_end end_of_line(const std::string& text, std::size_t& from) {
  const std::size_t end = text.find('\n', from);
  from = std::min(end, text.size());
  return {end, end + 1};
}

/// The end of the paragraph: a blank line, whichever way lines end.
inline piece_end end_of_paragraph(const std::string& text, std::size_t& from) {
  for (; (from = text.find('\n', from)) != std::string::npos; ++from) {
    const std::string_view after = std::string_view(text).substr(from + 1, 2);
    if (after.starts_with('\n'))
      return {from, from + 2};
    if (after == "\r\n")
      return {text[from - (from > 0)] == '\r' ? from - 1 : from, from + 3};
    if (after.empty() || after == "\r")
      return {std::string::npos, 0}; // more may follow
  }
  from = text.size();
  return {std::string::npos, 0};
}

} // namespace detail

/// Calls `take(document)` for every document of a file: each line of JSON lines that is not blank;
/// otherwise the whole file or, with `split`, its paragraphs separated by blank lines. Plain text
/// is taken byte for byte, whatever it holds.
template <class Take>
void for_each_document(const std::filesystem::path& path, const std::vector<std::string>& fields,
                       bool split, const Take& take) {
  byte_source source(path);
  const bool lines = is_json_lines(path);
  std::vector<char> buffer(std::size_t{1} << 20);
  std::string pending;
  std::uint64_t number = 0;
  std::size_t searched = 0;
  const auto deliver = [&](std::string piece) {
    if (!lines)
      return take(std::move(piece));
    ++number;
    if (piece.find_first_not_of(" \t\r") == std::string::npos)
      return;
    take(text_of_line(piece, fields, path.string() + ", line " + std::to_string(number)));
  };
  while (const std::size_t n = source.read(buffer)) {
    pending.append(buffer.data(), n);
    if (lines || split) {
      std::size_t begin = 0;
      while (true) {
        const auto [end, next] = lines ? detail::end_of_line(pending, searched)
                                       : detail::end_of_paragraph(pending, searched);
        if (end == std::string::npos)
          break;
        deliver(pending.substr(begin, end - begin));
        begin = searched = next;
      }
      pending.erase(0, begin);
      searched -= begin;
    }
    require(pending.size() <= document_limit, path.string(), "it holds a document beyond 1 GiB",
            "split it");
  }
  if (!pending.empty())
    deliver(std::move(pending));
}

} // namespace ordo::program
