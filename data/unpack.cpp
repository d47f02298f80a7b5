#include "data/unpack.h"

#include <memory>

#include "core/check.h"
#include "core/files.h"

#ifdef RING_WITH_ZLIB
#include <zlib.h>
#endif
#ifdef RING_WITH_ZSTD
#include <zstd.h>
#endif

namespace ring {
namespace {

using TakeBlock = std::function<bool(std::string_view)>;

[[noreturn]] [[maybe_unused]] void fail_damaged(const std::string& path, const std::string& why) {
  fail(path, " cannot be unpacked: ", why, "; copy it again from its source");
}

[[noreturn]] [[maybe_unused]] void fail_without(const std::string& path, const char* how, const char* package) {
  fail(path, " is compressed with ", how, ", which this build does not support: unpack it first, or install ",
       package, " and build again");
}

void read_plain(FileHandle& file, const TakeBlock& take) {
  std::string buffer(kTextBlock, '\0');
  for (std::size_t n; (n = file.read(buffer.data(), buffer.size())) > 0;)
    if (!take(std::string_view(buffer).substr(0, n))) return;
}

#ifdef RING_WITH_ZLIB
// Reader of the concatenated members of a gzip file. If bytes after a member do not begin another member, zlib's own
// gzread() treats everything that follows as padding and loses the remaining text.
class GzipMembers {
 public:
  explicit GzipMembers(FileHandle& file) : file_(file), packed_(kTextBlock, '\0'), text_(kTextBlock, '\0') {
    constexpr int kGzip = 16;  // added to windowBits: expects gzip header and checksum
    if (inflateInit2(&stream_, MAX_WBITS + kGzip) != Z_OK) fail("cannot read ", file.path(), ": no memory for zlib");
  }
  ~GzipMembers() { inflateEnd(&stream_); }
  GzipMembers(const GzipMembers&) = delete;
  GzipMembers& operator=(const GzipMembers&) = delete;

  // Moves to the next member; returns false if there is none. Only zero bytes are allowed between members and after the
  // last one.
  bool next() {
    while (fill()) {
      if (*stream_.next_in != 0) return inflateReset(&stream_) == Z_OK;
      ++stream_.next_in, --stream_.avail_in;
    }
    return false;
  }

  // Decompresses a member. Returns false if `take` returned false.
  bool read(const TakeBlock& take) {
    bool more = false;  // true if the last call filled text_, so that zlib may have more output
    for (int status = Z_OK; status != Z_STREAM_END;) {
      if (!more && !fill()) fail_damaged(file_.path(), "it ends early");
      stream_.next_out = reinterpret_cast<Bytef*>(text_.data());
      stream_.avail_out = static_cast<uInt>(text_.size());
      status = inflate(&stream_, Z_NO_FLUSH);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)  // Z_BUF_ERROR: needs more input
        fail_damaged(file_.path(), stream_.msg ? stream_.msg : zError(status));
      const std::size_t n = text_.size() - stream_.avail_out;
      if (n > 0 && !take(std::string_view(text_).substr(0, n))) return false;
      more = n == text_.size();
    }
    return true;
  }

 private:
  bool fill() {
    if (stream_.avail_in > 0) return true;
    stream_.next_in = reinterpret_cast<Bytef*>(packed_.data());
    stream_.avail_in = static_cast<uInt>(file_.read(packed_.data(), packed_.size()));
    return stream_.avail_in > 0;
  }

  FileHandle& file_;
  z_stream stream_{};
  std::string packed_, text_;
};

void read_gzip(FileHandle& file, const TakeBlock& take) {
  GzipMembers members(file);
  while (members.next())
    if (!members.read(take)) return;
}
#else
void read_gzip(FileHandle& file, const TakeBlock&) { fail_without(file.path(), "gzip", "zlib1g-dev"); }
#endif

#ifdef RING_WITH_ZSTD
void read_zstd(FileHandle& file, const TakeBlock& take) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(), ZSTD_freeDStream);
  if (!stream) fail("cannot read ", file.path(), ": no memory for zstd");
  // Accepts frames written by `zstd --long=31`, which the library refuses by default.
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  std::string packed(kTextBlock, '\0'), text(kTextBlock, '\0');
  std::size_t left = 0;  // the library's hint on how many bytes the frame still needs; 0 if a frame is complete
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
void read_zstd(FileHandle& file, const TakeBlock&) { fail_without(file.path(), "zstd", "libzstd-dev"); }
#endif

}  // namespace

Compression compression_of(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) return Compression::gzip;
  if (head.starts_with("\x28\xB5\x2F\xFD")) return Compression::zstd;
  // This is a skippable frame; pzstd writes such frames before others.
  if (head.size() >= 4 && (head[0] & 0xF0) == 0x50 && head.substr(1).starts_with("\x2A\x4D\x18"))
    return Compression::zstd;
  return Compression::none;
}

std::string unpacked_name(const std::string& path) {
  for (const std::string_view ending : {".gz", ".zst"})
    if (path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  return path;
}

void read_unpacked(const std::string& path, const TakeBlock& take) {
  std::string head(4, '\0');
  FileHandle file = open_input(path);
  head.resize(file.read(head.data(), head.size()));
  file = open_input(path);
  switch (compression_of(head)) {
    case Compression::none: return read_plain(file, take);
    case Compression::gzip: return read_gzip(file, take);
    case Compression::zstd: return read_zstd(file, take);
  }
}

}  // namespace ring
