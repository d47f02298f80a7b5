#include "inspect/live_page.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/counted.h"
#include "core/json.h"
#include "inspect/chart.h"
#include "inspect/html.h"
#include "inspect/live_style.h"
#include "inspect/report_style.h"
#include "trainer/progress.h"

namespace ring {
namespace {

constexpr double kQuiet = 5;  // seconds without progress after which a rank is highlighted

std::string fact(const std::string& name, const std::string& value) {
  return str("<div><dt>", name, "</dt><dd>", html_escaped(value), "</dd></div>");
}

// Returns a CSS class and a word for the state of a rank.
std::pair<const char*, std::string> health_of(const RankView& r) {
  if (!r.alive) return {"bad", "ended"};
  if (r.stopped) return {"bad", "stopped"};
  if (r.silent >= kQuiet) return {"slow", str("silent for ", format_duration(r.silent))};
  return {"good", ""};
}

std::string card(const RankView& r) {
  const auto [kind, word] = health_of(r);
  std::string facts = fact("step", str(r.step)) + fact("phase", r.alive ? r.phase : "-");
  if (r.memory) facts += fact("memory", bytes_number(*r.memory));
  if (r.gpu_memory) facts += fact("GPU memory", bytes_number(*r.gpu_memory));
  if (r.gpu_utilization) facts += fact("GPU utilization", str(std::round(100 * *r.gpu_utilization), " %"));
  if (r.gpu_sm_mhz) facts += fact("SM clock", str(std::round(*r.gpu_sm_mhz), " MHz"));
  if (!r.gpu_slowed_by.empty()) facts += fact("clock lowered by", r.gpu_slowed_by);
  if (r.gpu_watts) facts += fact("power", str(std::round(*r.gpu_watts), " W"));
  if (r.gpu_celsius) facts += fact("temperature", str(std::round(*r.gpu_celsius), " \u00b0C"));
  return str("<section class=\"rank ", kind, "\" title=\"", html_escaped(str(r.host, ", process ", r.pid)),
             "\"><h3>rank ", r.rank, word.empty() ? "" : " <em>" + html_escaped(word) + "</em>", "</h3><dl>", facts,
             "</dl></section>\n");
}

std::string job_facts(const JobView& job) {
  std::string out = fact("time", job.time.begin_ms ? format_duration(job.time.seconds()) : "-");
  if (job.time.begin_ms)
    out += fact("goodput (share of time not lost)", str(std::round(1000 * job.time.goodput()) / 10, " %"));
  out += fact("restarts", str(job.attempt));
  if (job.nodes > 1 && job.node) out += fact("node", str(*job.node, " of ", job.nodes));
  if (job.world) out += fact("processes", str(*job.world));
  return "<dl class=\"facts\">" + out + "</dl>\n";
}

std::string job_markup(const JobView& job) {
  std::string out = job_facts(job);
  if (!job.waits_for.empty())
    out += "<p class=\"banner\">No worker is running: " + html_escaped(job.waits_for) + "</p>\n";
  if (!job.failure.empty()) out += "<p class=\"soft\">Previous attempt: " + html_escaped(job.failure) + "</p>\n";
  out += "<div class=\"ranks\">\n";
  for (const RankView& r : job.ranks) out += card(r);
  return out + "</div>\n";
}

}  // namespace

std::string live_page(const std::string& title) {
  const std::string body = str(
      "<header class=\"live\"><h1>", html_escaped(title),
      "</h1> <p id=\"state\" role=\"status\" class=\"soft\">waiting for the job</p></header>\n<div id=\"job\"></div>\n"
      "<div id=\"run\"></div>\n<noscript><p>This page needs scripts; `ringmaster report` writes one that does "
      "not.</p></noscript>\n");
  return html_page({title, str(kReportStyle, kLiveStyle), body, str(kReportScript, kLiveScript), true});
}

std::string live_json(const JobView& job, const LiveReading* run, std::int64_t known_version) {
  nlohmann::ordered_json j = {{"job", job_markup(job)}, {"version", run ? run->version : 0}};
  if (run && run->version != known_version) j["run"] = run->markup;
  return json_text(j);
}

}  // namespace ring
