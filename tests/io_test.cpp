// SPDX-License-Identifier: Apache-2.0
// ctest: LABELS io THREADS 1
#include <algorithm>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sched.h>
#include <sys/mount.h>
#endif

#include <doctest/doctest.h>

#include <ordo/io/canonical_json.hpp>
#include <ordo/io/file.hpp>
#include <ordo/io/safetensors.hpp>

namespace {

using namespace ordo;
namespace fs = std::filesystem;
using io::json;

/// A directory of its own for a test, removed with everything in it.
class scratch {
public:
  scratch() {
    std::string name = (fs::temp_directory_path() / "ordo-io-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~scratch() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(path_))
      all.push_back(entry.path().filename());
    std::sort(all.begin(), all.end());
    return all;
  }

private:
  fs::path path_;
};

using names = std::vector<std::string>;

std::string content(const fs::path& path) {
  return io::read_file(path, 1 << 24);
}

void put(const fs::path& path, const std::string& bytes) {
  fs::remove(path); // some file systems flush a file that replaces another's content
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Runs `work` in a process that is killed when it writes to the descriptor it is given, or after
/// `delay` microseconds if there is one.
void run_and_kill(const std::function<void(int)>& work, useconds_t delay = 0) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(ends[0]);
    try {
      work(ends[1]);
    } catch (...) {
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  char byte;
  if (delay > 0) {
    ::usleep(delay);
  } else {
    [[maybe_unused]] const ssize_t n = ::read(ends[0], &byte, 1);
  }
  ::kill(child, SIGKILL);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
}

/// Tells run_and_kill that now is the time, and waits for it.
void die_here(int out) {
  [[maybe_unused]] const ssize_t n = ::write(out, "x", 1);
  while (true)
    ::pause();
}

/// Files may not grow beyond `limit` bytes while this lives: what a full disk looks like from here.
class small_disk {
public:
  explicit small_disk(rlim_t limit) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit now = before_;
    now.rlim_cur = limit;
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~small_disk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

private:
  rlimit before_{};
  void (*handler_)(int);
};

template <class F>
std::string failure_of(const F& f) {
  try {
    f();
  } catch (const error& failure) {
    return failure.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

digest::tensor_ref tensor(const std::string& name, digest::dtype type,
                          std::vector<std::uint64_t> shape, const std::string& bytes) {
  return {name, type, std::move(shape), std::as_bytes(std::span(bytes))};
}

/// A file with this header, whatever it says, and `data`.
std::string raw(const std::string& header, const std::string& data,
                std::uint64_t length = std::numeric_limits<std::uint64_t>::max()) {
  if (length == std::numeric_limits<std::uint64_t>::max())
    length = header.size();
  std::string out;
  for (int i = 0; i < 8; ++i)
    out += static_cast<char>(length >> (8 * i) & 0xff);
  return out + header + data;
}

std::string entry(const std::string& name, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

} // namespace

// ---- files -------------------------------------------------------------------------------------

TEST_CASE("file: read_file names path, size and limit") {
  const scratch dir;
  put(dir / "f", "12345");
  CHECK(io::read_file(dir / "f", 5) == "12345");
  put(dir / "empty", "");
  CHECK(io::read_file(dir / "empty", 0).empty());
  const std::string why = failure_of([&] { io::read_file(dir / "f", 4); });
  CHECK(has(why, (dir / "f").string()));
  CHECK(has(why, "5 bytes"));
  CHECK(has(why, "at most 4"));
  CHECK(has(failure_of([&] { io::read_file(dir / "none", 4); }), "none"));
  CHECK(has(failure_of([&] { io::read_file(dir.path(), 1 << 20); }), "no regular file"));
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK(has(failure_of([&] { io::read_file(dir / "pipe", 4); }), "no regular file"));
}

TEST_CASE("file: write_file_atomic replaces, and leaves nothing beside") {
  const scratch dir;
  io::write_file_atomic(dir / "f", std::string("old"));
  io::write_file_atomic(dir / "f", std::string("new content"));
  CHECK(content(dir / "f") == "new content");
  CHECK(dir.names() == names{"f"});
  io::write_file_atomic(dir / "secret", std::string("key"), 0600);
  CHECK((fs::status(dir / "secret").permissions() & fs::perms::all) ==
        (fs::perms::owner_read | fs::perms::owner_write));
  // What an earlier process with this id left does not shine through.
  put(io::detail::beside(dir / "f"), "a longer text than the new one");
  io::write_file_atomic(dir / "f", std::string("short"));
  CHECK(content(dir / "f") == "short");
}

TEST_CASE("file: a write that fails leaves the old file and nothing else") {
  const scratch dir;
  io::write_file_atomic(dir / "f", std::string("old"));
  const std::string big(100000, 'x');
  std::string why;
  {
    const small_disk disk(65536);
    why = failure_of([&] { io::write_file_atomic(dir / "f", big); });
  }
  CHECK(has(why, (dir / "f").string()));
  CHECK(has(why, "File too large"));
  CHECK(has(why, "free some space"));
  CHECK(content(dir / "f") == "old");
  CHECK_THROWS_AS(io::write_atomic(dir / "f",
                                   [](const io::file& out) {
                                     out.write("half");
                                     throw error("test", "stopped");
                                   }),
                  error);
  CHECK(content(dir / "f") == "old");
  fs::create_directory(dir / "d");
  CHECK(has(failure_of([&] { io::write_file_atomic(dir / "d", std::string("x")); }),
            "cannot be renamed"));
  CHECK(has(failure_of([&] { io::write_file_atomic(dir / "none/f", std::string("x")); }),
            "check the name"));
  CHECK(dir.names() == names{"d", "f"});
}

TEST_CASE("file: a kernel's own answer to a full disk") {
  if (!fs::exists("/dev/full"))
    return;
  const std::string why = failure_of([] { io::file("/dev/full", O_WRONLY).write("x"); });
  CHECK(has(why, "No space left on device"));
  CHECK(has(why, "free some space"));
  CHECK(has(failure_of([] { io::append_line("/dev/full", "x"); }), "No space left on device"));
}

TEST_CASE("file: append_line appends whole lines, or nothing") {
  const scratch dir;
  io::append_line(dir / "log", "one");
  io::append_line(dir / "log", "");
  io::append_line(dir / "log", "three");
  CHECK(content(dir / "log") == "one\n\nthree\n");
  {
    const small_disk disk(14);
    CHECK(has(failure_of([&] { io::append_line(dir / "log", "a long line"); }), "free some space"));
  }
  CHECK(content(dir / "log") == "one\n\nthree\n");
  CHECK(has(failure_of([&] { io::append_line(dir / "log", "a\nb"); }), "line end"));
  // The rest of a killed append, of every length around the block in which ends are looked for.
  for (const std::size_t n : {1, 4084, 4085, 4086, 4095, 4096, 4097, 9000}) {
    put(dir / "log", "one\n\nthree\n" + std::string(n, 'x'));
    io::append_line(dir / "log", "four");
    CHECK(content(dir / "log") == "one\n\nthree\nfour\n");
    put(dir / "log", std::string(n, 'x'));
    io::append_line(dir / "log", "first");
    CHECK(content(dir / "log") == "first\n");
  }
}

TEST_CASE("file: reading past the end of a file that was cut") {
  const scratch dir;
  put(dir / "f", std::string(10000, 'x'));
  const io::file in(dir / "f", O_RDONLY);
  std::vector<std::byte> bytes(10000);
  CHECK_NOTHROW(in.read_at(0, bytes));
  for (const std::uint64_t cut : {1, 4096, 10000}) {
    fs::resize_file(dir / "f", 10000 - cut);
    const std::string why = failure_of([&] { in.read_at(0, bytes); });
    CHECK(has(why, "ends " + std::to_string(cut) + " bytes too early"));
  }
}

// ---- staged directories ------------------------------------------------------------------------

TEST_CASE("staged directory: appears complete, or not at all") {
  const scratch dir;
  {
    io::staged_directory staged(dir / "a/save");
    put(staged.path() / "f", "1");
    fs::create_directory(staged.path() / "sub");
    put(staged.path() / "sub/g", "2");
    CHECK_FALSE(fs::exists(dir / "a/save"));
    CHECK(staged.path().filename() == "save.partial-" + std::to_string(::getpid()));
    staged.commit();
  }
  CHECK(content(dir / "a/save/f") == "1");
  CHECK(content(dir / "a/save/sub/g") == "2");
  {
    io::staged_directory staged(dir / "dropped");
    put(staged.path() / "f", "1");
  }
  CHECK(dir.names() == names{"a"});
  {
    io::staged_directory staged(dir / "slash/"); // as a shell completes it
    put(staged.path() / "f", "1");
    staged.commit();
  }
  CHECK(content(dir / "slash/f") == "1");
  CHECK(dir.names() == names{"a", "slash"});
}

TEST_CASE("staged directory: never replaces what exists") {
  const scratch dir;
  fs::create_directory(dir / "empty");
  fs::create_symlink("nowhere", dir / "link");
  put(dir / "file", "old");
  for (const char* name : {"empty", "empty/", "link", "file"}) {
    const std::string why = failure_of([&] { io::staged_directory staged(dir / name); });
    CHECK(has(why, "exists"));
    CHECK(has(why, "choose another name"));
  }
  io::staged_directory staged(dir / "late");
  put(staged.path() / "f", "1");
  fs::create_directory(dir / "late");
  CHECK(has(failure_of([&] { staged.commit(); }), "exists"));
  CHECK(fs::is_empty(dir / "late"));
}

TEST_CASE("staged directory: a full disk leaves nothing") {
  const scratch dir;
  const std::string big(100000, 'x');
  std::string why;
  {
    const small_disk disk(65536);
    why = failure_of([&] {
      io::staged_directory staged(dir / "save");
      io::write_file_atomic(staged.path() / "small", std::string("1"));
      io::write_safetensors(staged.path() / "model",
                            {tensor("w", digest::dtype::u8, {100000}, big)});
      staged.commit();
    });
  }
  CHECK(has(why, "free some space"));
  CHECK(dir.names().empty());
}

TEST_CASE("staged directory: a save killed at every stage is absent or complete") {
  const std::string small(10, 's'), big(300000, 'b');
  for (int stage = 0; stage < 7; ++stage) {
    INFO("stage: " << stage);
    const scratch dir;
    run_and_kill([&](int out) {
      io::staged_directory staged(dir / "save");
      if (stage == 0)
        die_here(out);
      io::write_atomic(staged.path() / "a", [&](const io::file& file) {
        if (stage == 1)
          die_here(out);
        file.write(small);
        if (stage == 2)
          die_here(out);
      });
      if (stage == 3)
        die_here(out);
      io::write_file_atomic(staged.path() / "b", big);
      if (stage == 4)
        die_here(out);
      staged.commit();
      if (stage == 5)
        die_here(out);
    });
    CHECK(fs::exists(dir / "save") == (stage >= 5));
    CHECK(dir.names().size() == 1);
    io::staged_directory::remove_stale(dir.path());
    CHECK(dir.names() == (stage >= 5 ? names{"save"} : names{}));
    if (stage >= 5) {
      CHECK(content(dir / "save/a") == small);
      CHECK(content(dir / "save/b") == big);
      continue;
    }
    io::staged_directory staged(dir / "save"); // the same save, done again
    staged.commit();
    CHECK(fs::exists(dir / "save"));
  }
}

TEST_CASE("staged directory: saves killed at arbitrary times") {
  const scratch dir;
  const std::string part(20000, 'x');
  const auto save = [&](const std::string& name) {
    io::staged_directory staged(dir / name);
    for (int i = 0; i < 4; ++i)
      io::write_file_atomic(staged.path() / std::to_string(i), part);
    staged.commit();
  };
  const auto start = std::chrono::steady_clock::now();
  save("whole");
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  std::size_t complete = 1;
  for (int i = 0; i < 12; ++i) {
    const std::string name = "save" + std::to_string(i);
    run_and_kill([&](int) { save(name); }, 1 + static_cast<useconds_t>(whole.count() * i / 5));
    if (!fs::exists(dir / name))
      continue;
    ++complete;
    for (int k = 0; k < 4; ++k)
      CHECK(content(dir / name / std::to_string(k)) == part);
  }
  INFO("complete: " << complete << " of 13");
  io::staged_directory::remove_stale(dir.path());
  CHECK(dir.names().size() == complete);
}

TEST_CASE("staged directory: remove_stale leaves work in progress and everything else alone") {
  const scratch dir;
  for (const char* name : {"keep", "x.partial-", "x.partial-12a", "x.partial-7", "f.partial-123"}) {
    put(dir / name, "x");
  }
  fs::create_directories(dir / "step.partial-99/sub");
  put(dir / "step.partial-99/sub/f", "x");
  fs::create_directory(dir / "elsewhere");
  put(dir / "elsewhere/f", "x");
  fs::create_directory_symlink(dir / "elsewhere", dir / "link.partial-5");
  {
    io::staged_directory staged(dir / "now");
    io::write_atomic(dir / "file", [&](const io::file& out) {
      io::staged_directory::remove_stale(dir.path());
      out.write("x");
    });
    CHECK(fs::exists(staged.path()));
    CHECK(has(failure_of([&] { io::staged_directory again(dir / "now"); }), "cannot be made"));
    staged.commit();
  }
  CHECK(dir.names() == names{"elsewhere", "file", "keep", "now", "x.partial-", "x.partial-12a"});
  CHECK(content(dir / "elsewhere/f") == "x");
  CHECK_NOTHROW(io::staged_directory::remove_stale(dir / "none"));
}

#if defined(__linux__)
TEST_CASE("staged directory: a disk that is full, where one may be mounted") {
  const scratch dir;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", dir.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
      ::_exit(77);
    }
    int wrong = 0;
    try {
      io::write_file_atomic(dir / "f", std::string("old"));
      const std::string big(200000, 'x');
      const auto save = [&] {
        io::staged_directory staged(dir / "save");
        io::write_file_atomic(staged.path() / "a", big);
        io::write_file_atomic(staged.path() / "b", big);
        staged.commit();
      };
      const std::string why = failure_of(save);
      wrong |= !has(why, "No space left on device") || !has(why, "free some space") ? 1 : 0;
      const std::string replaced = failure_of([&] { io::write_file_atomic(dir / "f", big + big); });
      wrong |= !has(replaced, "No space left on device") ? 2 : 0;
      wrong |= content(dir / "f") != "old" ? 4 : 0;
      wrong |= dir.names() != names{"f"} ? 8 : 0;
    } catch (...) {
      wrong |= 16;
    }
    ::_exit(wrong);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    MESSAGE("not allowed to mount: skipped");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

// ---- canonical JSON ----------------------------------------------------------------------------

TEST_CASE("canonical JSON: RFC 8785's order of keys and its escapes") {
  // The RFC's own example, 3.2.3: CR, 1, U+0080, o-umlaut, euro, a grinning face, a Hebrew letter.
  const json keys = {{"\u20ac", "Euro Sign"},
                     {"\r", "Carriage Return"},
                     {"\ufb33", "Hebrew Letter Dalet With Dagesh"},
                     {"1", "One"},
                     {"\U0001f600", "Emoji: Grinning Face"},
                     {"\u0080", "Control"},
                     {"\u00f6", "Latin Small Letter O With Diaeresis"}};
  CHECK(io::canonical_json(keys) ==
        "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\","
        "\"\u00f6\":\"Latin Small Letter O With Diaeresis\",\"\u20ac\":\"Euro Sign\","
        "\"\U0001f600\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}");
  CHECK(keys.dump() != io::canonical_json(keys)); // the order of bytes is another one
  CHECK(io::canonical_json(json("\u20ac$\u000f\nA'B\"\\\\\"/\x7f\b\t\f\r\x1f")) ==
        "\"\u20ac$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\x7f\\b\\t\\f\\r\\u001f\"");
  CHECK(io::canonical_json({{"b", {nullptr, true, false, json::array(), json::object()}},
                            {"a", -1}}) == "{\"a\":-1,\"b\":[null,true,false,[],{}]}");
  CHECK(io::canonical_json({{"", 0}, {"a", 1}, {"aa", 2}}) == "{\"\":0,\"a\":1,\"aa\":2}");
}

TEST_CASE("canonical JSON: what it refuses") {
  constexpr std::int64_t limit = std::int64_t{1} << 53;
  CHECK(io::canonical_json({limit, -limit, 0}) == "[9007199254740992,-9007199254740992,0]");
  CHECK(io::canonical_json(json(static_cast<std::uint64_t>(limit))) == "9007199254740992");
  for (const json& value :
       {json(limit + 1), json(-limit - 1), json(static_cast<std::uint64_t>(limit) + 1),
        json(std::numeric_limits<std::uint64_t>::max())}) {
    CHECK(has(failure_of([&] { io::canonical_json({value}); }), "write it as a string"));
  }
  CHECK(has(failure_of([] { io::canonical_json({{"x", 0.5}}); }), "hexadecimal"));
  CHECK(has(failure_of([] { io::canonical_json(json(1.0)); }), "floating-point"));
  CHECK(has(failure_of([] { io::canonical_json(json("\xff")); }), "UTF-8"));
  CHECK(has(failure_of([] { io::canonical_json({{"\xc3", 1}}); }), "UTF-8"));
  CHECK(has(failure_of([] { io::canonical_json(json::binary({1})); }), "does not have"));
}

TEST_CASE("JSON: parsing what nobody vouches for") {
  CHECK(io::parse_json("{\"a\":[1,{\"a\":2}],\"b\":{\"a\":3}}", "f").dump() ==
        "{\"a\":[1,{\"a\":2}],\"b\":{\"a\":3}}");
  const auto why = [](const std::string& text) {
    return failure_of([&] { io::parse_json(text, "place"); });
  };
  for (const int depth : {63, 64}) {
    CHECK(why(std::string(depth, '[') + std::string(depth, ']')) == "no error");
    std::string objects = "1";
    for (int i = 0; i < depth; ++i)
      objects = "{\"a\":" + objects + "}";
    CHECK(why(objects) == "no error");
  }
  CHECK(has(why(std::string(65, '[') + std::string(65, ']')), "64 levels"));
  CHECK(has(why(std::string(1000000, '[')), "64 levels"));
  std::string objects = "1";
  for (int i = 0; i < 65; ++i)
    objects = "{\"a\":" + objects + "}";
  CHECK(has(why(objects), "64 levels"));
  CHECK(has(why("{\"a\":1,\"b\":2,\"a\":3}"), "place: the key 'a' occurs twice"));
  CHECK(has(why("{\"a\":1,\"\\u0061\":3}"), "'a' occurs twice"));
  CHECK(has(why("[{\"x\":{\"a\":1,\"a\":3}}]"), "'a' occurs twice"));
  CHECK(has(why("{\"\\u001b[31m\":1,\"\\u001b[31m\":3}"), "'?[31m'"));
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("{}x"), std::string("[1,]"),
        std::string("\"\xff\""), std::string("\"\\ud800\""), std::string("1e999"),
        std::string("nul"), std::string("[\0]", 3), std::string("{'a':1}"), std::string("// x\n1"),
        std::string("NaN"), std::string("01")}) {
    INFO(text);
    CHECK(has(why(text), "place: it is no valid JSON"));
  }
  CHECK(why("\"" + std::string(100000, 'x')).size() < 400);
  CHECK(has(failure_of([] { io::parse_json("[1,2]", "place", 4); }), "at most 4"));
  CHECK(io::parse_json("[1]", "place", 3).size() == 1);
}

TEST_CASE("JSON: checked getters name key and place") {
  const json object = {{"n", 7},
                       {"minus", -1},
                       {"half", 0.5},
                       {"text", "x"},
                       {"yes", true},
                       {"list", {1}},
                       {"object", {{"a", 1}}},
                       {"one", "3f800000"},
                       {"hash", std::string(64, 'a')},
                       {"upper", std::string(64, 'A')}};
  CHECK(io::get_u64(object, "n", "f") == 7);
  CHECK(io::get_string(object, "text", "f") == "x");
  CHECK(io::get_bool(object, "yes", "f"));
  CHECK(io::get_f32(object, "one", "f") == 1.0f);
  CHECK(io::get_hash(object, "hash", "f")[31] == 0xaa);
  CHECK(io::get_array(object, "list", "f").size() == 1);
  CHECK(io::get_object(object, "object", "f").size() == 1);
  CHECK(
      has(failure_of([&] { io::get_u64(object, "none", "f.json"); }), "f.json: 'none' is missing"));
  CHECK(has(failure_of([&] { io::get_u64(json::array(), "n", "f.json"); }), "'n' is expected"));
  for (const char* key : {"minus", "half", "text", "yes", "list"}) {
    const std::string why = failure_of([&] { io::get_u64(object, key, "f.json"); });
    CHECK(has(why, "f.json: '" + std::string(key) + "'"));
  }
  CHECK(has(failure_of([&] { io::get_string(object, "n", "f.json"); }), "f.json: 'n'"));
  CHECK(has(failure_of([&] { io::get_bool(object, "n", "f.json"); }), "f.json: 'n'"));
  CHECK(has(failure_of([&] { io::get_hash(object, "upper", "f.json"); }), "f.json: 'upper'"));
  CHECK(has(failure_of([&] { io::get_hash(object, "text", "f.json"); }), "f.json: 'text'"));
  CHECK(has(failure_of([&] { io::get_f32(object, "text", "f.json"); }), "f.json, 'text'"));
  CHECK(has(failure_of([&] { io::get_array(object, "object", "f.json"); }), "f.json: 'object'"));
  CHECK(has(failure_of([&] { io::get_object(object, "list", "f.json"); }), "f.json: 'list'"));
}

TEST_CASE("JSON: bits of floating-point numbers as text") {
  CHECK(io::f32_hex(1.0f) == "3f800000");
  CHECK(io::f32_hex(-0.0f) == "80000000");
  CHECK(io::f64_hex(1.0) == "3ff0000000000000");
  CHECK(io::f64_hex(-2.5) == "c004000000000000");
  for (const std::uint32_t u :
       {0u, 1u, 0x80000000u, 0x7f800000u, 0x7fc00000u, 0x12345678u, 0xffffffffu}) {
    const float x = std::bit_cast<float>(u);
    CHECK(std::bit_cast<std::uint32_t>(io::parse_f32_hex(io::f32_hex(x), "f")) == u);
  }
  CHECK(io::parse_f64_hex("3ff0000000000000", "f") == 1.0);
  for (const char* text :
       {"", "3f80000", "3f8000000", "3F800000", "3f80000g", "0x3f8000", " 3f80000"}) {
    CHECK(has(failure_of([&] { io::parse_f32_hex(text, "place"); }), "place"));
    CHECK(has(failure_of([&] { io::parse_f64_hex(text, "place"); }), "place"));
  }
}

// ---- safetensors -------------------------------------------------------------------------------

TEST_CASE("safetensors: the bytes of a small file") {
  const scratch dir;
  const std::string two("\x01\x02", 2), four("\0\0\x80\x3f", 4);
  io::write_safetensors(dir / "f",
                        {tensor("b", digest::dtype::f32, {1}, four),
                         tensor("a", digest::dtype::i8, {2, 1}, two),
                         tensor("c", digest::dtype::bf16, {0, 5}, "")},
                        {{"producer", "ordo"}, {"format", "pt"}});
  std::string header = "{\"__metadata__\":{\"format\":\"pt\",\"producer\":\"ordo\"},"
                       "\"a\":{\"dtype\":\"I8\",\"shape\":[2,1],\"data_offsets\":[0,2]},"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]},"
                       "\"c\":{\"dtype\":\"BF16\",\"shape\":[0,5],\"data_offsets\":[6,6]}}";
  header.append((8 - header.size() % 8) % 8, ' ');
  CHECK(content(dir / "f") == raw(header, two + four));

  const io::safetensors_reader reader(dir / "f");
  REQUIRE(reader.tensors().size() == 3);
  CHECK(reader.metadata().at("producer") == "ordo");
  CHECK(reader.find("a").shape == std::vector<std::uint64_t>{2, 1});
  CHECK(reader.find("b").type == digest::dtype::f32);
  float value = 0;
  reader.read("b", std::as_writable_bytes(std::span(&value, 1)));
  CHECK(value == 1.0f);
  reader.read("c", {});
  std::byte three[3];
  CHECK(has(failure_of([&] { reader.read("a", three); }), "has 2 bytes, 3 are expected"));
  CHECK(has(failure_of([&] { reader.find("d"); }), "no tensor 'd'"));
}

TEST_CASE("safetensors: nothing, a scalar, every type, names that need escapes") {
  const scratch dir;
  io::write_safetensors(dir / "empty", {});
  CHECK(io::safetensors_reader(dir / "empty").tensors().empty());
  const std::string bytes(8, '\x11'), odd = "a \"quoted\"\n\u1ec7";
  std::vector<digest::tensor_ref> all{tensor(odd, digest::dtype::u8, {8}, bytes)};
  for (const auto type :
       {digest::dtype::f32, digest::dtype::bf16, digest::dtype::i64, digest::dtype::i32,
        digest::dtype::u32, digest::dtype::i8, digest::dtype::u8}) {
    all.push_back(tensor(digest::dtype_name(type), type, {8 / digest::dtype_bytes(type)}, bytes));
  }
  all.push_back(tensor("scalar", digest::dtype::i64, {}, bytes));
  io::write_safetensors(dir / "f", all);
  const io::safetensors_reader reader(dir / "f");
  CHECK(reader.tensors().size() == all.size());
  for (const digest::tensor_ref& t : all) {
    CHECK(reader.find(t.name).type == t.type);
    CHECK(reader.find(t.name).shape == t.shape);
    std::vector<std::byte> back(8);
    reader.read(t.name, back);
    CHECK(std::equal(back.begin(), back.end(), t.bytes.begin(), t.bytes.end()));
  }
}

TEST_CASE("safetensors: the writer refuses what the reader would, and writes nothing") {
  const scratch dir;
  using digest::dtype;
  const std::string x = "x";
  const auto why = [&](std::vector<digest::tensor_ref> tensors) {
    return failure_of([&] { io::write_safetensors(dir / "f", std::move(tensors)); });
  };
  CHECK(has(why({tensor("a", dtype::u8, {1}, x), tensor("a", dtype::u8, {1}, x)}), "two tensors"));
  CHECK(has(why({tensor("__metadata__", dtype::u8, {1}, x)}), "__metadata__"));
  CHECK(has(why({tensor("a", dtype::u8, {2}, x)}), "its shape asks for 2"));
  CHECK(has(why({tensor("a", dtype::u8, {1, 1, 1, 1, 1, 1, 1, 1, 1}, x)}), "8 dimensions"));
  CHECK(has(why({tensor(std::string(1025, 'n'), dtype::u8, {1}, x)}), "1024 bytes"));
  CHECK(has(why({tensor("\xff", dtype::u8, {1}, x)}), "UTF-8"));
  CHECK(dir.names().empty());
}

TEST_CASE("safetensors: hostile files") {
  const scratch dir;
  const auto why = [&](const std::string& bytes) {
    put(dir / "f", bytes);
    const std::string text = failure_of([&] { io::safetensors_reader reader(dir / "f"); });
    return has(text, (dir / "f").string()) ? text : "path not named: " + text;
  };
  const auto one = [](const std::string& value) { return "{\"a\":" + value + "}"; };
  const std::string a03 = entry("a", 0, 3), b36 = entry("b", 3, 6), six = "123456";
  put(dir / "f", raw("{" + a03 + "," + b36 + "}", six));
  CHECK(io::safetensors_reader(dir / "f").tensors().size() == 2);

  // Lengths.
  CHECK(has(why(""), "0 bytes"));
  CHECK(has(why("1234567"), "7 bytes"));
  CHECK(has(why(std::string(8, '\0')), "does not begin with '{'"));
  CHECK(has(why(raw("", "", std::uint64_t{1} << 63)), "claims 9223372036854775808"));
  CHECK(has(why(raw("{}", "", ~std::uint64_t{0} - 1)), "claims"));
  CHECK(has(why(raw("{}", "", 100'000'001)), "at most 100000000"));
  CHECK(has(why(raw("{}", "", 100'000'000)), "the file has 2 after the length"));
  CHECK(has(why(raw("{}", "", 3)), "the file has 2 after the length"));
  // Offsets.
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[3,0]}"), six)),
            "reversed"));
  CHECK(has(why(raw("{" + a03 + "," + entry("b", 2, 6) + "}", six)), "without overlap"));
  CHECK(has(why(raw("{" + a03 + "," + entry("b", 0, 3) + "}", "123")), "without overlap"));
  CHECK(has(why(raw("{" + a03 + "," + entry("b", 4, 6) + "}", six)), "or hole"));
  CHECK(has(why(raw("{" + b36 + "}", six)), "begins at 3"));
  CHECK(has(why(raw("{" + a03 + "}", "12")), "end at 3, its data at 2"));
  CHECK(has(why(raw("{" + a03 + "}", "1234")), "end at 3, its data at 4"));
  CHECK(has(why(raw("{}", "1")), "end at 0, its data at 1"));
  CHECK(
      has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[18446744073709551613,0]}"),
                  six)),
          "reversed"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3,3]}"), "123")),
            "two counts"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0.0,3]}"), "123")),
            "two counts"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[-3,0]}"), "123")),
            "two counts"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":\"0,3\"}"), "123")),
            "no list"));
  // Shapes.
  const std::string huge = "4294967296";
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[" + huge + "," + huge +
                        "],\"data_offsets\":[0,0]}"),
                    "")),
            "overflows"));
  CHECK(
      has(why(raw(one("{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}"),
                  "")),
          "overflows"));
  CHECK(has(why(raw(one("{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,3]}"), "123")),
            "asks for 4"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[-3],\"data_offsets\":[0,3]}"), "123")),
            "extent"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3.0],\"data_offsets\":[0,3]}"), "123")),
            "extent"));
  CHECK(
      has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,3]}"),
                  "123")),
          "extent"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3,1,1,1,1,1,1,1,1],\"data_offsets\":[0,3]}"),
                    "123")),
            "9 dimensions"));
  // Types, fields, names, JSON.
  CHECK(has(why(raw(one("{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,3]}"), "123")),
            "type is 'F4'"));
  CHECK(has(why(raw(one("{\"dtype\":7,\"shape\":[3],\"data_offsets\":[0,3]}"), "123")), "'dtype'"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3],\"offsets\":[0,3]}"), "123")),
            "'data_offsets'"));
  CHECK(has(why(raw(one("{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3],\"x\":1}"), "123")),
            "nothing else"));
  CHECK(has(why(raw(one("[]"), "")), "nothing else"));
  CHECK(has(why(raw("{" + entry(std::string(1025, 'n'), 0, 3) + "}", "123")), "1024 bytes"));
  CHECK(has(why(raw("{" + a03 + "," + a03 + "}", "123")), "'a' occurs twice"));
  CHECK(has(
      why(raw("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
              "123")),
      "'dtype' occurs twice"));
  CHECK(has(why(raw("{\"__metadata__\":{},\"__metadata__\":{}}", "")), "occurs twice"));
  CHECK(has(why(raw("{\"__metadata__\":[]}", "")), "__metadata__ is no object"));
  CHECK(has(why(raw("{\"__metadata__\":{\"x\":1}}", "")), "no text"));
  CHECK(has(why(raw("{" + entry("\xff", 0, 3) + "}", "123")), "no valid JSON"));
  CHECK(has(why(raw("{" + entry("\xed\xa0\x80", 0, 3) + "}", "123")), "no valid JSON"));
  CHECK(has(why(raw("{\xff}", "")), "no valid JSON"));
  CHECK(has(why(raw("{" + a03, "123")), "no valid JSON"));
  CHECK(has(why(raw("{" + a03 + "}\1\1\1", "123")), "no valid JSON"));
  CHECK(has(why(raw(" {" + a03 + "}", "123")), "does not begin with '{'"));
  CHECK(has(why(raw("{\"a\":" + std::string(100000, '['), "")), "64 levels"));
}

TEST_CASE("safetensors: a header above 100 MB in a file that has it") {
  const scratch dir;
  put(dir / "f", raw("{}", "", 100'000'001));
  fs::resize_file(dir / "f", 8 + 100'000'001); // a hole: takes no space
  CHECK(has(failure_of([&] { io::safetensors_reader reader(dir / "f"); }), "at most 100000000"));
}

TEST_CASE("safetensors: every cut and every changed byte of the header is an error or harmless") {
  const scratch dir;
  const std::string data = "123456";
  io::write_safetensors(dir / "whole", {tensor("a", digest::dtype::u8, {3}, "123"),
                                        tensor("b", digest::dtype::u8, {3}, "456")});
  const std::string whole = content(dir / "whole");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    put(dir / "f", whole.substr(0, n));
    CHECK(failure_of([&] { io::safetensors_reader reader(dir / "f"); }) != "no error");
  }
  for (std::size_t at = 0; at < whole.size() - data.size(); ++at) {
    for (const unsigned char change : {0x01, 0x10, 0x20, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ change);
      put(dir / "f", bytes);
      // Whatever it says, it is an ordo::error or a consistent file.
      failure_of([&] {
        const io::safetensors_reader reader(dir / "f");
        for (const io::safetensors_entry& e : reader.tensors()) {
          std::vector<std::byte> read(static_cast<std::size_t>(e.end - e.begin));
          reader.read(e.name, read);
        }
      });
    }
  }
}

TEST_CASE("safetensors: 2,000 files with a byte changed anywhere are read or refused") {
  const scratch dir;
  const std::string data(64, 'w');
  io::write_safetensors(dir / "whole",
                        {tensor("model.norm.weight", digest::dtype::bf16, {2, 8}, data.substr(32)),
                         tensor("model.embed.weight", digest::dtype::f32, {8}, data.substr(32))},
                        {{"format", "pt"}});
  const std::string whole = content(dir / "whole");
  std::uint32_t state = 1;
  const auto draw = [&](std::uint32_t n) {
    return ((state = state * 1664525u + 1013904223u) >> 8) % n;
  };
  int read = 0, refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    const std::size_t at = draw(static_cast<std::uint32_t>(bytes.size()));
    bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1 + draw(255)));
    put(dir / "f", bytes);
    try {
      const io::safetensors_reader reader(dir / "f");
      for (const io::safetensors_entry& e : reader.tensors()) {
        std::vector<std::byte> bytes_of_it(static_cast<std::size_t>(e.end - e.begin));
        reader.read(e.name, bytes_of_it);
      }
      ++read;
    } catch (const error&) {
      ++refused;
    }
  }
  CHECK(read + refused == 2000);
  CHECK(read > 200); // a changed value is a value
  CHECK(refused > 1000);
}

TEST_CASE("safetensors: a file cut while it is open, by a byte and by a page") {
  const scratch dir;
  const std::string big(20000, 'x');
  for (const std::uint64_t cut : {1, 4096}) {
    io::write_safetensors(dir / "f", {tensor("w", digest::dtype::u8, {20000}, big)});
    const io::safetensors_reader reader(dir / "f");
    fs::resize_file(dir / "f", fs::file_size(dir / "f") - cut);
    std::vector<std::byte> bytes(20000);
    CHECK(has(failure_of([&] { reader.read("w", bytes); }), "too early"));
    CHECK(has(failure_of([&] { io::safetensors_reader again(dir / "f"); }), "the file was cut"));
  }
}

TEST_CASE("safetensors: saving over a file that is mapped and open leaves both as they were") {
  const scratch dir;
  const std::string before(20000, 'a'), after(5, 'b');
  io::write_safetensors(dir / "f", {tensor("w", digest::dtype::u8, {20000}, before)});
  const io::file in(dir / "f", O_RDONLY);
  const std::size_t size = static_cast<std::size_t>(in.size());
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, in.handle(), 0);
  REQUIRE(mapped != MAP_FAILED);
  const io::safetensors_reader reader(dir / "f");
  io::write_safetensors(dir / "f", {tensor("w", digest::dtype::u8, {5}, after)});
  std::string seen(before.size(), '?');
  reader.read("w", std::as_writable_bytes(std::span(seen)));
  CHECK(seen == before);
  CHECK(std::string(static_cast<char*>(mapped) + size - 20000, 20000) == before);
  ::munmap(mapped, size);
  // And over the very memory that is being saved.
  const io::safetensors_reader now(dir / "f");
  CHECK(now.find("w").shape == std::vector<std::uint64_t>{5});
}
