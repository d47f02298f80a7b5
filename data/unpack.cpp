#include "data/unpack.h"

#include <memory>

#include "core/check.h"
#include "data/files.h"

#ifdef RING_WITH_ZLIB
#include <unistd.h>
#include <zlib.h>
#endif
#ifdef RING_WITH_ZSTD
#include <zstd.h>
#endif

namespace ring {
namespace {

using Take = std::function<bool(std::string_view)>;
constexpr std::size_t kBlock = std::size_t{1} << 20;

[[noreturn]] [[maybe_unused]] void fail_damaged(const std::string& path, const std::string& why) {
  fail(path, " cannot be unpacked: ", why, "; copy it again from where it came from");
}

[[noreturn]] [[maybe_unused]] void fail_without(const std::string& path, const char* how, const char* package) {
  fail(path, " is compressed by ", how, ", which this build cannot read: unpack it first, or install ", package,
       " and build again");
}

void read_plain(FileHandle& file, const Take& take) {
  std::string buffer(kBlock, '\0');
  for (std::size_t n; (n = file.read(buffer.data(), buffer.size())) > 0;)
    if (!take(std::string_view(buffer).substr(0, n))) return;
}

#ifdef RING_WITH_ZLIB
void read_gzip(const FileHandle& file, const Take& take) {
  const int own = ::dup(file.fd());  // gzclose() closes it
  if (own < 0) fail("cannot read ", file.path());
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzdopen(own, "rb"), gzclose);
  if (!in) fail("cannot read ", file.path(), ": no memory for zlib");
  std::string buffer(kBlock, '\0');
  const auto problem = [&] {
    int code = Z_OK;
    const char* text = gzerror(in.get(), &code);
    return code == Z_OK ? std::string() : code == Z_BUF_ERROR ? std::string("it ends early") : std::string(text);
  };
  for (int n; (n = gzread(in.get(), buffer.data(), static_cast<unsigned>(buffer.size()))) != 0;) {
    if (n < 0) fail_damaged(file.path(), problem());
    if (!take(std::string_view(buffer).substr(0, static_cast<std::size_t>(n)))) return;
  }
  if (const std::string why = problem(); !why.empty()) fail_damaged(file.path(), why);
}
#else
void read_gzip(const FileHandle& file, const Take&) { fail_without(file.path(), "gzip", "zlib1g-dev"); }
#endif

#ifdef RING_WITH_ZSTD
void read_zstd(FileHandle& file, const Take& take) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  if (!stream) fail("cannot read ", file.path(), ": no memory for zstd");
  std::string packed(kBlock, '\0'), text(kBlock, '\0');
  std::size_t left = 0;  // what the frame still wants, as the library guesses; 0: a frame is complete
  for (std::size_t n; (n = file.read(packed.data(), packed.size())) > 0;) {
    ZSTD_inBuffer in{packed.data(), n, 0};
    for (bool full = false; in.pos < in.size || full;) {
      ZSTD_outBuffer out{text.data(), text.size(), 0};
      left = ZSTD_decompressStream(stream.get(), &out, &in);
      if (ZSTD_isError(left)) fail_damaged(file.path(), ZSTD_getErrorName(left));
      full = out.pos == out.size;
      if (out.pos > 0 && !take(std::string_view(text).substr(0, out.pos))) return;
    }
  }
  if (left != 0) fail_damaged(file.path(), "it ends early");
}
#else
void read_zstd(FileHandle& file, const Take&) { fail_without(file.path(), "zstd", "libzstd-dev"); }
#endif

}  // namespace

Packing packing_of(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) return Packing::gzip;
  if (head.starts_with("\x28\xB5\x2F\xFD")) return Packing::zstd;
  return Packing::none;
}

std::string unpacked_name(const std::string& path) {
  for (const std::string_view ending : {".gz", ".zst"})
    if (path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  return path;
}

void read_unpacked(const std::string& path, const Take& take) {
  std::string head(4, '\0');
  FileHandle file = open_input(path);
  head.resize(file.read(head.data(), head.size()));
  file = open_input(path);
  switch (packing_of(head)) {
    case Packing::none: return read_plain(file, take);
    case Packing::gzip: return read_gzip(file, take);
    case Packing::zstd: return read_zstd(file, take);
  }
}

}  // namespace ring
