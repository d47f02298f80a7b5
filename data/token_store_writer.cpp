#include <algorithm>

#include "core/check.h"
#include "data/hdf5_layout.h"
#include "data/token_format.h"
#include "data/token_store.h"
#include "data/tokenizer.h"

namespace ring {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

// Bytes [from, from + bytes) of `source` to `offset`, hashed on the way where `hash` is given.
void copy_bytes(const FileHandle& source, ByteExtent from, FileHandle& to, std::uint64_t offset,
                StreamHash* hash = nullptr) {
  std::vector<char> buffer(4 * kBuffer);
  while (from.bytes > 0) {
    const std::size_t n = std::min<std::uint64_t>(buffer.size(), from.bytes);
    source.read_at(buffer.data(), n, from.offset);
    if (hash) hash->update(buffer.data(), n);
    to.write_at(buffer.data(), n, offset);
    from = {from.offset + n, from.bytes - n};
    offset += n;
  }
}

}  // namespace

TokenStoreWriter::TokenStoreWriter(std::string path, std::int64_t vocab_size)
    : path_(std::move(path)), vocab_(static_cast<std::uint64_t>(vocab_size)), width_(token_width(vocab_)) {
  RING_CHECK(vocab_size > 0 && vocab_ <= kLargestVocabulary, "a vocabulary of ", vocab_size, " tokens");
  check_writable(path_);
  remove_leftovers(path_);
  for (Stream& s : streams_) {
    s.tokens_file = unnamed_file(path_);
    s.starts_file = unnamed_file(path_);
  }
}

void TokenStoreWriter::flush_tokens(Stream& s) {
  s.token_hashes.update(s.tokens_buffer.data(), s.tokens_buffer.size());
  s.tokens_file.write(s.tokens_buffer.data(), s.tokens_buffer.size());
  s.tokens_buffer.clear();
}

void TokenStoreWriter::flush_starts(Stream& s) {
  s.start_hashes.update(s.starts_buffer.data(), s.starts_buffer.size() * sizeof(std::uint64_t));
  s.starts_file.write(s.starts_buffer.data(), s.starts_buffer.size() * sizeof(std::uint64_t));
  s.starts_buffer.clear();
}

void TokenStoreWriter::begin_document(Split split) {
  Stream& s = streams_[static_cast<std::size_t>(split)];
  s.starts_buffer.push_back(s.tokens);
  ++s.documents;
  if (s.starts_buffer.size() * sizeof(std::uint64_t) >= kBuffer) flush_starts(s);
}

void TokenStoreWriter::append(Split split, std::span<const std::int32_t> tokens) {
  Stream& s = streams_[static_cast<std::size_t>(split)];
  RING_CHECK(s.documents > 0, "tokens before the first document");
  const std::size_t old = s.tokens_buffer.size();
  s.tokens_buffer.resize(old + tokens.size() * width_);
  std::uint32_t largest = 0;
  const auto convert = [&](auto* to) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto token = static_cast<std::uint32_t>(tokens[i]);
      largest = token > largest ? token : largest;
      to[i] = static_cast<std::remove_reference_t<decltype(*to)>>(token);
    }
  };
  std::byte* to = s.tokens_buffer.data() + old;
  if (width_ == 2)
    convert(reinterpret_cast<std::uint16_t*>(to));
  else
    convert(reinterpret_cast<std::uint32_t*>(to));
  RING_CHECK(largest < vocab_, "token ", largest, " outside the vocabulary of ", vocab_);
  s.tokens += tokens.size();
  if (s.tokens_buffer.size() >= kBuffer) flush_tokens(s);
}

void TokenStoreWriter::add_text_bytes(Split split, std::uint64_t bytes) {
  streams_[static_cast<std::size_t>(split)].text_bytes += bytes;
}

void TokenStoreWriter::finish(const Tokenizer& tokenizer, const std::string& source) {
  for (Stream& s : streams_) {
    s.starts_buffer.push_back(s.tokens);
    flush_tokens(s);
    flush_starts(s);
  }
  write_atomically(path_, [&](FileHandle& file) { write_file(file, tokenizer, source); });
}

// The headers and whatever else is small are complete in memory first.
void TokenStoreWriter::write_file(FileHandle& file, const Tokenizer& tokenizer, const std::string& source) {
  const std::string blob = tokenizer.serialize();
  CorpusIndex index;
  Hdf5Layout layout(path_, sizeof(index));
  index.magic.set(kCorpusMagic);
  index.vocab_size = vocab_;
  index.tokenizer_hash.set(tokenizer.hash());
  index.tokenizer_kind.set(tokenizer.kind());
  index.source.set(source);
  layout.set("/", "format", std::string(kCorpusMagic.substr(0, kCorpusMagic.size() - 1)));
  layout.set("/", "format_version", kCorpusVersion);
  layout.set("/", "vocab_size", vocab_);
  layout.set("/", "tokenizer_kind", std::string(tokenizer.kind()));
  layout.set("/", "tokenizer_hash", tokenizer.hash());
  layout.set("/", "source", source.substr(0, index.source.bytes.size()));
  index.tokenizer = {layout.create_dataset("/tokenizer", Hdf5Layout::Element::u8, blob.size()), blob.size()};
  std::array<Hashes, 2> hashes;
  for (std::size_t i = 0; i < 2; ++i) hashes[i] = lay_out(layout, i, index.splits[i]);
  FileHandle memory = layout.finish();
  memory.write_at(blob.data(), blob.size(), index.tokenizer.offset);
  for (std::size_t i = 0; i < 2; ++i) {
    const SplitIndex& s = index.splits[i];
    memory.write_at(hashes[i].tokens.data(), s.token_hashes.bytes, s.token_hashes.offset);
    memory.write_at(hashes[i].starts.data(), s.start_hashes.bytes, s.start_hashes.offset);
  }
  index.file_bytes = memory.size();
  StreamHash structure;
  for (const ByteExtent& e : index.structure()) copy_bytes(memory, e, file, e.offset, &structure);
  for (std::size_t i = 0; i < 2; ++i) {
    const SplitIndex& s = index.splits[i];
    copy_bytes(streams_[i].starts_file, {0, s.start_data.bytes}, file, s.start_data.offset);
    copy_bytes(streams_[i].tokens_file, {0, s.token_data.bytes}, file, s.token_data.offset);
  }
  index.structure_hash = structure.value();
  index.index_hash = index.hash_of_itself();
  file.write_at(&index, sizeof(index), 0);
}

TokenStoreWriter::Hashes TokenStoreWriter::lay_out(Hdf5Layout& layout, std::size_t split, SplitIndex& index) {
  using Element = Hdf5Layout::Element;
  Stream& s = streams_[split];
  const std::string group = str("/", kSplitNames[split]);
  index.tokens = s.tokens;
  index.documents = s.tokens ? s.documents : 0;
  index.text_bytes = s.text_bytes;
  Hashes hashes{s.token_hashes.finish(), s.start_hashes.finish()};
  layout.create_group(group);
  layout.set(group, "tokens", index.tokens);
  layout.set(group, "documents", index.documents);
  layout.set(group, "text_bytes", index.text_bytes);
  if (s.tokens == 0) return {};
  layout.set(group, "tokens_hash", hex64(identity_of(hashes.tokens, hashes.starts)));
  const auto place = [&](const char* name, Element element, std::uint64_t count) {
    return ByteExtent{layout.create_dataset(group + name, element, count), count * Hdf5Layout::size_of(element)};
  };
  index.token_hashes = place("/tokens_hashes", Element::u64, hashes.tokens.size());
  index.start_hashes = place("/documents_hashes", Element::u64, hashes.starts.size());
  index.start_data = place("/documents", Element::u64, s.documents + 1);
  index.token_data = place("/tokens", width_ == 2 ? Element::u16 : Element::u32, s.tokens);
  return hashes;
}

}  // namespace ring
