#include "data/token_store.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "data/text_advice.h"
#include "data/token_format.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

constexpr std::string_view kHdf5Magic = "\x89HDF\r\n\x1a\n";
constexpr const char* kRemedy = "; copy it again from its source, or make it again with 'ringmaster data prepare'";

std::string head_of(const FileHandle& file, std::size_t bytes) {
  std::string head(std::min<std::uint64_t>(bytes, file.size()), '\0');
  file.read_at(head.data(), head.size(), 0);
  return head;
}

// Reads the index. It is read before all else, and used only if its hash matches.
CorpusIndex read_index(const FileHandle& file) {
  const std::string head = head_of(file, sizeof(CorpusIndex));
  const std::string& path = file.path();
  if (head.starts_with(kHdf5Magic)) {
    fail(path, " is an HDF5 file, but not a corpus of format ", kCorpusVersion,
         ": it was made by an earlier version of Ringmaster, or by another program");
  }
  if (!head.starts_with(kCorpusMagic))
    fail(path, " is not a Ringmaster corpus (", file.size(), " bytes): it is damaged, or a different kind of file");
  CorpusIndex index;
  if (head.size() < sizeof(index)) fail(path, " is truncated: it has ", head.size(), " bytes");
  std::memcpy(&index, head.data(), sizeof(index));
  if (index.compute_hash() != index.index_hash)
    fail(path, " is damaged: its index, the first ", sizeof(index), " bytes, does not match its hash");
  if (index.version != kCorpusVersion && index.version != kMaskedCorpusVersion)
    fail(path, " has corpus format ", index.version, ", but this program reads formats ", kCorpusVersion, " and ",
         kMaskedCorpusVersion);
  if (index.file_bytes != file.size()) {
    fail(path, index.file_bytes > file.size() ? " is truncated: " : " is damaged: ", index.file_bytes,
         " bytes were written, but the file has ", file.size());
  }
  return index;
}

// Checks that every extent has the size that the index's counts require, is inside the file, and does not overlap
// another.
void check_extents(const CorpusIndex& index, const std::string& path) {
  std::vector<ByteExtent> all{{0, sizeof(index)}};
  const auto add = [&](const ByteExtent& e, std::uint64_t wanted) {
    if (e.bytes != wanted || e.offset > index.file_bytes || e.bytes > index.file_bytes - e.offset) {
      fail(path, " is inconsistent: expected ", wanted, " bytes at offset ", e.offset, " of a file of ",
           index.file_bytes, " bytes, got ", e.bytes);
    }
    if (e.bytes > 0) all.push_back(e);
  };
  // Maximum number of 8-byte items that the file can contain.
  const std::uint64_t max = index.file_bytes / sizeof(std::uint64_t);
  if (index.vocab_size == 0 || index.vocab_size > kLargestVocabulary || index.block_bytes != kBlockBytes)
    fail(path, " is inconsistent: a vocabulary of ", index.vocab_size, " tokens, blocks of ", index.block_bytes,
         " bytes");
  add(index.tokenizer, index.tokenizer.bytes);
  for (const SplitIndex& s : index.splits) {
    if (s.tokens > index.file_bytes || s.documents > max || (s.tokens > 0) != (s.documents > 0))
      fail(path, " is inconsistent: ", s.tokens, " tokens in ", s.documents, " documents");
    add(s.token_data, s.tokens * token_width(index.vocab_size));
    add(s.start_data, s.tokens > 0 ? (s.documents + 1) * sizeof(std::uint64_t) : 0);
    add(s.token_hashes, blocks_of(s.token_data.bytes) * sizeof(std::uint64_t));
    add(s.start_hashes, blocks_of(s.start_data.bytes) * sizeof(std::uint64_t));
  }
  for (std::size_t i = 0; i < index.masks.size(); ++i) {
    const MaskIndex& m = index.masks[i];
    const std::uint64_t tokens = index.splits[i].tokens;
    if (m.targets > (m.data.bytes > 0 ? tokens : 0))
      fail(path, " is inconsistent: ", m.targets, " targets among ", tokens, " tokens with ", m.data.bytes,
           " bytes of loss mask");
    add(m.data, m.data.bytes > 0 ? mask_bytes(tokens) : 0);
    add(m.hashes, blocks_of(m.data.bytes) * sizeof(std::uint64_t));
  }
  add(index.chat_template, index.chat_template.bytes);
  const bool more = index.chat_template.bytes + index.masks[0].data.bytes + index.masks[1].data.bytes > 0;
  if (more && index.version == kCorpusVersion)
    fail(path, " is inconsistent: format ", index.version, " has neither loss masks nor chat templates");
  std::ranges::sort(all, {}, &ByteExtent::offset);
  for (std::size_t i = 1; i < all.size(); ++i)
    if (all[i].offset < all[i - 1].end())
      fail(path, " is inconsistent: bytes ", all[i].offset, " to ", all[i - 1].end(), " belong to two sections");
}

void check_structure(const FileHandle& file, const CorpusIndex& index) {
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  StreamHash hash;
  for (ByteExtent e : index.structure()) {
    while (e.bytes > 0) {
      const std::size_t n = std::min<std::uint64_t>(buffer.size(), e.bytes);
      file.read_at(buffer.data(), n, e.offset);
      hash.update(buffer.data(), n);
      e = {e.offset + n, e.bytes - n};
    }
  }
  if (hash.value() != index.structure_hash) {
    fail(file.path(), " is damaged: its tokenizer, hashes or HDF5 headers (all but the tokens and the starts of ",
         "documents) do not match their hash");
  }
}

std::vector<std::uint64_t> numbers_at(const FileHandle& file, const ByteExtent& place) {
  std::vector<std::uint64_t> out(place.bytes / sizeof(std::uint64_t));
  file.read_at(out.data(), place.bytes, place.offset);
  return out;
}

// Runs `work`, and appends the remedy to errors about the corpus.
template <class Work>
void with_remedy(const Work& work) {
  try {
    work();
  } catch (const Error& e) {
    fail(e.what(), kRemedy);
  }
}

// Number of document starts per read: few enough to look up one sample fast, enough to read all starts fast.
constexpr std::uint64_t kStartsHeld = 512;

}  // namespace

// --- TokenSplit ---

void TokenSplit::load(const std::shared_ptr<const FileHandle>& file, const SplitIndex& index, const MaskIndex& mask,
                      const std::string& name, std::uint64_t vocab) {
  name_ = file->path() + " (" + name + ")";
  vocab_ = vocab;
  width_ = token_width(vocab);
  tokens_ = index.tokens;
  documents_ = index.documents;
  text_bytes_ = index.text_bytes;
  const bool masked = mask.data.bytes > 0;
  targets_ = masked ? mask.targets : tokens_;
  target_bytes_ = masked ? mask.target_bytes : text_bytes_;
  if (tokens_ == 0) return;
  const auto token_hashes = numbers_at(*file, index.token_hashes), start_hashes = numbers_at(*file, index.start_hashes);
  const auto mask_hashes = numbers_at(*file, mask.hashes);
  tokens_hash_ = hex64(identity_of(token_hashes, start_hashes, mask_hashes));
  token_data_ = HashedBlocks(file, str(file->path(), ": /", name, "/tokens"), index.token_data, token_hashes,
                             [this](auto offset, auto block) { check_tokens(offset, block); });
  start_data_ = HashedBlocks(file, str(file->path(), ": /", name, "/documents"), index.start_data, start_hashes,
                             [this](auto offset, auto block) { check_starts(offset, block); });
  if (!masked) return;
  mask_data_ = HashedBlocks(file, str(file->path(), ": /", name, "/loss_mask"), mask.data, mask_hashes,
                            [this](auto offset, auto block) { check_mask(offset, block); });
}

namespace {

// Calls fn(tokens) with the tokens of the block as u16 or u32, as stored.
template <class Fn>
void with_tokens(std::span<const std::byte> block, std::size_t width, const Fn& fn) {
  if (width == 2)
    fn(std::span(reinterpret_cast<const std::uint16_t*>(block.data()), block.size() / 2));
  else
    fn(std::span(reinterpret_cast<const std::uint32_t*>(block.data()), block.size() / 4));
}

}  // namespace

void TokenSplit::check_tokens(std::uint64_t offset, std::span<const std::byte> block) const {
  with_tokens(block, width_, [&](const auto& tokens) {
    const auto largest = std::ranges::max_element(tokens);
    if (*largest < vocab_) return;
    fail(name_, " is damaged: token ", *largest, " at position ",
         offset / width_ + static_cast<std::uint64_t>(largest - tokens.begin()), ", but the vocabulary has ", vocab_);
  });
}

void TokenSplit::check_starts(std::uint64_t offset, std::span<const std::byte> block) const {
  const std::span starts(reinterpret_cast<const std::uint64_t*>(block.data()), block.size() / sizeof(std::uint64_t));
  const std::uint64_t first = offset / sizeof(std::uint64_t);
  std::uint64_t before = 0;
  if (first > 0) start_data_.read_unchecked(offset - sizeof(before), sizeof(before), &before);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::uint64_t document = first + i, start = starts[i];
    const bool right = document == 0            ? start == 0
                       : document == documents_ ? start == tokens_ && before <= start
                                                : before <= start && start <= tokens_;
    if (!right) {
      fail(name_, " is damaged: document ", document, " of ", documents_, " starts at token ", start, " of ", tokens_,
           ", but the one before it at ", before);
    }
    before = start;
  }
}

void TokenSplit::check_mask(std::uint64_t offset, std::span<const std::byte> block) const {
  if (offset + block.size() < mask_data_.bytes() || tokens_ % 8 == 0) return;
  if ((block.back() >> tokens_ % 8) != std::byte{0})
    fail(name_, " is damaged: the last byte of its loss mask marks tokens after the last of ", tokens_);
}

void TokenSplit::read_mask(std::uint64_t begin, std::size_t count, std::uint8_t* out) const {
  RING_CHECK(begin <= tokens_ && count <= tokens_ - begin, name_, " has ", tokens_,
             " tokens, but the mask was requested for ", count, " from ", begin);
  if (!masked()) return void(std::fill_n(out, count, std::uint8_t{1}));
  std::uint64_t token = begin;
  const std::uint64_t end = begin + count, first = begin / 8;
  with_remedy([&] {
    mask_data_.visit(first, mask_bytes(end) - first, [&](std::span<const std::byte> part) {
      for (const std::byte byte : part)
        for (const std::uint64_t stop = std::min(end, token / 8 * 8 + 8); token < stop; ++token)
          *out++ = std::to_integer<std::uint8_t>(byte >> token % 8 & std::byte{1});
    });
  });
}

void TokenSplit::read(std::uint64_t begin, std::size_t count, std::int32_t* out) const {
  RING_CHECK(begin <= tokens_ && count <= tokens_ - begin, name_, " has ", tokens_, " tokens, but ", count,
             " were requested from ", begin);
  with_remedy([&] {
    token_data_.visit(begin * width_, count * width_, [&](std::span<const std::byte> part) {
      with_tokens(part, width_, [&](const auto& tokens) { out = std::copy(tokens.begin(), tokens.end(), out); });
    });
  });
}

std::uint64_t TokenSplit::document_start(std::uint64_t document) const {
  RING_CHECK(document <= documents_, name_, " has ", documents_, " documents, but the request is for number ",
             document);
  std::uint64_t start = 0;
  if (documents_ > 0) with_remedy([&] { start_data_.read(document * sizeof(start), sizeof(start), &start); });
  return start;
}

// --- DocumentStarts ---

void DocumentStarts::read_group(std::uint64_t first) {
  held_.resize(std::min(kStartsHeld, split_.documents() + 1 - first));
  with_remedy([&] {
    split_.start_data().read(first * sizeof(std::uint64_t), held_.size() * sizeof(std::uint64_t), held_.data());
  });
  first_ = first;
}

std::uint64_t DocumentStarts::operator()(std::uint64_t document) {
  RING_CHECK(document <= split_.documents(), split_.name(), " has ", split_.documents(),
             " documents, but the request is for number ", document);
  if (split_.documents() == 0) return 0;
  if (document < first_ || document - first_ >= held_.size()) read_group(document / kStartsHeld * kStartsHeld);
  return held_[document - first_];
}

std::uint64_t DocumentStarts::document_of(std::uint64_t token) {
  RING_CHECK(token < split_.tokens(), split_.name(), " has ", split_.tokens(),
             " tokens, but the request is for the document of ", token);
  // Binary search for the last group that begins at or before `token`.
  std::uint64_t group = 0, behind = split_.documents() / kStartsHeld + 1;
  while (behind - group > 1) {
    const std::uint64_t middle = (group + behind) / 2;
    (split_.document_start(middle * kStartsHeld) <= token ? group : behind) = middle;
  }
  if (held_.empty() || first_ != group * kStartsHeld) read_group(group * kStartsHeld);
  return first_ + static_cast<std::uint64_t>(std::ranges::upper_bound(held_, token) - held_.begin()) - 1;
}

// --- TokenStore ---

std::shared_ptr<const Tokenizer> TokenStore::tokenizer() const { return parse_tokenizer(tokenizer_bytes_, path_); }

bool TokenStore::looks_like_corpus(const FileHandle& file) {
  const std::string head = head_of(file, kCorpusMagic.size());
  return head.starts_with(kCorpusMagic) || head.starts_with(kHdf5Magic);
}

std::shared_ptr<const TokenStore> TokenStore::open(const std::string& path) {
  if (is_text_file(path))
    fail(path, " is text, not a corpus: make one from it with `", preparing_command(path), "`, and set data.path to ",
         corpus_name(path));
  std::shared_ptr<TokenStore> store(new TokenStore);
  store->path_ = path;
  try {
    store->load_index();
  } catch (const Error& e) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) fail(e.what(), kRemedy);
    fail(e.what(), "; looked for in ", std::filesystem::current_path().string(),
         ". Name a corpus that 'ringmaster data prepare' has written (in a run: data.path)");
  }
  return store;
}

void TokenStore::load_index() {
  const auto file = std::make_shared<const FileHandle>(open_input(path_));
  const CorpusIndex index = read_index(*file);
  check_extents(index, path_);
  check_structure(*file, index);
  ::posix_fadvise(file->fd(), 0, 0, POSIX_FADV_RANDOM);  // all further reads are at random offsets
  vocab_ = index.vocab_size;
  tokenizer_hash_ = index.tokenizer_hash.get();
  tokenizer_kind_ = index.tokenizer_kind.get();
  source_ = index.source.get();
  tokenizer_bytes_.resize(index.tokenizer.bytes);
  file->read_at(tokenizer_bytes_.data(), index.tokenizer.bytes, index.tokenizer.offset);
  chat_template_.resize(index.chat_template.bytes);
  file->read_at(chat_template_.data(), index.chat_template.bytes, index.chat_template.offset);
  for (TokenSplit& split : splits_) split.pairs_ = source_.find(kPairsInSource) != std::string::npos;
  for (std::size_t i = 0; i < splits_.size(); ++i)
    splits_[i].load(file, index.splits[i], index.masks[i], kSplitNames[i], vocab_);
}

VerifyReport verify_corpus(const TokenStore& store, const std::function<void(const std::string&)>& damaged,
                           const std::function<void(const VerifyReport&)>& progress) {
  VerifyReport report;
  std::vector<const HashedBlocks*> parts;
  for (const TokenSplit* split : {&store.train(), &store.validation()})
    parts.insert(parts.end(), {&split->start_data(), &split->token_data(), &split->mask_data()});
  for (const HashedBlocks* part : parts) report.total_bytes += part->bytes();
  for (const HashedBlocks* part : parts) {
    for (std::size_t block = 0; block < part->blocks(); ++block) {
      try {
        part->check(block);
      } catch (const Error& e) {
        ++report.damaged;
        damaged(e.what());
      }
      ++report.blocks;
      report.bytes += part->block_extent(block).bytes;
      if (progress) progress(report);
    }
  }
  return report;
}

}  // namespace ring
