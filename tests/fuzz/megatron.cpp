// Target: a data set of tokens. The first two bytes are the length of the index, which comes next; the rest is the
// .bin.

#include "data/megatron.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "core/check.h"

namespace {

constexpr std::uint64_t kVocabulary = 300;

class Scratch {
 public:
  ~Scratch() {
    ::unlink((prefix + ".idx").c_str());
    ::unlink((prefix + ".bin").c_str());
  }
  void write(const std::string& ending, const std::string& bytes) const {
    std::ofstream(prefix + ending, std::ios::binary | std::ios::trunc) << bytes;
  }
  const std::string prefix = "/dev/shm/ringmaster-fuzz-megatron-" + std::to_string(::getpid());
};

// Checks that every token is in the vocabulary and that no part is empty.
class Checked final : public ring::MegatronDataset::Sink {
 public:
  void add_part(std::span<const std::int32_t> tokens) override {
    if (tokens.empty()) std::abort();
    if (std::ranges::any_of(tokens, [](std::int32_t t) { return t < 0 || t >= std::int32_t{kVocabulary}; }))
      std::abort();
    count += tokens.size();
    open_ = true;
  }
  void end() override {
    if (!open_) std::abort();
    open_ = false;
  }
  bool open() const { return open_; }
  std::uint64_t count = 0;

 private:
  bool open_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  static const Scratch scratch;
  const std::string bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::size_t index = std::min<std::size_t>(data[0] + 256u * data[1], bytes.size());
  scratch.write(".idx", bytes.substr(0, index));
  scratch.write(".bin", bytes.substr(index));
  try {
    const ring::MegatronDataset set(scratch.prefix);
    Checked documents;
    set.read(kVocabulary, "a tokenizer", documents);
    if (documents.open() || documents.count != set.tokens()) std::abort();
  } catch (const ring::Error&) {
  }
  return 0;
}
