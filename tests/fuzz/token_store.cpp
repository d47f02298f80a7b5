// Target: a corpus. Mutated bytes do not match their hashes, so each input is also read with right hashes: the reader
// must check the index, whoever wrote it.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/check.h"
#include "data/best_fit.h"
#include "data/packing.h"
#include "data/token_format.h"
#include "data/token_store.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

// A file of this process, removed at the end.
class Scratch {
 public:
  ~Scratch() { ::unlink(path.c_str()); }
  void write(const std::string& bytes) const { std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes; }
  const std::string path = "/dev/shm/ringmaster-fuzz-" + std::to_string(::getpid()) + ".h5";
};

void read_split(const TokenSplit& split) {
  std::vector<std::int32_t> tokens(split.tokens());
  split.read(0, tokens.size(), tokens.data());
  RING_CHECK(std::ranges::all_of(tokens, [](std::int32_t t) { return t >= 0; }), "a negative token");
  std::vector<std::uint8_t> counts(split.tokens());
  for (std::size_t at = 0; at < counts.size(); at += 13)
    split.read_mask(at, std::min<std::size_t>(13, counts.size() - at), counts.data() + at);
  if (std::ranges::any_of(counts, [](std::uint8_t c) { return c > 1; })) std::abort();
  const RowTable rows(split, 16, 4);
  for (std::uint64_t row = 0; row < rows.rows(); ++row)
    RING_CHECK(rows.first_token(row) < split.tokens(), "a row begins behind the end");
  const BestFitRows packed(split, 16, 4, 8, 20);
  for (std::uint64_t row = 0; row < packed.rows(); ++row)
    for (const PackedPiece& piece : packed.pieces(row))
      if (piece.length < 1 || piece.at + piece.length > 16) std::abort();
  DocumentStarts starts(split);
  for (std::uint64_t t = 0; t < split.tokens(); t += 7) {
    const std::uint64_t document = starts.document_of(t);
    if (starts(document) > t || starts(document + 1) <= t) std::abort();
  }
}

void read(const Scratch& file, const std::string& bytes) {
  file.write(bytes);
  try {
    const auto store = TokenStore::open(file.path);
    const auto verified = verify_corpus(*store, [](const std::string&) {});
    if (verified.bytes != verified.total_bytes) std::abort();
    store->tokenizer();
    read_split(store->train());
    read_split(store->validation());
  } catch (const Error&) {
  }
}

bool extents_fit(const CorpusIndex& index, const std::vector<ByteExtent>& extents) {
  std::vector<ByteExtent> sorted = extents;
  std::ranges::sort(sorted, {}, &ByteExtent::offset);
  std::uint64_t at = sizeof(CorpusIndex);
  for (const ByteExtent& e : sorted) {
    if (e.bytes == 0) continue;
    if (e.offset < at || e.offset > index.file_bytes || e.bytes > index.file_bytes - e.offset) return false;
    at = e.end();
  }
  return true;
}

void seal_blocks(std::string& bytes, const ByteExtent& data, const ByteExtent& hashes) {
  if (data.bytes == 0) return;
  BlockHasher hasher;
  hasher.update(bytes.data() + data.offset, data.bytes);
  const std::vector<std::uint64_t> values = hasher.finish();
  if (values.size() * sizeof(values[0]) == hashes.bytes)
    std::memcpy(&bytes[hashes.offset], values.data(), hashes.bytes);
}

// Makes all hashes right that can be.
std::string sealed(std::string bytes) {
  CorpusIndex index;
  std::memcpy(&index, bytes.data(), sizeof(index));
  index.magic.set(kCorpusMagic);
  if (index.version != kMaskedCorpusVersion) index.version = kCorpusVersion;
  index.block_bytes = kBlockBytes;
  index.file_bytes = bytes.size();
  std::vector<ByteExtent> all;
  for (const SplitIndex& s : index.splits)
    all.insert(all.end(), {s.token_data, s.start_data, s.token_hashes, s.start_hashes});
  for (const MaskIndex& m : index.masks) all.insert(all.end(), {m.data, m.hashes});
  if (extents_fit(index, all)) {
    for (const SplitIndex& s : index.splits) {
      seal_blocks(bytes, s.token_data, s.token_hashes);
      seal_blocks(bytes, s.start_data, s.start_hashes);
    }
    for (const MaskIndex& m : index.masks) seal_blocks(bytes, m.data, m.hashes);
    StreamHash hash;
    for (const ByteExtent& e : index.structure()) hash.update(bytes.data() + e.offset, e.bytes);
    index.structure_hash = hash.value();
  }
  index.index_hash = index.compute_hash();
  std::memcpy(bytes.data(), &index, sizeof(index));
  return bytes;
}

}  // namespace
}  // namespace ring

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ring::Scratch file;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  ring::read(file, bytes);
  if (size >= sizeof(ring::CorpusIndex)) ring::read(file, ring::sealed(bytes));
  return 0;
}
