#include "data/export_megatron.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/files.h"
#include "data/megatron.h"
#include "data/token_store.h"

namespace ring {
namespace {

constexpr std::uint8_t kInt32 = 4, kUint16 = 8;  // Megatron-LM's codes of the token types

// Buffered writer of binary numbers.
class Numbers {
 public:
  explicit Numbers(FileHandle& file) : file_(file) {}
  template <class T>
  void put(T value) {
    held_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    if (held_.size() >= kMegatronBlock) flush();
  }
  void put(std::string_view bytes) { held_ += bytes; }
  void flush() {
    file_.write(held_.data(), held_.size());
    held_.clear();
  }

 private:
  FileHandle& file_;
  std::string held_;
};

void check(const TokenSplit& split) {
  if (split.tokens() == 0) fail(split.name(), " is empty: there is nothing to export");
  if (split.masked())
    fail(split.name(), " has a loss mask, which Megatron-LM's format cannot store: every token would count as a ",
         "target. Prepare the same text without prompts or conversations to export it");
  DocumentStarts starts(split);
  for (std::uint64_t d = 0; d < split.documents(); ++d)
    if (starts(d + 1) - starts(d) > std::uint64_t{std::numeric_limits<std::int32_t>::max()})
      fail(split.name(), ": document ", d, " has ", starts(d + 1) - starts(d),
           " tokens, but Megatron-LM stores a sequence's length in 32 bits: prepare smaller documents (--document)");
}

template <class T>
void write_tokens(const TokenSplit& split, FileHandle& file) {
  Numbers out(file);
  std::vector<std::int32_t> tokens(kMegatronBlock);
  for (std::uint64_t at = 0; at < split.tokens(); at += tokens.size()) {
    tokens.resize(static_cast<std::size_t>(std::min<std::uint64_t>(tokens.size(), split.tokens() - at)));
    split.read(at, tokens.size(), tokens.data());
    for (const std::int32_t t : tokens) out.put(static_cast<T>(t));
  }
  out.flush();
}

void write_index(const TokenSplit& split, std::uint8_t code, std::uint64_t width, FileHandle& file) {
  Numbers out(file);
  DocumentStarts starts(split);
  const std::uint64_t documents = split.documents();
  out.put(kMegatronMagic);
  out.put(std::uint64_t{1});  // format version
  out.put(code);
  out.put(documents);
  out.put(documents + 1);
  for (std::uint64_t d = 0; d < documents; ++d) out.put(static_cast<std::int32_t>(starts(d + 1) - starts(d)));
  for (std::uint64_t d = 0; d < documents; ++d) out.put(static_cast<std::int64_t>(starts(d) * width));
  for (std::uint64_t d = 0; d <= documents; ++d) out.put(static_cast<std::int64_t>(d));
  out.flush();
}

}  // namespace

void export_megatron(const TokenSplit& split, std::uint64_t vocab_size, const std::string& prefix) {
  check(split);
  const bool narrow = vocab_size < 65'500;
  write_atomically(prefix + ".bin", [&](FileHandle& file) {
    if (narrow)
      write_tokens<std::uint16_t>(split, file);
    else
      write_tokens<std::int32_t>(split, file);
  });
  write_atomically(prefix + ".idx",
                   [&](FileHandle& file) { write_index(split, narrow ? kUint16 : kInt32, narrow ? 2 : 4, file); });
}

}  // namespace ring
