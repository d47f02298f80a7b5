#pragma once
// Binary format of a corpus index, shared by writer and reader. The index is stored before the HDF5 file with
// everything else. It has the offsets of all parts, and hashes of itself, of everything that is read at the start, and
// of each block of the remaining data, so that every byte is checked before use. See docs/adr/0013-verified-corpora.md.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "data/hashed_blocks.h"

namespace ring {

static_assert(std::endian::native == std::endian::little, "the index and the tokens are read as they lie in the file");

inline constexpr std::string_view kCorpusMagic = "ringmaster corpus\n";
inline constexpr std::uint64_t kCorpusVersion = 2;
// Format version of corpora with a loss mask or a chat template.
inline constexpr std::uint64_t kMaskedCorpusVersion = 3;

inline constexpr std::uint64_t kLargestVocabulary = std::uint64_t{1} << 31;                // token ids are i32
constexpr std::size_t token_width(std::uint64_t vocab) { return vocab <= 65536 ? 2 : 4; }  // bytes per token

constexpr std::uint64_t mask_bytes(std::uint64_t tokens) { return tokens / 8 + (tokens % 8 != 0); }

// Text of at most N bytes, padded with zeros.
template <std::size_t N>
struct IndexText {
  std::array<char, N> bytes{};
  void set(std::string_view text) { std::memcpy(bytes.data(), text.data(), std::min(text.size(), N)); }
  std::string_view get() const {
    const std::string_view all(bytes.data(), N);
    return all.substr(0, all.find('\0'));
  }
};

struct SplitIndex {
  std::uint64_t tokens = 0, documents = 0, text_bytes = 0;
  ByteExtent token_data, start_data;      // ranges in the file, checked block by block
  ByteExtent token_hashes, start_hashes;  // u64 hash of each data block
};

// The loss mask of a split: bit i % 8 of byte i / 8 is set if token i counts as a target. Bits after the last token are
// 0. Without a mask all tokens count, and all fields are 0.
struct MaskIndex {
  std::uint64_t targets = 0, target_bytes = 0;  // number of set bits; text bytes of the tokens with set bits
  ByteExtent data;                              // range in the file, checked block by block
  ByteExtent hashes;                            // u64 hash of each block of the mask
};

struct CorpusIndex {
  IndexText<24> magic;  // kCorpusMagic
  std::uint64_t version = kCorpusVersion, file_bytes = 0, block_bytes = kBlockBytes;
  std::uint64_t structure_hash = 0;  // hash of all bytes that structure() covers, in order
  std::uint64_t vocab_size = 0;
  ByteExtent tokenizer;
  IndexText<16> tokenizer_hash;
  IndexText<24> tokenizer_kind;
  std::array<SplitIndex, 2> splits;  // train, validation
  IndexText<1000> source;
  std::array<MaskIndex, 2> masks;  // loss masks of train, validation
  ByteExtent chat_template;        // JSON written by text/chat/format.h
  std::array<std::uint64_t, 79> unused{};
  std::uint64_t index_hash = 0;  // hash of all bytes before this field

  std::uint64_t compute_hash() const;
  // Returns the extents that structure_hash covers: the file without this index and without the data of the splits. The
  // extents of the data must be inside the file and must not overlap.
  std::vector<ByteExtent> structure() const;
};
static_assert(sizeof(CorpusIndex) == 2048, "HDF5 allows powers of two in front of a file");
static_assert(std::has_unique_object_representations_v<CorpusIndex>, "every byte of the index means something");

inline constexpr const char* kSplitNames[] = {"train", "validation"};
// Returns a hash of the split's contents, whatever file they are in. mask_hashes: empty if all tokens count.
std::uint64_t identity_of(const std::vector<std::uint64_t>& token_hashes,
                          const std::vector<std::uint64_t>& start_hashes,
                          const std::vector<std::uint64_t>& mask_hashes = {});

}  // namespace ring
