#pragma once
// The byte order mark that editors and programs of Windows put in front of a text in UTF-8; no part of the text. There
// are several where programs put one in front of another's, or where files that begin with one were joined.

#include <string_view>

namespace ring {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

constexpr std::string_view without_byte_order_marks(std::string_view text) {
  while (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

}  // namespace ring
