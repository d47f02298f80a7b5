// Target: a tokenizer file, ours or a plain SentencePiece model. Each input is also read as the part of our file that
// follows the hash, with a right hash.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/check.h"
#include "core/hash.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

// Text with spaces, newlines, accents, an emoji, U+2581 and a stray byte.
const std::string kProbe = " a  b\n\n\tc\r\n    d \xC3\xA9\xF0\x9F\x98\x80 \xE2\x96\x81 \xFF the end ";

void use_tokenizer(const Tokenizer& t) {
  for (const std::int32_t id : t.encode(kProbe)) {
    if (id < 0 || id >= t.vocab_size()) std::abort();
    t.bytes_of(id), t.piece(id);
  }
  t.decode(t.encode(kProbe));
  if (t.safe_prefix(kProbe) > kProbe.size()) std::abort();
  if (t.end_of_text()) t.piece(*t.end_of_text());
  if (parse_tokenizer(t.serialize(), "again")->hash() != t.hash()) std::abort();
}

void read(const std::string& bytes) {
  try {
    use_tokenizer(*parse_tokenizer(bytes, "input"));
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace ring

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  ring::read(bytes);
  ring::read(ring::str("ringmaster tokenizer 2\nhash ", ring::hex64(ring::xxh3(bytes)), "\n", bytes));
  return 0;
}
