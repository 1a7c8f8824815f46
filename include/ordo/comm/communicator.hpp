// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The processes of a job as the library sees them: numbered, exchanging bytes. What their number
/// changes is who computes what; it never changes a bit.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ordo/core/error.hpp>

namespace ordo::comm {

/// Bytes for process `to`, which must stay as they are until the exchange is finished.
struct outgoing {
  int to;
  std::span<const std::byte> bytes;
};

/// Room for the bytes that process `from` sends: as many as it sends.
struct incoming {
  int from;
  std::span<std::byte> bytes;
};

/// What a process has sent and received since the last `take_traffic`.
struct traffic {
  std::uint64_t bytes_sent = 0, bytes_received = 0, messages_sent = 0;
  double seconds_waiting = 0; ///< in `finish`, with nothing else to do
};

/// Processes 0 to size() - 1 of a job.
///
/// Every process starts the exchanges between two processes in the same order; that order alone
/// says which bytes belong to which. Throws, from all members: ordo::error naming the process that
/// does not answer and what it was expected for.
class communicator {
public:
  using ticket = std::uint64_t;

  virtual ~communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Starts sending and receiving and returns; empty messages are not sent.
  virtual ticket start(std::span<const outgoing> sends, std::span<const incoming> receives) = 0;
  /// Waits until everything that `start` returned this ticket for has arrived and left.
  virtual void finish(ticket exchange) = 0;
  /// Moves messages on that are under way: for calls between other work.
  virtual void progress() {}

  void exchange(std::span<const outgoing> sends, std::span<const incoming> receives) {
    finish(start(sends, receives));
  }

  /// What is going on from now on, for errors: "step 12, reducing gradients".
  void enter(std::string phase) { phase_ = std::move(phase); }
  const std::string& phase() const { return phase_; }

  /// The traffic since the last call.
  traffic take_traffic() { return std::exchange(traffic_, {}); }

protected:
  traffic traffic_;

private:
  std::string phase_ = "start";
};

/// The one process of a job that has no others.
class self_communicator final : public communicator {
public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  ticket start(std::span<const outgoing> sends, std::span<const incoming> receives) override {
    for (const auto& [to, bytes] : sends)
      require(bytes.empty(), "ordo::comm", "process " + std::to_string(to) + " is not there");
    for (const auto& [from, bytes] : receives)
      require(bytes.empty(), "ordo::comm", "process " + std::to_string(from) + " is not there");
    return 0;
  }
  void finish(ticket) override {}
};

namespace detail {

template <class T>
std::span<const std::byte> bytes_of(const T* data, std::int64_t n) {
  return std::as_bytes(std::span<const T>(data, static_cast<std::size_t>(n)));
}
template <class T>
std::span<std::byte> bytes_of(T* data, std::int64_t n) {
  return std::as_writable_bytes(std::span<T>(data, static_cast<std::size_t>(n)));
}

} // namespace detail

/// Gives the bytes of process `root` to all others.
///
/// Cost: every process receives them once and sends them at most log2(size) times.
inline void broadcast(communicator& processes, std::span<std::byte> bytes, int root = 0) {
  const int size = processes.size();
  const int place = (processes.rank() - root + size) % size; // root is 0
  int reach = 1;
  while (reach < size)
    reach *= 2;
  // Place p receives from p without its lowest bit, and sends to p with every bit below that.
  const int lowest = place == 0 ? reach : place & -place;
  if (place != 0) {
    const incoming from{(place - lowest + root) % size, bytes};
    processes.exchange({}, std::span(&from, 1));
  }
  std::vector<outgoing> sends;
  for (int bit = lowest / 2; bit > 0; bit /= 2) {
    if (place + bit < size)
      sends.push_back({(place + bit + root) % size, bytes});
  }
  processes.exchange(sends, {});
}

/// The same for a text whose length the others do not know.
inline void broadcast(communicator& processes, std::string& text, int root = 0) {
  std::uint64_t length = text.size();
  broadcast(processes, detail::bytes_of(&length, 1), root);
  text.resize(length);
  broadcast(processes, detail::bytes_of(text.data(), static_cast<std::int64_t>(length)), root);
}

/// Collects shares: those of process p are bytes [cuts[p], cuts[p + 1]) of `whole`, where its own
/// already lie on process p. Only at `root`, or everywhere where `root` is -1.
///
/// Cost: a process sends its share once (to all others, where root is -1).
inline void gather(communicator& processes, std::span<std::byte> whole,
                   std::span<const std::size_t> cuts, int root = -1) {
  const int size = processes.size(), rank = processes.rank();
  require(cuts.size() == static_cast<std::size_t>(size) + 1 && cuts.back() == whole.size(),
          "ordo::comm::gather", "the cuts do not divide the bytes among the processes");
  const auto share = [&](int p) {
    const auto at = static_cast<std::size_t>(p);
    return whole.subspan(cuts[at], cuts[at + 1] - cuts[at]);
  };
  std::vector<outgoing> sends;
  std::vector<incoming> receives;
  for (int k = 1; k < size; ++k) { // every process begins with another one
    const int to = (rank + k) % size, from = (rank - k + size) % size;
    if (root == -1 || to == root)
      sends.push_back({to, share(rank)});
    if (root == -1 || rank == root)
      receives.push_back({from, share(from)});
  }
  processes.exchange(sends, receives);
}

/// The same for texts whose lengths the others do not know: all of them, by process.
inline std::vector<std::string> gather(communicator& processes, const std::string& text,
                                       int root = -1) {
  const auto size = static_cast<std::size_t>(processes.size());
  const auto rank = static_cast<std::size_t>(processes.rank());
  std::vector<std::uint64_t> lengths(size);
  lengths[rank] = text.size();
  std::vector<std::size_t> cuts(size + 1);
  for (std::size_t p = 0; p <= size; ++p)
    cuts[p] = p * sizeof(std::uint64_t);
  gather(processes, std::as_writable_bytes(std::span(lengths)), cuts);
  for (std::size_t p = 0; p < size; ++p)
    cuts[p + 1] = cuts[p] + lengths[p];
  std::string whole(cuts.back(), '\0');
  std::memcpy(whole.data() + cuts[rank], text.data(), text.size());
  gather(processes, std::as_writable_bytes(std::span(whole)), cuts, root);
  std::vector<std::string> texts;
  for (std::size_t p = 0; p < size; ++p)
    texts.push_back(whole.substr(cuts[p], cuts[p + 1] - cuts[p]));
  return texts;
}

} // namespace ordo::comm
