#include "tests/io_faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

namespace ring::test {
namespace {

struct Watch {
  std::string under;
  IoHook hook;
};
std::mutex mutex;
std::shared_ptr<const Watch> current;
thread_local bool inside = false;  // set while the hook runs, whose own calls are not shown

std::shared_ptr<const Watch> watch() {
  const std::lock_guard lock(mutex);
  return current;
}

// Asks the hook about a call. Returns its answer; 0 for paths that are not watched.
int ask_hook(const Watch& w, const IoCall& call) {
  if (call.path.find(w.under) == std::string::npos) return 0;
  inside = true;
  const int answer = w.hook(call);
  inside = false;
  return answer;
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int fd) {
  char path[4096];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : "";
}

std::string path_at(int folder, const char* name) {
  return folder == AT_FDCWD || name[0] == '/' ? name : path_of(folder) + "/" + name;
}

// Runs `call` unless the hook lets it fail.
template <class Make, class Run>
auto run_watched(const Make& make, const Run& run) -> decltype(run()) {
  const std::shared_ptr<const Watch> w = inside ? nullptr : watch();
  const int error = w ? ask_hook(*w, make()) : 0;
  if (error <= 0) return run();
  errno = error;
  return -1;
}

// Runs `call` with the bytes to write, which the hook may halve.
template <class Call>
ssize_t write_at(int fd, const void* data, size_t bytes, off_t offset, const Call& call) {
  const std::shared_ptr<const Watch> w = inside ? nullptr : watch();
  if (!w) return call(bytes);
  const char* p = static_cast<const char*>(data);
  const int answer = ask_hook(*w, {"write", path_of(fd), "", static_cast<std::uint64_t>(offset), {p, p + bytes}});
  if (answer == kShort && bytes > 1) bytes /= 2;
  if (answer <= 0) return call(bytes);
  errno = answer;
  return -1;
}

ssize_t positioned_write(int fd, const void* data, size_t bytes, off_t offset) {
  return write_at(fd, data, bytes, offset, [&](size_t part) {
    return real<ssize_t(int, const void*, size_t, off_t)>("pwrite64")(fd, data, part, offset);
  });
}

ssize_t positioned_read(int fd, void* data, size_t bytes, off_t offset) {
  return run_watched(
      [&] {
        return IoCall{"read", path_of(fd)};
      },
      [&] { return real<ssize_t(int, void*, size_t, off_t)>("pread64")(fd, data, bytes, offset); });
}

int close_file(int fd) {
  bool closed = false;
  const auto run = [&] {
    closed = true;
    return real<int(int)>("close")(fd);
  };
  const int result = run_watched([&] { return IoCall{"close", path_of(fd)}; }, run);
  if (closed) return result;
  const int error = errno;
  run();
  errno = error;
  return -1;
}

int open_at(int folder, const char* path, int flags, mode_t mode) {
  const auto run = [&] { return real<int(int, const char*, int, ...)>("openat64")(folder, path, flags, mode); };
  return run_watched([&] { return IoCall{flags & O_CREAT ? "create" : "open", path_at(folder, path)}; }, run);
}

int resize(int fd, off_t bytes) {
  return run_watched(
      [&] {
        return IoCall{"resize", path_of(fd), "", static_cast<std::uint64_t>(bytes)};
      },
      [&] { return real<int(int, off_t)>("ftruncate64")(fd, bytes); });
}

int reserve(int fd, int mode, off_t from, off_t bytes) {
  return run_watched(
      [&] {
        return IoCall{"reserve", path_of(fd), "", static_cast<std::uint64_t>(bytes)};
      },
      [&] { return real<int(int, int, off_t, off_t)>("fallocate64")(fd, mode, from, bytes); });
}

}  // namespace

IoWatch::IoWatch(std::string under, IoHook hook) {
  const std::lock_guard lock(mutex);
  current = std::make_shared<const Watch>(Watch{std::move(under), std::move(hook)});
}
IoWatch::~IoWatch() {
  const std::lock_guard lock(mutex);
  current = nullptr;
}

}  // namespace ring::test

using namespace ring::test;

extern "C" {

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return positioned_write(fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t offset) {
  return positioned_write(fd, data, bytes, offset);
}
ssize_t write(int fd, const void* data, size_t bytes) {
  return write_at(fd, data, bytes, ::lseek(fd, 0, SEEK_CUR),
                  [&](size_t part) { return real<ssize_t(int, const void*, size_t)>("write")(fd, data, part); });
}
ssize_t pread(int fd, void* data, size_t bytes, off_t offset) { return positioned_read(fd, data, bytes, offset); }
ssize_t pread64(int fd, void* data, size_t bytes, off_t offset) { return positioned_read(fd, data, bytes, offset); }
ssize_t read(int fd, void* data, size_t bytes) {
  return run_watched(
      [&] {
        return IoCall{"read", path_of(fd)};
      },
      [&] { return real<ssize_t(int, void*, size_t)>("read")(fd, data, bytes); });
}
int close(int fd) { return close_file(fd); }
int flock(int fd, int operation) noexcept {
  return run_watched(
      [&] {
        return IoCall{"lock", path_of(fd)};
      },
      [&] { return real<int(int, int)>("flock")(fd, operation); });
}
int ftruncate(int fd, off_t bytes) noexcept { return resize(fd, bytes); }
int ftruncate64(int fd, off_t bytes) noexcept { return resize(fd, bytes); }
int fallocate(int fd, int mode, off_t from, off_t bytes) { return reserve(fd, mode, from, bytes); }
int fallocate64(int fd, int mode, off_t from, off_t bytes) { return reserve(fd, mode, from, bytes); }

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_at(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return open_at(AT_FDCWD, path, flags, mode);
}

int fsync(int fd) {
  return run_watched([&] { return IoCall{"sync", path_of(fd)}; }, [&] { return real<int(int)>("fsync")(fd); });
}
int access(const char* path, int mode) noexcept {
  return run_watched(
      [&] {
        return IoCall{"access", path};
      },
      [&] { return real<int(const char*, int)>("access")(path, mode); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  return run_watched(
      [&] {
        return IoCall{"make_directory", path};
      },
      [&] { return real<int(const char*, mode_t)>("mkdir")(path, mode); });
}
int rename(const char* from, const char* to) noexcept {
  return run_watched(
      [&] {
        return IoCall{"rename", from, to};
      },
      [&] { return real<int(const char*, const char*)>("rename")(from, to); });
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  return run_watched(
      [&] {
        return IoCall{"exchange", path_at(a, from), path_at(b, to)};
      },
      [&] { return real<int(int, const char*, int, const char*, unsigned)>("renameat2")(a, from, b, to, flags); });
}
int remove(const char* path) noexcept {
  return run_watched([&] { return IoCall{"remove", path}; }, [&] { return real<int(const char*)>("remove")(path); });
}
int unlink(const char* path) noexcept {
  return run_watched([&] { return IoCall{"remove", path}; }, [&] { return real<int(const char*)>("unlink")(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  return run_watched(
      [&] {
        return IoCall{"remove", path_at(folder, path)};
      },
      [&] { return real<int(int, const char*, int)>("unlinkat")(folder, path, flags); });
}
}
