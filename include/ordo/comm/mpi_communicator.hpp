// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The processes of an MPI job. The one header that needs MPI (CMake target ordo::mpi).

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <mpi.h>

#include <ordo/comm/communicator.hpp>

namespace ordo::comm {

/// A communicator over all processes of an MPI job. MPI is initialised by the caller, and used by
/// one thread at a time.
///
/// A process that has not sent what it is expected to, or not taken what it is sent, within
/// `patience` of the others being ready is an error that names it.
class mpi_communicator final : public communicator {
public:
  explicit mpi_communicator(std::chrono::duration<double> patience) : patience_(patience) {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &processes_));
    check(MPI_Comm_set_errhandler(processes_, MPI_ERRORS_RETURN));
    check(MPI_Comm_rank(processes_, &rank_));
    check(MPI_Comm_size(processes_, &size_));
  }
  mpi_communicator(const mpi_communicator&) = delete;
  mpi_communicator& operator=(const mpi_communicator&) = delete;
  ~mpi_communicator() override { MPI_Comm_free(&processes_); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  ticket start(std::span<const outgoing> sends, std::span<const incoming> receives) override {
    pending exchange;
    for (const auto& [from, bytes] : receives) {
      in_pieces(bytes, [&](std::span<std::byte> piece) {
        check(MPI_Irecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, from, tag,
                        processes_, &exchange.add(from)));
        traffic_.bytes_received += piece.size();
      });
    }
    for (const auto& [to, bytes] : sends) {
      in_pieces(bytes, [&](std::span<const std::byte> piece) {
        check(MPI_Isend(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, to, tag, processes_,
                        &exchange.add(to)));
        traffic_.bytes_sent += piece.size();
        ++traffic_.messages_sent;
      });
    }
    under_way_.emplace(++last_, std::move(exchange));
    return last_;
  }

  void finish(ticket number) override {
    const auto found = under_way_.find(number);
    require(found != under_way_.end(), "ordo::comm", "an exchange is finished twice");
    pending& exchange = found->second;
    const auto begin = clock::now();
    for (std::uint64_t looks = 0; !done(exchange); ++looks) {
      // Others may need this core to get anything sent; a long wait should cost nothing.
      if (looks < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(looks < 5000 ? 50 : 500));
        if (clock::now() - begin > patience_)
          throw_missing(exchange);
      }
    }
    traffic_.seconds_waiting += std::chrono::duration<double>(clock::now() - begin).count();
    under_way_.erase(found);
  }

  void progress() override {
    int found = 0;
    check(MPI_Iprobe(MPI_ANY_SOURCE, tag, processes_, &found, MPI_STATUS_IGNORE));
  }

private:
  using clock = std::chrono::steady_clock;
  static constexpr int tag = 0;

  struct pending {
    std::vector<MPI_Request> requests;
    std::vector<int> peers;
    MPI_Request& add(int peer) {
      peers.push_back(peer);
      return requests.emplace_back(MPI_REQUEST_NULL);
    }
  };

  static void check(int status) {
    if (status == MPI_SUCCESS)
      return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(status, text, &length);
    throw error("MPI", std::string(text, static_cast<std::size_t>(length)));
  }

  /// MPI counts in int.
  template <class Byte, class Use>
  static void in_pieces(std::span<Byte> bytes, const Use& use) {
    constexpr std::size_t most = std::size_t{1} << 30;
    for (std::size_t at = 0; at < bytes.size(); at += most)
      use(bytes.subspan(at, std::min(most, bytes.size() - at)));
  }

  bool done(pending& exchange) {
    int all = 0;
    const int status = MPI_Testall(static_cast<int>(exchange.requests.size()),
                                   exchange.requests.data(), &all, MPI_STATUSES_IGNORE);
    if (status != MPI_SUCCESS) {
      try {
        check(status);
      } catch (const error& failure) {
        throw error("process " + std::to_string(rank_) + ", " + phase(), failure.what());
      }
    }
    return all != 0;
  }

  [[noreturn]] void throw_missing(pending& exchange) {
    std::vector<int> missing;
    for (std::size_t i = 0; i < exchange.requests.size(); ++i) {
      int complete = 0;
      MPI_Test(&exchange.requests[i], &complete, MPI_STATUS_IGNORE);
      if (complete == 0)
        missing.push_back(exchange.peers[i]);
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    std::string names;
    for (const int peer : missing)
      names += (names.empty() ? "" : ", ") + std::to_string(peer);
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", patience_.count());
    throw error("process " + std::to_string(rank_) + " of " + std::to_string(size_),
                "no answer from process " + names + " for " + seconds + " s in '" + phase() + "'",
                "it hangs, was killed, or its machine is not reached; start the job again to go "
                "on from the last checkpoint");
  }

  std::chrono::duration<double> patience_;
  MPI_Comm processes_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  ticket last_ = 0;
  std::map<ticket, pending> under_way_;
};

} // namespace ordo::comm
