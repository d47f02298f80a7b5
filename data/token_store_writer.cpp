#include <algorithm>

#include "core/check.h"
#include "data/hdf5_layout.h"
#include "data/token_format.h"
#include "data/token_store.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

// Copies the extent `from` of `source` to `offset` of `to`; updates `hash` if it is not null.
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

TokenStoreWriter::TokenStoreWriter(std::string path, std::int64_t vocab_size, bool masked)
    : path_(std::move(path)),
      masked_(masked),
      vocab_(static_cast<std::uint64_t>(vocab_size)),
      width_(token_width(vocab_)) {
  RING_CHECK(vocab_size > 0 && vocab_ <= kLargestVocabulary, "a vocabulary of ", vocab_size,
             " tokens is not supported");
  check_writable(path_);
  check_replaceable(path_);
  remove_leftovers(path_);
  for (Stream& s : streams_) {
    s.tokens_file = unnamed_file(path_);
    s.starts_file = unnamed_file(path_);
    if (masked_) s.mask_file = unnamed_file(path_);
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

void TokenStoreWriter::flush_mask(Stream& s, std::size_t bytes) {
  s.mask_hashes.update(s.mask_buffer.data(), bytes);
  s.mask_file.write(s.mask_buffer.data(), bytes);
  s.mask_buffer.erase(s.mask_buffer.begin(), s.mask_buffer.begin() + static_cast<std::ptrdiff_t>(bytes));
}

// Appends mask bits for the next tokens. The last byte stays in the buffer until it is full.
void TokenStoreWriter::mark_targets(Stream& s, std::size_t tokens, bool is_target) {
  if (is_target) s.targets += tokens;
  if (!masked_) return;
  for (std::uint64_t token = s.tokens; token < s.tokens + tokens; ++token) {
    if (token % 8 == 0) s.mask_buffer.push_back(std::byte{0});
    if (is_target) s.mask_buffer.back() |= std::byte{1} << token % 8;
  }
  if (s.mask_buffer.size() > kBuffer) flush_mask(s, s.mask_buffer.size() - 1);
}

void TokenStoreWriter::begin_document(Split split) {
  Stream& s = streams_[static_cast<std::size_t>(split)];
  s.starts_buffer.push_back(s.tokens);
  ++s.documents;
  if (s.starts_buffer.size() * sizeof(std::uint64_t) >= kBuffer) flush_starts(s);
}

void TokenStoreWriter::append(Split split, std::span<const std::int32_t> tokens, bool is_target) {
  Stream& s = streams_[static_cast<std::size_t>(split)];
  RING_CHECK(s.documents > 0, "tokens were appended before the first document");
  RING_CHECK(is_target || masked_, "a corpus without a loss mask cannot store tokens that do not count");
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
  RING_CHECK(largest < vocab_, "token ", largest, " is outside the vocabulary of ", vocab_);
  mark_targets(s, tokens.size(), is_target);
  s.tokens += tokens.size();
  if (s.tokens_buffer.size() >= kBuffer) flush_tokens(s);
}

void TokenStoreWriter::add_text_bytes(Split split, std::uint64_t bytes, bool is_target) {
  Stream& s = streams_[static_cast<std::size_t>(split)];
  s.text_bytes += bytes;
  if (is_target) s.target_bytes += bytes;
}

void TokenStoreWriter::finish(const Tokenizer& tokenizer, const std::string& source, const std::string& chat_template) {
  for (Stream& s : streams_) {
    s.starts_buffer.push_back(s.tokens);
    flush_tokens(s);
    flush_starts(s);
    if (masked_) flush_mask(s, s.mask_buffer.size());
  }
  write_atomically(path_, [&](FileHandle& file) { write_file(file, tokenizer, source, chat_template); });
}

void TokenStoreWriter::fill_metadata(CorpusIndex& index, Hdf5Layout& layout, const Tokenizer& tokenizer,
                                     const std::string& source) const {
  index.magic.set(kCorpusMagic);
  index.vocab_size = vocab_;
  index.tokenizer_hash.set(tokenizer.hash());
  index.tokenizer_kind.set(tokenizer.kind());
  index.source.set(source);
  layout.set_attribute("/", "format", std::string(kCorpusMagic.substr(0, kCorpusMagic.size() - 1)));
  layout.set_attribute("/", "format_version", index.version);
  layout.set_attribute("/", "vocab_size", vocab_);
  layout.set_attribute("/", "tokenizer_kind", std::string(tokenizer.kind()));
  layout.set_attribute("/", "tokenizer_hash", tokenizer.hash());
  layout.set_attribute("/", "source", source.substr(0, index.source.bytes.size()));
}

// Writes the file. The headers and all small parts are first completed in memory.
void TokenStoreWriter::write_file(FileHandle& file, const Tokenizer& tokenizer, const std::string& source,
                                  const std::string& chat_template) {
  const std::string blob = tokenizer.serialize();
  CorpusIndex index;
  if (masked_ || !chat_template.empty()) index.version = kMaskedCorpusVersion;
  Hdf5Layout layout(path_, sizeof(index));
  fill_metadata(index, layout, tokenizer, source);
  const auto place = [&](const char* name, const std::string& bytes) -> ByteExtent {
    if (bytes.empty()) return {};
    return {layout.create_dataset(name, Hdf5Layout::Element::u8, bytes.size()), bytes.size()};
  };
  index.tokenizer = place("/tokenizer", blob);
  index.chat_template = place("/chat_template", chat_template);
  std::array<Hashes, 2> hashes;
  for (std::size_t i = 0; i < 2; ++i) hashes[i] = lay_out_split(layout, i, index.splits[i], index.masks[i]);
  FileHandle memory = layout.finish();
  memory.write_at(blob.data(), blob.size(), index.tokenizer.offset);
  memory.write_at(chat_template.data(), chat_template.size(), index.chat_template.offset);
  for (std::size_t i = 0; i < 2; ++i) {
    const SplitIndex& s = index.splits[i];
    const MaskIndex& m = index.masks[i];
    memory.write_at(hashes[i].tokens.data(), s.token_hashes.bytes, s.token_hashes.offset);
    memory.write_at(hashes[i].starts.data(), s.start_hashes.bytes, s.start_hashes.offset);
    memory.write_at(hashes[i].mask.data(), m.hashes.bytes, m.hashes.offset);
  }
  index.file_bytes = memory.size();
  StreamHash structure;
  for (const ByteExtent& e : index.structure()) copy_bytes(memory, e, file, e.offset, &structure);
  for (std::size_t i = 0; i < 2; ++i) {
    const SplitIndex& s = index.splits[i];
    copy_bytes(streams_[i].starts_file, {0, s.start_data.bytes}, file, s.start_data.offset);
    copy_bytes(streams_[i].tokens_file, {0, s.token_data.bytes}, file, s.token_data.offset);
    copy_bytes(streams_[i].mask_file, {0, index.masks[i].data.bytes}, file, index.masks[i].data.offset);
  }
  index.structure_hash = structure.value();
  index.index_hash = index.compute_hash();
  file.write_at(&index, sizeof(index), 0);
}

TokenStoreWriter::Hashes TokenStoreWriter::lay_out_split(Hdf5Layout& layout, std::size_t split, SplitIndex& index,
                                                         MaskIndex& mask) {
  using Element = Hdf5Layout::Element;
  Stream& s = streams_[split];
  const std::string group = str("/", kSplitNames[split]);
  index.tokens = s.tokens;
  index.documents = s.tokens ? s.documents : 0;
  index.text_bytes = s.text_bytes;
  Hashes hashes{s.token_hashes.finish(), s.start_hashes.finish(), s.mask_hashes.finish()};
  layout.create_group(group);
  layout.set_attribute(group, "tokens", index.tokens);
  layout.set_attribute(group, "documents", index.documents);
  layout.set_attribute(group, "text_bytes", index.text_bytes);
  if (s.tokens == 0) return {};
  layout.set_attribute(group, "tokens_hash", hex64(identity_of(hashes.tokens, hashes.starts, hashes.mask)));
  const auto place = [&](const char* name, Element element, std::uint64_t count) {
    return ByteExtent{layout.create_dataset(group + name, element, count), count * Hdf5Layout::size_of(element)};
  };
  index.token_hashes = place("/tokens_hashes", Element::u64, hashes.tokens.size());
  index.start_hashes = place("/documents_hashes", Element::u64, hashes.starts.size());
  index.start_data = place("/documents", Element::u64, s.documents + 1);
  index.token_data = place("/tokens", width_ == 2 ? Element::u16 : Element::u32, s.tokens);
  if (!masked_) return hashes;
  mask.targets = s.targets;
  mask.target_bytes = s.target_bytes;
  layout.set_attribute(group, "targets", mask.targets);
  layout.set_attribute(group, "target_bytes", mask.target_bytes);
  mask.hashes = place("/loss_mask_hashes", Element::u64, hashes.mask.size());
  mask.data = place("/loss_mask", Element::u8, mask_bytes(s.tokens));
  return hashes;
}

}  // namespace ring
