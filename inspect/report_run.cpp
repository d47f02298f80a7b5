#include "inspect/report_run.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/fields.h"
#include "inspect/attention_cost.h"
#include "model/attention/kinds.h"
#include "model/flops.h"
#include "model/patterns.h"
#include "trainer/metrics.h"

namespace ring {
namespace {

constexpr double kPeakOfHopper = 989e12;  // dense bf16 FLOP/s of an H100 (SXM) or H200, from the data sheet

std::string rounded(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%.4g", v);
  return text;
}

// Returns the peak FLOP/s of the device with this name; 0 if unknown.
double peak_of(const std::string& device) {
  const bool slower = device.find("PCIe") != std::string::npos || device.find("NVL") != std::string::npos;
  const bool hopper = device.find("H100") != std::string::npos || device.find("H200") != std::string::npos;
  return hopper && !slower ? kPeakOfHopper : 0;
}

class Reader {
 public:
  Reader(ReportRun& run, double peak_flops) : run_(run), given_peak_(peak_flops) {}

  void add(const Record& r) {
    if (r.group == "start") add_start(r);
    if (r.group == "train") add_step(r);
    if (r.group == "validation") point(r, "loss"), point(r, "ema_loss");
    if (r.group == kPartNorms || r.group == kUpdateRatios || r.group == kEntropies || r.group == kDensities ||
        r.group == kRecalls || r.group == kImbalances)
      add_parts(r);
    if (r.group == "checkpoint" && !r.find("error")) point(r, "seconds");
    if (r.group == "job") add_job(r);
    if (r.group == "train" || r.group == "validation") add_sources(r);
    add_event(r);
  }

 private:
  void point(const Record& r, const char* name) {
    if (const auto y = r.number(name)) run_.curves[r.group + "/" + name].push_back({static_cast<double>(r.step), *y});
  }
  void share(const Record& r, const char* name, const char* of, const char* as) {
    const auto part = r.number(name), all = r.number(of);
    if (part && all && *all > 0)
      run_.curves[std::string("train/") + as].push_back({static_cast<double>(r.step), *part / *all});
  }
  void add_step(const Record& r) {
    for (const char* name : {"loss", "grad_norm", "lr", "tokens", "tokens_per_second", "step_ms", "memory_peak",
                             "memory_in_use", "gpu_watts", "gpu_utilization", "gpu_sm_mhz", "gpu_celsius"})
      point(r, name);
    share(r, "data_ms", "step_ms", "data_share");
    share(r, "exchange_ms", "step_ms", "exchange_share");
    const auto flops = r.number("flops_per_second");
    if (flops && run_.peak_flops > 0)
      run_.curves["train/mfu"].push_back({static_cast<double>(r.step), *flops / run_.peak_flops});
  }
  void add_parts(const Record& r) {
    for (const auto& [name, value] : r.values) point(r, name.c_str());
  }
  void add_sources(const Record& r) {
    for (const auto& [name, value] : r.values)
      if (name.starts_with(kSourceLoss)) point(r, name.c_str());
  }
  void add_start(const Record& r) {
    const double one = given_peak_ > 0 ? given_peak_ : peak_of(r.text("device_name"));
    run_.peak_flops = one * std::max(1.0, r.number("processes").value_or(1));
  }
  void add_job(const Record& r) {
    run_.seconds = r.number("seconds").value_or(0);
    run_.restart_seconds = r.number("restart_seconds_lost").value_or(0);
    run_.save_seconds = r.number("save_seconds_lost").value_or(0);
    run_.bad_step_seconds = r.number("bad_step_seconds_lost").value_or(0);
  }

  void event(const Record& r, const std::string& text, bool mark) {
    run_.events.push_back({static_cast<double>(r.step), text, mark});
  }
  void add_event(const Record& r) {
    const auto number = [&](const char* name) { return rounded(r.number(name).value_or(0)); };
    if (r.group == "start" && r.step > 0) event(r, "resumed", true);
    if (r.group == "restart")
      event(r, str("restart ", number("restarts"), ", ", number("seconds_lost"), " s lost so far"), true);
    if (r.group == "bad_step") event(r, "a bad step was skipped; its loss was " + number("loss"), true);
    if (r.group == "memory") event(r, "memory ran out: " + r.text("why"), true);
    if (r.group == "slow_rank") event(r, "rank " + number("rank") + " is slow: " + r.text("what"), false);
    if (r.group == "slow_gpu")
      event(r,
            str("rank ", number("rank"), ": GPU ", r.text("gpu"), " became slow, at ", number("sm_mhz"),
                " MHz instead of ", number("usual_sm_mhz"),
                r.text("reason").empty() ? "" : ", lowered by " + r.text("reason")),
            true);
    if (r.group == "checkpoint" && r.find("error")) event(r, "the checkpoint was not saved: " + r.text("error"), false);
    if (r.group == "job" && r.text("end") == kEndFailed) event(r, "failed: " + r.text("error"), true);
    if (r.group == "train") add_loss_event(r);
  }
  // Adds an event for the first of several consecutive non-finite losses.
  void add_loss_event(const Record& r) {
    const auto loss = r.number("loss");
    const bool bad = loss && !std::isfinite(*loss);
    if (bad && !bad_) event(r, "the loss is " + rounded(*loss), true);
    bad_ = bad;
  }

  ReportRun& run_;
  double given_peak_;
  bool bad_ = false;
};

std::string layers_text(const std::vector<std::int64_t>& layers) {
  std::string text;
  for (std::size_t i = 0, end = 0; i < layers.size(); i = end) {
    for (end = i + 1; end < layers.size() && layers[end] == layers[end - 1] + 1;) ++end;
    text += str(i ? ", " : "", layers[i], end > i + 1 ? str("-", layers[end - 1]) : "");
  }
  return (layers.size() == 1 ? "layer " : "layers ") + text;
}

std::vector<std::string> attention_lines(const ModelConfig& model) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> kinds;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const bool attends = mixer_of(model, layer) == Mixer::attention;
    const std::string text = attends ? text_of(attention_of(model, layer)) : "gated delta net";
    auto at = std::ranges::find(kinds, text, [](const auto& k) { return k.first; });
    if (at == kinds.end()) at = kinds.insert(at, {text, {}});
    at->second.push_back(layer);
  }
  std::vector<std::string> lines;
  for (const auto& [text, layers] : kinds) lines.push_back(layers_text(layers) + ": " + text);
  const double dense = static_cast<double>(model.layers) * causal_pairs(model.context);
  lines.push_back(str("all layers compute ", rounded(100 * attention_pairs(model) / dense),
                      " % of the pairs of dense causal attention over ", model.context, " tokens"));
  return lines;
}

void take_settings(const Config& config, ReportRun& run) {
  run.settings = to_yaml(config);
  run.model = config.model.resolved();
  run.attention = attention_lines(*run.model);
}

void sort_curves(ReportRun& run) {
  for (auto& [name, curve] : run.curves) std::ranges::stable_sort(curve, {}, &CurvePoint::x);
}

}  // namespace

const Curve* curve_of(const ReportRun& run, const std::string& name) {
  const auto at = run.curves.find(name);
  return at == run.curves.end() || at->second.empty() ? nullptr : &at->second;
}

ReportRun read_report_run(const std::string& path, double peak_flops) {
  ReportRun run;
  Reader reader(run, peak_flops);
  run.summary = summarize_run(
      path, {[&](const Config& config) { take_settings(config, run); }, [&](const Record& r) { reader.add(r); }});
  sort_curves(run);
  return run;
}

}  // namespace ring
