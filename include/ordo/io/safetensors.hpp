// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The safetensors format: a writer whose bytes follow from the tensors, a reader that trusts nothing.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ordo/digest/state.hpp>
#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>

namespace ordo::io {

/// Bytes of header that a reader accepts, as in the reference implementation.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;

/// Writes tensors in name order; the header is one line of JSON padded with spaces to 8 bytes.
///
/// Bits: of names, types, shapes, bytes and `metadata` alone. Complete or absent (write_atomic).
inline void write_safetensors(const std::filesystem::path& path,
                              std::vector<digest::tensor_ref> tensors,
                              const std::map<std::string, std::string>& metadata = {}) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::string header = "{\"__metadata__\":" + json(metadata).dump();
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const digest::tensor_ref& t = tensors[i];
    require(t.name != "__metadata__" && (i == 0 || t.name != tensors[i - 1].name), path.string(),
            "two tensors are called '" + t.name + "'");
    header += "," + json(t.name).dump() + ":{\"dtype\":\"" + digest::dtype_name(t.type) +
              "\",\"shape\":" + json(t.shape).dump() + ",\"data_offsets\":[" +
              std::to_string(offset) + "," + std::to_string(offset + t.bytes.size()) + "]}";
    offset += t.bytes.size();
  }
  header += '}';
  header.append((8 - header.size() % 8) % 8, ' ');
  require(header.size() <= safetensors_header_limit, path.string(), "too many tensors for one file");
  write_atomic(path, [&](const file& out) {
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) {
      length[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
    }
    out.write(length);
    out.write(header);
    for (const digest::tensor_ref& t : tensors) out.write(t.bytes);
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
/// that shrinks while it is read is an error.
class safetensors_reader {
 public:
  explicit safetensors_reader(const std::filesystem::path& path) : file_(path, O_RDONLY) {
    const std::uint64_t size = file_.size();
    require(size >= 8, where(), "it has " + std::to_string(size) + " bytes, too few for a header");
    std::byte prefix[8];
    file_.read_at(0, prefix);
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<std::uint8_t>(prefix[i]);
    require(length <= safetensors_header_limit, where(),
            "its header claims " + std::to_string(length) + " bytes, at most " +
                std::to_string(safetensors_header_limit) + " are accepted");
    require(length <= size - 8, where(),
            "its header claims " + std::to_string(length) + " bytes, the file has " +
                std::to_string(size - 8) + " after the length");
    std::string header(static_cast<std::size_t>(length), '\0');
    file_.read_at(8, std::as_writable_bytes(std::span(header)));
    data_ = 8 + length;
    require(!header.empty() && header.front() == '{', where(), "its header does not begin with '{'");
    const json parsed = parse_json(header, where());
    require(parsed.is_object(), where(), "its header is no object");
    for (const auto& [name, value] : parsed.items()) {
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        entries_.push_back(entry(name, value));
      }
    }
    check_layout(size - data_);
  }

  const std::vector<safetensors_entry>& tensors() const { return entries_; }  ///< in file order
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The entry called `name`. Throws when there is none.
  const safetensors_entry& find(const std::string& name) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const safetensors_entry& e) { return e.name == name; });
    require(found != entries_.end(), where(), "it has no tensor '" + name + "'");
    return *found;
  }

  /// Reads the tensor's bytes, whose number must be `bytes.size()`.
  void read(const std::string& name, std::span<std::byte> bytes) const {
    const safetensors_entry& e = find(name);
    require(bytes.size() == e.end - e.begin, where(),
            "tensor '" + name + "' has " + std::to_string(e.end - e.begin) + " bytes, " +
                std::to_string(bytes.size()) + " are expected");
    file_.read_at(data_ + e.begin, bytes);
  }

 private:
  std::string where() const { return file_.path().string(); }

  void read_metadata(const json& value) {
    require(value.is_object(), where(), "__metadata__ is no object");
    for (const auto& [key, text] : value.items()) {
      require(text.is_string(), where(), "__metadata__ '" + key + "' is no text");
      metadata_[key] = text.get<std::string>();
    }
  }

  safetensors_entry entry(const std::string& name, const json& value) const {
    const std::string at = where() + ", tensor '" + name + "'";
    require(name.size() <= 1024, where(), "a tensor's name has more than 1024 bytes");
    require(value.is_object() && value.size() == 3, at, "dtype, shape and data_offsets are expected");
    safetensors_entry e;
    e.name = name;
    const std::string type = get_string(value, "dtype", at);
    bool known = false;
    for (const auto candidate : {digest::dtype::f32, digest::dtype::bf16, digest::dtype::i64,
                                 digest::dtype::i32, digest::dtype::u32, digest::dtype::i8,
                                 digest::dtype::u8}) {
      if (type != digest::dtype_name(candidate)) continue;
      e.type = candidate;
      known = true;
    }
    require(known, at, "its type is '" + type + "'", "F32, BF16, I64, I32, U32, I8 and U8 are read");
    const json& shape = get_array(value, "shape", at);
    require(shape.size() <= 8, at, "it has more than 8 dimensions");
    std::uint64_t size = digest::dtype_bytes(e.type);
    for (const json& extent : shape) {
      require(extent.is_number_unsigned(), at, "an extent is no count");
      e.shape.push_back(extent.get<std::uint64_t>());
      require(!__builtin_mul_overflow(size, e.shape.back(), &size), at, "its shape overflows");
    }
    const json& offsets = get_array(value, "data_offsets", at);
    require(offsets.size() == 2 && offsets[0].is_number_unsigned() && offsets[1].is_number_unsigned(),
            at, "data_offsets are no two counts");
    e.begin = offsets[0].get<std::uint64_t>();
    e.end = offsets[1].get<std::uint64_t>();
    require(e.begin <= e.end, at, "data_offsets are reversed");
    require(e.end - e.begin == size, at,
            "it has " + std::to_string(e.end - e.begin) + " bytes, its shape asks for " +
                std::to_string(size));
    return e;
  }

  void check_layout(std::uint64_t data_size) {
    std::sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t at = 0;
    for (const safetensors_entry& e : entries_) {
      require(e.begin == at, where(),
              "tensor '" + e.name + "' begins at " + std::to_string(e.begin) +
                  ", the one before it ends at " + std::to_string(at),
              "tensors must follow one another without overlap or hole");
      at = e.end;
    }
    require(at == data_size, where(),
            "its tensors end at " + std::to_string(at) + ", its data at " + std::to_string(data_size),
            "the file was cut or has something after its end");
  }

  file file_;
  std::uint64_t data_ = 0;
  std::vector<safetensors_entry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace ordo::io
