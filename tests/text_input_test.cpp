// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS data THREADS 1
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <doctest/doctest.h>

#include <ordo/data/corpus.hpp>
#include <ordo/data/tokenizer.hpp>

#include "data_fixture.hpp"

namespace {

using namespace ordo;
namespace fs = std::filesystem;
using test::content;
using test::failure_of;
using test::has;
using test::put;
using test::scratch;
using texts = std::vector<std::string>;

texts read(const fs::path& path, bool split = false, const texts& fields = {"text"}) {
  texts all;
  program::for_each_document(path, fields, split,
                             [&](const std::string& text) { all.push_back(text); });
  return all;
}

std::string gzip(const std::string& text) {
  z_stream z{};
  REQUIRE(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  std::string in = text;
  z.next_in = reinterpret_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(out.size() - z.avail_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string line(const std::string& text) {
  return io::json({{"text", text}}).dump() + "\n";
}

/// Text that does not compress to nothing.
std::string words(std::size_t n) {
  std::string text;
  for (std::uint32_t state = 1; text.size() < n;) {
    state = state * 1664525u + 1013904223u;
    text += static_cast<char>('a' + (state >> 24) % 26);
  }
  return text;
}

program::source_request source(const std::string& share) {
  return {"s", share, {}};
}

} // namespace

// ---- JSON lines --------------------------------------------------------------------------------

TEST_CASE("text: JSON lines, plain and compressed, are the same documents") {
  const scratch dir;
  const texts documents{"one", "two \n lines", "Vi\u1ec7t \U0001f600", "<|endoftext|>",
                        words(5000)};
  std::string file;
  for (const std::string& d : documents)
    file += line(d);
  put(dir / "a.jsonl", file);
  put(dir / "a.jsonl.gz", gzip(file));
  put(dir / "a.jsonl.zst", zstd(file));
  put(dir / "A.JSONL", file);
  put(dir / "A.Jsonl.GZ", gzip(file));
  put(dir / "A.jsonl.ZST", zstd(file));
  for (const char* name : {"A.JSONL", "A.Jsonl.GZ", "A.jsonl.ZST"})
    CHECK(read(dir / name) == documents);
  // Streams one after another, cut in the middle of a line.
  put(dir / "b.jsonl.gz", gzip(file.substr(0, 20)) + gzip("") + gzip(file.substr(20)));
  put(dir / "b.jsonl.zst", zstd(file.substr(0, 20)) + zstd("") + zstd(file.substr(20)));
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "b.jsonl.gz", "b.jsonl.zst"}) {
    INFO(name);
    CHECK(read(dir / name) == documents);
  }
}

TEST_CASE("text: line ends, blank lines, no line end at the end") {
  const scratch dir;
  put(dir / "a.jsonl",
      "{\"text\":\"one\"}\r\n\r\n  \n\n{\"text\":\"two\"}\n\t\n{\"text\":\"three\"}");
  CHECK(read(dir / "a.jsonl") == texts{"one", "two", "three"});
  put(dir / "a.jsonl", "{\"text\":\"\"}\n");
  CHECK(read(dir / "a.jsonl") == texts{""});
  for (const char* nothing : {"", "\n", "\r\n\r\n", "  "}) {
    put(dir / "a.jsonl", nothing);
    CHECK(read(dir / "a.jsonl").empty());
  }
  put(dir / "a.jsonl", "\xef\xbb\xbf{\"text\":\"after a mark\"}\n");
  CHECK(read(dir / "a.jsonl") == texts{"after a mark"});
}

TEST_CASE("text: lines across the pieces in which a file is read") {
  const scratch dir;
  constexpr std::size_t piece = std::size_t{1} << 20;
  for (const std::size_t n : {piece - 12, piece - 11, piece - 10, piece, 3 * piece + 7}) {
    const texts documents{words(n), "short", words(2 * piece)};
    std::string file;
    for (const std::string& d : documents)
      file += line(d);
    put(dir / "a.jsonl", file);
    CHECK(read(dir / "a.jsonl") == documents);
    put(dir / "a.jsonl.gz", gzip(file));
    CHECK(read(dir / "a.jsonl.gz") == documents);
    put(dir / "a.jsonl.zst", zstd(file));
    CHECK(read(dir / "a.jsonl.zst") == documents);
  }
  // Much text out of few bytes: the decoder holds more than there is room for.
  const std::string same(5 * piece, 'x');
  for (const std::size_t extra : {std::size_t{0}, std::size_t{1}, piece - 1}) {
    const std::string text = same + std::string(extra, 'y');
    put(dir / "a.txt.gz", gzip(text) + gzip(text));
    CHECK((read(dir / "a.txt.gz") == texts{text + text}));
    put(dir / "a.txt.zst", zstd(text) + zstd(text));
    CHECK((read(dir / "a.txt.zst") == texts{text + text}));
  }
}

TEST_CASE("text: errors name file, line and field") {
  const scratch dir;
  const auto why = [&](const std::string& third, const texts& fields = {"text"}) {
    put(dir / "a.jsonl", "{\"text\":\"one\"}\n\n" + third + "\n{\"text\":\"four\"}\n");
    const std::string text = failure_of([&] { read(dir / "a.jsonl", false, fields); });
    return has(text, (dir / "a.jsonl").string() + ", line 3: ") ? text : "not named: " + text;
  };
  CHECK(has(why("{\"question\":\"q\",\"answer\":\"a\"}"), "it has no text field 'text'"));
  CHECK(has(why("{\"question\":\"q\",\"answer\":\"a\"}"),
            "its fields are: answer, question; name the right ones with --text-field"));
  CHECK(has(why("{\"text\":7}"), "no text field 'text'"));
  CHECK(has(why("{\"text\":\"x\"}", {"title"}), "not named")); // line 1 is refused before
  CHECK(has(why("[\"text\"]"), "no JSON object"));
  CHECK(has(why("text"), "no valid JSON at byte"));
  CHECK(has(why("{\"text\":\"x\""), "no valid JSON"));
  CHECK(has(why("{\"text\":\"x\"} {\"text\":\"y\"}"), "no valid JSON"));
  CHECK(has(why("{\"text\":\"\xff\"}"), "no valid JSON"));
  CHECK(has(why("{\"text\":\"\xed\xa0\x80\"}"), "no valid JSON"));
  CHECK(has(why("{\"text\":\"\\ud800\"}"), "no valid JSON"));
  CHECK(has(why("{\"text\":\"x\",\"text\":\"y\"}"), "'text' occurs twice"));
  CHECK(has(why("{\"text\":" + std::string(100'000, '[')), "levels"));
  CHECK(why("{\"" + std::string(100'000, 'k') + "\":1}").size() < 1000);
  put(dir / "a.jsonl", "{\"q\":\"1\",\"a\":\"2\"}\n");
  CHECK(read(dir / "a.jsonl", false, {"q", "a"}) == texts{"1\n2"});
  CHECK(read(dir / "a.jsonl", false, {"a", "q"}) == texts{"2\n1"});
}

// ---- plain text --------------------------------------------------------------------------------

TEST_CASE("text: a plain file is one document, byte for byte, or its paragraphs") {
  const scratch dir;
  const std::string any = "a\n\nb" + std::string(1, '\0') + "\xff\xfe<|endoftext|>\r\n\r\nc\n";
  put(dir / "a.txt", any);
  CHECK(read(dir / "a.txt") == texts{any});
  const auto paragraphs = [&](const std::string& text) {
    put(dir / "a.txt", text);
    return read(dir / "a.txt", true);
  };
  CHECK(paragraphs("a\nb\n\nc\n\nd") == texts{"a\nb", "c", "d"});
  CHECK(paragraphs("a\n\n\nb") == texts{"a", "\nb"});
  CHECK(paragraphs("a\n\n\n\nb\n") == texts{"a", "", "b\n"});
  CHECK(paragraphs("\n\na") == texts{"", "a"});
  CHECK(paragraphs("a\n\n") == texts{"a"});
  CHECK(paragraphs("a\r\nb\r\n\r\nc\r\n") == texts{"a\r\nb", "c\r\n"});
  CHECK(paragraphs("a\n\r\nb") == texts{"a", "b"});
  CHECK(paragraphs("\r\n\r\nb") == texts{"", "b"});
  CHECK(paragraphs("\n\r\nb") == texts{"", "b"});
  CHECK(paragraphs("a\n\r") == texts{"a\n\r"});
  CHECK(paragraphs("").empty());
  // A blank line wherever a piece of the file may end.
  constexpr std::size_t piece = std::size_t{1} << 20;
  for (std::size_t n = piece - 4; n <= piece + 1; ++n) {
    CHECK((paragraphs(words(n) + "\n\nnext") == texts{words(n), "next"}));
    CHECK((paragraphs(words(n) + "\r\n\r\nnext") == texts{words(n), "next"}));
  }
}

// ---- damage ------------------------------------------------------------------------------------

TEST_CASE("text: a compressed file that was cut or changed is an error, never a shorter text") {
  const scratch dir;
  std::string file;
  for (int i = 0; i < 40; ++i)
    file += line(words(30 + static_cast<std::size_t>(i)));
  for (const char* name : {"a.jsonl.gz", "a.jsonl.zst"}) {
    const bool gz = has(name, ".gz");
    const std::string whole = gz ? gzip(file) : zstd(file);
    for (std::size_t n = 0; n < whole.size(); ++n) {
      put(dir / name, whole.substr(0, n));
      const std::string why = failure_of([&] { read(dir / name); });
      CHECK(has(why, (dir / name).string()));
      CHECK(has(why, "the file was cut"));
    }
    for (const char* tail : {"x", "garbage", "\x1f"}) {
      put(dir / name, whole + tail);
      CHECK(has(failure_of([&] { read(dir / name); }), (dir / name).string()));
    }
    put(dir / name, file); // not compressed at all
    CHECK(has(failure_of([&] { read(dir / name); }), "cannot be decompressed"));
    for (std::size_t at = 0; at < whole.size(); at += 7) { // read or refused, no crash
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
      put(dir / name, bytes);
      failure_of([&] { read(dir / name); });
    }
  }
}

TEST_CASE("text: what is no text file") {
  const scratch dir;
  CHECK(has(failure_of([&] { read(dir / "none.txt"); }), "check the name"));
  CHECK(has(failure_of([&] { read(dir.path()); }), "it is a folder"));
  for (const char* name : {"a.parquet", "a.jsonl.xz", "a.tar", "a.jsonl.bz2", "a.7z", "a.ZIP",
                           "a.tar.gz", "a.tar.ZST", "a.parquet.gz"}) {
    put(dir / name, "x");
    CHECK(has(failure_of([&] { read(dir / name); }), "files are not read; convert it"));
  }
  REQUIRE(::mkfifo((dir / "pipe.txt").c_str(), 0600) == 0);
  CHECK(has(failure_of([&] { read(dir / "pipe.txt"); }), "no regular file"));
}

// ---- sources and building ----------------------------------------------------------------------

TEST_CASE("build: shares become whole numbers in the proportion written") {
  using counts = std::vector<std::uint64_t>;
  const auto shares = [](const texts& written) {
    std::vector<program::source_request> requests;
    for (const std::string& share : written)
      requests.push_back(source(share));
    return program::parse_shares(requests);
  };
  CHECK(shares({"0.7", "0.2", "0.1"}) == counts{7, 2, 1});
  CHECK(shares({"1"}) == counts{1});
  CHECK(shares({"2", "0.5"}) == counts{20, 5});
  CHECK(shares({".5", "5.", "0.25"}) == counts{50, 500, 25});
  CHECK(shares({"999999999"}) == counts{999'999'999});
  CHECK(shares({"0.00000001"}) == counts{1});
  for (const char* bad : {"", ".", "0", "0.0", "-1", "+1", "1e3", "1.2.3", "0x1", "a", " 1", "1 ",
                          "inf", "nan", "1,5"}) {
    INFO(bad);
    const std::string why = failure_of([&] { shares({"1", bad}); });
    CHECK(has(why, "--source s: the share '" + std::string(bad) + "' is no positive number"));
  }
  CHECK(has(failure_of([&] { shares({"0.123456789"}); }), "too many digits"));
  CHECK(has(failure_of([&] { shares({"1234567890"}); }), "too many digits"));
  CHECK(has(failure_of([&] { shares({"10", "0.00000001"}); }), "too many digits"));
}

TEST_CASE("build: sources as they are written on the command line") {
  const program::source_request two = program::parse_source("web=0.7:a.txt,b:c.jsonl.gz");
  CHECK(two.name == "web");
  CHECK(two.share == "0.7");
  CHECK(two.files == std::vector<fs::path>{"a.txt", "b:c.jsonl.gz"});
  for (const char* bad : {"", "web", "web=1", "web:1=a", "web=1:", "web=1:a,", "web=1:,a", "=1:a",
                          "../x=1:a", "a b=1:a"}) {
    INFO(bad);
    CHECK(has(failure_of([&] { program::parse_source(bad); }), "--source "));
  }
}

TEST_CASE("build: fields of one source and of all") {
  const scratch dir;
  put(dir / "a.jsonl", "{\"q\":\"1\",\"a:b\":\"2\"}\n");
  put(dir / "b.jsonl", "{\"p\":\"3\"}\n");
  program::build_request request;
  request.sources = {{"x", "1", {dir / "a.jsonl"}}, {"y", "1", {dir / "b.jsonl"}}};
  program::add_text_fields({"x:q", "x:a:b", "p"}, request);
  const auto built = program::build_corpus(request, data::tokenizer(), dir / "corpus");
  CHECK(built.contents.sources[0].tokens == 4); // "1\n2" and the separator
  CHECK(built.contents.sources[1].tokens == 2);
  request.source_fields.clear();
  program::add_text_fields({"x:q,a:b", "p"}, request); // the same
  CHECK(request.source_fields.at("x") == texts{"q", "a:b"});
  CHECK(request.text_fields == texts{"p"});
  program::add_text_fields({"p,q", "r"}, request);
  CHECK(request.text_fields == texts{"p", "q", "r"});
  for (const char* bad : {"", ",", "p,", ",p", "p,,q", "x:", "x:q,"}) {
    INFO(bad);
    CHECK(has(failure_of([&] { program::add_text_fields({bad}, request); }), "an empty name"));
  }
  request = {};
  program::add_text_fields({"z:q"}, request);
  CHECK(request.text_fields == texts{"z:q"});
  CHECK(request.source_fields.empty());
}

TEST_CASE("build: a corpus is its inputs, byte for byte, whatever the shards") {
  const scratch dir;
  put(dir / "a.txt", "one\n\ntwo\n\n\n\nthree <|endoftext|>\n");
  put(dir / "b.jsonl.gz", gzip(line("four") + line("") + line("five\xc3\xa9")));
  program::build_request request;
  request.sources = {{"text", "0.7", {dir / "a.txt"}}, {"more", "0.3", {dir / "b.jsonl.gz"}}};
  request.split_blank_lines = true;
  std::vector<std::string> told;
  request.progress = [&](const std::string& name, std::uint64_t documents, std::uint64_t tokens) {
    told.push_back(name + " " + std::to_string(documents) + " " + std::to_string(tokens));
  };
  const data::tokenizer tokenizer;
  const program::build_result built = program::build_corpus(request, tokenizer, dir / "corpus");
  CHECK(built.empty_documents == 2);
  CHECK(told == texts{"text 1 4", "text 2 8", "text 3 29", "more 1 5", "more 2 12"});
  const data::corpus corpus(dir / "corpus");
  corpus.verify();
  CHECK(corpus.contents().to_json() == built.contents.to_json());
  CHECK(corpus.contents().sources[0].share == 7);
  texts documents;
  for (std::size_t s = 0; s < 2; ++s) {
    for (std::uint64_t d = 0; d < corpus.contents().sources[s].documents; ++d) {
      std::vector<std::uint32_t> ids(static_cast<std::size_t>(corpus.document_length(s, d)));
      corpus.read(s, d, 0, ids);
      CHECK(ids.back() == tokenizer.separator());
      CHECK(std::count(ids.begin(), ids.end(), tokenizer.separator()) == 1);
      ids.pop_back();
      documents.push_back(tokenizer.decode(ids));
    }
  }
  CHECK(documents == texts{"one", "two", "three <|endoftext|>\n", "four", "five\xc3\xa9"});
  program::build_corpus(request, tokenizer, dir / "again");
  CHECK(content(dir / "corpus/manifest.json") == content(dir / "again/manifest.json"));
}

TEST_CASE("build: what is wrong is found before anything is made, and nothing is left") {
  const scratch dir;
  put(dir / "a.txt", "text");
  put(dir / "bad.jsonl", "{\"text\":\"one\"}\n{\"txt\":\"two\"}\n");
  put(dir / "empty.jsonl", "\n");
  const auto why = [&](std::vector<program::source_request> sources) {
    program::build_request request;
    request.sources = std::move(sources);
    const std::string text =
        failure_of([&] { program::build_corpus(request, data::tokenizer(), dir / "corpus"); });
    CHECK_FALSE(fs::exists(dir / "corpus"));
    CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 3);
    return text;
  };
  CHECK(has(why({{"a", "1", {dir / "a.txt"}}, {"b", "1", {dir / "none.txt"}}}), "none.txt"));
  CHECK(has(why({{"a", "1", {dir / "a.txt"}}, {"A", "1", {dir / "a.txt"}}}), "occurs twice"));
  CHECK(has(why({{"a", "1", {dir / "a.txt"}}, {"b", "0", {dir / "a.txt"}}}), "positive number"));
  CHECK(has(why({{"a", "1", {dir / "a.txt"}}, {"b", "1", {dir / "bad.jsonl"}}}),
            "bad.jsonl, line 2: it has no text field 'text'"));
  CHECK(has(why({{"a", "1", {dir / "empty.jsonl"}}}), "hold no text"));
  // What the reader would refuse: more sources, larger shards.
  std::vector<program::source_request> many;
  for (int i = 0; i < 257; ++i)
    many.push_back({"s" + std::to_string(i), "1", {dir / "a.txt"}});
  CHECK(has(why(many), "257 are given, a corpus has at most 256"));
  for (const std::uint64_t tokens : {std::uint64_t{0}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    program::build_request request;
    request.sources = {{"a", "1", {dir / "a.txt"}}};
    request.shard_tokens = tokens;
    CHECK(
        has(failure_of([&] { program::build_corpus(request, data::tokenizer(), dir / "corpus"); }),
            "--shard-tokens: " + std::to_string(tokens) + " tokens make no shard"));
    CHECK_FALSE(fs::exists(dir / "corpus"));
  }
  many.pop_back();
  program::build_request all;
  all.sources = many;
  program::build_corpus(all, data::tokenizer(), dir / "most");
  CHECK(data::corpus(dir / "most").contents().sources.size() == 256);
  fs::remove_all(dir / "most");
  // What a killed build of the same corpus left is removed by the next one.
  fs::create_directories(dir / "corpus.partial-1/a");
  fs::create_directories(dir / "other.partial-1/a");
  program::build_request request;
  request.sources = {{"a", "1", {dir / "a.txt"}}};
  program::build_corpus(request, data::tokenizer(), dir / "corpus");
  CHECK_FALSE(fs::exists(dir / "corpus.partial-1"));
  CHECK(fs::exists(dir / "other.partial-1"));
  CHECK(has(failure_of([&] { program::build_corpus(request, data::tokenizer(), dir / "corpus"); }),
            "it exists; choose another --out"));
}

TEST_CASE("tokenizer: bytes, and nothing but bytes") {
  const data::tokenizer tokenizer = data::tokenizer::open("byte");
  for (const std::string& text :
       {std::string(), std::string("\xff"), std::string("\0", 1), std::string("\xf0\x9f"),
        std::string(" Vi\u1ec7t"), std::string("   \n\t  "), std::string("1234567"),
        std::string("<|endoftext|>")}) {
    std::vector<std::uint32_t> ids;
    tokenizer.encode(text, ids);
    CHECK(ids.size() == text.size());
    CHECK(std::count(ids.begin(), ids.end(), tokenizer.separator()) == 0);
    CHECK(tokenizer.decode(ids) == text);
  }
  CHECK(has(failure_of([&] { tokenizer.decode({257}); }), "id 257 is outside the vocabulary"));
  const scratch dir;
  put(dir / "t.json", tokenizer.description().dump());
  CHECK(data::tokenizer::open((dir / "t.json").string()).hash() == tokenizer.hash());
  put(dir / "t.json", "{\"type\":\"bpe\"}");
  CHECK(has(failure_of([&] { data::tokenizer::open((dir / "t.json").string()); }), "'bpe'"));
  put(dir / "t.json", "{\"type\":\"byte\",\"vocabulary\":300}");
  CHECK(has(failure_of([&] { data::tokenizer::open((dir / "t.json").string()); }), "no byte"));
  put(dir / "t.json", "nothing");
  CHECK(has(failure_of([&] { data::tokenizer::open((dir / "t.json").string()); }), "JSON"));
}
