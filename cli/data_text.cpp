#include "cli/data_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/check.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace ring {
namespace {

constexpr std::array<const char*, 2> kColour{"\x1b[1;32m", "\x1b[0m"}, kBrackets{"[[", "]]"};

}  // namespace

std::string marked_legend(bool colour) {
  const auto& [on, off] = colour ? kColour : kBrackets;
  return str(on, "marked like this", off);
}

std::string marked_text(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                        std::span<const std::uint8_t> counts, std::uint64_t bytes, bool colour) {
  const auto& [on, off] = colour ? kColour : kBrackets;
  std::string out;
  std::uint64_t left = bytes;
  for (std::size_t i = 0; i < ids.size() && left > 0;) {
    std::string run;
    const std::size_t begin = i;
    for (; i < ids.size() && counts[i] == counts[begin]; ++i) {
      const std::string text = tokenizer.bytes_of(ids[i]);
      run += text.empty() ? tokenizer.piece(ids[i]) : text;
    }
    const std::string shown = truncate_text(run, left);
    left -= std::min<std::uint64_t>(left, run.size());
    out += counts[begin] ? str(on, shown, off) : shown;
  }
  return out;
}

std::string targets_text(std::uint64_t targets, std::uint64_t tokens) {
  if (targets == 0) return "none of which counts as a target";
  return str("of which ", with_commas(targets), targets == 1 ? " counts as a target" : " count as targets", " (",
             percent(static_cast<double>(targets) / static_cast<double>(tokens)), ")");
}

std::string split_summary(const std::string& name, std::uint64_t tokens, std::uint64_t documents,
                          std::uint64_t targets) {
  std::string line = str("  ", name, std::string(12 - std::min<std::size_t>(name.size(), 12), ' '), with_commas(tokens),
                         " tokens in ", with_commas(documents), documents == 1 ? " document" : " documents");
  if (targets < tokens) line += ", " + targets_text(targets, tokens);
  return line;
}

std::string with_commas(std::uint64_t n) {
  std::string out = std::to_string(n);
  for (std::size_t at = out.size(); at > 3;) out.insert(at -= 3, 1, ',');
  return out;
}

std::string format_fixed(double value, int digits) {
  std::array<char, 64> out{};
  std::snprintf(out.data(), out.size(), "%.*f", digits, value);
  return out.data();
}

std::string percent(double share) { return format_fixed(100 * share, 1) + " %"; }

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> units{"bytes", "KB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1000 && unit + 1 < units.size(); ++unit) bytes /= 1000;
  return format_fixed(bytes, unit == 0 ? 0 : 1) + " " + units[unit];
}

std::string escape_control_characters(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      std::array<char, 8> hex{};
      std::snprintf(hex.data(), hex.size(), "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += hex.data();
    } else
      out += c;
  }
  return out;
}

std::string truncate_text(std::string text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  text.resize(utf8::floor_boundary(text, bytes));
  return text + "...";
}

}  // namespace ring
