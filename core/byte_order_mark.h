#pragma once
// The byte order mark that Windows editors and programs put in front of UTF-8 text. It is not part of the text. A text
// may begin with several marks, if two programs each added one or if files were concatenated.

#include <string_view>

namespace ring {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

constexpr std::string_view without_byte_order_marks(std::string_view text) {
  while (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

}  // namespace ring
