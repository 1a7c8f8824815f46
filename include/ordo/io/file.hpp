// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Files that are complete or absent: written beside their name, synced, renamed.

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ordo/core/error.hpp>

namespace ordo::io {

namespace detail {

[[noreturn]] inline void fail(const std::filesystem::path& path, const std::string& what, int code) {
  const char* remedy = code == ENOSPC || code == EDQUOT || code == EFBIG
                           ? "free some space (or lift the limit) and run the same command again"
                       : code == EACCES || code == EPERM ? "check the permissions"
                       : code == ENOENT                  ? "check the name"
                                                         : "";
  throw error(path.string(), what + ": " + std::strerror(code), remedy);
}

}  // namespace detail

/// An open file descriptor, closed at the end of its scope.
class file {
 public:
  file() = default;
  file(std::filesystem::path path, int flags, mode_t mode = 0644) : path_(std::move(path)) {
    handle_ = ::open(path_.c_str(), flags | O_CLOEXEC, mode);
    if (handle_ < 0) detail::fail(path_, "cannot be opened", errno);
  }
  file(file&& other) noexcept
      : path_(std::move(other.path_)), handle_(std::exchange(other.handle_, -1)) {}
  file& operator=(file&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~file() {
    if (handle_ >= 0) ::close(handle_);
  }

  const std::filesystem::path& path() const { return path_; }
  int handle() const { return handle_; }

  std::uint64_t size() const {
    struct stat about;
    if (::fstat(handle_, &about) != 0) detail::fail(path_, "cannot be examined", errno);
    return static_cast<std::uint64_t>(about.st_size);
  }

  /// Reads exactly `bytes.size()` bytes at `offset`. Throws when the file ends before.
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::pread(handle_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) detail::fail(path_, "cannot be read", errno);
      if (n == 0) {
        throw error(path_.string(), "it ends " + std::to_string(bytes.size()) + " bytes too early",
                    "the file was cut; fetch it again");
      }
      offset += static_cast<std::uint64_t>(n);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }

  void write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = ::write(handle_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) detail::fail(path_, "cannot be written", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  void write(std::string_view text) const { write(std::as_bytes(std::span(text))); }

  /// Flushes to the disk. Some file systems report a full disk only here.
  void sync() const {
    if (::fsync(handle_) != 0) detail::fail(path_, "cannot be saved", errno);
  }

 private:
  std::filesystem::path path_;
  int handle_ = -1;
};

inline void sync_directory(const std::filesystem::path& path) {
  file(path.empty() ? "." : path, O_RDONLY | O_DIRECTORY).sync();
}

/// The whole file, which may have at most `limit` bytes.
inline std::string read_file(const std::filesystem::path& path, std::uint64_t limit) {
  const file in(path, O_RDONLY);
  const std::uint64_t size = in.size();
  require(size <= limit, path.string(),
          "it has " + std::to_string(size) + " bytes, at most " + std::to_string(limit) +
              " are expected",
          "this is not the file it should be");
  std::string text(static_cast<std::size_t>(size), '\0');
  in.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// Writes a file by calling `fill(file)`, in a way that leaves the old file or the new one.
///
/// Throws, with the old file untouched and nothing left beside it, when the disk is full.
template <class Fill>
void write_atomic(const std::filesystem::path& path, const Fill& fill) {
  std::filesystem::path beside = path;
  beside += ".partial-" + std::to_string(::getpid());
  try {
    const file out(beside, O_WRONLY | O_CREAT | O_TRUNC);
    fill(out);
    out.sync();
    if (::rename(beside.c_str(), path.c_str()) != 0) detail::fail(path, "cannot be renamed", errno);
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
  sync_directory(path.parent_path());
}

inline void write_file_atomic(const std::filesystem::path& path, std::string_view text) {
  write_atomic(path, [&](const file& out) { out.write(text); });
}

/// Appends `line` and its end in one write and syncs. A failed append is taken back.
inline void append_line(const std::filesystem::path& path, const std::string& line) {
  const file out(path, O_WRONLY | O_CREAT | O_APPEND);
  const std::uint64_t before = out.size();
  try {
    out.write(line + "\n");
    out.sync();
  } catch (...) {
    if (::ftruncate(out.handle(), static_cast<off_t>(before)) != 0) {
      // The reader drops a last line without its end.
    }
    throw;
  }
}

/// A directory that appears under its name complete or not at all.
class staged_directory {
 public:
  explicit staged_directory(std::filesystem::path target) : target_(std::move(target)), staged_(target_) {
    require(!std::filesystem::exists(target_), target_.string(), "it exists",
            "choose another name, or remove it first");
    staged_ += ".partial-" + std::to_string(::getpid());
    std::filesystem::remove_all(staged_);
    std::error_code failure;
    std::filesystem::create_directories(staged_, failure);
    if (failure) detail::fail(staged_, "cannot be made", failure.value());
  }
  staged_directory(const staged_directory&) = delete;
  ~staged_directory() {
    std::error_code ignored;
    if (!committed_) std::filesystem::remove_all(staged_, ignored);
  }

  /// Where to write until `commit`.
  const std::filesystem::path& path() const { return staged_; }

  /// Syncs everything and renames.
  void commit() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(staged_)) {
      if (entry.is_directory()) {
        sync_directory(entry.path());
      } else {
        file(entry.path(), O_RDONLY).sync();
      }
    }
    sync_directory(staged_);
    if (::rename(staged_.c_str(), target_.c_str()) != 0) {
      detail::fail(target_, "cannot be renamed", errno);
    }
    committed_ = true;
    sync_directory(target_.parent_path());
  }

  /// Removes what killed writers left in `parent`.
  static void remove_stale(const std::filesystem::path& parent) {
    for (const auto& entry : std::filesystem::directory_iterator(parent)) {
      if (entry.path().filename().string().find(".partial-") != std::string::npos) {
        std::filesystem::remove_all(entry.path());
      }
    }
  }

 private:
  std::filesystem::path target_, staged_;
  bool committed_ = false;
};

}  // namespace ordo::io
