// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The safetensors format: a writer whose bytes follow from the tensors, a reader that trusts
/// nothing.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ordo/digest/state.hpp>
#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>

namespace ordo::io {

/// What a reader accepts and a writer keeps to: bytes of header (as in the reference
/// implementation), dimensions, bytes of a name.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;
inline constexpr std::size_t safetensors_rank_limit = 8;
inline constexpr std::size_t safetensors_name_limit = 1024;

namespace detail {

/// The length and the header of a file of `tensors`, which are in name order.
inline std::string safetensors_head(const std::string& where,
                                    const std::vector<digest::tensor_ref>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  std::string header = "{\"__metadata__\":" + canonical_json(json(metadata));
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const digest::tensor_ref& t = tensors[i];
    require(t.name != "__metadata__", where, "no tensor may be called '__metadata__'");
    require(i == 0 || t.name != tensors[i - 1].name, where,
            "two tensors are called '" + printable(t.name) + "'");
    require(t.name.size() <= safetensors_name_limit, where,
            "the name '" + printable(t.name) + "' has more than " +
                std::to_string(safetensors_name_limit) + " bytes");
    require(t.shape.size() <= safetensors_rank_limit, where,
            "tensor '" + printable(t.name) + "' has more than " +
                std::to_string(safetensors_rank_limit) + " dimensions");
    digest::require_filled(t, where);
    const std::uint64_t end = offset + t.bytes.size();
    header += "," + write_leaf(t.name) + ":{\"dtype\":\"" + digest::dtype_name(t.type) +
              "\",\"shape\":" + json(t.shape).dump() + ",\"data_offsets\":[" +
              std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  require(header.size() <= safetensors_header_limit, where, "it has too many tensors for one file");
  std::string length;
  for (int i = 0; i < 8; ++i)
    length += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return length + header;
}

} // namespace detail

/// Where the bytes of a tensor are fetched from when the host cannot read them in place.
using byte_source = std::function<std::span<const std::byte>(const digest::tensor_ref&)>;

/// Writes tensors in name order; the header is one line of JSON padded with spaces to 8 bytes, with
/// `metadata` first. Tensors go from their own memory to the file, whatever their size.
///
/// Bits: of names, types, shapes, bytes and `metadata` alone. Throws: as write_atomic, and on
/// tensors that the reader would refuse; then nothing is written.
inline void write_safetensors(const std::filesystem::path& path,
                              std::vector<digest::tensor_ref> tensors,
                              const std::map<std::string, std::string>& metadata = {},
                              const byte_source& bytes_of = {}) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  const std::string head = detail::safetensors_head(path.string(), tensors, metadata);
  write_atomic(path, [&](const file& out) {
    out.write(head);
    for (const digest::tensor_ref& t : tensors)
      out.write(bytes_of ? bytes_of(t) : t.bytes);
  });
}

/// A tensor of a file: `begin` and `end` count from the first byte after the header.
struct safetensors_entry {
  std::string name;
  digest::dtype type = digest::dtype::f32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

/// Opens a file and checks its header whole: lengths, offsets (in range, without overlap or hole),
/// shapes against bytes, names. Throws naming the file and the tensor. Nothing is mapped: a file
/// that shrinks while it is read is an error. Values are the file's, subnormals and NaNs included:
/// whoever computes with them reads them through `arith::flush` or `arith::to_f32`.
class safetensors_reader {
public:
  explicit safetensors_reader(const std::filesystem::path& path) : file_(open_regular(path)) {
    const std::uint64_t size = file_.size();
    require(size >= 8, where(), "it has " + std::to_string(size) + " bytes, too few for a header",
            "the file was cut, or is no safetensors file");
    std::byte prefix[8];
    file_.read_at(0, prefix);
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i)
      length = length << 8 | static_cast<std::uint8_t>(prefix[i]);
    require(length <= safetensors_header_limit, where(),
            "its header claims " + std::to_string(length) + " bytes, at most " +
                std::to_string(safetensors_header_limit) + " are accepted",
            "this is no safetensors file");
    require(length <= size - 8, where(),
            "its header claims " + std::to_string(length) + " bytes, the file has " +
                std::to_string(size - 8) + " after the length",
            "the file was cut; fetch it again");
    data_ = 8 + length;
    read_header(static_cast<std::size_t>(length));
    check_layout(size - data_);
    for (std::size_t i = 0; i < entries_.size(); ++i)
      index_[entries_[i].name] = i;
  }

  const std::vector<safetensors_entry>& tensors() const { return entries_; } ///< in file order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The entry called `name`. Throws when there is none.
  const safetensors_entry& find(const std::string& name) const {
    const auto found = index_.find(name);
    require(found != index_.end(), where(), "it has no tensor '" + printable(name) + "'");
    return entries_[found->second];
  }

  /// Reads the tensor's bytes, whose number must be `bytes.size()`.
  void read(const std::string& name, std::span<std::byte> bytes) const {
    const safetensors_entry& e = find(name);
    require(bytes.size() == e.end - e.begin, where(),
            "tensor '" + printable(name) + "' has " + std::to_string(e.end - e.begin) + " bytes, " +
                std::to_string(bytes.size()) + " are expected");
    file_.read_at(data_ + e.begin, bytes);
  }

private:
  std::string where() const { return file_.path().string(); }

  void read_header(std::size_t length) {
    std::string header(length, '\0');
    file_.read_at(8, std::as_writable_bytes(std::span(header)));
    require(!header.empty() && header.front() == '{', where(), "its header does not begin with '{'",
            "this is no safetensors file");
    const json parsed = parse_json(header, where());
    for (const auto& [name, value] : parsed.items()) {
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        entries_.push_back(entry(name, value));
      }
    }
  }

  void read_metadata(const json& value) {
    require(value.is_object(), where(), "__metadata__ is no object");
    for (const auto& [key, text] : value.items()) {
      require(text.is_string(), where(), "__metadata__ '" + printable(key) + "' is no text");
      metadata_[key] = text.get<std::string>();
    }
  }

  safetensors_entry entry(const std::string& name, const json& value) const {
    const std::string at = where() + ", tensor '" + printable(name) + "'";
    require(name.size() <= safetensors_name_limit, at,
            "its name has more than " + std::to_string(safetensors_name_limit) + " bytes");
    require(value.is_object() && value.size() == 3, at,
            "dtype, shape and data_offsets are expected, and nothing else");
    safetensors_entry e;
    e.name = name;
    e.type = type_of(get_string(value, "dtype", at), at);
    const json& shape = get_array(value, "shape", at);
    require(shape.size() <= safetensors_rank_limit, at,
            "it has " + std::to_string(shape.size()) + " dimensions, at most " +
                std::to_string(safetensors_rank_limit) + " are accepted");
    std::uint64_t size = digest::dtype_bytes(e.type);
    for (const json& extent : shape) {
      require(extent.is_number_unsigned(), at, "an extent is no count");
      e.shape.push_back(extent.get<std::uint64_t>());
      require(!__builtin_mul_overflow(size, e.shape.back(), &size), at, "its shape overflows");
    }
    const json& offsets = get_array(value, "data_offsets", at);
    require(offsets.size() == 2 && offsets[0].is_number_unsigned() &&
                offsets[1].is_number_unsigned(),
            at, "data_offsets are no two counts");
    e.begin = offsets[0].get<std::uint64_t>();
    e.end = offsets[1].get<std::uint64_t>();
    require(e.begin <= e.end, at, "its data_offsets are reversed");
    require(e.end - e.begin == size, at,
            "it has " + std::to_string(e.end - e.begin) + " bytes, its shape asks for " +
                std::to_string(size));
    return e;
  }

  static digest::dtype type_of(const std::string& name, const std::string& at) {
    using digest::dtype;
    for (const dtype candidate :
         {dtype::f32, dtype::bf16, dtype::i64, dtype::i32, dtype::u32, dtype::i8, dtype::u8}) {
      if (name == digest::dtype_name(candidate))
        return candidate;
    }
    throw error(at, "its type is '" + printable(name) + "'",
                "F32, BF16, I64, I32, U32, I8 and U8 are read");
  }

  void check_layout(std::uint64_t data_size) {
    std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t at = 0;
    for (const safetensors_entry& e : entries_) {
      require(e.begin == at, where(),
              "tensor '" + printable(e.name) + "' begins at " + std::to_string(e.begin) +
                  ", the one before it ends at " + std::to_string(at),
              "tensors must follow one another without overlap or hole");
      at = e.end;
    }
    require(at == data_size, where(),
            "its tensors end at " + std::to_string(at) + ", its data at " +
                std::to_string(data_size),
            "the file was cut or has something after its end");
  }

  file file_;
  std::uint64_t data_ = 0;
  std::vector<safetensors_entry> entries_;
  std::map<std::string, std::size_t> index_;
  std::map<std::string, std::string> metadata_;
};

} // namespace ordo::io
