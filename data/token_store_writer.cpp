#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "data/hdf5_file.h"
#include "data/token_format.h"
#include "data/token_store.h"
#include "data/tokenizer.h"

namespace ring {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

void copy_into(FileHandle& from, FileHandle& to, std::uint64_t offset) {
  if (::lseek(from.fd(), 0, SEEK_SET) < 0) fail("cannot read ", from.path(), ": ", std::strerror(errno));
  std::vector<char> buffer(4 * kBuffer);
  while (const std::size_t n = from.read(buffer.data(), buffer.size())) {
    to.write_at(buffer.data(), n, offset);
    offset += n;
  }
}

}  // namespace

TokenStoreWriter::TokenStoreWriter(std::string path, std::int64_t vocab_size)
    : path_(std::move(path)), vocab_(static_cast<std::uint64_t>(vocab_size)), width_(token_width(vocab_)) {
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    fail("cannot write ", path_, ": the folder ", folder.string(), " does not exist; create it first");
  }
  if (std::filesystem::is_directory(path_)) fail("cannot write ", path_, ": it is a directory, name a file");
  const char* names[] = {"train", "validation"};
  for (std::size_t i = 0; i < 2; ++i) {
    const auto spool = [&](const char* what) {
      FileHandle file(str(path_, ".", names[i], ".", what, ".", ::getpid()), O_RDWR | O_CREAT | O_EXCL, 0600);
      ::unlink(file.path().c_str());
      return file;
    };
    streams_[i].tokens_file = spool("tokens");
    streams_[i].starts_file = spool("documents");
  }
}

void TokenStoreWriter::flush_tokens(Stream& s) {
  s.tokens_hash.update(s.tokens_buffer.data(), s.tokens_buffer.size());
  s.tokens_file.write(s.tokens_buffer.data(), s.tokens_buffer.size());
  s.tokens_buffer.clear();
}

void TokenStoreWriter::flush_starts(Stream& s) {
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
  write_atomically(path_, [&](const std::string& temporary) { write_file(temporary, tokenizer, source); });
}

void TokenStoreWriter::write_file(const std::string& temporary, const Tokenizer& tokenizer, const std::string& source) {
  using Element = Hdf5File::Element;
  const std::string blob = tokenizer.serialize();
  Hdf5File file = Hdf5File::create(temporary);
  file.set("/", "format", kCorpusFormat);
  file.set("/", "format_version", kCorpusVersion);
  file.set("/", "vocab_size", vocab_);
  file.set("/", "tokenizer_kind", std::string(tokenizer.kind()));
  file.set("/", "tokenizer_hash", tokenizer.hash());
  file.set("/", "source", source.substr(0, 1000));
  const std::uint64_t blob_offset = file.create_dataset("/tokenizer", Element::u8, blob.size());
  std::array<std::uint64_t, 2> tokens_offset{}, starts_offset{};
  for (std::size_t i = 0; i < 2; ++i) {
    const Stream& s = streams_[i];
    const std::string group = i == 0 ? "/train" : "/validation";
    file.create_group(group);
    file.set(group, "tokens", s.tokens);
    file.set(group, "documents", s.tokens ? s.documents : 0);
    file.set(group, "text_bytes", s.text_bytes);
    file.set(group, "tokens_hash", hex64(s.tokens_hash.value()));
    if (s.tokens == 0) continue;
    starts_offset[i] = file.create_dataset(group + "/documents", Element::u64, s.documents + 1);
    tokens_offset[i] = file.create_dataset(group + "/tokens", width_ == 2 ? Element::u16 : Element::u32, s.tokens);
  }
  file.close();
  FileHandle raw(temporary, O_WRONLY);
  raw.write_at(blob.data(), blob.size(), blob_offset);
  for (std::size_t i = 0; i < 2; ++i) {
    if (streams_[i].tokens == 0) continue;
    copy_into(streams_[i].starts_file, raw, starts_offset[i]);
    copy_into(streams_[i].tokens_file, raw, tokens_offset[i]);
  }
}

}  // namespace ring
