#include "inspect/report.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/check.h"
#include "core/counted.h"
#include "inspect/chart.h"
#include "inspect/html.h"
#include "inspect/report_attention.h"
#include "inspect/report_parts.h"
#include "inspect/report_run.h"
#include "inspect/report_style.h"
#include "inspect/report_times.h"
#include "trainer/metrics.h"
#include "trainer/progress.h"
#include "trainer/run_compare.h"

namespace ring {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr std::size_t kMaxEvents = 200;  // maximum number of listed events
constexpr const char* kNone = "-";

std::string percent_number(double share) { return formatted("%.4g", 100 * share) + " %"; }

std::string or_none(std::optional<double> v, std::string (*text)(double)) { return v ? text(*v) : kNone; }

enum class Values { plain, share, bytes };

// Shows shares as percentages, and bytes in the unit of the largest value.
void set_unit(Chart& c, Values values) {
  if (values == Values::share) c.scale = 100, c.suffix = " %";
  if (values != Values::bytes) return;
  double max = 0;
  for (const ChartLine& line : c.lines)
    for (const CurvePoint& p : line.curve)
      if (std::isfinite(p.y)) max = std::max(max, p.y);
  const ByteUnit unit = byte_unit(max);
  c.scale = unit.scale, c.suffix = unit.suffix;
}

// Returns radio buttons, of which number `on` is selected. The style sheet shows the chosen content, without a script.
std::string choice(const char* title, const char* name, const std::vector<std::string>& texts, std::size_t on) {
  std::string out = str("<span><b>", title, "</b> ");
  for (std::size_t i = 0; i < texts.size(); ++i)
    out += str("<label><input type=\"radio\" name=\"", name, "\" id=\"", name, i, "\"",
               i == on ? " checked=\"checked\"" : "", "/> ", texts[i], "</label> ");
  return out + "</span>\n";
}

std::string choices() {
  std::vector<std::string> weights = {"none"};
  for (std::size_t i = 1; i < std::size(kSmoothing); ++i) weights.push_back(formatted("%g", kSmoothing[i]));
  return "<div class=\"choices\">\n" + choice("Axes of losses", "axes", {"linear", "log loss", "both log"}, 0) +
         choice("Smoothing", "smooth", weights, 1) + "</div>\n";
}

class Page {
 public:
  // whole: true to include the sections that are slow to make and do not change during a run: pictures of attention,
  // and samples.
  Page(std::span<const ReportRun> runs, bool whole) : runs_(runs), whole_(whole) {}

  std::string title() const { return runs_.size() == 1 ? "Run " + runs_[0].summary.name : counted(count(), "run"); }
  std::string body() const {
    return str("<h1>", html_escaped(title()), "</h1>\n", runs_table(), notes(), charts(), times_html(runs_), events(),
               settings(), attention(), samples());
  }

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(runs_.size()); }

  std::string runs_table() const {
    Rows rows = {{"run", "status", "device", "parameters", "step", "loss", "best validation", "tokens/s", "MFU",
                  "goodput", "restarts", "peak memory"}};
    std::vector<std::string> colors;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      rows.push_back(row_of(runs_[i]));
      colors.push_back(color_swatch(i));
    }
    return html_table(rows, 3, colors, true) +
           html_note(
               "MFU: share of the devices' peak FLOP/s that the model's arithmetic uses. Goodput: share of the last "
               "job's time that was not lost to restarts, saves and bad steps.");
  }
  static std::vector<std::string> row_of(const ReportRun& run) {
    const RunSummary& s = run.summary;
    const auto loss = [](double v) { return formatted("%.4f", v); };
    const std::string device = s.processes > 1 ? str(s.processes, " x ", s.device, ", ", s.layout) : s.device;
    return {s.name,
            s.status,
            device.empty() ? kNone : device,
            s.parameters ? format_count(static_cast<double>(s.parameters)) : kNone,
            s.steps ? str(s.step, " of ", s.steps) : str(s.step),
            or_none(s.loss, loss),
            or_none(s.validation_loss, loss),
            or_none(s.tokens_per_second, format_count),
            or_none(latest_value(run, "train/mfu"), percent_number),
            or_none(s.goodput, percent_number),
            str(s.restarts),
            or_none(s.memory_peak, bytes_number)};
  }
  std::string notes() const {
    std::string out;
    for (const ReportRun& run : runs_)
      if (!run.summary.note.empty()) out += html_note(run.summary.name + ": " + run.summary.note);
    return out;
  }

  // Returns a chart with a line for each run that has the curve. If there are several curves, all except the first are
  // dashed.
  Chart chart(const char* title, const char* unit, const std::vector<std::string>& curves,
              Values values = Values::plain) const {
    Chart c{.title = title, .unit = unit};
    for (std::size_t i = 0; i < runs_.size(); ++i)
      for (const std::string& name : curves) {
        const auto curve = runs_[i].curves.find(name);
        if (curve == runs_[i].curves.end()) continue;
        c.lines.push_back({runs_[i].summary.name, i, curve->second, name != curves[0]});
        if (name != curves[0]) c.lines.back().name += ", " + name.substr(name.find('/') + 1);
      }
    set_unit(c, values);
    for (std::size_t i = 0; i < runs_.size(); ++i)
      for (const ReportEvent& e : runs_[i].events)
        if (e.mark && c.marks.size() < kMaxEvents)
          c.marks.push_back({e.step, str(runs_[i].summary.name, ", step ", e.step, ": ", e.text), i});
    return c;
  }
  std::string losses() const {
    Chart train = chart("Training loss", "nats per token", {"train/loss"});
    train.smooths = train.logs = true;
    Chart validation = chart("Validation loss", "nats per token", {"validation/loss", "validation/ema_loss"});
    validation.logs = true;
    for (ChartLine& line : validation.lines) line.points = line.curve.size() <= 100;
    Chart norm = chart("Gradient norm", "before clipping", {"train/grad_norm"});
    norm.smooths = norm.logs = true;
    return chart_html(train) + chart_html(validation) + chart_html(norm) +
           by_layers("Gradient norm", "", kPartNorms, Together::root_of_squares) +
           by_layers("Update over weights", "ratio of norms", kUpdateRatios, Together::mean) +
           by_layers("Entropy of attention", "nats", kEntropies, Together::mean) +
           by_layers("Attention that blocks keep", "share of dense attention", kRecalls, Together::mean) +
           by_layers("Density of attention", "share of the pairs", kDensities, Together::mean) +
           by_layers("Imbalance of attention", "busiest rank's pairs over the mean", kImbalances, Together::mean);
  }
  std::string by_layers(const std::string& what, const char* unit, const char* group, Together how) const {
    std::string out;
    for (const ReportRun& run : runs_) {
      const std::string of = runs_.size() > 1 ? " of " + run.summary.name : "";
      Chart c{.title = what + " by layers" + of, .unit = unit, .lines = part_lines(run, group, how)};
      c.smooths = c.logs = c.legend = true;
      out += chart_html(c);
    }
    return out;
  }
  // Draws one chart for each run that trains on a mixture.
  std::string losses_by_source() const {
    std::string out;
    for (const ReportRun& run : runs_)
      for (const char* group : {"train", "validation"}) {
        const std::string prefix = str(group, "/", kSourceLoss), of = runs_.size() > 1 ? " of " + run.summary.name : "";
        Chart c{.title = prefix[0] == 't' ? "Training loss by corpus" + of : "Validation loss by corpus" + of,
                .unit = "nats per token"};
        for (auto at = run.curves.lower_bound(prefix); at != run.curves.end() && at->first.starts_with(prefix); ++at)
          c.lines.push_back({at->first.substr(prefix.size()), c.lines.size(), at->second});
        c.logs = c.legend = true;
        c.smooths = prefix[0] == 't';
        for (ChartLine& line : c.lines) line.points = !c.smooths && line.curve.size() <= 100;
        out += chart_html(c);
      }
    return out;
  }
  std::string rates() const {
    Chart speed = chart("Throughput", "tokens per second", {"train/tokens_per_second"});
    Chart mfu = chart("MFU", "share of the devices' peak", {"train/mfu"}, Values::share);
    Chart step = chart("Time of a step", "ms", {"train/step_ms"});
    Chart data = chart("Waiting for data", "share of a step", {"train/data_share"}, Values::share);
    speed.smooths = mfu.smooths = step.smooths = data.smooths = true;
    speed.from_zero = mfu.from_zero = step.from_zero = data.from_zero = true;
    return chart_html(chart("Learning rate", "", {"train/lr"})) + chart_html(speed) + chart_html(mfu) +
           chart_html(step) + chart_html(data) + exchange();
  }
  // Draws the GPU sensors; empty if all runs are on CPUs.
  std::string sensors() const {
    const Chart power = chart("GPU power", "W, rank 0", {"train/gpu_watts"});
    const Chart used =
        chart("GPU utilization", "share of time with a kernel, rank 0", {"train/gpu_utilization"}, Values::share);
    const Chart clock = chart("GPU clock", "MHz of the multiprocessors (SM), rank 0", {"train/gpu_sm_mhz"});
    const Chart heat = chart("GPU temperature", "\u00b0C, rank 0", {"train/gpu_celsius"});
    return chart_html(power) + chart_html(used) + chart_html(clock) + chart_html(heat);
  }
  // Draws the share of the exchange, only for runs with several processes.
  std::string exchange() const {
    Chart c = chart("Waiting for gradients", "share of a step", {"train/exchange_share"}, Values::share);
    std::erase_if(c.lines, [&](const ChartLine& line) { return runs_[line.color].summary.processes < 2; });
    c.smooths = c.from_zero = true;
    return chart_html(c);
  }
  std::string charts() const {
    Chart memory = chart("Memory", "on rank 0; dashed: between steps", {"train/memory_peak", "train/memory_in_use"},
                         Values::bytes);
    memory.from_zero = true;
    const std::string all = losses() + losses_by_source() + rates() + chart_html(memory) + sensors();
    if (all.empty()) return html_heading("Curves") + html_note("There are no recorded values to draw.");
    return str(html_heading("Curves"), legend(), choices(), "<div class=\"charts\">\n", all, "</div>\n", marks_text());
  }
  std::string legend() const {
    if (runs_.size() == 1) return "";
    std::string out = "<div class=\"legend\">";
    for (std::size_t i = 0; i < runs_.size(); ++i)
      out += "<span>" + color_swatch(i) + html_escaped(runs_[i].summary.name) + "</span> ";
    return out + "</div>\n";
  }
  std::string marks_text() const {
    const bool any = std::ranges::any_of(
        runs_, [](const ReportRun& r) { return std::ranges::any_of(r.events, &ReportEvent::mark); });
    std::string out = any ? html_note("Dotted vertical lines mark events of a run, which are listed below.") : "";
    for (const ReportRun& run : runs_)
      if (run.curves.contains("train/loss") && !run.curves.contains("train/mfu"))
        return out + html_note("There is no MFU if a device's peak is not known. Set it with --peak-tflops.");
    return out;
  }

  std::string events() const {
    Rows rows = {{"run", "step", "event"}};
    std::size_t all = 0;
    for (const ReportRun& r : runs_)
      for (const ReportEvent& e : r.events)
        if (++all <= kMaxEvents) rows.push_back({r.summary.name, formatted("%.0f", e.step), e.text});
    if (all == 0)
      return html_heading("Restarts and recoveries") + html_note("There were no restarts and no bad steps.");
    return html_heading("Restarts and recoveries") + html_table(rows, 3) +
           (all > kMaxEvents ? html_note(str(all - kMaxEvents, " more are in metrics.jsonl.")) : "");
  }

  std::string settings() const {
    std::vector<std::string> paths;
    for (const ReportRun& r : runs_) paths.push_back(r.summary.path);
    std::string out = html_heading("Settings");
    if (runs_.size() > 1) out += differences(differing_settings(paths));
    for (const ReportRun& r : runs_)
      if (!r.settings.empty())
        out += str("<details><summary>All settings of ", html_escaped(r.summary.name), "</summary><pre>",
                   html_escaped(r.settings), "</pre></details>\n");
    return out;
  }
  std::string differences(const std::vector<DifferingSetting>& settings) const {
    if (settings.empty()) return html_note("The runs have the same settings.");
    Rows rows = {{"setting"}};
    for (const ReportRun& r : runs_) rows[0].push_back(r.summary.name);
    for (const DifferingSetting& s : settings) {
      rows.push_back({s.key});
      rows.back().insert(rows.back().end(), s.values.begin(), s.values.end());
    }
    return html_table(rows, rows[0].size());
  }

  std::string attention() const {
    Rows rows = {{"run", "attention"}};
    for (const ReportRun& r : runs_)
      for (const std::string& line : r.attention)
        rows.push_back({&line == &r.attention[0] ? r.summary.name : "", line});
    if (rows.size() == 1) return "";
    std::string out = html_heading("Attention") + html_table(rows, 2);
    for (const ReportRun& r : runs_)
      if (const std::string svg = whole_ && r.model ? attention_pictures(*r.model) : ""; !svg.empty())
        out += str("<details><summary>Pattern of ", html_escaped(r.summary.name), "</summary><div class=\"picture\">",
                   svg, "</div></details>\n");
    return out;
  }

  std::string samples() const {
    if (!whole_) return "";
    std::string out;
    for (const ReportRun& r : runs_) out += samples_html(r.summary.name, r.samples);
    if (out.empty()) out = html_note("--sample TEXT shows how each remaining checkpoint of a run continues a text.");
    return html_heading("Samples") + out;
  }

  std::span<const ReportRun> runs_;
  bool whole_;
};

}  // namespace

std::string report_page(const std::vector<std::string>& runs, const ReportOptions& options) {
  std::vector<ReportRun> all;
  for (const std::string& run : runs) {
    all.push_back(read_report_run(run, options.peak_flops));
    all.back().samples = checkpoint_samples(all.back().summary.path, options.samples);
  }
  const Page page(all, true);
  return html_page({page.title(), kReportStyle, page.body(), kReportScript});
}

std::string report_body(const ReportRun& run) { return Page({&run, 1}, false).body(); }

}  // namespace ring
