// SPDX-License-Identifier: Apache-2.0

// The deterministic collectives beside MPI's own, on the processes of one job:
//   mpirun -n N mpi_collectives [MILLIONS_OF_BYTES]
// One line of JSON: medians of interleaved repetitions, their ratio, the bytes a process sent, and
// the digest of the result, which is the same for any division of the work.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <ordo/comm/collectives.hpp>
#include <ordo/comm/mpi_communicator.hpp>
#include <ordo/digest/sha256.hpp>

#include "devices.hpp"

namespace {

using namespace ordo;
using space = Kokkos::Serial;

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

/// Seconds from the moment at which all processes are ready to the moment at which all are done.
template <class Work>
double seconds_of(const Work& work) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  work();
  double own = MPI_Wtime() - begin, slowest = 0;
  MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

void report(const char* name, const std::vector<double>& ours, const std::vector<double>& mpi,
            const comm::traffic& used, std::size_t n, const digest::hash256& root) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < ours.size(); ++i)
    ratios.push_back(ours[i] / mpi[i]);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::printf("{\"collective\": \"%s\", \"processes\": %d, \"bytes\": %zu, \"seconds\": %.4f, "
              "\"mpi_seconds\": %.4f, \"ratio\": %.3f, \"sent_of_buffer\": %.4f, "
              "\"result\": \"%s\"}\n",
              name, size, n * 4, median(ours), median(mpi), median(ratios),
              static_cast<double>(used.bytes_sent) / static_cast<double>(n * 4),
              digest::hex(root).substr(0, 16).c_str());
}

} // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const instances::kokkos_scope kokkos;
  {
    comm::mpi_communicator job(std::chrono::seconds(300));
    const std::size_t n = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100) * 250000;
    const int repetitions = 11;
    std::vector<float> own(n), values(n), unordered(n);
    for (std::size_t i = 0; i < n; ++i)
      own[i] =
          static_cast<float>(static_cast<int>(i * 2654435761u >> 8 & 0xffff) - 32768 + job.rank()) *
          0x1p-20f;
    comm::exchange_memory<space> memory;
    std::vector<double> ours, mpi;
    comm::traffic used;
    for (int i = 0; i < repetitions; ++i) {
      values = own;
      unordered = own;
      job.take_traffic();
      ours.push_back(seconds_of([&] {
        comm::all_reduce(space(), order::Tree{}, job, vector_view<float, space>(values.data(), n),
                         memory);
      }));
      used = job.take_traffic();
      mpi.push_back(seconds_of([&] {
        MPI_Allreduce(MPI_IN_PLACE, unordered.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
      }));
    }
    if (job.rank() == 0)
      report("all_reduce", ours, mpi, used, n,
             digest::sha256_of(std::as_bytes(std::span<const float>(values))));

    ours.clear();
    mpi.clear();
    const std::size_t share = n / static_cast<std::size_t>(job.size());
    const std::size_t whole = share * static_cast<std::size_t>(job.size());
    const auto cuts = comm::even_cuts(static_cast<std::int64_t>(whole), job.size());
    for (int i = 0; i < repetitions; ++i) {
      job.take_traffic();
      ours.push_back(seconds_of([&] {
        comm::reduce_scatter(space(), order::Sequential{}, job,
                             vector_view<const float, space>(own.data(), whole), cuts,
                             vector_view<float, space>(values.data(), share), memory);
      }));
      used = job.take_traffic();
      mpi.push_back(seconds_of([&] {
        MPI_Reduce_scatter_block(own.data(), unordered.data(), static_cast<int>(share), MPI_FLOAT,
                                 MPI_SUM, MPI_COMM_WORLD);
      }));
    }
    if (job.rank() == 0)
      report("reduce_scatter", ours, mpi, used, whole,
             digest::sha256_of(std::as_bytes(std::span<const float>(values.data(), share))));
  }
  MPI_Finalize();
  return 0;
}
