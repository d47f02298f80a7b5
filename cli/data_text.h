#pragma once
// Formats numbers and tokens for users.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ring {

class Tokenizer;

std::string with_commas(std::uint64_t n);            // e.g. "1,234,567"
std::string format_fixed(double value, int digits);  // e.g. "3.14"
std::string percent(double share);                   // e.g. "98.7 %" for 0.987
std::string format_bytes(double bytes);              // e.g. "12.3 MB"
std::string escape_control_characters(
    std::string_view text);  // escapes newlines, tabs and control characters: \n, \t, \x01
// Returns e.g. "of which 12 count as targets (3.4 %)".
std::string targets_text(std::uint64_t targets, std::uint64_t tokens);
// Describes a split on one line, with its share of targets if not all tokens are targets.
std::string split_summary(const std::string& name, std::uint64_t tokens, std::uint64_t documents,
                          std::uint64_t targets);
// Returns the text of tokens, at most `bytes` bytes, with targets in colour or between [[ and ]]. Control tokens are
// written by name. counts: 1 for each token that is a target, else 0.
std::string marked_text(const Tokenizer&, std::span<const std::int32_t> ids, std::span<const std::uint8_t> counts,
                        std::uint64_t bytes, bool colour);
std::string marked_legend(bool colour);  // explains the marks of marked_text()
// Truncates text after at most `bytes` bytes, between characters, and appends "..."; shorter text is unchanged.
std::string truncate_text(std::string text, std::size_t bytes);

}  // namespace ring
