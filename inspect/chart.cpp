#include "inspect/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "core/check.h"
#include "inspect/html.h"

namespace ring {
namespace {

constexpr double kWidth = 520, kHeight = 300, kRight = 12, kTop = 14, kBottom = 46;
constexpr double kMinLeft = 76, kGap = 7;  // minimum space left of the axis; gap between labels and axis
constexpr double kDigit = 10.8;            // width of a character on a narrow screen, where the font size is 18 units
constexpr std::size_t kLongLabel = 8;      // if a label has at least this many characters, scientific notation is tried
constexpr int kMaxDigits = 15;             // number of significant digits that a double holds

std::string place(double x) { return formatted("%.2f", x); }

struct Axis {
  // low, high: values at the two ends of the axis. begin, end: pixel positions of the ends.
  double low = 0, high = 1, begin = 0, end = 1;
  bool log = false;

  double at(double v) const {
    const double t = log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
    return begin + (end - begin) * t;
  }
  bool shows(double v) const { return std::isfinite(v) && (!log || v > 0); }
};

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double v) { low = std::min(low, v), high = std::max(high, v); }
  bool empty() const { return low > high; }
};

// Returns an axis with some padding around the range; a range with a single value is widened.
Axis axis_of(Range r, double begin, double end, bool log, double room) {
  if (log) {
    const double ratio = std::max(std::pow(r.high / r.low, room), r.high > r.low ? 1.0 : 1.1);
    return {r.low / ratio, r.high * ratio, begin, end, true};
  }
  double more = room * (r.high - r.low);
  if (r.high == r.low) more = r.low == 0 ? 1 : 0.1 * std::abs(r.low);
  return {r.low - more, r.high + more, begin, end, false};
}

std::size_t longest(const std::vector<std::string>& texts) {
  std::size_t max = 0;
  for (const std::string& text : texts) max = std::max(max, text.size());
  return max;
}

struct AxisLabels {
  std::vector<double> ticks;
  std::vector<std::string> texts;
  double width() const {  // returns the width of the longest label
    return kDigit * static_cast<double>(longest(texts));
  }
};

// Returns the labels of an axis whose values are multiplied by `scale`.
AxisLabels labels_of(const Axis& a, double scale, const std::string& suffix, int count) {
  AxisLabels labels{axis_ticks(a.low, a.high, a.log, count), {}};
  std::vector<double> shown;
  for (const double v : labels.ticks) shown.push_back(v * scale);
  labels.texts = tick_labels(shown);
  for (std::string& text : labels.texts) text += suffix;
  return labels;
}

// One chart with one combination of linear or logarithmic axes.
class Plot {
 public:
  Plot(const Chart& chart, bool log_x, bool log_y) : chart_(chart) {
    Range xs, ys;
    for (const ChartLine& line : chart.lines)
      for (const CurvePoint& p : line.curve) {
        if (!std::isfinite(p.y) || (log_x && p.x <= 0) || (log_y && p.y <= 0)) continue;
        xs.add(p.x);
        ys.add(p.y);
      }
    empty_ = xs.empty();
    if (empty_) return;
    if (chart.from_zero && !log_y) ys.add(0);
    y_ = axis_of(ys, kHeight - kBottom, kTop, log_y, 0.05);
    if (chart.from_zero && !log_y) y_.low = 0;
    y_labels_ = labels_of(y_, chart.scale, chart.suffix, 5);
    x_ = axis_of(xs, std::max(kMinLeft, y_labels_.width() + kGap), kWidth - kRight, log_x, 0);
    for (int count = 5; count >= 1; --count) {
      x_labels_ = labels_of(x_, 1, "", count);
      if (x_labels_.width() * static_cast<double>(x_labels_.ticks.size()) <= x_.end - x_.begin) break;
    }
  }

  bool empty() const { return empty_; }

  std::string svg(const char* name) const {
    if (empty_)
      return str("<g class=\"", name, "\"><text x=\"", kWidth / 2, "\" y=\"", kHeight / 2,
                 "\" text-anchor=\"middle\">no value above 0</text></g>\n");
    std::string out = str("<g class=\"", name, "\" data-x=\"", ends(x_), "\" data-y=\"", ends(y_), "\" data-left=\"",
                          place(x_.begin), "\">\n", grid());
    for (const ChartMark& m : chart_.marks) out += mark(m);
    for (const ChartLine& line : chart_.lines) out += drawn(line);
    return out + "</g>\n";
  }

 private:
  // Returns an axis's lowest value, highest value and kind for the script, which converts positions back to values.
  static std::string ends(const Axis& a) {
    return str(formatted("%.9g", a.low), " ", formatted("%.9g", a.high), " ", a.log ? "log" : "linear");
  }

  std::string grid() const {
    std::string lines, texts;
    for (std::size_t i = 0; i < y_labels_.ticks.size(); ++i) {
      const double y = y_.at(y_labels_.ticks[i]);
      lines += "M" + place(x_.begin) + " " + place(y) + "H" + place(kWidth - kRight);
      texts += str("<text x=\"", place(x_.begin - kGap), "\" y=\"", place(y + 4), "\" text-anchor=\"end\">",
                   html_escaped(y_labels_.texts[i]), "</text>");
    }
    for (std::size_t i = 0; i < x_labels_.ticks.size(); ++i)
      texts += x_label(x_.at(x_labels_.ticks[i]), x_labels_.texts[i]);
    return str("<path class=\"grid\" d=\"", lines, "\"/>", texts, "<path class=\"axis\" d=\"M", place(x_.begin), " ",
               kHeight - kBottom, "H", kWidth - kRight, "\"/>\n");
  }
  // Keeps labels at the right end inside the picture.
  static std::string x_label(double x, const std::string& text) {
    return str("<text x=\"", place(x), "\" y=\"", kHeight - kBottom + 19, "\" text-anchor=\"",
               x > kWidth - 40 ? "end" : "middle", "\">", html_escaped(text), "</text>");
  }
  std::string mark(const ChartMark& m) const {
    if (!x_.shows(m.x) || m.x < x_.low || m.x > x_.high) return "";
    const std::string x = place(x_.at(m.x));
    return str("<path class=\"mark c", m.color % kColors, "\" d=\"M", x, " ", kTop, "V", kHeight - kBottom,
               "\"><title>", html_escaped(m.text), "</title></path>\n");
  }

  std::string path(const Curve& curve, const std::string& name, const ChartLine& line) const {
    std::string d;
    bool open = false;
    for (const CurvePoint& p : curve) {
      const bool shown = x_.shows(p.x) && y_.shows(p.y);
      if (shown) d += (open ? "L" : "M") + place(x_.at(p.x)) + " " + place(y_.at(p.y));
      open = shown;
    }
    return str("<path class=\"line c", line.color % kColors, name,
               line.dashed || line.color >= kColors ? " dashed" : "", line.points ? " points" : "", "\" d=\"", d,
               "\" data-name=\"", html_escaped(line.name), "\"/>\n");
  }
  std::string drawn(const ChartLine& line) const {
    std::string out = path(thinned(line.curve), chart_.smooths ? " raw" : "", line);
    if (chart_.smooths)
      for (std::size_t i = 1; i < std::size(kSmoothing); ++i)
        out += path(thinned(smoothed(line.curve, kSmoothing[i])), str(" s", i), line);
    return out + (line.points ? dots(line) : "");
  }
  std::string dots(const ChartLine& line) const {
    std::string d;
    const auto round = thinned(line.curve, 100);
    for (const CurvePoint& p : round)
      if (x_.shows(p.x) && y_.shows(p.y)) d += "M" + place(x_.at(p.x)) + " " + place(y_.at(p.y)) + "h0";
    return str("<path class=\"dots c", line.color % kColors, "\" d=\"", d, "\"/>\n");
  }

  const Chart& chart_;
  Axis x_, y_;
  AxisLabels x_labels_, y_labels_;
  bool empty_ = true;
};

std::vector<double> round_numbers(double low, double high, int count) {
  const double raw = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double round : {5.0, 2.0, 1.0})
    if (raw <= round * power * 1.0001) step = round * power;
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step && ticks.size() < 50; ++i)
    ticks.push_back(i == 0 ? 0 : i * step);
  return ticks;
}

std::string legend_of(const Chart& chart) {
  if (!chart.legend) return "";
  std::string out;
  for (const ChartLine& line : chart.lines)
    out += "<span>" + color_swatch(line.color) + html_escaped(line.name) + "</span> ";
  return "<div class=\"legend\">" + out + "</div>\n";
}

}  // namespace

std::vector<double> axis_ticks(double low, double high, bool log, int count) {
  if (!(high > low) || !std::isfinite(high - low)) return {};
  if (!log) return round_numbers(low, high, count);
  const auto of = [&](std::initializer_list<double> digits) {
    std::vector<double> ticks;
    for (double e = std::floor(std::log10(low)); e <= std::log10(high); ++e)
      for (const double digit : digits)
        if (const double v = digit * std::pow(10, e); v >= low && v <= high) ticks.push_back(v);
    return ticks;
  };
  for (const auto& ticks : {of({1}), of({1, 2, 5})})
    if (ticks.size() >= 3 && ticks.size() <= 8) return ticks;
  return of({1}).size() > 8 ? of({1}) : round_numbers(low, high, count);
}

namespace {

// Returns e.g. "9.9992e-4".
std::string scientific(double v, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*e", digits - 1, v);
  const std::string number = text;
  const std::size_t e = number.find('e');
  if (v == 0 || e == std::string::npos) return v == 0 ? "0" : number;
  std::string mantissa = number.substr(0, e);
  if (mantissa.find('.') != std::string::npos) mantissa.erase(mantissa.find_last_not_of('0') + 1);
  if (mantissa.ends_with('.')) mantissa.pop_back();
  return str(mantissa, "e", std::atoi(number.c_str() + e + 1));
}

bool all_differ(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  return std::ranges::adjacent_find(texts) == texts.end();
}

// Writes all values with the same number of digits: `digits`, or as many more as are needed to distinguish the values.
std::vector<std::string> written(const std::vector<double>& values, int digits, std::string (*text)(double, int)) {
  std::vector<std::string> texts;
  for (;; ++digits) {
    texts.clear();
    for (const double v : values) texts.push_back(text(v, digits));
    if (digits >= kMaxDigits || all_differ(texts)) return texts;
  }
}

}  // namespace

std::vector<std::string> tick_labels(const std::vector<double>& ticks, int digits) {
  std::vector<std::string> plain = written(ticks, digits, short_number);
  if (longest(plain) < kLongLabel) return plain;
  std::vector<std::string> powers = written(ticks, digits, scientific);
  return longest(powers) < longest(plain) ? powers : plain;
}

std::string color_swatch(std::size_t color) {
  return str("<svg class=\"swatch\" viewBox=\"0 0 18 10\" aria-hidden=\"true\"><path class=\"line c", color % kColors,
             color >= kColors ? " dashed" : "", "\" d=\"M0 5H18\"/></svg> ");
}

std::string chart_html(const Chart& chart) {
  const Plot linear(chart, false, false);
  if (linear.empty()) return "";
  std::string body = linear.svg(chart.logs ? "linear" : "only");
  if (chart.logs) body += Plot(chart, false, true).svg("logy") + Plot(chart, true, true).svg("logxy");
  const std::string title = html_escaped(chart.title), unit = html_escaped(chart.unit);
  return str("<figure><figcaption>", title, unit.empty() ? "" : " <small>" + unit + "</small>", "</figcaption>\n",
             legend_of(chart), "<svg class=\"plot\" data-scale=\"", chart.scale, "\" data-suffix=\"",
             html_escaped(chart.suffix), "\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", kHeight,
             "\" role=\"img\" aria-label=\"", title, " by step\">\n", body, "<text x=\"", kWidth - kRight, "\" y=\"",
             kHeight - 6, "\" text-anchor=\"end\">step</text></svg></figure>\n");
}

std::string formatted(const char* format, double value) {
  char text[400];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string short_number(double v, int digits) {
  if (v == 0) return "0";
  const double size = std::abs(v);
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  int unit = 0;
  double shown = v;
  for (; size >= 1e4 && std::abs(shown) >= 1e3 && unit < 5; ++unit) shown /= 1e3;
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, shown);
  if (unit == 0 && std::strchr(text, 'e')) return scientific(v, digits);
  return std::string(text) + kUnits[unit];
}

ByteUnit byte_unit(double bytes) {
  constexpr ByteUnit kUnits[] = {{1, " B"}, {1e-3, " kB"}, {1e-6, " MB"}, {1e-9, " GB"}, {1e-12, " TB"}};
  std::size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && std::abs(bytes * kUnits[unit].scale) >= 1000) ++unit;
  return kUnits[unit];
}

std::string bytes_number(double v) {
  const ByteUnit unit = byte_unit(v);
  return formatted("%.3g", v * unit.scale) + unit.suffix;
}

}  // namespace ring
