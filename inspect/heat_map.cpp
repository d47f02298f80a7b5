#include "inspect/heat_map.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "core/check.h"
#include "inspect/html.h"
#include "inspect/svg.h"

namespace ring {
namespace {

constexpr int kCellWidth = 72, kCellHeight = 34;                             // in pixels
constexpr int kMapLeft = 96, kMapTop = 76, kMapRight = 24, kMapBottom = 40;  // in pixels

std::string whole_percent(double share) { return str(std::lround(100 * share), " %"); }

std::string right(const std::string& text, std::size_t width) {
  return std::string(text.size() < width ? width - text.size() : 0, ' ') + text;
}

// Returns a color from red over pale yellow to green, always light enough for dark text.
std::string color_of(double share) {
  const double low[] = {240, 150, 140}, middle[] = {250, 240, 190}, high[] = {130, 205, 150};
  const double *from = share < 0.5 ? low : middle, *to = share < 0.5 ? middle : high;
  const double x = share < 0.5 ? 2 * share : 2 * share - 1;
  int c[3];
  for (int i = 0; i < 3; ++i) c[i] = static_cast<int>(std::lround(from[i] + x * (to[i] - from[i])));
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", c[0], c[1], c[2]);
  return text;
}

int width_of(const HeatMap& m) { return kMapLeft + kCellWidth * static_cast<int>(m.columns.size()) + kMapRight; }
int height_of(const HeatMap& m) { return kMapTop + kCellHeight * static_cast<int>(m.rows.size()) + kMapBottom; }

void draw_text(std::ostringstream& out, int x, int y, const char* anchor, const std::string& text) {
  out << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor << "\">" << html_escaped(text)
      << "</text>\n";
}

void draw(std::ostringstream& out, const HeatMap& m, int top) {
  out << "<g transform=\"translate(0 " << top << ")\" font-size=\"13\">\n<text x=\"16\" y=\"26\" font-size=\"15\" "
      << "font-weight=\"bold\">" << html_escaped(m.title) << "</text>\n";
  draw_text(out, 16, kMapTop - 10, "start", m.row_title);
  const int middle = kMapLeft + kCellWidth * static_cast<int>(m.columns.size()) / 2;
  draw_text(out, middle, height_of(m) - 12, "middle", m.column_title);
  for (std::size_t j = 0; j < m.columns.size(); ++j)
    draw_text(out, kMapLeft + kCellWidth * static_cast<int>(j) + kCellWidth / 2, kMapTop - 10, "middle", m.columns[j]);
  for (std::size_t i = 0; i < m.rows.size(); ++i) {
    const int y = kMapTop + kCellHeight * static_cast<int>(i);
    draw_text(out, kMapLeft - 10, y + 22, "end", m.rows[i]);
    for (std::size_t j = 0; j < m.columns.size(); ++j) {
      const int x = kMapLeft + kCellWidth * static_cast<int>(j);
      out << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << kCellWidth << "\" height=\"" << kCellHeight
          << "\" fill=\"" << color_of(m.shares[i][j]) << "\" stroke=\"#fff\"/>";
      draw_text(out, x + kCellWidth / 2, y + 22, "middle", whole_percent(m.shares[i][j]));
    }
  }
  out << "</g>\n";
}

}  // namespace

std::string heat_map_text(const HeatMap& m) {
  std::size_t label = m.row_title.size(), cell = 6;
  for (const std::string& row : m.rows) label = std::max(label, row.size());
  for (const std::string& column : m.columns) cell = std::max(cell, column.size());
  std::string out = str(m.title, "\n", right(m.row_title, label));
  for (const std::string& column : m.columns) out += "  " + right(column, cell);
  out += "   " + m.column_title + "\n";
  for (std::size_t i = 0; i < m.rows.size(); ++i) {
    out += right(m.rows[i], label);
    for (const double share : m.shares[i]) out += "  " + right(whole_percent(share), cell);
    out += "\n";
  }
  return out;
}

std::string heat_map_svg(const std::vector<HeatMap>& maps) {
  int width = 320, height = 0;
  for (const HeatMap& m : maps) {
    RING_CHECK(m.shares.size() == m.rows.size(), "a heat map of ", m.shares.size(), " rows with ", m.rows.size(),
               " labels");
    width = std::max(width, width_of(m));
    height += height_of(m);
  }
  std::ostringstream out;
  out << svg_head(width, height, maps.empty() ? "" : maps[0].title);
  int top = 0;
  for (const HeatMap& m : maps) {
    draw(out, m, top);
    top += height_of(m);
  }
  out << "</svg>\n";
  return out.str();
}

}  // namespace ring
