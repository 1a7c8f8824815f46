// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Files and directories that are complete or absent: written beside their name, synced, renamed.
///
/// What is being written is called NAME.partial-PID and locked by its writer. The lock ends with
/// the writer, however it ends, so that what a killed one left can be told from work in progress.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ordo/core/error.hpp>

namespace ordo::io {

namespace detail {

[[noreturn]] inline void fail(const std::filesystem::path& path, const std::string& what,
                              int code) {
  const char* remedy = code == ENOSPC || code == EDQUOT || code == EFBIG
                           ? "free some space (or lift the limit) and run the same command again"
                       : code == EACCES || code == EPERM || code == EROFS ? "check the permissions"
                       : code == ENOENT || code == ENOTDIR                ? "check the name"
                       : code == EEXIST || code == ENOTEMPTY
                           ? "choose another name, or remove it first"
                       : code == EIO ? "the disk may be failing; check it before anything else"
                                     : "";
  throw error(path.string(), what + ": " + std::strerror(code), remedy);
}

} // namespace detail

/// An open file descriptor, closed at the end of its scope.
class file {
public:
  file() = default;
  file(std::filesystem::path path, int flags, mode_t mode = 0644) : path_(std::move(path)) {
    handle_ = ::open(path_.c_str(), flags | O_CLOEXEC, mode);
    if (handle_ < 0)
      detail::fail(path_, "cannot be opened", errno);
  }
  file(file&& other) noexcept
      : path_(std::move(other.path_)), handle_(std::exchange(other.handle_, -1)) {}
  file& operator=(file&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~file() {
    if (handle_ >= 0)
      ::close(handle_);
  }

  const std::filesystem::path& path() const { return path_; }
  int handle() const { return handle_; }

  std::uint64_t size() const {
    struct stat about;
    if (::fstat(handle_, &about) != 0)
      detail::fail(path_, "cannot be examined", errno);
    return static_cast<std::uint64_t>(about.st_size);
  }

  /// Reads exactly `bytes.size()` bytes at `offset`. Throws when the file ends before.
  void read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const std::size_t part = std::min(bytes.size(), bytes_per_call);
      const ssize_t n = ::pread(handle_, bytes.data(), part, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR)
        continue;
      if (n < 0)
        detail::fail(path_, "cannot be read", errno);
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
      const ssize_t n = ::write(handle_, bytes.data(), std::min(bytes.size(), bytes_per_call));
      if (n < 0 && errno == EINTR)
        continue;
      if (n <= 0)
        detail::fail(path_, "cannot be written", n < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }
  void write(std::string_view text) const { write(std::as_bytes(std::span(text))); }

  void truncate(std::uint64_t size) const {
    if (::ftruncate(handle_, static_cast<off_t>(size)) != 0) {
      detail::fail(path_, "cannot be shortened", errno);
    }
  }

  /// Flushes to the disk. Some file systems report a full disk only here.
  void sync() const {
    while (::fsync(handle_) != 0) {
      if (errno == EINTR)
        continue;
      // What some file systems answer for a directory, which they then cannot lose.
      if (errno == EINVAL || errno == ENOTSUP)
        return;
      detail::fail(path_, "cannot be saved", errno);
    }
  }

  /// Locks it until it is closed; false when somebody else holds it. A file system without locks
  /// has every lock free.
  bool lock() const { return ::flock(handle_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

private:
  static constexpr std::size_t bytes_per_call = std::size_t{1} << 30; // some systems refuse 2^31
  std::filesystem::path path_;
  int handle_ = -1;
};

/// Opens for reading something that may only be a regular file: a pipe would wait for ever.
inline file open_regular(const std::filesystem::path& path) {
  file in(path, O_RDONLY | O_NONBLOCK);
  struct stat about;
  if (::fstat(in.handle(), &about) != 0)
    detail::fail(path, "cannot be examined", errno);
  require(S_ISREG(about.st_mode), path.string(), "it is no regular file", "check the name");
  return in;
}

inline void sync_directory(const std::filesystem::path& path) {
  file(path.empty() ? "." : path, O_RDONLY | O_DIRECTORY).sync();
}

/// The whole file, which may have at most `limit` bytes.
inline std::string read_file(const std::filesystem::path& path, std::uint64_t limit) {
  const file in = open_regular(path);
  const std::uint64_t size = in.size();
  require(size <= limit, path.string(),
          "it has " + std::to_string(size) + " bytes, at most " + std::to_string(limit) +
              " are expected",
          "this is not the file it should be");
  std::string text(static_cast<std::size_t>(size), '\0');
  in.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

namespace detail {

/// NAME.partial-PID, where NAME is being written; a slash at the end of `path` does not count.
inline std::filesystem::path beside(std::filesystem::path path) {
  if (!path.has_filename())
    path = path.parent_path();
  path += ".partial-" + std::to_string(::getpid());
  return path;
}

/// Whether `name` is one that `beside` makes.
inline bool is_partial(std::string_view name) {
  constexpr std::string_view mark = ".partial-";
  const std::size_t at = name.rfind(mark);
  return at != std::string_view::npos && at + mark.size() < name.size() &&
         name.find_first_not_of("0123456789", at + mark.size()) == std::string_view::npos;
}

} // namespace detail

/// Writes a file by calling `fill(file)`, in a way that leaves the old file or the new one,
/// whatever happens. A file that is mapped or open elsewhere keeps its old content there.
///
/// Throws, with the old file as it was and nothing left beside it, on whatever `fill` throws and
/// when the disk is full.
template <class Fill>
void write_atomic(const std::filesystem::path& path, const Fill& fill, mode_t mode = 0644) {
  const file out(detail::beside(path), O_WRONLY | O_CREAT | O_NOFOLLOW, mode);
  require(out.lock(), path.string(), "another thread of this program is writing it");
  try {
    out.truncate(0);
    fill(out);
    out.sync();
    if (::rename(out.path().c_str(), path.c_str()) != 0) {
      detail::fail(path, "cannot be renamed", errno);
    }
  } catch (...) {
    ::unlink(out.path().c_str());
    throw;
  }
  sync_directory(path.parent_path());
}

inline void write_file_atomic(const std::filesystem::path& path, std::span<const std::byte> bytes,
                              mode_t mode = 0644) {
  write_atomic(
      path, [&](const file& out) { out.write(bytes); }, mode);
}
inline void write_file_atomic(const std::filesystem::path& path, std::string_view text,
                              mode_t mode = 0644) {
  write_file_atomic(path, std::as_bytes(std::span(text)), mode);
}

namespace detail {

/// Bytes of `in` up to and with its last line end.
inline std::uint64_t complete_bytes(const file& in) {
  char part[4096];
  for (std::uint64_t end = in.size(); end > 0;) {
    const std::uint64_t begin = end - std::min<std::uint64_t>(end, sizeof part);
    const std::string_view text(part, static_cast<std::size_t>(end - begin));
    in.read_at(begin, std::as_writable_bytes(std::span(part, text.size())));
    const std::size_t at = text.rfind('\n');
    if (at != std::string_view::npos)
      return begin + at + 1;
    end = begin;
  }
  return 0;
}

} // namespace detail

/// Appends `line`, which holds no line end, and a line end; syncs. A last line without its end is
/// what a killed append leaves: it is removed first, and readers must pass over it.
///
/// Throws, with the file's complete lines as they were, when the disk is full.
inline void append_line(const std::filesystem::path& path, const std::string& line) {
  require(line.find('\n') == std::string::npos, path.string(), "a line to append has a line end");
  const file out(path, O_RDWR | O_CREAT | O_APPEND);
  const std::uint64_t before = detail::complete_bytes(out);
  if (before != out.size())
    out.truncate(before);
  try {
    out.write(line + "\n");
    out.sync();
  } catch (...) {
    // Should this fail too, what is left has no line end, or is the line itself.
    [[maybe_unused]] const int ignored = ::ftruncate(out.handle(), static_cast<off_t>(before));
    throw;
  }
  if (before == 0)
    sync_directory(path.parent_path());
}

/// A directory that appears under its name complete or not at all.
class staged_directory {
public:
  /// Makes `target`.partial-PID, and the directories above it; removes what killed writers of the
  /// same target left. Throws when `target` exists.
  explicit staged_directory(std::filesystem::path target)
      : target_(std::move(target)), staged_(detail::beside(target_)) {
    if (!target_.has_filename())
      target_ = target_.parent_path();
    if (taken())
      detail::fail(target_, "cannot be made", EEXIST);
    remove_stale(target_.has_parent_path() ? target_.parent_path() : ".", target_.filename());
    std::error_code failure;
    if (target_.has_parent_path()) {
      std::filesystem::create_directories(target_.parent_path(), failure);
    }
    if (failure)
      detail::fail(target_.parent_path(), "cannot be made", failure.value());
    if (::mkdir(staged_.c_str(), 0755) != 0)
      detail::fail(staged_, "cannot be made", errno);
    lock_ = file(staged_, O_RDONLY | O_DIRECTORY);
    lock_.lock();
  }
  staged_directory(const staged_directory&) = delete;
  staged_directory& operator=(const staged_directory&) = delete;
  ~staged_directory() {
    std::error_code ignored;
    if (!committed_)
      std::filesystem::remove_all(staged_, ignored);
  }

  /// Where to write until `commit`.
  const std::filesystem::path& path() const { return staged_; }

  /// Syncs everything in it and renames. Throws when the target has appeared meanwhile.
  void commit() {
    sync_below(staged_);
    if (rename_to_target() != 0)
      detail::fail(target_, "cannot be made", errno);
    committed_ = true;
    sync_directory(target_.parent_path());
  }

  /// Removes what killed writers left in `parent`, files and directories, and nothing that is being
  /// written now; with `name`, only what was to be called so.
  static void remove_stale(const std::filesystem::path& parent, const std::string& name = {}) {
    std::error_code failure;
    std::filesystem::directory_iterator entries(parent, failure);
    if (failure == std::errc::no_such_file_or_directory)
      return;
    for (; !failure && entries != std::filesystem::directory_iterator();
         entries.increment(failure)) {
      const std::string found = entries->path().filename().string();
      const bool meant = name.empty() || found.substr(0, found.rfind(".partial-")) == name;
      if (meant && detail::is_partial(found))
        remove_unless_locked(entries->path());
    }
    if (failure)
      detail::fail(parent, "cannot be read", failure.value());
  }

private:
  bool taken() const {
    struct stat about;
    return ::lstat(target_.c_str(), &about) == 0;
  }

  static void remove_unless_locked(const std::filesystem::path& path) {
    const int handle = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (handle < 0 && errno == ENOENT)
      return;
    const bool busy =
        handle >= 0 && ::flock(handle, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    std::error_code failure;
    if (!busy)
      std::filesystem::remove_all(path, failure);
    if (handle >= 0)
      ::close(handle);
    if (failure) {
      detail::fail(path, "was left by a killed program and cannot be removed", failure.value());
    }
  }

  static void sync_below(const std::filesystem::path& directory) {
    std::error_code failure;
    std::filesystem::directory_iterator entries(directory, failure);
    for (; !failure && entries != std::filesystem::directory_iterator();
         entries.increment(failure)) {
      if (entries->is_directory(failure)) {
        sync_below(entries->path());
      } else if (!failure) {
        file(entries->path(), O_RDONLY | O_NOFOLLOW).sync();
      }
    }
    if (failure)
      detail::fail(directory, "cannot be read", failure.value());
    sync_directory(directory);
  }

  int rename_to_target() const {
#if defined(RENAME_NOREPLACE)
    if (::renameat2(AT_FDCWD, staged_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) == 0) {
      return 0;
    }
    if (errno != EINVAL && errno != ENOSYS)
      return -1;
#endif
    // Elsewhere rename alone would replace a directory that is empty.
    if (taken()) {
      errno = EEXIST;
      return -1;
    }
    return ::rename(staged_.c_str(), target_.c_str());
  }

  std::filesystem::path target_, staged_;
  file lock_;
  bool committed_ = false;
};

} // namespace ordo::io
