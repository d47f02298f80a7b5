#pragma once
// Pictures of attention patterns, for terminals and as SVG.

#include <string>
#include <vector>

#include "inspect/attention_cells.h"

namespace ring {

// A cell's shade, from 0 (no pair kept) to `levels`: the root of the kept share, so that one pair in a thousand is
// seen.
int shade_of(double share, int levels);

constexpr std::int64_t kLeastColumns = 24;  // of a terminal that shows a picture

// The most cells on a side that a picture of so many columns has room for.
std::int64_t cells_in_columns(std::int64_t length, std::int64_t columns);

// Lines of at most `columns` characters of UTF-8: a character is a cell wide and two high. Queries go down, keys right.
std::string text_picture(const PairCells&, std::int64_t columns);

struct Panel {
  std::string title, subtitle;
  PairCells cells;
};
// The most cells on a side that keep a panel's SVG below about 100 kB.
constexpr std::int64_t kSvgCells = 128;
std::string svg_picture(const std::vector<Panel>&);

// Lines of at most `columns` characters, broken at blanks where there are some.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns);

}  // namespace ring
