#include "inspect/profile.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "data/output_file.h"

namespace ring {
namespace {

template <class... Values>
std::string line(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return std::string(text) + "\n";
}

std::string shortened(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 2) + "..";
}

// All calls of one op with operands of the same shapes.
struct OpRow {
  std::string_view slot, candidate;
  Cost cost;
  std::size_t calls = 0;
  double seconds = 0;
};

std::vector<OpRow> op_rows(const Profile& p) {
  std::map<std::tuple<std::string_view, std::string_view, std::string, double, double>, OpRow> rows;
  for (const ProfiledCall& c : p.calls) {
    OpRow& row = rows[{c.slot, c.candidate, c.cost.shape, c.cost.flops, c.cost.bytes}];
    row.slot = c.slot, row.candidate = c.candidate, row.cost = c.cost;
    ++row.calls;
    row.seconds += c.device.seconds;
  }
  std::vector<OpRow> out;
  for (auto& [key, row] : rows) out.push_back(std::move(row));
  std::stable_sort(out.begin(), out.end(), [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; });
  return out;
}

std::string op_table(const Profile& p, const Ceilings& ceilings) {
  const double steps = static_cast<double>(p.steps.size()), step = p.seconds_per_step();
  std::string out = line("%-22s %-14s %-34s %7s %10s %7s %10s %7s", "op", "candidate", "shape", "calls", "ms", "share",
                         "floor ms", "ratio");
  double in_kernels = 0;
  for (const OpRow& r : op_rows(p)) {
    const double seconds = r.seconds / steps, calls = static_cast<double>(r.calls) / steps;
    const double floor = calls * ceilings.floor_seconds(r.cost);
    in_kernels += seconds;
    out += line("%-22s %-14s %-34s %7.0f %10.3f %6.1f%%", std::string(r.slot).c_str(), std::string(r.candidate).c_str(),
                shortened(r.cost.shape, 34).c_str(), calls, 1e3 * seconds, 100 * seconds / step);
    out.pop_back();
    out += floor > 0 ? line(" %10.3f %7.2f", 1e3 * floor, seconds / floor) : line(" %10s %7s", "-", "-");
  }
  out += line("%-79s  %10.3f %6.1f%%", "not in kernels", 1e3 * (step - in_kernels), 100 * (step - in_kernels) / step);
  out += line("%-79s  %10.3f", "one step", 1e3 * step);
  return out;
}

// The total time in all scopes of one kind. All blocks share one row.
struct PartRow {
  ScopeKind kind;
  double forward = 0, backward = 0;
};

PartRow& row_of(std::vector<PartRow>& rows, ScopeKind kind) {
  for (PartRow& r : rows)
    if (r.kind == kind) return r;
  return rows.emplace_back(PartRow{kind});
}

// Returns the kinds of the scopes around a call, outermost first.
std::vector<ScopeKind> path_of(const Profile& p, int part) {
  std::vector<ScopeKind> path;
  for (; part >= 0; part = p.parts[static_cast<std::size_t>(part)].parent)
    if (p.parts[static_cast<std::size_t>(part)].op.empty())
      path.insert(path.begin(), p.parts[static_cast<std::size_t>(part)].scope.kind);
  return path;
}

std::string part_table(const Profile& p) {
  std::vector<PartRow> rows;
  for (const ProfiledCall& c : p.calls) {
    const std::vector<ScopeKind> path = path_of(p, c.part);
    const bool backward = !path.empty() && path[0] == scopes::backward;
    const std::size_t depth = backward ? 1 : 0;
    PartRow& row = row_of(rows, path.size() > depth ? path[depth] : ScopeKind{});
    (backward ? row.backward : row.forward) += c.device.seconds;
  }
  const double steps = static_cast<double>(p.steps.size()), step = p.seconds_per_step();
  std::string out = line("%-22s %12s %12s %12s %7s", "part", "forward ms", "backward ms", "ms", "share");
  for (const PartRow& r : rows) {
    const double seconds = (r.forward + r.backward) / steps;
    out += line("%-22s %12.3f %12.3f %12.3f %6.1f%%", str(r.kind).c_str(), 1e3 * r.forward / steps,
                1e3 * r.backward / steps, 1e3 * seconds, 100 * seconds / step);
  }
  return out;
}

// Rows of the trace.
enum Track { kParts = 1, kKernels = 2, kHostParts = 3, kLaunches = 4 };

class TraceFile {
 public:
  explicit TraceFile(const std::string& path) : path_(path) {
    out_ << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
    name("process_name", 0, "training");
    name("thread_name", kParts, "device: parts of the model");
    name("thread_name", kKernels, "device: kernels");
    name("thread_name", kHostParts, "host: parts of the model");
    name("thread_name", kLaunches, "host: launches");
  }

  void span(const std::string& name, Track track, const ProfileSpan& at, nlohmann::ordered_json args = {}) {
    nlohmann::ordered_json e = {{"name", name},
                                {"ph", "X"},
                                {"ts", 1e6 * at.begin},
                                {"dur", 1e6 * at.seconds},
                                {"pid", 1},
                                {"tid", static_cast<int>(track)}};
    if (!args.is_null()) e["args"] = std::move(args);
    write(e);
  }

  void finish() {
    out_ << "\n]}\n";
    write_whole(path_, out_.str());
  }

 private:
  void name(const char* what, int track, const char* text) {
    write({{"name", what}, {"ph", "M"}, {"pid", 1}, {"tid", track}, {"args", {{"name", text}}}});
  }
  void write(const nlohmann::ordered_json& e) {
    out_ << (first_ ? "\n" : ",\n") << e.dump();
    first_ = false;
  }

  std::string path_;
  std::ostringstream out_;
  bool first_ = true;
};

}  // namespace

double Profile::seconds_per_step() const {
  double sum = 0;
  for (const ProfileSpan& s : steps) sum += s.seconds;
  return steps.empty() ? 0 : sum / static_cast<double>(steps.size());
}

std::string profile_table(const Profile& p, const Ceilings& ceilings) {
  std::string out = str("profile of ", p.steps.size(), p.steps.size() == 1 ? " step" : " steps", ", times per step; ");
  if (ceilings.flops_per_second > 0)
    out += line("floor: the larger of bytes at %.3g TB/s (copy) and operations at %.4g TFLOP/s (matrix product)",
                ceilings.bytes_per_second / 1e12, ceilings.flops_per_second / 1e12);
  else
    out += "floors unknown\n";
  out += line("each kernel's time includes up to %.1f us of measurement overhead", 1e6 * p.event_seconds);
  return out + "\n" + op_table(p, ceilings) + "\n" + part_table(p);
}

void write_trace(const Profile& p, const std::string& path) {
  TraceFile trace(path);
  for (std::size_t i = 0; i < p.steps.size(); ++i) trace.span(str("step ", i), kParts, p.steps[i]);
  for (const ProfiledPart& part : p.parts) {
    if (part.device.seconds > 0) trace.span(part.name(), kParts, part.device);
    trace.span(part.name(), kHostParts, part.host);
  }
  for (const ProfiledCall& c : p.calls) {
    const nlohmann::ordered_json args = {{"shape", c.cost.shape},
                                         {"candidate", c.candidate},
                                         {"flops", c.cost.flops},
                                         {"bytes", c.cost.bytes},
                                         {"part", c.part < 0 ? "" : p.parts[static_cast<std::size_t>(c.part)].name()}};
    trace.span(std::string(c.slot), kKernels, c.device, args);
    trace.span(std::string(c.slot), kLaunches, c.host);
  }
  trace.finish();
}

}  // namespace ring
