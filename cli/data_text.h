#pragma once
// How commands write numbers, and those of data tokens, for people.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ring {

class Tokenizer;

std::string with_commas(std::uint64_t n);     // 1,234,567
std::string fixed(double value, int digits);  // 3.14
std::string percent(double share);            // 0.987 is "98.7 %"
std::string in_bytes(double bytes);           // 12.3 MB
std::string visible(std::string_view text);   // newlines, tabs and control characters as \n, \t, \x01
// "of which 12 count as targets (3.4 %)"
std::string counted_part(std::uint64_t targets, std::uint64_t tokens);
// What a split holds, in one line, and how much of it counts where not all of it does.
std::string split_line(const std::string& name, std::uint64_t tokens, std::uint64_t documents, std::uint64_t targets);
// The text of tokens, at most `bytes` of it: those that count as targets in colour, or between [[ and ]]. Control
// tokens are written by name.
std::string marked_text(const Tokenizer&, std::span<const std::int32_t> ids, std::span<const std::uint8_t> counts,
                        std::uint64_t bytes, bool colour);
std::string marked_legend(bool colour);  // how they look
std::string shortened(std::string text,
                      std::size_t bytes);  // cut between characters, with "..." when something is missing

}  // namespace ring
