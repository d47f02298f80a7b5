#pragma once
// A byte range of a file, of any size, that is verified before use: every block of 64 KiB has an xxh3-64 hash, which is
// checked when the block is read for the first time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/hash.h"

namespace ring {

inline constexpr std::size_t kBlockBytes = 65536;

struct ByteExtent {
  std::uint64_t offset = 0, bytes = 0;  // range in the file
  std::uint64_t end() const { return offset + bytes; }
};

constexpr std::uint64_t blocks_of(std::uint64_t bytes) { return bytes / kBlockBytes + (bytes % kBlockBytes != 0); }

// Computes the block hashes of bytes that arrive in several pieces.
class BlockHasher {
 public:
  void update(const void* data, std::size_t bytes);
  std::vector<std::uint64_t> finish();  // returns one hash per block; the last block may be shorter

 private:
  StreamHash block_;
  std::size_t filled_ = 0;
  std::vector<std::uint64_t> hashes_;
};

// A hashed byte range. Reading is thread-safe.
class HashedBlocks {
 public:
  // A check of a block in addition to its hash; throws if the block is invalid. `offset` is relative to the range.
  using Rule = std::function<void(std::uint64_t offset, std::span<const std::byte> block)>;

  HashedBlocks() = default;
  // name: describes the data in error messages, e.g. "c.h5: /train/tokens". place: the range in the file.
  HashedBlocks(std::shared_ptr<const FileHandle> file, std::string name, ByteExtent place,
               std::vector<std::uint64_t> hashes, Rule rule = {});

  std::uint64_t bytes() const { return place_.bytes; }
  std::size_t blocks() const { return hashes_.size(); }
  const std::string& name() const { return name_; }
  ByteExtent block_extent(std::size_t block) const;  // position of a block in the file

  // Calls take(bytes) with [offset, offset + bytes) in consecutive pieces, split at multiples of 64 KiB. `take` must
  // not read from any HashedBlocks, because all of them share one buffer per thread. Throws Error if a block is damaged
  // or the file cannot be read.
  void visit(std::uint64_t offset, std::uint64_t bytes,
             const std::function<void(std::span<const std::byte>)>& take) const;
  // Copies [offset, offset + bytes); throws like visit().
  void read(std::uint64_t offset, std::uint64_t bytes, void* into) const;
  // Copies bytes as they are stored in the file, without checking hashes.
  void read_unchecked(std::uint64_t offset, std::uint64_t bytes, void* into) const;
  // Reads and checks a block, even if it has been checked before. Throws Error if the block is damaged.
  void check(std::size_t block) const;

 private:
  bool is_checked(std::size_t block) const;
  void check(std::size_t block, std::span<const std::byte> bytes) const;
  std::shared_ptr<const FileHandle> file_;
  std::string name_;
  ByteExtent place_;
  std::vector<std::uint64_t> hashes_;
  Rule rule_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> checked_;  // one bit per block, set once the block was checked
};

}  // namespace ring
