// SPDX-License-Identifier: Apache-2.0

// Collectives on the processes of a job: each is compared, by bits, with what the reference makes
// of all processes' values, which every process can draw for itself.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <ordo/comm/collectives.hpp>
#include <ordo/comm/mpi_communicator.hpp>
#include <ordo/reference/tree_fold.hpp>

#include "devices.hpp"

namespace {

using namespace ordo;
using space = Kokkos::DefaultHostExecutionSpace;
comm::mpi_communicator* job = nullptr;

/// Values whose sums depend on their order: mantissas of all lengths, exponents far apart.
std::vector<float> values_of(std::size_t n, int process) {
  std::vector<float> values(n);
  std::uint64_t state = n * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(process) + 1;
  for (float& v : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto word = static_cast<std::uint32_t>(state >> 32);
    const int exponent = static_cast<int>(word % 21) - 10;
    v = std::ldexp(static_cast<float>(static_cast<std::int32_t>(word >> 8) - (1 << 23)),
                   exponent - 23);
  }
  return values;
}

std::vector<std::vector<float>> all_values(std::size_t n) {
  std::vector<std::vector<float>> all;
  for (int p = 0; p < job->size(); ++p)
    all.push_back(values_of(n, p));
  return all;
}

std::vector<float> in_turn(const std::vector<std::vector<float>>& ranks) {
  std::vector<float> total = ranks.front();
  for (std::size_t r = 1; r < ranks.size(); ++r)
    for (std::size_t i = 0; i < total.size(); ++i)
      total[i] = arith::add(total[i], ranks[r][i]);
  return total;
}

bool same(const float* got, const std::vector<float>& expected, std::size_t from, std::size_t n) {
  return n == 0 || std::memcmp(got, expected.data() + from, n * sizeof(float)) == 0;
}

const std::size_t sizes[] = {
    0, 1, 2, 7, 8, 9, 65535, 524288, 524289, (1u << 20) + 1, 3u * (1u << 18) + 11};

} // namespace

TEST_CASE("all_reduce: every process ends with the reference's bits") {
  comm::exchange_memory<space> memory;
  const auto count = static_cast<std::uint64_t>(job->size());
  for (const std::size_t n : sizes) {
    const auto all = all_values(n);
    const std::vector<float> own = all[static_cast<std::size_t>(job->rank())];
    for (const bool tree : {true, false})
      for (const comm::fold_result result : {comm::fold_result::sum, comm::fold_result::mean}) {
        std::vector<float> expected = tree ? reference::tree_fold(all) : in_turn(all);
        if (result == comm::fold_result::mean && count > 1)
          for (float& v : expected)
            v = arith::mul(v, comm::reciprocal(count));
        std::vector<float> values = own;
        const vector_view<float, space> view(values.data(), n);
        job->take_traffic();
        if (tree) {
          comm::all_reduce(space(), order::Tree{}, *job, view, memory, result);
        } else {
          comm::all_reduce(space(), order::Sequential{}, *job, view, memory, result);
        }
        CHECK(same(values.data(), expected, 0, n));
        // Twice all but the own share goes out, whatever the order and the number of processes.
        const auto cuts = comm::even_cuts(static_cast<std::int64_t>(n), job->size());
        const auto at = static_cast<std::size_t>(job->rank());
        const auto share = static_cast<std::uint64_t>(cuts[at + 1] - cuts[at]);
        const comm::traffic used = job->take_traffic();
        CHECK(used.bytes_sent == 4 * (n - share + (count - 1) * share));
        CHECK(used.bytes_received == used.bytes_sent);
      }
  }
}

TEST_CASE("the orders differ where they should") {
  if (job->size() < 4)
    return;
  CHECK_FALSE(reference::tree_fold(all_values(1000)) == in_turn(all_values(1000)));
}

TEST_CASE("reduce_scatter: shares of any size, values untouched") {
  comm::exchange_memory<space> memory;
  for (const std::size_t n : sizes) {
    const auto all = all_values(n);
    const auto rank = static_cast<std::size_t>(job->rank());
    const std::vector<float> own = all[rank];
    std::vector<std::int64_t> uneven{0}; // the first shares are empty, the last the largest
    for (int p = 1; p <= job->size(); ++p)
      uneven.push_back(p == job->size() ? static_cast<std::int64_t>(n)
                                        : static_cast<std::int64_t>(n) * (p / 2) / job->size());
    for (const auto& cuts : {uneven, comm::even_cuts(static_cast<std::int64_t>(n), job->size())}) {
      const auto begin = static_cast<std::size_t>(cuts[rank]);
      std::vector<float> share(static_cast<std::size_t>(cuts[rank + 1]) - begin);
      const vector_view<const float, space> values(own.data(), n);
      const vector_view<float, space> to(share.data(), share.size());
      comm::reduce_scatter(space(), order::Sequential{}, *job, values, cuts, to, memory);
      CHECK(same(share.data(), in_turn(all), begin, share.size()));
      comm::reduce_scatter(space(), order::Tree{}, *job, values, cuts, to, memory);
      CHECK(same(share.data(), reference::tree_fold(all), begin, share.size()));
      CHECK(own == all[rank]);
    }
  }
}

TEST_CASE("broadcast and gather, from and to every process") {
  for (int root = 0; root < job->size(); ++root) {
    std::string text = job->rank() == root ? "from " + std::to_string(root) : "?";
    comm::broadcast(*job, text, root);
    CHECK(text == "from " + std::to_string(root));
    const auto own = std::string(static_cast<std::size_t>(job->rank()) * 3, 'x');
    const auto texts = comm::gather(*job, own, root);
    if (job->rank() == root) {
      for (int p = 0; p < job->size(); ++p)
        CHECK(texts[static_cast<std::size_t>(p)].size() == static_cast<std::size_t>(p) * 3);
    }
  }
  const auto texts = comm::gather(*job, std::to_string(job->rank()));
  for (int p = 0; p < job->size(); ++p)
    CHECK(texts[static_cast<std::size_t>(p)] == std::to_string(p));
}

TEST_CASE("a process that does not answer is named") {
  if (job->size() < 2)
    return;
  comm::mpi_communicator impatient(std::chrono::duration<double>(0.5));
  impatient.enter("waiting for what nobody sends");
  static std::byte room[8]; // of a message that arrives after all
  if (impatient.rank() == 0) {
    std::string said;
    try {
      const comm::incoming from{1, room};
      impatient.exchange({}, std::span(&from, 1));
    } catch (const error& failure) {
      said = failure.what();
    }
    CHECK(said.find("no answer from process 1 for 0.5 s") != std::string::npos);
    CHECK(said.find("'waiting for what nobody sends'") != std::string::npos);
  }
  if (impatient.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const comm::outgoing to{0, std::span<const std::byte>(room)};
    impatient.exchange(std::span(&to, 1), {});
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const instances::kokkos_scope kokkos;
  int status = 0;
  {
    comm::mpi_communicator processes(std::chrono::seconds(120));
    job = &processes;
    doctest::Context context(argc, argv);
    if (processes.rank() != 0)
      context.setOption("minimal", true);
    status = context.run();
  }
  MPI_Finalize();
  return status;
}
