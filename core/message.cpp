#include "core/message.h"

#include "core/check.h"

namespace ring {
namespace {

// Returns the position of the first byte of the UTF-8 character that contains the byte at `at`.
std::size_t character_begin(std::string_view text, std::size_t at) {
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

std::string bounded_message(std::string_view message) {
  if (message.size() <= kMaxMessage) return std::string(message);
  const std::size_t begin = character_begin(message, kMaxMessage / 2);
  const std::size_t end = character_begin(message, message.size() - kMaxMessage / 4);
  return str(message.substr(0, begin), " ... (", message.size(), " bytes) ... ", message.substr(end));
}

}  // namespace ring
