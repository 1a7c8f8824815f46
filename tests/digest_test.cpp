// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS digest THREADS 1 2 3 7
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <Kokkos_Core.hpp>
#include <doctest/doctest.h>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/digest/fingerprint.hpp>
#include <ordo/digest/fingerprint_tree.hpp>
#include <ordo/digest/merkle.hpp>
#include <ordo/digest/sha256.hpp>
#include <ordo/digest/state.hpp>
#include <ordo/reference/state_digest.hpp>

namespace {

using namespace ordo;
using digest::dtype;
using digest::hash256;
using digest::tensor_ref;
using space = Kokkos::DefaultHostExecutionSpace;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// A tensor that owns its bytes.
struct tensor {
  std::string name;
  dtype type;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> bytes;
  operator tensor_ref() const { return {name, type, shape, bytes}; }
};

tensor bytes_tensor(const std::string& name, std::size_t n) {
  tensor t{name, dtype::u8, {n}, std::vector<std::byte>(n)};
  std::uint32_t state = 12345;
  for (std::byte& b : t.bytes)
    b = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  return t;
}

template <class Element>
tensor typed_tensor(const std::string& name, dtype type, const std::vector<Element>& elements) {
  tensor t{
      name, type, {elements.size()}, std::vector<std::byte>(elements.size() * sizeof(Element))};
  if (!elements.empty())
    std::memcpy(t.bytes.data(), elements.data(), t.bytes.size());
  return t;
}

template <class Space>
std::vector<digest::named_root> roots(const std::vector<tensor>& tensors,
                                      digest::nans known = digest::nans::any) {
  const std::vector<tensor_ref> refs(tensors.begin(), tensors.end());
  return digest::tensor_roots(Space(), refs, known);
}

hash256 root_of(const tensor& t, digest::nans known = digest::nans::any) {
  return roots<space>({t}, known).front().root;
}

/// The seven entries of the known-answer tree of RFC 6962's and its successors' implementations,
/// and the eighth.
std::vector<std::string> known_entries() {
  return {std::string(),
          std::string("\x00", 1),
          "\x10",
          "\x20\x21",
          "\x30\x31",
          "\x40\x41\x42\x43",
          "\x50\x51\x52\x53\x54\x55\x56\x57",
          "\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f"};
}

std::vector<hash256> leaves_of(const std::vector<std::string>& entries) {
  std::vector<hash256> leaves;
  for (const std::string& entry : entries)
    leaves.push_back(digest::leaf_hash(bytes_of(entry)));
  return leaves;
}

} // namespace

TEST_CASE("digest: SHA-256 of the standard's examples") {
  CHECK(digest::hex(digest::sha256_of("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(
      digest::hex(digest::sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_THROWS_WITH_AS(digest::parse_hash("abc"), doctest::Contains("64 digits"), error);
}

TEST_CASE("digest: the published Merkle tree of eight entries, at every size") {
  const char* const expected[] = {
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
      "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
      "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
      "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
      "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
      "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
      "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
      "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
      "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"};
  const std::vector<std::string> entries = known_entries();
  const std::vector<hash256> leaves = leaves_of(entries);
  for (std::size_t n = 0; n <= entries.size(); ++n) {
    INFO("entries: " << n);
    CHECK(digest::hex(digest::merkle_root(std::span(leaves).first(n))) == expected[n]);
    CHECK(digest::hex(reference::merkle_tree_hash(std::span(entries).first(n))) == expected[n]);
  }
}

TEST_CASE(
    "digest: accumulator, list, level by level and recursion give one root at 0 to 130 leaves") {
  std::vector<std::string> entries;
  digest::merkle_accumulator tree;
  for (std::size_t n = 0; n <= 130; ++n) {
    const hash256 expected = reference::merkle_tree_hash(entries);
    std::vector<hash256> leaves = leaves_of(entries);
    REQUIRE(tree.root() == expected);
    REQUIRE(tree.leaves() == n);
    REQUIRE(digest::merkle_root(leaves) == expected);
    hash256 reduced;
    if (n > 0)
      REQUIRE((digest::tree_hasher().reduce(leaves, reduced) && reduced == expected));
    entries.push_back("entry " + std::to_string(n));
    tree.append(digest::leaf_hash(bytes_of(entries.back())));
  }
}

TEST_CASE("digest: leaves and nodes are told apart, and order counts") {
  const std::vector<hash256> leaves = leaves_of({"a", "b"});
  std::string pair(leaves[0].begin(), leaves[0].end());
  pair.append(leaves[1].begin(), leaves[1].end());
  CHECK(digest::node_hash(leaves[0], leaves[1]) == digest::sha256_of("\1" + pair));
  CHECK(digest::leaf_hash(bytes_of(pair)) != digest::node_hash(leaves[0], leaves[1]));
  CHECK(digest::node_hash(leaves[0], leaves[1]) != digest::node_hash(leaves[1], leaves[0]));
}

TEST_CASE("digest: a tensor's root by hand") {
  const tensor t = typed_tensor<std::uint32_t>("w", dtype::u32, {0x03020100u, 0x07060504u});
  std::string message("ordo tensor 1\0\x01\0\0\0\0\0\0\0w\x03\0\0\0\0\0\0\0U32",
                      14 + 8 + 1 + 8 + 3);
  message += std::string("\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16);
  const hash256 chunk = digest::sha256_of(std::string("\0\0\1\2\3\4\5\6\7", 9));
  message.append(chunk.begin(), chunk.end());
  CHECK(root_of(t) == digest::sha256_of(message));
  // A state of this one tensor.
  const hash256 root = digest::sha256_of(message);
  const std::string leaf = std::string(1, '\0') + std::string(root.begin(), root.end());
  CHECK(digest::state_root(roots<space>({t})) == digest::sha256_of(leaf));
}

TEST_CASE("digest: tensors around every boundary of chunks and blocks equal the reference, alone "
          "and together") {
  const std::size_t chunk = digest::tensor_chunk_bytes, block = digest::detail::block_bytes;
  std::vector<tensor> all;
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk - 1,
        3 * chunk, block - 1, block, block + 1, block + chunk, 2 * block, 2 * block + 1,
        3 * block - chunk, 5 * block + 7}) {
    all.push_back(bytes_tensor("t" + std::to_string(n), n));
  }
  const std::vector<tensor_ref> refs(all.begin(), all.end());
  const auto together = roots<space>(all);
  const auto serial = roots<Kokkos::Serial>(all);
  CHECK(together == serial);
  for (std::size_t i = 0; i < all.size(); ++i) {
    INFO("bytes: " << all[i].bytes.size());
    CHECK(together[i].name == all[i].name);
    CHECK(together[i].root == reference::tensor_root(refs[i]));
    CHECK(together[i].root == root_of(all[i]));
    CHECK(together[i].root == root_of(all[i], digest::nans::canonical));
  }
  CHECK(digest::state_root(together) == reference::state_digest(refs));
  CHECK(roots<space>({}).empty());
  CHECK(digest::state_root({}) == digest::sha256_of(""));
}

TEST_CASE("digest: the state's root ignores the order given and sees names, types, shapes and "
          "every bit") {
  const std::vector<tensor> tensors = {bytes_tensor("b", 100), bytes_tensor("a", 40000),
                                       bytes_tensor("a.b", 0), bytes_tensor("B", 3)};
  const hash256 expected = digest::state_root(roots<space>(tensors));
  std::vector<std::size_t> order{0, 1, 2, 3};
  while (std::next_permutation(order.begin(), order.end())) {
    std::vector<tensor> shuffled;
    for (const std::size_t i : order)
      shuffled.push_back(tensors[i]);
    CHECK(digest::state_root(roots<space>(shuffled)) == expected);
  }
  const auto changed = [&](auto change) {
    std::vector<tensor> other = tensors;
    change(other);
    return digest::state_root(roots<space>(other)) != expected;
  };
  CHECK(changed([](auto& t) { t[0].name = "c"; }));
  CHECK(changed([](auto& t) { t[0].type = dtype::i8; }));
  CHECK(changed([](auto& t) { t[0].shape = {10, 10}; }));
  CHECK(changed([](auto& t) { t[0].shape = {100, 1}; }));
  CHECK(changed([](auto& t) { t[1].bytes[39999] ^= std::byte{128}; }));
  CHECK(changed([](auto& t) { std::swap(t[1].bytes[0], t[1].bytes[16384]); }));
  CHECK(changed([](auto& t) { t.pop_back(); }));
  CHECK_FALSE(changed([](auto&) {}));
}

TEST_CASE("digest: damaged descriptions are errors") {
  tensor t = bytes_tensor("w", 12);
  t.shape = {13};
  CHECK_THROWS_WITH_AS(root_of(t), doctest::Contains("'w' has 12 bytes, its shape asks for 13"),
                       error);
  t.shape = {std::uint64_t{1} << 63, 2, 6};
  CHECK_THROWS_WITH_AS(root_of(t), doctest::Contains("overflows"), error);
  const tensor once = bytes_tensor("same", 1);
  CHECK_THROWS_WITH_AS(digest::state_root(roots<space>({once, once})),
                       doctest::Contains("two tensors are called 'same'"), error);
}

TEST_CASE("digest: a tensor holding a NaN has one digest, whichever chip made it") {
  const std::uint32_t made[] = {0xffc00000u, 0x7fc00000u, 0x7fffffffu, 0x7f800001u, 0xff800001u};
  std::vector<std::uint32_t> words(10000, 0x3f800000u);
  words[0] = words[4096] = words[9999] = 0x7fc00000u;
  words[1] = 0x7f800000u; // infinities are numbers here
  words[2] = 0xff800000u;
  const tensor canonical = typed_tensor("w", dtype::f32, words);
  const hash256 expected = root_of(canonical, digest::nans::canonical);
  for (const std::uint32_t nan : made) {
    words[0] = words[4096] = words[9999] = nan;
    const tensor t = typed_tensor("w", dtype::f32, words);
    CHECK(root_of(t) == expected);
    CHECK(reference::tensor_root(t) == expected);
    CHECK((root_of(t, digest::nans::canonical) == expected) == (nan == 0x7fc00000u));
    tensor copy = t;
    digest::canonicalize(copy.type, copy.bytes);
    CHECK(copy.bytes == canonical.bytes);
    // The same bits in an integer tensor are what they are.
    tensor integers = t;
    integers.type = dtype::u32;
    CHECK(root_of(integers) == reference::tensor_root(integers));
    CHECK(root_of(integers) == root_of(integers, digest::nans::canonical));
  }
}

TEST_CASE("digest: NaNs of bf16, all of them, and nothing but them") {
  std::vector<std::uint16_t> words(1 << 16), expected(1 << 16);
  for (std::uint32_t u = 0; u < 1u << 16; ++u) {
    words[u] = expected[u] = static_cast<std::uint16_t>(u);
    if (arith::is_nan(arith::from_bits(u << 16)))
      expected[u] = 0x7fc0;
  }
  const tensor t = typed_tensor("w", dtype::bf16, words);
  const tensor replaced = typed_tensor("w", dtype::bf16, expected);
  tensor copy = t;
  digest::canonicalize(copy.type, copy.bytes);
  CHECK(copy.bytes == replaced.bytes);
  CHECK(root_of(t) == root_of(replaced, digest::nans::canonical));
  CHECK(root_of(t) == reference::tensor_root(t));
}

TEST_CASE("digest: a frozen digest of a state, so that the format cannot drift") {
  std::vector<float> f(5000);
  std::vector<std::uint16_t> b(9000);
  for (std::size_t i = 0; i < f.size(); ++i)
    f[i] = static_cast<float>(i) * 0.5f - 7.0f;
  for (std::size_t i = 0; i < b.size(); ++i)
    b[i] = static_cast<std::uint16_t>(i);
  tensor matrix = typed_tensor("model.embed_tokens.weight", dtype::f32, f);
  matrix.shape = {50, 100};
  const std::vector<tensor> state{matrix, typed_tensor("model.norm.weight", dtype::bf16, b),
                                  bytes_tensor("flags", 10)};
  CHECK(digest::hex(digest::state_root(roots<space>(state))) ==
        "05ee3096e78eedd28f5170667827318a934b0746b6be3c2b983b62b455af232e");
  const std::vector<tensor_ref> refs(state.begin(), state.end());
  CHECK(reference::state_digest(refs) == digest::state_root(roots<space>(state)));
}

TEST_CASE("digest: XXH3-128 of published examples, in pieces and whole") {
  CHECK(digest::hex(digest::fingerprint_of("")) == "99aa06d3014798d86001c324468d497f");
  CHECK(digest::hex(digest::fingerprint_of("abc")) == "06b05ab6733a618578af5f94892f3950");
  const tensor t = bytes_tensor("w", 5000);
  const digest::hash128 whole = digest::fingerprint_of(t.bytes);
  digest::fingerprint parts;
  for (const std::size_t piece : {1, 3, 239, 240, 241, 1024, 5000}) {
    for (std::size_t at = 0; at < t.bytes.size(); at += piece) {
      parts.update(std::span(t.bytes).subspan(at, std::min(piece, t.bytes.size() - at)));
    }
    CHECK(parts.update(std::span<const std::byte>()).finish() == whole);
  }
  CHECK(parts.finish() == digest::fingerprint_of(""));
}

TEST_CASE("digest: a tree of fingerprints is the fingerprint of its leaves', chunk by chunk") {
  for (const std::size_t n : {0u, 1u, 240u, 16383u, 16384u, 16385u, 50000u}) {
    const tensor t = bytes_tensor("w", n);
    digest::fingerprint leaves;
    for (std::size_t at = 0; at < n; at += 16384) {
      const digest::hash128 leaf = digest::fingerprint_of(
          std::span(t.bytes).subspan(at, std::min<std::size_t>(16384, n - at)));
      leaves.update(std::as_bytes(std::span(leaf)));
    }
    CHECK(digest::fingerprint_tree(space(), t.bytes) == leaves.finish());
    CHECK(digest::fingerprint_tree(Kokkos::Serial(), t.bytes) ==
          digest::fingerprint_tree(space(), t.bytes));
  }
  CHECK(digest::hex(digest::fingerprint_tree(space(), bytes_tensor("w", 40000).bytes)) ==
        "1d817426ffa0b100217d5c68d0cf88a6");
}

TEST_CASE("digest: roots that are waited for are the roots") {
  const std::vector<tensor> tensors{bytes_tensor("a", 100000), bytes_tensor("b", 0),
                                    bytes_tensor("c", 16384)};
  const std::vector<tensor_ref> refs(tensors.begin(), tensors.end());
  digest::tensor_digester<space> digester;
  for (int i = 0; i < 2; ++i) {
    digester.start(space(), refs);
    CHECK(digester.finish() == digest::tensor_roots(space(), std::span<const tensor_ref>(refs)));
  }
}
