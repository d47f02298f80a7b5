#include "checkpoint/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
// GCC 12 warns about its own AVX-512 intrinsics when xxHash is inlined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <xxhash.h>

#include <algorithm>
#include <cerrno>

#include "core/check.h"
#include "core/interrupted.h"
#include "core/io_error.h"
#include "core/regular_file.h"
#include "job/inject.h"

namespace ring {
namespace {

constexpr std::size_t kHashBlock = 4 << 20;

[[noreturn]] void fail_errno(const char* what, const std::filesystem::path& path, int error) {
  fail("cannot ", what, " ", path.string(), ": ", io_error_text(error));
}

int open_file(const std::filesystem::path& path, int flags, const char* what) {
  std::string why;
  const auto open = [&] { return try_open_regular(path.string(), flags, why); };
  const int fd = uninterrupted([&] { return flags & O_CREAT ? tried(IoCall::create, open) : open(); });
  if (fd < 0 && why.empty()) fail_errno(what, path, errno);
  if (fd < 0) fail("cannot ", what, " ", path.string(), ": ", why);
  return fd;
}

int sync_of(int fd) {
  return uninterrupted([&] { return tried(IoCall::fsync, [&] { return ::fsync(fd); }); });
}

}  // namespace

struct Hasher::Impl {
  XXH3_state_t state;
};
Hasher::Hasher() : impl_(std::make_unique<Impl>()) { XXH3_128bits_reset(&impl_->state); }
Hasher::~Hasher() = default;
void Hasher::update(const void* data, std::size_t bytes) { XXH3_128bits_update(&impl_->state, data, bytes); }

std::string Hasher::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&impl_->state));
  std::string text;
  for (unsigned char byte : canonical.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::string hash_of(std::string_view bytes) {
  Hasher h;
  h.update(bytes.data(), bytes.size());
  return h.hex();
}

File::File(const std::filesystem::path& path, Mode mode) : path_(path) {
  switch (mode) {
    case Mode::read: fd_ = open_file(path, O_RDONLY, "read"); break;
    case Mode::create: fd_ = open_file(path, O_RDWR | O_CREAT | O_TRUNC, "create"); break;
    case Mode::update: fd_ = open_file(path, O_RDWR, "write"); break;
  }
}
File::~File() { ::close(fd_); }

std::uint64_t File::size() const {
  struct stat info;
  if (::fstat(fd_, &info) != 0) fail_errno("read the size of", path_, errno);
  return static_cast<std::uint64_t>(info.st_size);
}

void File::reserve(std::uint64_t bytes) {
  if (bytes == 0) return;
  const auto reserve = [&] { return ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)); };
  const int result = uninterrupted([&] { return tried(IoCall::reserve, reserve); });
  // Not every file system supports this: then a full disk is only detected while writing.
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
  const int error = errno;
  std::error_code ignored;
  const auto space = std::filesystem::space(path_.parent_path(), ignored);
  fail("cannot reserve ", bytes, " bytes for ", path_.string(), " (", space.available,
       " free): ", io_error_text(error));
}

void File::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    std::size_t part = bytes;
    const ssize_t n = tried(
        IoCall::write, [&] { return ::pwrite(fd_, p, part, static_cast<off_t>(offset)); }, &part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_errno("write", path_, n < 0 ? errno : ENOSPC);
    p += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void File::read_at(std::uint64_t offset, void* data, std::size_t bytes) const {
  char* p = static_cast<char*>(data);
  while (bytes > 0) {
    std::size_t part = bytes;
    const ssize_t n = tried(
        IoCall::read, [&] { return ::pread(fd_, p, part, static_cast<off_t>(offset)); }, &part);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno("read", path_, errno);
    if (n == 0) fail(path_.string(), " ends at byte ", offset, ", but ", bytes, " more bytes are needed");
    p += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void File::resize(std::uint64_t bytes) {
  const auto resize = [&] { return ::ftruncate(fd_, static_cast<off_t>(bytes)); };
  if (uninterrupted([&] { return tried(IoCall::resize, resize); }) != 0) fail_errno("resize", path_, errno);
}

void File::sync() {
  if (sync_of(fd_) != 0) fail_errno("sync", path_, errno);
}

void File::drop_cache() const { ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

void sync_directory(const std::filesystem::path& directory) {
  const char* name = directory.empty() ? "." : directory.c_str();
  const int fd = uninterrupted([&] { return ::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) fail_errno("open the directory", directory, errno);
  const int error = sync_of(fd) == 0 ? 0 : errno;
  ::close(fd);
  // EINVAL means that it is not supported here.
  if (error != 0 && error != EINVAL) fail_errno("sync the directory", directory, error);
}

std::string read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const File file(path, File::Mode::read);
  const std::uint64_t bytes = file.size();
  if (bytes > max_bytes)
    fail("cannot read ", path.string(), ": it has ", bytes, " bytes, but at most ", max_bytes, " are read");
  std::string text(bytes, '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  File file(path, File::Mode::create);
  file.write_at(0, text.data(), text.size());
  file.sync();
}

void replace_text(const std::filesystem::path& path, const std::string& text) {
  const std::string temporary = path.string() + ".tmp";
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  try {
    write_text(temporary, text);
    rename_file(temporary, path);
  } catch (...) {
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (tried(IoCall::rename, [&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
    const int error = errno;
    fail("cannot rename ", from.string(), " to ", to.string(), ": ", io_error_text(error));
  }
  sync_directory(to.parent_path());
}

FileHashes hash_file(const std::filesystem::path& path, const std::vector<ByteRange>& ranges, bool from_disk) {
  const File file(path, File::Mode::read);
  if (from_disk) file.drop_cache();
  FileHashes result;
  result.bytes = file.size();
  std::vector<Hasher> parts(ranges.size());
  Hasher whole;
  std::vector<char> block(kHashBlock);
  std::size_t first = 0;  // index of the first range that has not ended yet
  for (std::uint64_t at = 0; at < result.bytes; at += kHashBlock) {
    const std::uint64_t end = std::min<std::uint64_t>(result.bytes, at + kHashBlock);
    file.read_at(at, block.data(), end - at);
    whole.update(block.data(), end - at);
    for (std::size_t r = first; r < ranges.size() && ranges[r].offset < end; ++r) {
      const std::uint64_t range_end = ranges[r].offset + ranges[r].bytes;
      const std::uint64_t from = std::max(at, ranges[r].offset), to = std::min(end, range_end);
      if (from < to) parts[r].update(block.data() + (from - at), to - from);
      if (range_end <= end) first = r + 1;
    }
  }
  result.whole = whole.hex();
  for (const Hasher& part : parts) result.ranges.push_back(part.hex());
  return result;
}

}  // namespace ring
