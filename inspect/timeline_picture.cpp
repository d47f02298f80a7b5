#include "inspect/timeline_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/check.h"
#include "inspect/html.h"
#include "inspect/svg.h"

namespace ring {
namespace {

constexpr int kTimelineLeft = 170, kPlotWidth = 940, kTimelineRight = 30,
              kTimelineWidth = kTimelineLeft + kPlotWidth + kTimelineRight;  // in pixels
constexpr int kLine = 20, kBar = 20, kRow = kBar + 3, kBetween = 14;  // heights in pixels; kBetween separates lanes

struct Kind {
  const char *name, *color;
};
constexpr Kind kAttention{"attention", "#2f6fb0"}, kAttentionBackward{"its backward", "#c2602b"},
    kOther{"other kernels", "#8a8a8a"};
constexpr const char* kWaiting = "#b3261e";

Kind kind_of(const TimelineBar& b) {
  switch (b.lane) {
    case TimelineLane::computation:
      return b.name == "attention" ? kAttention : b.name == "attention_backward" ? kAttentionBackward : kOther;
    case TimelineLane::keys: return {"keys under way", "#3d8b5f"};
    case TimelineLane::gradients: return {"gradients under way", "#8e5ea2"};
    case TimelineLane::messages: return {"messages under way", "#2b8a8a"};
  }
  fail("a timeline has no such lane");
}

std::string number(double x, int digits) {
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

// Returns a round number of ms between ticks that gives four to ten ticks.
double tick_ms(double ms) {
  for (double power = std::pow(10, std::floor(std::log10(ms)) - 1);; power *= 10)
    for (const double digit : {1, 2, 5})
      if (ms <= 10 * power * digit) return power * digit;
}

class TimelinePicture {
 public:
  explicit TimelinePicture(const ContextTimeline& t) : timeline_(t) {
    for (const TimelineBar& b : t.bars) seconds_ = std::max(seconds_, b.time.end);
    seconds_ = std::max({seconds_, t.seconds, 1e-9});
  }

  std::string text(const std::string& title, const std::vector<std::string>& lines) {
    std::string head;
    int y = 30;
    head += label(16, y, title, " font-size=\"15\" font-weight=\"bold\"");
    for (const std::string& line : lines) head += label(16, y += kLine, line, "");
    top_ = y + 20, y_ = top_ + kBetween;
    std::string lanes;
    for (const TimelineLane lane :
         {TimelineLane::computation, TimelineLane::keys, TimelineLane::gradients, TimelineLane::messages})
      lanes += draw(lane);
    lanes += waiting();
    // Computed last, since it needs the height of the lanes; drawn below the bars.
    const std::string below = axis() + legend();
    return svg_head(kTimelineWidth, y_ + 66, title) + "<g font-size=\"12\">\n" + head + below + lanes +
           "</g>\n</svg>\n";
  }

 private:
  static std::string label(int x, int y, const std::string& text, const std::string& more) {
    return str("<text x=\"", x, "\" y=\"", y, "\"", more, ">", html_escaped(text), "</text>\n");
  }
  double place(double seconds) const { return kTimelineLeft + kPlotWidth * seconds / seconds_; }

  std::string bar(const TimeSpan& time, int y, const std::string& color, const std::string& what) const {
    const double width = std::max(0.5, place(time.end) - place(time.begin));  // short bars stay visible
    return str("<rect x=\"", number(place(time.begin), 2), "\" y=\"", y, "\" width=\"", number(width, 2),
               "\" height=\"", kBar, "\" fill=\"", color, "\" stroke=\"#fff\" stroke-width=\".4\"><title>",
               html_escaped(what), ": from ", number(1e3 * time.begin, 3), " ms, ",
               number(1e3 * (time.end - time.begin), 3), " ms long</title></rect>\n");
  }

  // Draws a lane; overlapping bars are drawn below each other.
  std::string draw(TimelineLane lane) {
    std::vector<const TimelineBar*> bars;
    for (const TimelineBar& b : timeline_.bars)
      if (b.lane == lane) bars.push_back(&b);
    if (bars.empty()) return "";
    std::stable_sort(bars.begin(), bars.end(),
                     [](const TimelineBar* a, const TimelineBar* b) { return a->time.begin < b->time.begin; });
    const char* name = lane == TimelineLane::computation ? "computation" : kind_of(*bars[0]).name;
    std::string out = label(16, y_ + 14, name, "");
    std::vector<double> ends;  // end of the last bar in each row
    for (const TimelineBar* b : bars) {
      const auto free = std::find_if(ends.begin(), ends.end(), [&](double end) { return end <= b->time.begin; });
      const auto row = static_cast<int>(free - ends.begin());
      if (free == ends.end())
        ends.push_back(b->time.end);
      else
        *free = b->time.end;
      out += bar(b->time, y_ + row * kRow, kind_of(*b).color, str(b->name, ", ", b->detail));
    }
    y_ += static_cast<int>(ends.size()) * kRow + kBetween;
    return out;
  }

  std::string waiting() {
    std::string out = label(16, y_ + 14, "messages, no kernel", "");
    for (const TimeSpan& s : timeline_.waiting()) out += bar(s, y_, kWaiting, "messages under way, no kernel runs");
    y_ += kRow + kBetween;
    return out;
  }

  std::string axis() {
    const double ms = 1e3 * seconds_, tick = tick_ms(ms);
    const int digits = std::max(0, -static_cast<int>(std::floor(std::log10(tick) + 1e-9)));
    std::string lines, texts;
    for (int i = 0; i * tick <= ms; ++i) {
      const std::string x = number(place(1e-3 * i * tick), 2);
      lines += str("<path d=\"M", x, " ", top_, "V", y_ + 5, "\"/>");
      texts +=
          str("<text x=\"", x, "\" y=\"", y_ + 20, "\" text-anchor=\"middle\">", number(i * tick, digits), "</text>\n");
    }
    return str("<g stroke=\"#ddd\" fill=\"none\">", lines, "<path stroke=\"#444\" d=\"M", kTimelineLeft, " ", y_, "h",
               kPlotWidth, "\"/></g>\n", texts, label(16, y_ + 20, "ms", ""));
  }

  std::string legend() const {
    std::string out;
    int x = kTimelineLeft;
    for (const Kind& k : {kAttention, kAttentionBackward, kOther}) {
      out += str("<rect x=\"", x, "\" y=\"", y_ + 36, "\" width=\"14\" height=\"14\" fill=\"", k.color, "\"/>",
                 label(x + 20, y_ + 48, k.name, ""));
      x += 150;
    }
    return out;
  }

  const ContextTimeline& timeline_;
  double seconds_ = 0;
  int top_ = 0, y_ = 0;
};

}  // namespace

std::string timeline_picture(const ContextTimeline& t, const std::string& title,
                             const std::vector<std::string>& lines) {
  return TimelinePicture(t).text(title, lines);
}

}  // namespace ring
