// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The digest of named tensors as RFC 9162 and docs/contract.md define it: one message after the
/// other, recursion for the tree.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ordo/digest/sha256.hpp>
#include <ordo/digest/state.hpp>

namespace ordo::reference {

/// RFC 9162, 2.1.1: MTH({}) = SHA-256(""), MTH({d}) = SHA-256(0x00 || d), otherwise
/// SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n])) with k the largest power of two below n.
inline digest::hash256 merkle_tree_hash(std::span<const std::string> entries) {
  if (entries.empty())
    return digest::sha256_of(std::string());
  if (entries.size() == 1)
    return digest::sha256_of(std::string(1, '\0') + entries[0]);
  std::size_t k = 1;
  while (2 * k < entries.size())
    k *= 2;
  const digest::hash256 left = merkle_tree_hash(entries.first(k));
  const digest::hash256 right = merkle_tree_hash(entries.subspan(k));
  std::string message = "\1";
  message.append(left.begin(), left.end());
  message.append(right.begin(), right.end());
  return digest::sha256_of(message);
}

/// The root of one tensor, from a copy of its bytes in which every NaN is 7fc00000 or 7fc0.
inline digest::hash256 tensor_root(const digest::tensor_ref& tensor) {
  std::string data;
  for (const std::byte b : tensor.bytes)
    data += static_cast<char>(b);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(data[i]); };
  for (std::size_t i = 0; tensor.type == digest::dtype::f32 && i < data.size(); i += 4) {
    const bool infinity_or_nan = (byte(i + 3) & 0x7f) == 0x7f && (byte(i + 2) & 0x80) != 0;
    const bool fraction = (byte(i + 2) & 0x7f) != 0 || byte(i + 1) != 0 || byte(i) != 0;
    if (infinity_or_nan && fraction)
      data.replace(i, 4, std::string("\x00\x00\xc0\x7f", 4));
  }
  for (std::size_t i = 0; tensor.type == digest::dtype::bf16 && i < data.size(); i += 2) {
    const bool infinity_or_nan = (byte(i + 1) & 0x7f) == 0x7f && (byte(i) & 0x80) != 0;
    if (infinity_or_nan && (byte(i) & 0x7f) != 0)
      data.replace(i, 2, "\xc0\x7f");
  }
  std::vector<std::string> chunks;
  for (std::size_t at = 0; at < data.size(); at += 16384)
    chunks.push_back(data.substr(at, 16384));
  const digest::hash256 root = merkle_tree_hash(chunks);

  const auto number = [](std::uint64_t n) {
    std::string bytes;
    for (int i = 0; i < 8; ++i)
      bytes += static_cast<char>(n >> (8 * i) & 0xff);
    return bytes;
  };
  const std::string type = digest::dtype_name(tensor.type);
  std::string message("ordo tensor 1\0", 14);
  message += number(tensor.name.size()) + tensor.name + number(type.size()) + type;
  message += number(tensor.shape.size());
  for (const std::uint64_t extent : tensor.shape)
    message += number(extent);
  message.append(root.begin(), root.end());
  return digest::sha256_of(message);
}

/// The root of a state: the tree over the tensors' roots in ascending byte-wise order of names.
inline digest::hash256 state_digest(std::span<const digest::tensor_ref> tensors) {
  std::vector<digest::tensor_ref> sorted(tensors.begin(), tensors.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::vector<std::string> roots;
  for (const digest::tensor_ref& tensor : sorted) {
    const digest::hash256 root = tensor_root(tensor);
    roots.emplace_back(root.begin(), root.end());
  }
  return merkle_tree_hash(roots);
}

} // namespace ordo::reference
