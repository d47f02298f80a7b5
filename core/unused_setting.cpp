#include "core/unused_setting.h"

namespace ring {

namespace {
constexpr char kUnused = '\x1f', kInherited = '\x1e';  // no key begins with them
}

std::string unused_setting(const std::string& text) { return kUnused + text; }

std::optional<std::string> text_of_unused(const std::string& message) {
  if (message.empty() || message[0] != kUnused) return std::nullopt;
  return message.substr(1);
}

std::string inherited_setting(const InheritedSetting& s) {
  std::string message;
  for (const std::string* part : {&s.key, &s.cause, &s.unset}) message += kInherited + *part;
  return message + kInherited + s.text;
}

std::optional<InheritedSetting> inherited_in(const std::string& message) {
  if (message.empty() || message[0] != kInherited) return std::nullopt;
  InheritedSetting s;
  std::size_t at = 1;
  for (std::string* part : {&s.key, &s.cause, &s.unset}) {
    const std::size_t end = message.find(kInherited, at);
    *part = message.substr(at, end - at);
    at = end + 1;
  }
  s.text = message.substr(at);
  return s;
}

}  // namespace ring
