#include "text/chat/characters.h"

#include <cstring>

#include "core/check.h"
#include "text/unicode/categories.h"

namespace ring::chat {
char32_t decoded(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first;
  char32_t c = first & (0x7F >> character.size());
  for (const char next : character.substr(1)) c = c << 6 | (static_cast<unsigned char>(next) & 0x3F);
  return c;
}

bool is_printable(char32_t c) {
  using unicode::Category;
  const Category k = unicode::category(c);
  // Separators and invisible categories are last in the enum.
  return c == ' ' || (k != Category::cn && k < Category::zs);
}

std::size_t character_length(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const std::size_t wanted = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  std::size_t length = 1;
  while (length < wanted && at + length < text.size() && (static_cast<unsigned char>(text[at + length]) & 0xC0) == 0x80)
    ++length;
  return length == wanted ? length : 1;
}

std::size_t character_count(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += character_length(text, at)) ++count;
  return count;
}

std::size_t byte_offset_of(std::string_view text, std::size_t place) {
  std::size_t at = 0;
  for (; place > 0 && at < text.size(); --place) at += character_length(text, at);
  return at;
}

bool is_blank(std::string_view character) {
  const char32_t c = decoded(character);
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view strip(std::string_view text, bool left, bool right, const std::string* of) {
  const auto goes = [&](std::string_view c) {
    if (!of) return is_blank(c);
    for (std::size_t at = 0, length; at < of->size(); at += length) {
      length = character_length(*of, at);
      if (std::string_view(*of).substr(at, length) == c) return true;
    }
    return false;
  };
  while (left && !text.empty()) {
    const std::size_t length = character_length(text, 0);
    if (!goes(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && text.size() - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (begin + character_length(text, begin) != text.size()) begin = text.size() - 1;
    if (!goes(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

// Uses memmem(), since std::string::find() takes quadratic time for some texts.
std::size_t find_part(std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* found = ::memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

std::vector<std::string> split(std::string_view text, const std::string* separator, std::int64_t max, Budget& budget) {
  if (separator && separator->empty()) fail("split: the separator is empty");
  std::vector<std::string> parts;
  const auto left = [&] { return max < 0 || static_cast<std::int64_t>(parts.size()) < max; };
  const auto add = [&](std::string_view part) {
    budget.charge_created(kValueBytes + part.size());
    parts.emplace_back(part);
  };
  if (separator) {
    for (std::size_t at; left() && (at = find_part(text, *separator)) != std::string_view::npos;
         text.remove_prefix(at + separator->size()))
      add(text.substr(0, at));
    add(text);
    return parts;
  }
  for (text = strip(text, true, false, nullptr); !text.empty(); text = strip(text, true, false, nullptr)) {
    if (!left()) {
      add(strip(text, false, true, nullptr));
      break;
    }
    std::size_t end = 0;
    for (std::size_t n; end < text.size() && !is_blank(text.substr(end, n = character_length(text, end)));) end += n;
    add(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

std::string replaced(std::string_view text, const std::string& what, const std::string& with, std::int64_t max,
                     Budget& budget) {
  if (what.empty()) fail("replace: the text to replace is empty");
  std::string out;
  for (std::size_t at; max != 0 && (at = find_part(text, what)) != std::string_view::npos; --max) {
    budget.charge_steps(1);
    budget.append(out, text.substr(0, at));
    budget.append(out, with);
    text.remove_prefix(at + what.size());
  }
  budget.append(out, text);
  return out;
}

}  // namespace ring::chat
