#pragma once
// A stretch of a file of any size that is checked before it is used: every block of 64 KiB has an xxh3-64, and is
// compared with it when it is first read.

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
  std::uint64_t offset = 0, bytes = 0;  // in the file
  std::uint64_t end() const { return offset + bytes; }
};

constexpr std::uint64_t blocks_of(std::uint64_t bytes) { return bytes / kBlockBytes + (bytes % kBlockBytes != 0); }

// The hashes of the blocks of bytes that come in pieces.
class BlockHasher {
 public:
  void update(const void* data, std::size_t bytes);
  std::vector<std::uint64_t> finish();  // the last block may be shorter

 private:
  StreamHash block_;
  std::size_t filled_ = 0;
  std::vector<std::uint64_t> hashes_;
};

// Safe to read from several threads.
class HashedBlocks {
 public:
  // What else must hold of a block, beside its hash; it throws. `offset` counts from the beginning of the stretch.
  using Rule = std::function<void(std::uint64_t offset, std::span<const std::byte> block)>;

  HashedBlocks() = default;
  // `name` says in errors whose bytes they are ("c.h5: /train/tokens").
  HashedBlocks(std::shared_ptr<const FileHandle> file, std::string name, ByteExtent place,
               std::vector<std::uint64_t> hashes, Rule rule = {});

  std::uint64_t bytes() const { return place_.bytes; }
  std::size_t blocks() const { return hashes_.size(); }
  const std::string& name() const { return name_; }
  ByteExtent place(std::size_t block) const;  // in the file

  // Calls take(bytes) with [offset, offset + bytes) in consecutive pieces; they begin and end at multiples of 64 KiB or
  // at the ends of what was asked for. Error: a block is damaged, or the file cannot be read. `take` must not read on.
  void visit(std::uint64_t offset, std::uint64_t bytes,
             const std::function<void(std::span<const std::byte>)>& take) const;
  void read(std::uint64_t offset, std::uint64_t bytes, void* into) const;
  // As they lie in the file, whatever their block's hash says.
  void read_unchecked(std::uint64_t offset, std::uint64_t bytes, void* into) const;
  // Reads a block again, also where it was found to be whole before. Error: it is damaged.
  void check(std::size_t block) const;

 private:
  bool checked(std::size_t block) const;
  void check(std::size_t block, std::span<const std::byte> bytes) const;
  std::shared_ptr<const FileHandle> file_;
  std::string name_;
  ByteExtent place_;
  std::vector<std::uint64_t> hashes_;
  Rule rule_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> checked_;  // a bit for each block
};

}  // namespace ring
