// SPDX-License-Identifier: Apache-2.0
//
// Digests made on the device against those of the host's library.

#include "device_fixture.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ordo/cuda/tensor_digest.hpp>
#include <ordo/cuda/xxh3.hpp>
#include <ordo/digest/fingerprint.hpp>
#include <ordo/digest/merkle.hpp>
#include <ordo/digest/tensor.hpp>

namespace {

using namespace ordo::test;
namespace cuda = ordo::cuda;
namespace digest = ordo::digest;

struct tensor {
  digest::dtype type;
  std::vector<std::byte> bytes;
  std::size_t shift = 0; ///< bytes before it in its device memory
};

cuda::digest_element element_of(digest::dtype type) {
  return type == digest::dtype::f32    ? cuda::digest_element::f32
         : type == digest::dtype::bf16 ? cuda::digest_element::bf16
                                       : cuda::digest_element::any;
}

std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::byte> x(n);
  for (auto& b : x)
    b = static_cast<std::byte>(engine());
  return x;
}

std::string expected_root(const tensor& t) {
  std::vector<std::byte> bytes = t.bytes;
  digest::canonicalize(t.type, bytes);
  std::vector<digest::hash256> leaves;
  for (std::size_t at = 0; at < bytes.size(); at += digest::tensor_chunk_bytes) {
    leaves.push_back(digest::leaf_hash(std::span(bytes).subspan(
        at, std::min<std::size_t>(digest::tensor_chunk_bytes, bytes.size() - at))));
  }
  return digest::hex(digest::merkle_root(leaves));
}

/// Roots of tensors that are not empty, all leaves in one launch.
std::vector<std::string> roots_on_device(const std::vector<tensor>& tensors) {
  cuda::digest_plan plan;
  std::vector<std::unique_ptr<device_vector<std::byte>>> memory;
  for (const tensor& t : tensors) {
    std::vector<std::byte> all(t.shift);
    all.insert(all.end(), t.bytes.begin(), t.bytes.end());
    memory.push_back(std::make_unique<device_vector<std::byte>>(all));
    plan.add(memory.back()->data() + t.shift, static_cast<std::int64_t>(t.bytes.size()),
             element_of(t.type));
  }
  plan.join();
  const device_vector<cuda::digest_source> sources(plan.sources);
  const device_vector<cuda::digest_join> joins(plan.joins);
  device_vector<cuda::sha256_words> hashes(static_cast<std::size_t>(plan.hashes()));
  const auto* const found =
      cuda::digest_roots(nullptr, plan, sources.data(), joins.data(), hashes.data());
  const auto all = hashes.host();
  std::vector<std::string> roots;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    roots.push_back(digest::hex(all[static_cast<std::size_t>(found - hashes.data()) + i].bytes()));
  return roots;
}

void compare(const std::vector<tensor>& tensors) {
  const auto found = roots_on_device(tensors);
  REQUIRE(found.size() == tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    INFO("tensor ", i, " of ", tensors[i].bytes.size(), " bytes, shift ", tensors[i].shift,
         ", type ", digest::dtype_name(tensors[i].type));
    CHECK(found[i] == expected_root(tensors[i]));
  }
}

TEST_CASE("roots equal the host's for every size") {
  std::vector<tensor> all;
  for (const std::size_t n : {1u,
                              2u,
                              3u,
                              4u,
                              53u,
                              54u,
                              55u,
                              56u,
                              57u,
                              62u,
                              63u,
                              64u,
                              65u,
                              117u,
                              118u,
                              119u,
                              128u,
                              16382u,
                              16383u,
                              16384u,
                              16385u,
                              32767u,
                              32768u,
                              49153u,
                              1u << 20,
                              (1u << 22) + 16384u,
                              (1u << 22) + 16385u,
                              9u << 20}) {
    for (const std::size_t shift : {0u, 1u, 4u, 16u})
      all.push_back({digest::dtype::u8, random_bytes(n, n + shift), shift});
  }
  compare(all);
}

TEST_CASE("NaN are hashed as one, infinities and numbers as they are") {
  std::vector<tensor> all;
  for (const auto type : {digest::dtype::f32, digest::dtype::bf16, digest::dtype::i32}) {
    const std::size_t size = digest::dtype_bytes(type);
    for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 31u, 33u, 4096u, 4097u, 8192u, 100003u}) {
      for (const std::uint32_t upper :
           {0x7f80u, 0x7f81u, 0x7fffu, 0xff80u, 0xffc0u, 0xffffu, 0x0001u, 0x8000u}) {
        tensor t{type, random_bytes(n * size, n * upper), n % 2 * size};
        const std::uint32_t word = upper << 16 | (n % 3 == 0 ? 0u : 0x12u);
        for (std::size_t i = n / 3; i < n; i += 1 + n / 5) {
          if (size == 4) {
            std::memcpy(&t.bytes[i * 4], &word, 4);
          } else {
            const std::uint16_t half = static_cast<std::uint16_t>(upper);
            std::memcpy(&t.bytes[i * 2], &half, 2);
          }
        }
        all.push_back(t);
      }
    }
  }
  compare(all);
  const auto once = roots_on_device(all);
  for (int i = 0; i < 10; ++i)
    CHECK(roots_on_device(all) == once);
}

void time_leaves(const char* name, std::size_t bytes, cuda::digest_element element) {
  const device_vector<unsigned char> data(bytes);
  const std::vector<float> values = random_f32(1 << 20, 1);
  for (std::size_t at = 0; at < bytes; at += values.size() * 4) {
    cuda::check(cudaMemcpy(data.data() + at, values.data(), std::min(bytes - at, values.size() * 4),
                           cudaMemcpyHostToDevice),
                "time_leaves");
  }
  const device_vector<cuda::digest_source> table(std::vector<cuda::digest_source>{
      {data.data(), static_cast<std::int64_t>(bytes), 0, element}});
  const auto leaves = cuda::pieces(static_cast<std::int64_t>(bytes), cuda::digest_chunk);
  device_vector<cuda::sha256_words> out(static_cast<std::size_t>(leaves));
  const float ms =
      median_ms([&] { cuda::digest_leaves(nullptr, table.data(), 1, leaves, out.data()); }, 7);
  // Rotations and logical operations, 10 a round and 8 for each of 48 words of the schedule, and 16
  // bytes to place: at 64 a cycle; sums run beside them.
  const double operations = static_cast<double>(bytes) / 64 * (64 * 10 + 48 * 8 + 16);
  const double floor = operations / (cuda::limits().multiprocessors * 64 * 1.98e9) * 1e3;
  std::printf("  %-28s %7.3f ms, %6.1f GB/s, floor of the integer units %7.3f ms\n", name, ms,
              static_cast<double>(bytes) / ms * 1e-6, floor);
}

TEST_CASE("XXH3-128 of chunks equals the host's") {
  for (const std::size_t n : {241u,
                              242u,
                              255u,
                              256u,
                              257u,
                              320u,
                              1023u,
                              1024u,
                              1025u,
                              1088u,
                              1089u,
                              2048u,
                              2049u,
                              16383u,
                              16384u,
                              16384u + 241u,
                              16384u + 1025u,
                              32768u,
                              3u * 16384u + 777u,
                              1u << 20}) {
    for (const std::size_t shift : {0u, 1u, 8u}) {
      INFO("bytes ", n, ", shift ", shift);
      const std::vector<std::byte> bytes = random_bytes(n + shift, n);
      const device_vector<std::byte> data(bytes);
      const auto leaves =
          static_cast<std::size_t>(cuda::pieces(static_cast<std::int64_t>(n), cuda::xxh3_chunk));
      device_vector<cuda::xxh3_words> out(leaves);
      cuda::xxh3_leaves(nullptr, data.data() + shift, static_cast<std::int64_t>(n), out.data());
      const auto found = out.host();
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < leaves; ++i) {
        const auto chunk = std::span(bytes).subspan(shift + i * 16384,
                                                    std::min<std::size_t>(16384, n - i * 16384));
        wrong += digest::detail::canonical(XXH128_hash_t{found[i].low, found[i].high}) !=
                 digest::fingerprint_of(chunk);
      }
      CHECK(wrong == 0);
    }
  }
  device_vector<cuda::xxh3_words> out(1);
  const device_vector<std::byte> few(240);
  CHECK_THROWS_AS(cuda::xxh3_leaves(nullptr, few.data(), 240, out.data()), ordo::error);
}

TEST_CASE("speed") {
  {
    const std::size_t bytes = 3215175680;
    const device_vector<std::byte> data(bytes);
    device_vector<cuda::xxh3_words> out(bytes / 16384 + 1);
    const float ms = median_ms(
        [&] {
          cuda::xxh3_leaves(nullptr, data.data(), static_cast<std::int64_t>(bytes), out.data());
        },
        7);
    std::printf("  XXH3-128 of 3.2 GB           %7.3f ms, %6.1f GB/s\n", ms,
                static_cast<double>(bytes) / ms * 1e-6);
  }
  time_leaves("6.4 GB of f32", 6430351360, cuda::digest_element::f32);
  time_leaves("3.2 GB of bf16", 3215175680, cuda::digest_element::bf16);
  time_leaves("3.2 GB of bytes", 3215175680, cuda::digest_element::any);
}

} // namespace
