#include "inspect/attention_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <sstream>

#include "core/check.h"
#include "inspect/html.h"
#include "inspect/svg.h"

namespace ring {
namespace {

constexpr int kTextShades = 4, kSvgShades = 8;
constexpr const char* kTextShade[] = {"·", "░", "▒", "▓", "█"};

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, share > 0 && share < 0.0995 ? "%.1f %%" : "%.0f %%", 100 * share);
  return text;
}

// Returns the largest share that is drawn in this shade (the inverse of shade_of()).
double share_up_to(int shade, int levels) { return std::pow(static_cast<double>(shade) / levels, 2); }

std::size_t gutter_of(std::int64_t length) { return std::to_string(length).size() + 2; }

// Returns the axis below the picture: 0 at its start, and as many other positions as fit.
std::string key_axis(const PairCells& cells) {
  const std::size_t room = std::to_string(cells.length()).size() + 3;
  std::size_t every = 8;
  while (every < room) every *= 2;
  std::string axis;
  for (std::size_t j = 0; j < static_cast<std::size_t>(cells.side()); j += every) {
    const std::string label = std::to_string(static_cast<std::int64_t>(j) * cells.size());
    if (j + label.size() > static_cast<std::size_t>(cells.side()) && j > 0) break;
    axis += std::string(j - axis.size(), ' ') + label;
  }
  return axis;
}

// --- SVG ---

constexpr int kPlot = 512, kPanelLeft = 84, kPanelTop = 84, kPanelRight = 28, kPanelBottom = 122;  // pixels of a panel
constexpr int kPanelWidth = kPanelLeft + kPlot + kPanelRight, kPanelHeight = kPanelTop + kPlot + kPanelBottom;
constexpr std::size_t kTitleColumns = 68;

// Returns a color between pale blue and dark blue.
std::string color_of_shade(int shade) {
  const double x = static_cast<double>(shade - 1) / (kSvgShades - 1);
  const auto mix = [&](int pale, int dark) { return static_cast<int>(std::lround(pale + x * (dark - pale))); };
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", mix(198, 8), mix(219, 48), mix(239, 107));
  return text;
}

// Draws runs of cells with the same shade, as strokes that are one cell high.
void draw_cells(std::ostringstream& out, const PairCells& cells) {
  std::vector<std::string> runs(kSvgShades + 1);
  for (std::int64_t i = 0; i < cells.side(); ++i)
    for (std::int64_t j = 0, end = 0; j <= i; j = end) {
      const int shade = shade_of(cells.kept_share(i, i + 1, j), kSvgShades);
      for (end = j + 1; end <= i && shade_of(cells.kept_share(i, i + 1, end), kSvgShades) == shade;) ++end;
      if (shade > 0) runs[static_cast<std::size_t>(shade)] += str("M", j, " ", i, "h", end - j);
    }
  // The plot ends where the sequence ends, so the last row and column of cells may be cut off.
  const double scale = kPlot * static_cast<double>(cells.size()) / static_cast<double>(cells.length());
  out << "<svg width=\"" << kPlot << "\" height=\"" << kPlot << "\"><g transform=\"scale(" << scale
      << ") translate(0 .5)\" shape-rendering=\"crispEdges\" fill=\"none\">\n";
  for (int shade = 1; shade <= kSvgShades; ++shade)
    if (const std::string& run = runs[static_cast<std::size_t>(shade)]; !run.empty())
      out << "<path stroke=\"" << color_of_shade(shade) << "\" d=\"" << run << "\"/>\n";
  out << "</g></svg>\n";
}

// Returns a round distance between ticks that gives four to eight ticks; a power of two if the length is a power of
// two.
std::int64_t tick_of(std::int64_t length) {
  std::int64_t tick = 1;
  while (length / tick >= 8) tick *= 2;
  if ((length & (length - 1)) == 0) return tick;
  for (std::int64_t power = 1;; power *= 10)
    for (const std::int64_t round : {1, 2, 5})
      if (length / (power * round) < 8) return power * round;
}

void draw_axes(std::ostringstream& out, std::int64_t length) {
  const std::int64_t tick = tick_of(length);
  out << "<g stroke=\"#444\" fill=\"none\"><rect width=\"" << kPlot << "\" height=\"" << kPlot << "\"/>";
  for (std::int64_t at = 0; at <= length; at += tick) {
    const double place = kPlot * static_cast<double>(at) / static_cast<double>(length);
    out << "<path d=\"M" << place << " " << kPlot << "v5M0 " << place << "h-5\"/>";
  }
  out << "</g>\n<g font-size=\"12\">";
  for (std::int64_t at = 0; at <= length; at += tick) {
    const double place = kPlot * static_cast<double>(at) / static_cast<double>(length);
    out << "<text x=\"" << place << "\" y=\"" << kPlot + 20 << "\" text-anchor=\"middle\">" << at << "</text>"
        << "<text x=\"-9\" y=\"" << place + 4 << "\" text-anchor=\"end\">" << at << "</text>";
  }
  out << "</g>\n<text x=\"" << kPlot / 2 << "\" y=\"" << kPlot + 42
      << "\" text-anchor=\"middle\" font-size=\"13\">key (token)</text>\n<text transform=\"translate("
      << 14 - kPanelLeft << " " << kPlot / 2
      << ") rotate(-90)\" text-anchor=\"middle\" font-size=\"13\">query (token)</text>\n";
}

void draw_legend(std::ostringstream& out, const PairCells& cells) {
  constexpr int kBox = kPlot / (kSvgShades + 1);
  out << "<g transform=\"translate(0 " << kPlot + 62 << ")\" font-size=\"11\"><text y=\"0\">"
      << (cells.whole() == CellWhole::pairs ? "pairs kept in" : "weight that a query gives to") << " a cell of "
      << cells.size() << " x " << cells.size() << " tokens, up to</text>\n";
  for (int shade = 0; shade <= kSvgShades; ++shade)
    out << "<rect x=\"" << shade * kBox << "\" y=\"8\" width=\"" << kBox << "\" height=\"14\" stroke=\"#444\" fill=\""
        << (shade ? color_of_shade(shade) : "#f4f4f4") << "\"/><text x=\"" << shade * kBox + kBox / 2
        << "\" y=\"36\" text-anchor=\"middle\">" << (shade ? percent(share_up_to(shade, kSvgShades)) : "none")
        << "</text>\n";
  out << "</g>\n";
}

void draw_panel(std::ostringstream& out, const Panel& panel, int x, int y) {
  out << "<g transform=\"translate(" << x + kPanelLeft << " " << y + kPanelTop << ")\">\n";
  std::vector<std::string> lines = wrapped(panel.title, kTitleColumns);
  if (lines.size() > 2) lines.resize(2), lines[1] += " ...";
  for (std::size_t i = 0; i < lines.size(); ++i)
    out << "<text y=\"" << -62 + 18 * static_cast<int>(i) << "\" font-size=\"14\" font-weight=\"bold\">"
        << html_escaped(lines[i]) << "</text>\n";
  out << "<text y=\"-14\" font-size=\"13\">" << html_escaped(panel.subtitle) << "</text>\n";
  out << "<path d=\"M0 0L" << kPlot << " " << kPlot << "H0z\" fill=\"#f4f4f4\"/>\n";
  draw_cells(out, panel.cells);
  draw_axes(out, panel.cells.length());
  draw_legend(out, panel.cells);
  out << "</g>\n";
}

}  // namespace

int shade_of(double share, int levels) {
  if (share <= 0) return 0;
  return std::clamp(static_cast<int>(std::ceil(std::sqrt(share) * levels - 1e-9)), 1, levels);
}

std::int64_t cells_in_columns(std::int64_t length, std::int64_t columns) {
  RING_CHECK(columns >= kMinColumns, "a picture of ", columns, " columns, expected at least ", kMinColumns);
  return columns - static_cast<std::int64_t>(gutter_of(length));
}

std::string text_picture(const PairCells& all, std::int64_t columns) {
  const PairCells cells = all.coarsened(cells_in_columns(all.length(), columns));
  const std::size_t gutter = gutter_of(cells.length());
  std::string out;
  for (std::int64_t i = 0; i < cells.side(); i += 2) {
    // Both bars have three bytes in UTF-8 but are one column wide, so the text has two bytes more than columns.
    out += str(std::setw(static_cast<int>(gutter) + 2), i % 8 == 0 ? str(i * cells.size(), " ┤") : " │");
    for (std::int64_t j = 0; j <= std::min(i + 1, cells.side() - 1); ++j)
      out += kTextShade[shade_of(cells.kept_share(i, i + 2, j), kTextShades)];
    out += "\n";
  }
  const std::string size = std::to_string(cells.size());
  out += std::string(gutter, ' ') + key_axis(cells) + "\n";
  for (const std::string& line :
       wrapped(str("A character: ", size, " keys, ", 2 * cells.size(), " queries."), static_cast<std::size_t>(columns)))
    out += line + "\n";
  const std::string what = cells.whole() == CellWhole::pairs ? "Pairs kept:" : "Weight of a query:";
  out += what;
  std::size_t used = what.size();
  for (int shade = 0; shade <= kTextShades; ++shade) {
    const std::string word = shade ? percent(share_up_to(shade, kTextShades)) : "none";
    if (used + 3 + word.size() > static_cast<std::size_t>(columns)) out += "\n", used = 0;
    out += str(" ", kTextShade[shade], " ", word);
    used += 3 + word.size();
  }
  return out + "\n";
}

std::string svg_picture(const std::vector<Panel>& panels) {
  const int across = panels.size() > 1 ? 2 : 1, down = (static_cast<int>(panels.size()) + across - 1) / across;
  const int width = across * kPanelWidth, height = down * kPanelHeight;
  std::ostringstream out;
  out << svg_head(width, height, panels.empty() ? "" : panels[0].title);
  for (int i = 0; i < static_cast<int>(panels.size()); ++i)
    draw_panel(out, panels[static_cast<std::size_t>(i)], i % across * kPanelWidth, i / across * kPanelHeight);
  out << "</svg>\n";
  return out.str();
}

std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!lines.empty() && lines.back().size() + 1 + word.size() <= columns) {
      lines.back() += " " + word;
      continue;
    }
    for (; word.size() > columns; word.erase(0, columns)) lines.push_back(word.substr(0, columns));
    lines.push_back(word);
  }
  return lines;
}

}  // namespace ring
