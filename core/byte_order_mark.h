#pragma once
// The byte order mark that editors and programs of Windows put in front of a text in UTF-8; no part of the text.

#include <string_view>

namespace ring {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

constexpr std::string_view without_byte_order_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

}  // namespace ring
