#include "data/megatron.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/check.h"

namespace ring {

// take: copies tokens up to the first token that is not below vocab_size, and returns the number of copied tokens.
struct MegatronDataset::TokenType {
  std::uint8_t code;
  const char* name;
  std::size_t width;  // bytes per token
  std::size_t (*take)(const char* from, std::size_t tokens, std::uint64_t vocab_size, std::int32_t* to);
};

namespace {

constexpr std::string_view kBin = ".bin", kIdx = ".idx";
constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 56;  // sequences or boundaries; prevents overflow of sizes
constexpr const char* kCopy = ": copy both files again from their source";

template <class T>
std::size_t take_tokens(const char* from, std::size_t tokens, std::uint64_t vocab_size, std::int32_t* to) {
  for (std::size_t i = 0; i < tokens; ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    if (token < T{0} || static_cast<std::uint64_t>(token) >= vocab_size) return i;
    to[i] = static_cast<std::int32_t>(token);
  }
  return tokens;
}

template <class T>
constexpr MegatronDataset::TokenType token_type(std::uint8_t code, const char* name) {
  return {code, name, sizeof(T), take_tokens<T>};
}

constexpr std::array kTypes{token_type<std::uint8_t>(1, "uint8"), token_type<std::int8_t>(2, "int8"),
                            token_type<std::int16_t>(3, "int16"), token_type<std::int32_t>(4, "int32"),
                            token_type<std::int64_t>(5, "int64"), token_type<std::uint16_t>(8, "uint16")};

// Reads a file in ascending order through a buffer of one block.
class Window {
 public:
  explicit Window(const FileHandle& file) : file_(file), size_(file.size()) {}
  // Returns `bytes` bytes at `offset`, valid until the next call. Throws Error if the file ends before.
  const char* at(std::uint64_t offset, std::size_t bytes) {
    if (offset < begin_ || offset + bytes > begin_ + held_.size()) {
      const std::uint64_t left = size_ - std::min(size_, offset);
      held_.resize(std::max(bytes, static_cast<std::size_t>(std::min<std::uint64_t>(left, kMegatronBlock))));
      file_.read_at(held_.data(), held_.size(), offset);
      begin_ = offset;
    }
    return held_.data() + (offset - begin_);
  }

 private:
  const FileHandle& file_;
  std::uint64_t size_, begin_ = 0;
  std::vector<char> held_;
};

// Reads one table of the index in ascending order.
template <class T>
class Column {
 public:
  Column(const FileHandle& index, std::uint64_t offset) : window_(index), offset_(offset) {}
  T operator[](std::uint64_t i) {
    T value;
    std::memcpy(&value, window_.at(offset_ + i * sizeof(T), sizeof(T)), sizeof(T));
    return value;
  }

 private:
  Window window_;
  std::uint64_t offset_;
};

FileHandle open_half(const std::string& prefix, std::string_view ending) {
  const std::string path = prefix + std::string(ending);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    fail(path, " is missing: a Megatron-LM data set consists of ", prefix, kBin, " with the tokens and ", prefix, kIdx,
         " with their index");
  return open_input(path);
}

template <class T>
T number_at(std::string_view head, std::size_t offset) {
  T value;
  std::memcpy(&value, head.data() + offset, sizeof(T));
  return value;
}

const MegatronDataset::TokenType* type_of(std::uint8_t code, const std::string& index) {
  const auto type = std::ranges::find(kTypes, code, &MegatronDataset::TokenType::code);
  if (type == kTypes.end())
    fail(index, " states that tokens have the type with code ", static_cast<int>(code),
         code == 6 || code == 7 ? ", a floating-point type" : ", which does not exist",
         "; expected a data set of token ids");
  return type;
}

std::string head_of(FileHandle& file) {
  std::string head(kMegatronHead, '\0');
  head.resize(file.read(head.data(), head.size()));
  return head;
}

}  // namespace

MegatronDataset::MegatronDataset(const std::string& prefix) : index_(open_half(prefix, kIdx)) {
  read_head();
  data_ = open_half(prefix, kBin);
  check_sequences();
  check_documents();
}

std::uint64_t MegatronDataset::token_bytes() const { return type_->width; }

void MegatronDataset::read_head() {
  const std::string& path = index_.path();
  const std::string head = head_of(index_);
  if (head.size() < kMegatronHead)
    fail(path, " is truncated: it has ", head.size(), " bytes, but an index has at least ", kMegatronHead, kCopy);
  if (!begins_megatron_index(head)) fail(path, " is not a Megatron-LM index", kCopy);
  const auto version = number_at<std::uint64_t>(head, 9);
  if (version != 1)
    fail(path, " has version ", version, " of the format, but this program reads version 1",
         ": write it again with Megatron-LM's tools/preprocess_data.py");
  type_ = type_of(number_at<std::uint8_t>(head, 17), path);
  sequences_ = number_at<std::uint64_t>(head, 18);
  boundaries_ = number_at<std::uint64_t>(head, 26);
  const std::uint64_t size = index_.size();
  const bool countable = sequences_ <= kMaxCount && boundaries_ <= kMaxCount;
  if (!countable || index_end() > size)
    fail(path, " is truncated or damaged: it has ", size, " bytes, but its ", sequences_, " sequences and ",
         boundaries_, " document boundaries need ", countable ? str(index_end()) : "more than any disk has", kCopy);
  if (index_end() == size) return;
  if (sequences_ > 0 && index_end() + sequences_ == size)
    fail(path, " belongs to a multimodal data set, whose sequences are not all text: this program reads only text");
  fail(path, " is damaged: its tables end at byte ", index_end(), ", but it has ", size, " bytes", kCopy);
}

// Checks that each sequence starts where the previous one ends, as in files written by Megatron-LM; this also bounds
// all offsets.
void MegatronDataset::check_sequences() {
  Column<std::int32_t> lengths(index_, kMegatronHead);
  Column<std::int64_t> starts(index_, starts_at());
  const std::uint64_t size = data_.size();
  std::uint64_t end = 0;
  for (std::uint64_t s = 0; s < sequences_; ++s) {
    const std::int32_t length = lengths[s];
    const std::int64_t start = starts[s];
    if (length < 0 || start < 0 || static_cast<std::uint64_t>(start) != end)
      fail(index_.path(), " is damaged: its sequence ", s, " has ", length, " tokens from byte ", start, " of ",
           data_.path(), " on, but the one before ends at byte ", end, kCopy);
    end += static_cast<std::uint64_t>(length) * type_->width;
    if (end > size) break;
  }
  if (end != size)
    fail(data_.path(), " has ", size, " bytes, but the sequences listed in ", index_.path(), " end at byte ", end,
         end > size ? " or later" : "", ": the two files do not match, or one of them is incomplete", kCopy);
  tokens_ = size / type_->width;
}

void MegatronDataset::check_documents() const {
  Column<std::int64_t> documents(index_, documents_at());
  std::int64_t before = 0;
  for (std::uint64_t d = 0; d < boundaries_; ++d) {
    const std::int64_t boundary = documents[d];
    if (boundary < before || (d == 0 && boundary != 0))
      fail(index_.path(), " is damaged: document ", d, " starts with sequence ", boundary, ", but the one before with ",
           before, kCopy);
    before = boundary;
  }
  if (static_cast<std::uint64_t>(before) != sequences_)
    fail(index_.path(), " is damaged: its documents end with sequence ", before, ", but it has ", sequences_,
         " sequences", kCopy);
}

void MegatronDataset::read(std::uint64_t vocab_size, const std::string& owner, Sink& sink) const {
  Column<std::int32_t> lengths(index_, kMegatronHead);
  Column<std::int64_t> documents(index_, documents_at());
  Window data(data_);
  const std::size_t max = kMegatronBlock / type_->width;
  std::vector<std::int32_t> tokens(max);
  std::uint64_t at = 0, sequence = 0;
  const auto part = [&](std::size_t n, std::uint64_t document) {
    const std::size_t good = type_->take(data.at(at, n * type_->width), n, vocab_size, tokens.data());
    if (good < n)
      fail(data_.path(), ": token ", at / type_->width + good, ", in document ", document,
           ", is outside the vocabulary of ", owner, ", which has ", vocab_size,
           " tokens: set --tokenizer to the tokenizer that the data set was made with");
    sink.add_part(std::span(tokens).first(n));
    at += n * type_->width;
  };
  for (std::uint64_t d = 0; d + 1 < boundaries_; ++d) {
    const std::uint64_t begin = at;
    for (const auto end = static_cast<std::uint64_t>(documents[d + 1]); sequence < end; ++sequence)
      for (auto left = static_cast<std::uint64_t>(lengths[sequence]); left > 0;) {
        const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left, max));
        part(n, d);
        left -= n;
      }
    if (at > begin) sink.end();
  }
}

bool begins_megatron_index(std::string_view head) { return head.starts_with(kMegatronMagic); }

namespace {

// Returns true if a file that begins with `head` may be an index, even one that was truncated within the magic bytes.
// An empty file counts only if the .bin exists.
bool may_be_index(std::string_view head, bool has_tokens) {
  if (begins_megatron_index(head)) return true;
  return kMegatronMagic.starts_with(head) && (has_tokens || !head.empty());
}

}  // namespace

std::string megatron_prefix(const std::string& path) {
  if (!path.ends_with(kBin) && !path.ends_with(kIdx)) return "";
  const std::string prefix = path.substr(0, path.size() - kBin.size()), index = prefix + std::string(kIdx);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(index, ignored)) return "";
  FileHandle file = open_input(index);
  const bool has_tokens = std::filesystem::exists(prefix + std::string(kBin), ignored);
  return may_be_index(head_of(file), has_tokens) ? prefix : "";
}

}  // namespace ring
