#pragma once
// A corpus file in memory, to be changed like a faulty or hostile writer would change it: with hashes that are right.

#include <cstring>
#include <fstream>
#include <string>

#include "core/files.h"
#include "data/token_format.h"

namespace ring {

class SealedCorpus {
 public:
  explicit SealedCorpus(const std::string& path) : bytes(read_file(path)) {
    std::memcpy(&index, bytes.data(), sizeof(index));
  }

  template <class T>
  T& at(std::uint64_t offset) {
    return *reinterpret_cast<T*>(bytes.data() + offset);
  }

  void save(const std::string& path) const { std::ofstream(path, std::ios::binary) << bytes; }

  // Recomputes all hashes: those of the blocks, then those of the structure and of the index.
  void seal_and_save(const std::string& path) {
    for (const SplitIndex& s : index.splits) {
      hash_blocks(s.token_data, s.token_hashes);
      hash_blocks(s.start_data, s.start_hashes);
    }
    for (const MaskIndex& m : index.masks) hash_blocks(m.data, m.hashes);
    seal_structure_and_save(path);
  }
  void seal_structure_and_save(const std::string& path) {
    StreamHash hash;
    for (const ByteExtent& e : index.structure()) hash.update(bytes.data() + e.offset, e.bytes);
    index.structure_hash = hash.value();
    seal_index_and_save(path);
  }
  void seal_index_and_save(const std::string& path) {
    index.index_hash = index.compute_hash();
    std::memcpy(bytes.data(), &index, sizeof(index));
    save(path);
  }

  std::string bytes;
  CorpusIndex index;

 private:
  void hash_blocks(const ByteExtent& data, const ByteExtent& hashes) {
    BlockHasher hasher;
    hasher.update(bytes.data() + data.offset, data.bytes);
    const auto values = hasher.finish();
    if (!values.empty()) std::memcpy(bytes.data() + hashes.offset, values.data(), hashes.bytes);
  }
};

}  // namespace ring
