#pragma once
// A chart of a report, as SVG that takes its colors from the page.

#include <string>
#include <vector>

#include "inspect/curve.h"

namespace ring {

struct ChartLine {
  std::string name;
  std::size_t color = 0;  // number of its run
  Curve curve;
  bool dashed = false, points = false;  // points: few of them, marked
};

// Something that happened at a step.
struct ChartMark {
  double x = 0;
  std::string text;
  std::size_t color = 0;
};

struct Chart {
  std::string title, unit;
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks;
  // Values are shown times the scale and with the suffix, on the axis and by the script.
  double scale = 1;
  std::string suffix;
  bool smooths = false;  // drawn at each of kSmoothing
  bool logs = false;     // drawn on each pair of axes, which the page chooses from
  bool from_zero = false;
  bool legend = false;  // names the lines, where their colors are not those of runs
};

inline constexpr double kSmoothing[] = {0, 0.6, 0.9, 0.97};
inline constexpr std::size_t kColors = 6;  // further runs repeat them with dashes

// A figure; empty: no line has a point that can be drawn.
std::string chart_html(const Chart&);
std::string color_swatch(std::size_t color);  // the color of a run, inline

// Round numbers in [low, high], about `count` of them; on a log axis where there are enough of them 1, 2, 5 x 10^n.
std::vector<double> axis_ticks(double low, double high, bool log, int count);

// Labels of an axis's ticks, in one notation: with as few digits as tell them apart, and at least `digits`.
std::vector<std::string> tick_labels(const std::vector<double>& ticks, int digits = 4);

struct ByteUnit {
  double scale = 1;            // of bytes
  const char* suffix = " B";
};
ByteUnit byte_unit(double bytes);  // in which so many are written: {1e-6, " MB"}

std::string short_number(double, int digits = 4);  // 0.0003, 12.5, 12.3k
std::string bytes_number(double);                  // 12.3 MB

}  // namespace ring
