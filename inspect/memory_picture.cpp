#include "inspect/memory_picture.h"

#include <algorithm>
#include <vector>

#include "core/storage.h"
#include "engine/activation_planner.h"
#include "inspect/html.h"
#include "inspect/svg.h"

namespace ring {
namespace {

constexpr int kMemoryLeft = 80, kMemoryTop = 70, kMemoryPlot = 900, kMemoryHeight = 360,
              kMemoryWidth = kMemoryLeft + kMemoryPlot + 30, kMemoryBottom = 180;

constexpr const char* kLasting = "#8a8a8a";
constexpr const char* kPeak = "#e3b68f";
constexpr const char* kHost = "#5b8c8a";
constexpr int kHostTop = kMemoryTop + kMemoryHeight + 24, kHostHeight = 60;  // strip that shows bytes in host memory

struct Way {
  Recompute recompute;
  const char *name, *color;
};
constexpr Way kWays[] = {{Recompute::none, "keeps everything", "#2f6fb0"},
                         {Recompute::attention, "recomputes attention's inputs", "#3d8b5f"},
                         {Recompute::mlp, "recomputes the MLP", "#8e5ea2"},
                         {Recompute::block, "keeps input, attention's output", "#c2602b"},
                         {Recompute::full, "keeps its input", "#7a4a1f"}};

// One part in one pass: bytes in use before it, bytes that it saves, and its peak.
struct Column {
  std::size_t before, kept, peak;
  std::size_t host;  // bytes in host memory during this pass
  const char* color;
  std::string name;
};

const char* color_of(const PlannedStep& p, const ScopeId& part) {
  if (!part.is_repeated()) return kWays[0].color;
  const Recompute r = p.activations.plan.blocks[static_cast<std::size_t>(part.number)].recompute;
  return std::ranges::find(kWays, r, &Way::recompute)->color;
}

// Returns the bytes on the host by part. A part's bytes are on the host only from the end of the next part's forward to
// the start of the next part's backward.
std::vector<std::size_t> on_host(const PlannedStep& p) {
  std::vector<std::size_t> bytes(p.parts.size());
  for (std::size_t i = 2; i < bytes.size(); ++i) bytes[i] = bytes[i - 1] + p.parts[i - 2].host;
  return bytes;
}

std::vector<Column> columns_of(const PlannedStep& p) {
  std::vector<Column> columns;
  const std::vector<std::size_t> host = on_host(p);
  const auto add = [&](std::size_t i, std::size_t before, std::size_t kept, std::size_t peak, const char* pass) {
    const ScopeId part = p.parts[i].part;
    columns.push_back({before, kept, before + peak, host[i], color_of(p, part), str(part, pass)});
  };
  for (std::size_t i = 0; i < p.parts.size(); ++i) {
    const PartMemory& m = p.parts[i];
    if (m.once_peak > 0)
      add(i, m.once_before, 0, m.once_peak, " forward");
    else
      add(i, m.before, m.kept, m.forward_peak, " forward");
  }
  for (std::size_t i = p.parts.size(); i-- > 0;) {
    const PartMemory& m = p.parts[i];
    const bool again = m.once_peak > 0;
    add(i, m.before, m.kept, again ? std::max(m.forward_peak, m.backward_peak) : m.backward_peak,
        again ? " recomputed forward, and backward" : " backward");
  }
  return columns;
}

class MemoryPicture {
 public:
  explicit MemoryPicture(const PlannedStep& p) : p_(p), columns_(columns_of(p)) {
    max_ = std::max(p.peak, p.activations.budget);
  }

  std::string text() {
    out_ = svg_head(kMemoryWidth, kMemoryTop + kMemoryHeight + kMemoryBottom, "memory of a step");
    label(16, 26, str(p_.layout, ": ", bytes_text(p_.peak), " of ", bytes_text(p_.activations.budget)), 15);
    label(16, 44, plan_text(p_.activations.plan), 11);
    const double width = static_cast<double>(kMemoryPlot) / static_cast<double>(columns_.size());
    for (std::size_t i = 0; i < columns_.size(); ++i)
      column(static_cast<double>(kMemoryLeft) + width * static_cast<double>(i), width, columns_[i]);
    host_strip(width);
    line(p_.activations.budget);
    label(kMemoryLeft + kMemoryPlot, y(p_.activations.budget) - 4, "budget " + bytes_text(p_.activations.budget), 11,
          "end");
    line(p_.peak);
    label(kMemoryLeft + 4, y(p_.peak) - 4, "slab and lasting memory " + bytes_text(p_.peak), 11);
    legend();
    return out_ + "</svg>\n";
  }

 private:
  double y(std::size_t bytes) const {
    return kMemoryTop + kMemoryHeight * (1 - static_cast<double>(bytes) / static_cast<double>(max_));
  }
  void rectangle(double x, double width, std::size_t from, std::size_t to, const char* color,
                 const std::string& title) {
    out_ += str("<rect x=\"", x, "\" y=\"", y(to), "\" width=\"", width * 0.94, "\" height=\"", y(from) - y(to),
                "\" fill=\"", color, "\"><title>", html_escaped(title), "</title></rect>\n");
  }
  void column(double x, double width, const Column& c) {
    rectangle(x, width, 0, p_.lasting, kLasting, "weights, gradients, states: " + bytes_text(p_.lasting));
    const std::string facts = str(c.name, ": ", bytes_text(c.kept), " kept, peak ", bytes_text(c.peak));
    rectangle(x, width, c.before, c.peak, kPeak, facts);
    rectangle(x, width, p_.lasting, c.before, "#b9cbe0",
              "kept by earlier parts: " + bytes_text(c.before - std::min(c.before, p_.lasting)));
    rectangle(x, width, c.before, c.before + c.kept, c.color, facts);
  }
  // Draws the bytes on the host, with a separate scale.
  void host_strip(double width) {
    const std::size_t max = std::ranges::max(columns_, {}, &Column::host).host;
    if (!max) return label(kMemoryLeft, kHostTop + 12, "nothing is on the host", 11);
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      const double height = kHostHeight * static_cast<double>(columns_[i].host) / static_cast<double>(max);
      out_ += str(
          "<rect x=\"", kMemoryLeft + width * static_cast<double>(i), "\" y=\"", kHostTop + kHostHeight - height,
          "\" width=\"", width * 0.94, "\" height=\"", height, "\" fill=\"", kHost, "\"><title>",
          html_escaped(str(columns_[i].name, ": ", bytes_text(columns_[i].host), " on the host")), "</title></rect>\n");
    }
    label(kMemoryLeft + 4, kHostTop - 4, str("on the host: up to ", bytes_text(max)), 11);
  }
  void line(std::size_t bytes) {
    out_ += str("<line x1=\"", kMemoryLeft, "\" x2=\"", kMemoryLeft + kMemoryPlot, "\" y1=\"", y(bytes), "\" y2=\"",
                y(bytes), "\" stroke=\"#b3261e\" stroke-dasharray=\"6 4\"/>\n");
  }
  void legend() {
    const double at = kHostTop + kHostHeight + 28;
    label(kMemoryLeft, at - 8, "each part of the model from left to right: forward, then backward", 12);
    for (std::size_t i = 0; i < std::size(kWays); ++i) legend_entry(i, at, kWays[i].color, kWays[i].name);
    legend_entry(std::size(kWays), at, kPeak, "in use while it runs");
  }
  // Draws a legend entry; there are three in a row.
  void legend_entry(std::size_t i, double top, const char* color, const std::string& name) {
    const double x = kMemoryLeft + static_cast<double>(i % 3) * kMemoryPlot / 3,
                 at = top + 12 + 20 * static_cast<double>(i / 3);
    out_ += str("<rect x=\"", x, "\" y=\"", at, "\" width=\"12\" height=\"12\" fill=\"", color, "\"/>\n");
    label(x + 16, at + 10, name, 11);
  }
  void label(double x, double at, const std::string& text, int size, const char* anchor = "start") {
    out_ += str("<text x=\"", x, "\" y=\"", at, "\" font-size=\"", size, "\" text-anchor=\"", anchor, "\">",
                html_escaped(text), "</text>\n");
  }

  const PlannedStep& p_;
  std::vector<Column> columns_;
  std::size_t max_;
  std::string out_;
};

}  // namespace

std::string memory_picture(const PlannedStep& p) { return MemoryPicture(p).text(); }

}  // namespace ring
