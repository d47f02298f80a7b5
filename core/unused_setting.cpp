#include "core/unused_setting.h"

namespace ring {

namespace {
constexpr char kUnused = '\x1f';  // no key begins with it
}

std::string unused_setting(const std::string& text) { return kUnused + text; }

std::optional<std::string> text_of_unused(const std::string& message) {
  if (message.empty() || message[0] != kUnused) return std::nullopt;
  return message.substr(1);
}

}  // namespace ring
