// Target: a tokenizer.json. A tokenizer that is read encodes any text, and its two ways of encoding agree.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/check.h"
#include "text/tokenizer.h"

namespace ring {
namespace {

// Text with spaces, ends of lines, composed and decomposed accents, an emoji, U+2581, digits, contractions and a stray
// byte.
const std::string kProbe =
    " a  b\n\n\tc\r\n  it's d\xC3\xA9 e\xCC\x81\xF0\x9F\x98\x80 \xE2\x96\x81 \xFF 12345 the end<s> \xEF\xAC\x81 ";

void check_placed(const Tokenizer& t, const std::vector<std::int32_t>& ids) {
  const std::vector<PlacedToken> placed = t.encode_placed(kProbe);
  if (placed.size() != ids.size()) std::abort();  // a finding
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (placed[i].id != ids[i] || placed[i].begin > placed[i].end || placed[i].end > kProbe.size()) std::abort();
}

void use_tokenizer(const Tokenizer& t) {
  const std::vector<std::int32_t> ids = t.encode(kProbe);
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= t.vocab_size()) std::abort();  // a finding
    t.bytes_of(id), t.piece(id);
  }
  t.decode(ids);
  check_placed(t, ids);
  if (t.safe_prefix(kProbe) > kProbe.size()) std::abort();
  for (const std::int32_t id : t.before_text()) t.piece(id);
  for (const std::int32_t id : t.after_text()) t.piece(id);
  if (parse_tokenizer(t.serialize(), "again")->hash() != t.hash()) std::abort();
}

}  // namespace
}  // namespace ring

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    ring::use_tokenizer(*ring::json_tokenizer(std::string(reinterpret_cast<const char*>(data), size), "input"));
  } catch (const ring::Error&) {
  }
  return 0;
}
