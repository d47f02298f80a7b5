#pragma once
// Formats numbers and tokens for people.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ring {

class Tokenizer;

std::string with_commas(std::uint64_t n);     // "1,234,567"
std::string fixed(double value, int digits);  // "3.14"
std::string percent(double share);            // 0.987 is "98.7 %"
std::string format_bytes(double bytes);       // "12.3 MB"
std::string escape_control_characters(
    std::string_view text);  // escapes newlines, tabs and control characters: \n, \t, \x01
// Returns "of which 12 count as targets (3.4 %)".
std::string share_of_targets(std::uint64_t targets, std::uint64_t tokens);
// Describes a split in one line, and its share of targets if not all tokens are targets.
std::string split_summary(const std::string& name, std::uint64_t tokens, std::uint64_t documents,
                          std::uint64_t targets);
// Returns the text of tokens, at most `bytes` of it, with targets in colour or between [[ and ]]. Control tokens are
// written by name.
std::string marked_text(const Tokenizer&, std::span<const std::int32_t> ids, std::span<const std::uint8_t> counts,
                        std::uint64_t bytes, bool colour);
std::string marked_legend(bool colour);  // shows how targets are marked
// Cuts text after at most `bytes` bytes, between characters, and appends "..."; shorter text is unchanged.
std::string truncate_text(std::string text, std::size_t bytes);

}  // namespace ring
