#include "data/hashed_blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace ring {
namespace {

constexpr std::uint64_t kBlocksAtOnce = 16;  // 1 MiB per read call

}  // namespace

void BlockHasher::update(const void* data, std::size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const std::size_t n = std::min(bytes, kBlockBytes - filled_);
    block_.update(p, n);
    p += n;
    bytes -= n;
    filled_ += n;
    if (filled_ < kBlockBytes) continue;
    hashes_.push_back(std::exchange(block_, StreamHash()).value());
    filled_ = 0;
  }
}

std::vector<std::uint64_t> BlockHasher::finish() {
  if (filled_ > 0) hashes_.push_back(block_.value());
  filled_ = 0;
  return std::move(hashes_);
}

HashedBlocks::HashedBlocks(std::shared_ptr<const FileHandle> file, std::string name, ByteExtent place,
                           std::vector<std::uint64_t> hashes, Rule rule)
    : file_(std::move(file)),
      name_(std::move(name)),
      place_(place),
      hashes_(std::move(hashes)),
      rule_(std::move(rule)),
      checked_(std::make_unique<std::atomic<std::uint64_t>[]>(hashes_.size() / 64 + 1)) {
  RING_CHECK(hashes_.size() == blocks_of(place_.bytes), name_, ": ", hashes_.size(), " hashes of ", place_.bytes,
             " bytes");
}

ByteExtent HashedBlocks::block_extent(std::size_t block) const {
  const std::uint64_t begin = block * kBlockBytes;
  return {place_.offset + begin, std::min<std::uint64_t>(kBlockBytes, place_.bytes - begin)};
}

bool HashedBlocks::is_checked(std::size_t block) const {
  return checked_[block / 64].load(std::memory_order_relaxed) >> (block % 64) & 1;
}

void HashedBlocks::check(std::size_t block, std::span<const std::byte> bytes) const {
  const ByteExtent at = block_extent(block);
  if (xxh3({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) != hashes_[block]) {
    fail(name_, " is damaged: bytes ", at.offset, " to ", at.end(), " of the file (block ", block, " of ",
         hashes_.size(), ") do not match their hash");
  }
  if (rule_) rule_(at.offset - place_.offset, bytes);
  checked_[block / 64].fetch_or(std::uint64_t{1} << (block % 64), std::memory_order_relaxed);
}

void HashedBlocks::check(std::size_t block) const {
  const ByteExtent at = block_extent(block);
  std::vector<std::byte> bytes(at.bytes);
  file_->read_at(bytes.data(), bytes.size(), at.offset);
  check(block, bytes);
}

void HashedBlocks::read_unchecked(std::uint64_t offset, std::uint64_t bytes, void* into) const {
  file_->read_at(into, bytes, place_.offset + offset);
}

// Reads only the requested bytes if all their blocks were checked before, else whole blocks.
void HashedBlocks::visit(std::uint64_t offset, std::uint64_t bytes,
                         const std::function<void(std::span<const std::byte>)>& take) const {
  RING_CHECK(offset <= place_.bytes && bytes <= place_.bytes - offset, name_, " has ", place_.bytes, " bytes, but ",
             bytes, " were requested from byte ", offset);
  thread_local std::vector<std::byte> buffer(kBlocksAtOnce * kBlockBytes);
  for (const std::uint64_t end = offset + bytes; offset < end;) {
    const std::uint64_t first = offset / kBlockBytes;
    const std::uint64_t stop = std::min(end, (first + kBlocksAtOnce) * kBlockBytes);
    const std::uint64_t behind = blocks_of(stop);
    bool all = true;
    for (std::uint64_t b = first; b < behind; ++b) all = all && is_checked(b);
    const std::uint64_t from = all ? offset : first * kBlockBytes;
    const std::uint64_t to = all ? stop : std::min(behind * kBlockBytes, place_.bytes);
    read_unchecked(from, to - from, buffer.data());
    const std::span<const std::byte> got(buffer.data(), to - from);
    for (std::uint64_t b = first; b < behind && !all; ++b)
      if (!is_checked(b)) check(b, got.subspan((b - first) * kBlockBytes, block_extent(b).bytes));
    take(got.subspan(offset - from, stop - offset));
    offset = stop;
  }
}

void HashedBlocks::read(std::uint64_t offset, std::uint64_t bytes, void* into) const {
  auto* to = static_cast<std::byte*>(into);
  visit(offset, bytes, [&](std::span<const std::byte> part) {
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  });
}

}  // namespace ring
