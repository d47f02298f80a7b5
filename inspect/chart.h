#pragma once
// A chart of a report, as SVG; the page's style sheet sets its colors.

#include <string>
#include <vector>

#include "inspect/curve.h"

namespace ring {

struct ChartLine {
  std::string name;
  std::size_t color = 0;  // index of the line's run
  Curve curve;
  // points: true to draw a marker at each point, for curves with few points.
  bool dashed = false, points = false;
};

// An event at a step.
struct ChartMark {
  double x = 0;
  std::string text;
  std::size_t color = 0;
};

struct Chart {
  std::string title, unit;
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks;
  // Values on the axis and in the script's tooltips are multiplied by `scale` and followed by `suffix`.
  double scale = 1;
  std::string suffix;
  bool smooths = false;  // true to draw the chart once for each weight in kSmoothing; the page selects one
  bool logs = false;     // true to draw linear and logarithmic axes; the page selects one
  bool from_zero = false;
  bool legend = false;  // true to name the lines, for charts whose colors are not those of runs
};

inline constexpr double kSmoothing[] = {0, 0.6, 0.9, 0.97};
inline constexpr std::size_t kColors = 6;  // further runs reuse the colors with dashed lines

// Returns a figure; empty if no line has a point that can be drawn.
std::string chart_html(const Chart&);
std::string color_swatch(std::size_t color);  // returns a run's color as inline markup

// Returns about `count` round numbers in [low, high]. On a logarithmic axis they are powers of ten, or 1, 2, 5 x 10^n
// if at least three of these are in range.
std::vector<double> axis_ticks(double low, double high, bool log, int count);

// Returns labels for an axis's ticks, all in the same notation, with `digits` digits, or more if that is needed to
// distinguish the ticks.
std::vector<std::string> tick_labels(const std::vector<double>& ticks, int digits = 4);

struct ByteUnit {
  double scale = 1;  // units per byte
  const char* suffix = " B";
};
ByteUnit byte_unit(double bytes);  // returns the unit for numbers of this size, e.g. {1e-6, " MB"}

std::string formatted(const char* format, double value);  // format of std::printf, e.g. %.2f
std::string short_number(double value, int digits = 4);   // e.g. 0.0003, 12.5, 12.3k
std::string bytes_number(double bytes);                   // e.g. 12.3 MB

}  // namespace ring
