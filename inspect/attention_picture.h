#pragma once
// Draws attention patterns for terminals and as SVG.

#include <string>
#include <vector>

#include "inspect/attention_cells.h"

namespace ring {

// Returns a cell's shade, from 0 (no pair kept) to `levels`. Shades follow the square root of the share, so that one
// pair in a thousand is visible.
int shade_of(double share, int levels);

constexpr std::int64_t kMinColumns = 24;  // minimum terminal width for a picture, in characters

// Returns the maximum number of cells per side for a picture with a width of `columns` characters.
std::int64_t cells_in_columns(std::int64_t length, std::int64_t columns);

// Returns lines of at most `columns` UTF-8 characters. A character is one cell wide and two cells high; queries go
// down, keys to the right.
std::string text_picture(const PairCells&, std::int64_t columns);

struct Panel {
  std::string title, subtitle;
  PairCells cells;
};
// Maximum number of cells per side that keeps a panel's SVG below about 100 kB.
constexpr std::int64_t kSvgCells = 128;
std::string svg_picture(const std::vector<Panel>& panels);

// Breaks text at blanks into lines of at most `columns` characters; a longer word is split.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns);

}  // namespace ring
