// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The tensors of a state as files see them, wherever their pieces lie: whole, one at a time, in
/// the memory of process 0.

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ordo/comm/communicator.hpp>
#include <ordo/io/safetensors.hpp>
#include <ordo/train/host_window.hpp>
#include <ordo/train/state.hpp>

namespace ordo::train {

/// What process 0 says, on every process. Collective.
inline bool told_by_first(comm::communicator& processes, bool said) {
  std::byte byte{static_cast<unsigned char>(said ? 1 : 0)};
  comm::broadcast(processes, std::span(&byte, 1));
  return byte == std::byte{1};
}

/// Reading and writing tensors of `vectors` by process 0 (read_all, fill), while all others serve
/// what it asks for in the same order (serve_reads, serve_writes).
template <execution_space Space>
class shared_tensors {
public:
  shared_tensors(const Space& space, comm::communicator& processes, const partition& parts)
      : processes_(processes), parts_(parts), window_(space) {}

  /// All tensors with their sizes, for a file's header; the bytes are those of `read`.
  std::vector<digest::tensor_ref> described(std::span<const state_vector> vectors) {
    if (alone())
      return detail::whole_tensors(parts_.table(), vectors);
    std::vector<digest::tensor_ref> all;
    for (const model::tensor& t : parts_.table())
      for (const state_vector& v : vectors)
        all.push_back(v.whole(t, room_for(v, t)));
    // The room may have moved while it grew.
    for (digest::tensor_ref& t : all)
      t.bytes = std::span<const std::byte>(buffer_.data(), t.bytes.size());
    return all;
  }

  /// The bytes of the tensor called `name`, until the next call. Tensors are read in name order.
  std::span<const std::byte> read(std::span<const state_vector> vectors, const std::string& name) {
    const auto [vector, tensor] = find(vectors, name);
    const model::tensor& t = parts_.table()[tensor];
    if (alone())
      return window_.read(vector->whole(t, vector->bytes(t.offset, t.size())));
    const std::span<std::byte> bytes = room_for(*vector, t);
    std::vector<comm::incoming> receives;
    for (int p = 0; p < processes_.size(); ++p) {
      const tensor_piece* const piece = piece_of(p, tensor);
      if (piece == nullptr)
        continue;
      const std::span<std::byte> to = part(bytes, *vector, *piece);
      if (p == processes_.rank()) {
        std::memcpy(to.data(), window_.read(own(*vector, *piece)).data(), to.size());
      } else {
        receives.push_back({p, to});
      }
    }
    processes_.exchange({}, receives);
    return bytes;
  }
  void serve_reads(std::span<const state_vector> vectors) {
    std::vector<std::string> names;
    for (const model::tensor& t : parts_.table())
      for (const state_vector& v : vectors)
        names.push_back(v.prefix + t.name);
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      const auto [vector, tensor] = find(vectors, name);
      const tensor_piece* const piece = piece_of(processes_.rank(), tensor);
      if (piece == nullptr)
        continue;
      const comm::outgoing send{0, window_.read(own(*vector, *piece))};
      processes_.exchange(std::span(&send, 1), {});
    }
  }

  /// Fills every tensor of `vectors` from a file, which must hold these and no others.
  void fill(std::span<const state_vector> vectors, const io::safetensors_reader& reader,
            const std::string& where) {
    const std::vector<model::tensor>& table = parts_.table();
    const std::size_t count = table.size() * vectors.size();
    require(reader.tensors().size() == count, where,
            "it holds " + std::to_string(reader.tensors().size()) + " tensors, the run has " +
                std::to_string(count),
            "this checkpoint belongs to another configuration");
    for (std::size_t tensor = 0; tensor < table.size(); ++tensor) {
      for (const state_vector& v : vectors) {
        const model::tensor& t = table[tensor];
        const std::string name = v.prefix + t.name;
        const io::safetensors_entry& entry = reader.find(name);
        require(entry.type == v.type && entry.shape == t.extents(), where,
                "tensor '" + name + "' has another type or shape than the run's",
                "this checkpoint belongs to another configuration");
        if (alone()) {
          const digest::tensor_ref whole = v.whole(t, v.bytes(t.offset, t.size()));
          reader.read(name, window_.begin_write(whole));
          window_.commit(whole);
          continue;
        }
        const std::span<std::byte> bytes = room_for(v, t);
        reader.read(name, bytes);
        hand_out(v, tensor, bytes);
      }
    }
  }
  void serve_writes(std::span<const state_vector> vectors) {
    for (std::size_t tensor = 0; tensor < parts_.table().size(); ++tensor) {
      for (const state_vector& v : vectors) {
        const tensor_piece* const piece = piece_of(processes_.rank(), tensor);
        if (piece == nullptr)
          continue;
        const digest::tensor_ref to = own(v, *piece);
        const comm::incoming receive{0, window_.begin_write(to)};
        processes_.exchange({}, std::span(&receive, 1));
        window_.commit(to);
      }
    }
  }

private:
  bool alone() const { return processes_.size() == 1; }

  std::span<std::byte> room_for(const state_vector& v, const model::tensor& t) {
    const auto size = static_cast<std::size_t>(t.size() * v.entry_bytes());
    if (buffer_.size() < size)
      buffer_.resize(size);
    return std::span(buffer_).first(size);
  }
  std::pair<const state_vector*, std::size_t> find(std::span<const state_vector> vectors,
                                                   const std::string& name) const {
    for (const state_vector& v : vectors)
      for (std::size_t t = 0; t < parts_.table().size(); ++t)
        if (v.prefix + parts_.table()[t].name == name)
          return {&v, t};
    throw error("ordo::train::shared_tensors", "there is no tensor '" + name + "'");
  }
  /// A process has at most one piece of a tensor.
  const tensor_piece* piece_of(int process, std::size_t tensor) const {
    for (const tensor_piece& piece : parts_.pieces(process))
      if (piece.tensor == tensor)
        return &piece;
    return nullptr;
  }
  static std::span<std::byte> part(std::span<std::byte> tensor, const state_vector& v,
                                   const tensor_piece& piece) {
    return tensor.subspan(static_cast<std::size_t>(piece.first * v.entry_bytes()),
                          static_cast<std::size_t>(piece.size * v.entry_bytes()));
  }
  static digest::tensor_ref own(const state_vector& v, const tensor_piece& piece) {
    return {v.prefix, v.type, {}, v.bytes(piece.offset, piece.size)};
  }
  void hand_out(const state_vector& v, std::size_t tensor, std::span<std::byte> bytes) {
    std::vector<comm::outgoing> sends;
    for (int p = 0; p < processes_.size(); ++p) {
      const tensor_piece* const piece = piece_of(p, tensor);
      if (piece == nullptr)
        continue;
      const std::span<std::byte> from = part(bytes, v, *piece);
      if (p == processes_.rank()) {
        const digest::tensor_ref to = own(v, *piece);
        std::memcpy(window_.begin_write(to).data(), from.data(), from.size());
        window_.commit(to);
      } else {
        sends.push_back({p, from});
      }
    }
    processes_.exchange(sends, {});
  }

  comm::communicator& processes_;
  const partition& parts_;
  host_window<Space> window_;
  std::vector<std::byte> buffer_;
};

} // namespace ordo::train
