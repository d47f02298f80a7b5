#include "data/token_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "data/hash.h"
#include "data/hdf5_file.h"
#include "data/token_format.h"
#include "data/tokenizer.h"

namespace ring {
namespace {

static_assert(std::endian::native == std::endian::little, "corpora are mapped as they lie in the file");

constexpr const char* kRemedy = "; make it again with 'ringmaster data prepare'";

std::uint64_t number_or_fail(const Hdf5File& file, const std::string& group, const std::string& name) {
  const auto value = file.number(group, name);
  if (!value) fail(file.path(), " is damaged: ", group, " has no attribute ", name);
  return *value;
}

void check_format(const Hdf5File& file) {
  if (file.text("/", "format") != kCorpusFormat) fail(file.path(), " is an HDF5 file, but no corpus of Ringmaster");
  const std::uint64_t version = number_or_fail(file, "/", "format_version");
  if (version != kCorpusVersion) {
    fail(file.path(), " has corpus format ", version, ", this program reads format ", kCorpusVersion);
  }
}

// The places of a split's datasets, checked against each other and against the attributes.
struct Places {
  Hdf5File::Dataset tokens, starts;
  std::uint64_t text_bytes = 0;
  std::string tokens_hash;
  std::uint64_t end() const { return std::max(tokens.offset + tokens.bytes(), starts.offset + starts.bytes()); }
};

Places places_of(const Hdf5File& file, const std::string& group, std::uint64_t vocab) {
  Places p;
  const std::uint64_t tokens = number_or_fail(file, group, "tokens");
  const std::uint64_t documents = number_or_fail(file, group, "documents");
  p.text_bytes = number_or_fail(file, group, "text_bytes");
  if (tokens == 0) return p;
  const std::optional<std::string> hash = file.text(group, "tokens_hash");
  if (!hash) fail(file.path(), " was made by an early version: ", group, " has no tokens_hash; prepare it again");
  p.tokens_hash = *hash;
  p.tokens = file.dataset(group + "/tokens");
  p.starts = file.dataset(group + "/documents");
  const std::size_t width = token_width(vocab);
  if (p.tokens.count != tokens || p.starts.count != documents + 1) {
    fail(file.path(), " is damaged: ", group, " says ", tokens, " tokens in ", documents,
         " documents, its datasets hold ", p.tokens.count, " tokens and ", p.starts.count, " offsets");
  }
  if (p.tokens.element_size != width || p.starts.element_size != 8) {
    fail(file.path(), " is damaged: ", group, " has tokens of ", p.tokens.element_size, " bytes and offsets of ",
         p.starts.element_size, ", a vocabulary of ", vocab, " wants ", width, " and 8");
  }
  if (p.tokens.offset % width != 0 || p.starts.offset % 8 != 0) {
    fail(file.path(), ": the datasets of ", group, " lie at unaligned offsets ", p.tokens.offset, " and ",
         p.starts.offset);
  }
  return p;
}

void read_ahead(const std::byte* from, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(from) & ~(page - 1);
  const auto last = reinterpret_cast<std::uintptr_t>(from + bytes);
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_WILLNEED);  // a hint: failing is no error
}

}  // namespace

void TokenSplit::read(std::uint64_t begin, std::size_t count, std::int32_t* out) const {
  RING_CHECK(begin <= tokens_ && count <= tokens_ - begin, name_, " has ", tokens_, " tokens, asked for ", count,
             " from ", begin);
  std::uint32_t largest = 0;
  const auto convert = [&](const auto* from) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t token = from[i];
      largest = token > largest ? token : largest;
      out[i] = static_cast<std::int32_t>(token);
    }
  };
  const std::byte* from = data_ + begin * width_;
  if (width_ == 2)
    convert(reinterpret_cast<const std::uint16_t*>(from));
  else
    convert(reinterpret_cast<const std::uint32_t*>(from));
  if (largest >= vocab_) {
    fail(name_, " is damaged: token ", largest, " between positions ", begin, " and ", begin + count,
         ", the vocabulary has ", vocab_, kRemedy);
  }
}

std::uint64_t TokenSplit::document_start(std::uint64_t document) const {
  RING_CHECK(document <= documents_, name_, " has ", documents_, " documents, asked for number ", document);
  return documents_ == 0 ? 0 : starts_[document];
}

std::uint64_t TokenSplit::document_of(std::uint64_t token) const {
  RING_CHECK(token < tokens_, name_, " has ", tokens_, " tokens, asked for the document of ", token);
  return static_cast<std::uint64_t>(std::upper_bound(starts_, starts_ + documents_ + 1, token) - starts_) - 1;
}

void TokenSplit::will_need(std::uint64_t begin, std::size_t count) const {
  read_ahead(data_ + begin * width_, count * width_);
}

void TokenSplit::will_need_documents() const {
  if (documents_ > 0) read_ahead(reinterpret_cast<const std::byte*>(starts_), (documents_ + 1) * sizeof(*starts_));
}

void TokenStore::map(std::uint64_t bytes) {
  const FileHandle file(path_, O_RDONLY);
  if (file.size() < bytes) fail(path_, " is truncated: ", bytes, " bytes are needed, the file has ", file.size());
  void* p = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (p == MAP_FAILED) fail("cannot map ", path_, " (", bytes, " bytes) into memory: ", std::strerror(errno));
  mapped_ = static_cast<const std::byte*>(p);
  mapped_bytes_ = bytes;
  ::madvise(p, bytes, MADV_RANDOM);
}

TokenStore::~TokenStore() {
  if (mapped_) ::munmap(const_cast<std::byte*>(mapped_), mapped_bytes_);
}

std::shared_ptr<const Tokenizer> TokenStore::tokenizer() const { return parse_tokenizer(tokenizer_bytes_, path_); }

std::shared_ptr<const TokenStore> TokenStore::open(const std::string& path) {
  std::shared_ptr<TokenStore> store(new TokenStore);
  store->path_ = path;
  try {
    store->load();
  } catch (const Error& e) {
    if (!std::filesystem::is_regular_file(path))
      fail(e.what(), "; looked for in ", std::filesystem::current_path().string(),
           ". Name a corpus that 'ringmaster data prepare' has written (in a run: data.path)");
    fail(e.what(), kRemedy);
  }
  return store;
}

void TokenStore::load() {
  const Hdf5File file = Hdf5File::open(path_);
  check_format(file);
  vocab_ = number_or_fail(file, "/", "vocab_size");
  tokenizer_hash_ = file.text("/", "tokenizer_hash").value_or("");
  tokenizer_kind_ = file.text("/", "tokenizer_kind").value_or("");
  source_ = file.text("/", "source").value_or("");
  const Hdf5File::Dataset tokenizer = file.dataset("/tokenizer");
  const Places train = places_of(file, "/train", vocab_);
  const Places validation = places_of(file, "/validation", vocab_);
  map(std::max({tokenizer.offset + tokenizer.bytes(), train.end(), validation.end()}));
  tokenizer_bytes_.assign(reinterpret_cast<const char*>(mapped_ + tokenizer.offset), tokenizer.bytes());
  const std::string hash = hex64(xxh3(tokenizer_bytes_));
  if (hash != tokenizer_hash_) {
    fail(path_, " is damaged: its tokenizer has hash ", hash, ", recorded is ", tokenizer_hash_);
  }
  const auto fill = [&](TokenSplit& split, const Places& p, const char* name) {
    split.name_ = path_ + " (" + name + ")";
    split.vocab_ = vocab_;
    split.text_bytes_ = p.text_bytes;
    split.tokens_hash_ = p.tokens_hash;
    split.tokens_ = p.tokens.count;
    if (split.tokens_ == 0) return;
    split.width_ = p.tokens.element_size;
    split.documents_ = p.starts.count - 1;
    split.data_ = mapped_ + p.tokens.offset;
    split.starts_ = reinterpret_cast<const std::uint64_t*>(mapped_ + p.starts.offset);
    if (split.starts_[0] != 0 || split.starts_[split.documents_] != split.tokens_) {
      fail(path_, " is damaged: the documents of ", name, " span tokens ", split.starts_[0], " to ",
           split.starts_[split.documents_], " of ", split.tokens_);
    }
  };
  fill(train_, train, "train");
  fill(validation_, validation, "validation");
}

}  // namespace ring
