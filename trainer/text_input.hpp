// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Documents out of text files: plain or JSON lines, compressed or not, a piece at a time.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <zlib.h>
#include <zstd.h>

#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>

namespace ordo::program {

/// The bytes of a file, decompressed when its name ends in .gz or .zst.
class byte_source {
 public:
  explicit byte_source(const std::filesystem::path& path) : path_(path) {
    require(!std::filesystem::is_directory(path), path.string(), "it is a folder",
            "list the files in the order in which they are to be read: NAME=SHARE:FILE,FILE");
    const std::string extension = path.extension().string();
    if (extension == ".gz") {
      gzip_ = gzopen(path.c_str(), "rb");
      require(gzip_ != nullptr, path.string(), "cannot be opened", "check the name");
    } else {
      file_ = io::file(path, O_RDONLY);
      if (extension == ".zst") {
        zstd_.reset(ZSTD_createDCtx());
        compressed_.resize(ZSTD_DStreamInSize());
      }
    }
  }
  byte_source(const byte_source&) = delete;
  ~byte_source() {
    if (gzip_ != nullptr) gzclose(gzip_);
  }

  /// Fills `out` from its start; returns how much, 0 at the end. Throws on damaged compression.
  std::size_t read(std::span<char> out) {
    if (gzip_ != nullptr) {
      const int n = gzread(gzip_, out.data(), static_cast<unsigned>(out.size()));
      int code = Z_OK;
      const char* const text = gzerror(gzip_, &code);
      require(n >= 0 && (code == Z_OK || code == Z_STREAM_END), path_.string(),
              std::string("it cannot be decompressed: ") + text, "the file is damaged or was cut");
      return static_cast<std::size_t>(n);
    }
    return zstd_ ? read_zstd(out) : read_plain(out);
  }

 private:
  struct free_context {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };

  std::size_t read_plain(std::span<char> out) {
    const std::uint64_t left = file_.size() - std::min(file_.size(), at_);
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left, out.size()));
    file_.read_at(at_, std::as_writable_bytes(out.first(n)));
    at_ += n;
    return n;
  }

  std::size_t read_zstd(std::span<char> out) {
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0) {
      if (input_.pos == input_.size) {
        const std::size_t n = read_plain(compressed_);
        if (n == 0) {
          require(frame_done_, path_.string(), "it ends within a compressed frame", "the file was cut");
          return 0;
        }
        input_ = {compressed_.data(), n, 0};
      }
      const std::size_t result = ZSTD_decompressStream(zstd_.get(), &to, &input_);
      require(ZSTD_isError(result) == 0, path_.string(),
              std::string("it cannot be decompressed: ") + ZSTD_getErrorName(result),
              "the file is damaged");
      frame_done_ = result == 0;
    }
    return to.pos;
  }

  std::filesystem::path path_;
  io::file file_;
  std::uint64_t at_ = 0;
  gzFile gzip_ = nullptr;
  std::unique_ptr<ZSTD_DCtx, free_context> zstd_;
  std::vector<char> compressed_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool frame_done_ = true;
};

/// Whether a path holds JSON lines, compressed or not.
inline bool is_json_lines(std::filesystem::path path) {
  const std::string extension = path.extension().string();
  if (extension == ".gz" || extension == ".zst") path.replace_extension();
  return path.extension() == ".jsonl";
}

/// Largest document, so that a hostile file cannot take all memory.
inline constexpr std::size_t document_limit = std::size_t{1} << 30;

/// The text of one JSON line: the fields named, joined by line breaks.
inline std::string text_of_line(const std::string& line, const std::vector<std::string>& fields,
                                const std::string& where) {
  const io::json object = io::parse_json(line, where);
  require(object.is_object(), where, "a line is one JSON object");
  std::string text;
  for (const std::string& field : fields) {
    const auto found = object.find(field);
    if (found == object.end() || !found->is_string()) {
      std::string there;
      for (const auto& item : object.items()) there += (there.empty() ? "" : ", ") + item.key();
      throw error(where, "it has no text field '" + field + "'",
                  "its fields are: " + there + "; name the right ones with --text-field");
    }
    if (&field != &fields.front()) text += '\n';
    text += found->get<std::string>();
  }
  return text;
}

/// Calls `take(document)` for every document of a file: each line of JSON lines; otherwise the
/// whole file, or, with `split`, its paragraphs separated by blank lines.
template <class Take>
void for_each_document(const std::filesystem::path& path, const std::vector<std::string>& fields,
                       bool split, const Take& take) {
  byte_source source(path);
  const bool lines = is_json_lines(path);
  const std::string mark = lines ? "\n" : "\n\n";
  std::vector<char> buffer(1 << 20);
  std::string pending;
  std::uint64_t number = 0;
  const auto deliver = [&](std::string piece) {
    if (!lines) return take(std::move(piece));
    ++number;
    if (!piece.empty() && piece.back() == '\r') piece.pop_back();
    if (piece.empty()) return;
    take(text_of_line(piece, fields, path.string() + ", line " + std::to_string(number)));
  };
  while (const std::size_t n = source.read(buffer)) {
    std::size_t searched = pending.size() >= mark.size() ? pending.size() - mark.size() + 1 : 0;
    pending.append(buffer.data(), n);
    require(pending.size() <= document_limit, path.string(), "it holds a document beyond 1 GiB",
            "split it");
    if (!lines && !split) continue;
    std::size_t begin = 0;
    for (std::size_t end; (end = pending.find(mark, searched)) != std::string::npos;) {
      deliver(pending.substr(begin, end - begin));
      begin = searched = end + mark.size();
    }
    pending.erase(0, begin);
  }
  if (!pending.empty()) deliver(std::move(pending));
}

}  // namespace ordo::program
