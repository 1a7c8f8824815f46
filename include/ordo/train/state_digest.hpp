// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Roots of a state's tensors wherever their pieces lie: each process hashes the chunks that it
/// holds, and process 0 joins what comes of them.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <ordo/comm/communicator.hpp>
#include <ordo/digest/state.hpp>
#include <ordo/train/state.hpp>

namespace ordo::train {

namespace detail {

/// The chunks of a piece, cut into blocks of the tensor's Merkle tree: [begin, end) in entries of
/// the piece, and how many chunks.
struct chunk_block {
  std::int64_t begin = 0, end = 0;
  std::uint64_t chunks = 0;
};

/// Blocks of a piece in ascending order: a whole tensor is one, otherwise powers of two that divide
/// their place, so that merkle_accumulator can append them.
inline std::vector<chunk_block> blocks_of(const tensor_piece& piece, std::int64_t tensor_size,
                                          std::int64_t entry_bytes) {
  const auto per_chunk = static_cast<std::int64_t>(digest::tensor_chunk_bytes) / entry_bytes;
  const auto chunks_to = [&](std::int64_t entry) {
    return static_cast<std::uint64_t>((entry + per_chunk - 1) / per_chunk);
  };
  if (piece.size == tensor_size)
    return {{0, piece.size, chunks_to(piece.size)}};
  std::vector<chunk_block> blocks;
  std::uint64_t at = chunks_to(piece.first);
  const std::uint64_t last = chunks_to(piece.first + piece.size);
  while (at < last) {
    std::uint64_t count = at == 0 ? std::uint64_t{1} << 62 : at & (~at + 1);
    while (at + count > last)
      count /= 2;
    const auto entry = [&](std::uint64_t chunk) {
      return std::min(static_cast<std::int64_t>(chunk) * per_chunk - piece.first, piece.size);
    };
    blocks.push_back({entry(at), entry(at + count), count});
    at += count;
  }
  return blocks;
}

} // namespace detail

/// Hashes a process's pieces of vectors; collected later (digest::range_digester).
template <execution_space Space>
class piece_digester {
public:
  void start(const Space& space, const std::vector<model::tensor>& table,
             std::span<const tensor_piece> pieces, std::span<const state_vector> vectors) {
    std::vector<digest::chunk_range> ranges;
    counts_.clear();
    for (const state_vector& v : vectors) {
      std::size_t count = 0;
      for (const tensor_piece& piece : pieces) {
        for (const auto& block :
             detail::blocks_of(piece, table[piece.tensor].size(), v.entry_bytes())) {
          ranges.push_back({v.type, v.bytes(piece.offset + block.begin, block.end - block.begin)});
          ++count;
        }
      }
      counts_.push_back(count);
    }
    ranges_.start(space, ranges);
  }

  /// Appends each vector's hashes, piece by piece, to `hashes`, which has one list a vector.
  void finish(std::span<std::vector<digest::hash256>> hashes) {
    const std::vector<digest::hash256> all = ranges_.finish();
    auto from = all.begin();
    for (std::size_t v = 0; v < counts_.size(); ++v) {
      const auto to = from + static_cast<std::ptrdiff_t>(counts_[v]);
      hashes[v].insert(hashes[v].end(), from, to);
      from = to;
    }
  }

private:
  digest::range_digester<Space> ranges_;
  std::vector<std::size_t> counts_;
};

/// Tensor roots from all processes' hashes of their pieces, one list for each of `vectors`: on
/// process 0, elsewhere nothing.
///
/// Bits: of the tensors alone, not of the partition. Cost: 32 bytes a block and process.
inline std::vector<std::vector<digest::named_root>>
join_roots(comm::communicator& processes, const partition& parts,
           std::span<const state_vector> vectors,
           std::span<const std::vector<digest::hash256>> own) {
  std::string bytes;
  for (const auto& hashes : own)
    bytes.append(reinterpret_cast<const char*>(hashes.data()),
                 hashes.size() * sizeof(digest::hash256));
  const std::vector<std::string> all = comm::gather(processes, bytes, 0);
  std::vector<std::vector<digest::named_root>> roots(vectors.size());
  if (processes.rank() != 0)
    return roots;
  const std::vector<model::tensor>& table = parts.table();
  std::vector<std::size_t> at(all.size());
  for (std::size_t v = 0; v < vectors.size(); ++v) {
    std::vector<digest::merkle_accumulator> trees(table.size());
    for (std::size_t p = 0; p < all.size(); ++p) {
      for (const tensor_piece& piece : parts.pieces(static_cast<int>(p))) {
        for (const auto& block :
             detail::blocks_of(piece, table[piece.tensor].size(), vectors[v].entry_bytes())) {
          digest::hash256 hash;
          require(at[p] + sizeof hash <= all[p].size(), "process " + std::to_string(p),
                  "it hashed other pieces than this one expects");
          std::memcpy(hash.data(), all[p].data() + at[p], sizeof hash);
          at[p] += sizeof hash;
          trees[piece.tensor].append_block(hash, block.chunks);
        }
      }
    }
    for (std::size_t t = 0; t < table.size(); ++t) {
      digest::tensor_ref tensor = vectors[v].whole(table[t], {});
      roots[v].push_back({tensor.name, digest::tensor_root(tensor, trees[t].root())});
    }
  }
  return roots;
}

/// Roots of the tensors of `vectors`, one list for all of them: on process 0. Collective.
template <execution_space Space>
std::vector<digest::named_root> state_roots(const Space& space, comm::communicator& processes,
                                            const train_state<Space>& state,
                                            std::span<const state_vector> vectors) {
  piece_digester<Space> digester;
  digester.start(space, state.table, state.pieces(), vectors);
  std::vector<std::vector<digest::hash256>> hashes(vectors.size());
  digester.finish(hashes);
  std::vector<digest::named_root> all;
  for (const auto& roots : join_roots(processes, *state.parts, vectors, hashes))
    all.insert(all.end(), roots.begin(), roots.end());
  return all;
}

} // namespace ordo::train
