#include "inspect/open_metrics.h"

#include <charconv>
#include <cmath>

#include "core/check.h"
#include "text/utf8.h"

namespace ring {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

// Escapes text for a quoted label; invalid UTF-8 becomes U+FFFD.
std::string label_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t n = utf8::valid_length(text);
    if (n == 0)
      utf8::append(out, utf8::kReplacement);
    else if (text[0] == '\n')
      out += "\\n";
    else
      out.append(text[0] == '"' || text[0] == '\\' ? "\\" : "").append(text.substr(0, n));
    text.remove_prefix(n ? n : 1);
  }
  return out;
}

std::string number_text(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v > 0 ? "+Inf" : "-Inf";
  char text[40];
  return {text, std::to_chars(text, text + sizeof text, v).ptr};
}

class Writer {
 public:
  explicit Writer(bool openmetrics) : openmetrics_(openmetrics) {}

  // Begins a metric; following samples belong to it until the next metric begins.
  void gauge(const std::string& name, const char* help) { begin(name, name, "gauge", help); }
  void counter(const std::string& name, const char* help) {
    // In OpenMetrics the head omits "_total".
    begin(name + "_total", openmetrics_ ? name : name + "_total", "counter", help);
  }
  void sample(double value, const Labels& labels = {}) {
    if (!head_.empty()) out_ += std::exchange(head_, "");
    std::string text;
    for (const auto& [key, label] : labels) text += str(text.empty() ? "" : ",", key, "=\"", label_text(label), "\"");
    out_ += str(sample_, text.empty() ? "" : "{" + text + "}", " ", number_text(value), "\n");
  }
  std::string text() const { return out_ + (openmetrics_ ? "# EOF\n" : ""); }

 private:
  // Begins a metric. Its head (the HELP and TYPE lines) is written with its first sample, so a metric without samples
  // is not written.
  void begin(const std::string& sample, const std::string& family, const char* type, const char* help) {
    sample_ = sample;
    head_ = str("# HELP ", family, " ", help, "\n# TYPE ", family, " ", type, "\n");
  }

  bool openmetrics_;
  std::string out_, head_, sample_;
};

void write_job(const JobView& job, Writer& w) {
  w.counter("ringmaster_restarts", "Restarts of all workers, and replacements of lost ones, by the launcher");
  w.sample(job.attempt);
  w.gauge("ringmaster_processes", "Workers of the job on all nodes");
  if (job.world) w.sample(*job.world);
  if (!job.time.begin_ms) return;
  w.gauge("ringmaster_job_seconds", "Time since the job began");
  w.sample(job.time.seconds());
  w.gauge("ringmaster_goodput_ratio", "Share of the job's time that was not lost");
  w.sample(job.time.goodput());
  w.counter("ringmaster_lost_seconds", "Lost time of the job, by cause, as known to this node");
  w.sample(job.time.restart_seconds, {{"cause", "restart"}});
  w.sample(job.time.save_seconds, {{"cause", "save"}});
  w.sample(job.time.bad_step_seconds, {{"cause", "bad_step"}});
  w.counter("ringmaster_bad_steps", "Steps that were skipped or recomputed");
  w.sample(static_cast<double>(job.time.bad_steps));
  w.counter("ringmaster_failed_saves", "Checkpoints that could not be saved");
  w.sample(static_cast<double>(job.time.failed_saves));
}

template <class Value>
void write_rank_gauge(const JobView& job, const char* name, const char* help, Value value, Writer& w) {
  w.gauge(name, help);
  for (const RankView& r : job.ranks)
    if (const std::optional<double> v = value(r)) w.sample(*v, {{"rank", str(r.rank)}, {"host", r.host}});
}

void write_ranks(const JobView& job, Writer& w) {
  using R = const RankView&;
  using V = std::optional<double>;
  write_rank_gauge(
      job, "ringmaster_rank_up", "1: the worker runs", [](R r) { return V(r.alive && !r.stopped); }, w);
  write_rank_gauge(
      job, "ringmaster_rank_step", "Steps that the rank has done", [](R r) { return V(r.step); }, w);
  write_rank_gauge(
      job, "ringmaster_rank_silent_seconds", "Time since the rank last showed progress",
      [](R r) { return V(r.silent); }, w);
  write_rank_gauge(
      job, "ringmaster_rank_memory_bytes", "Resident memory of the worker", [](R r) { return r.memory; }, w);
  write_rank_gauge(
      job, "ringmaster_rank_gpu_memory_bytes", "Memory in use on the worker's GPU", [](R r) { return r.gpu_memory; },
      w);
  write_rank_gauge(
      job, "ringmaster_rank_gpu_temperature_celsius", "Temperature of the worker's GPU",
      [](R r) { return r.gpu_celsius; }, w);
  write_rank_gauge(
      job, "ringmaster_rank_gpu_power_watts", "Power that the worker's GPU draws", [](R r) { return r.gpu_watts; }, w);
  write_rank_gauge(
      job, "ringmaster_rank_gpu_utilization_ratio", "Share of time in which a kernel ran on the worker's GPU",
      [](R r) { return r.gpu_utilization; }, w);
  write_rank_gauge(
      job, "ringmaster_rank_gpu_sm_clock_hertz", "Clock of the multiprocessors of the worker's GPU",
      [](R r) { return r.gpu_sm_mhz ? V(1e6 * *r.gpu_sm_mhz) : V(); }, w);
  w.gauge("ringmaster_rank_phase", "Always 1; the label phase says what the rank is doing");
  for (const RankView& r : job.ranks) w.sample(1, {{"rank", str(r.rank)}, {"host", r.host}, {"phase", r.phase}});
}

// A metric with the newest value of a curve, multiplied by `factor`.
struct Newest {
  const char *name, *curve, *help;
  double factor = 1;
};
constexpr Newest kNewest[] = {
    {"ringmaster_loss", "train/loss", "Training loss of the last recorded step, in nats per token"},
    {"ringmaster_validation_loss", "validation/loss", "Loss of the last validation, in nats per token"},
    {"ringmaster_gradient_norm", "train/grad_norm", "Norm of the gradient before clipping"},
    {"ringmaster_learning_rate", "train/lr", "Learning rate"},
    {"ringmaster_tokens_per_second", "train/tokens_per_second", "Tokens per second that all processes train on"},
    {"ringmaster_mfu_ratio", "train/mfu", "Share of the devices' peak FLOP/s, if known"},
    {"ringmaster_step_seconds", "train/step_ms", "Time of the last recorded step", 1e-3},
    {"ringmaster_data_wait_ratio", "train/data_share", "Share of a step that waits for data"},
    {"ringmaster_exchange_wait_ratio", "train/exchange_share", "Share of a step that waits for other processes"},
    {"ringmaster_memory_in_use_bytes", "train/memory_in_use", "Memory in use on rank 0's device between steps"},
    {"ringmaster_memory_peak_bytes", "train/memory_peak", "Peak memory of rank 0's device so far"},
    {"ringmaster_checkpoint_seconds", "checkpoint/seconds", "Time that the last checkpoint took to write"},
};

void write_run(const ReportRun& run, Writer& w) {
  const auto newest = [&](const char* name) -> const CurvePoint* {
    const Curve* curve = curve_of(run, name);
    return curve ? &curve->back() : nullptr;
  };
  w.gauge("ringmaster_step", "Last recorded step of the run");
  w.sample(static_cast<double>(run.summary.step));
  w.gauge("ringmaster_planned_steps", "Planned steps of the run, if known");
  if (run.summary.steps) w.sample(static_cast<double>(run.summary.steps));
  w.counter("ringmaster_tokens", "Tokens that the run has trained on");
  if (const CurvePoint* p = newest("train/tokens")) w.sample(p->y);
  for (const Newest& n : kNewest) {
    w.gauge(n.name, n.help);
    if (const CurvePoint* p = newest(n.curve)) w.sample(n.factor * p->y);
  }
  w.gauge("ringmaster_checkpoint_step", "Step of the last checkpoint");
  if (const CurvePoint* p = newest("checkpoint/seconds")) w.sample(p->x);
}

}  // namespace

std::string metrics_text(const JobView& job, const ReportRun* run, bool openmetrics) {
  Writer w(openmetrics);
  write_job(job, w);
  write_ranks(job, w);
  if (run) write_run(*run, w);
  return w.text();
}

}  // namespace ring
