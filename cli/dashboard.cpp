#include "cli/dashboard.h"

#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <map>

#include "cli/command.h"
#include "cli/settings.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/gpu_sensors.h"
#include "core/log.h"
#include "inspect/live_page.h"
#include "inspect/live_run.h"
#include "inspect/open_metrics.h"
#include "trainer/folder_name.h"

namespace ring {
namespace {

constexpr double kDead = 30;  // seconds without an update by the agent's thread after which the agent counts as dead
constexpr double kSensorSeconds = 1;
constexpr int kLowestPriority = 19;

// Lowers the priority of this thread, since the job comes first.
void step_back() {
  thread_local const int done = setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowestPriority);
  static_cast<void>(done);
}

std::int64_t number(const std::map<std::string, std::string>& query, const char* name) {
  std::int64_t n = 0;
  if (const auto at = query.find(name); at != query.end())
    std::from_chars(at->second.data(), at->second.data() + at->second.size(), n);
  return n;
}

}  // namespace

// Only used by the server's single thread, so no locks are needed.
struct Dashboard::Impl {
  Impl(HttpOptions o, const std::string& path, const JobBoard& b)
      : title(path.empty() ? "Job" : "Run " + folder_name(path)), board(b) {
    if (!path.empty()) run.emplace(path);
    server.emplace(std::move(o), [this](const HttpRequest& r) { return answer(r); });
  }

  HttpReply answer(const HttpRequest& r) {
    step_back();
    if (r.method != "GET") return {.status = 405, .body = "expected the method GET\n", .headers = {{"Allow", "GET"}}};
    if (r.path == "/") return {.type = "text/html; charset=utf-8", .body = live_page(title)};
    if (r.path == "/live") return {.type = "application/json", .body = live(number(r.query, "known"))};
    if (r.path == "/metrics") return metrics(r.accept.find("application/openmetrics-text") != std::string::npos);
    if (r.path == "/healthz") return health();
    if (r.path == "/favicon.ico") return {.status = 204};
    return {.status = 404, .body = "not found; available: /, /metrics, /healthz\n"};
  }

  std::string live(std::int64_t known) {
    const auto reading = run ? run->read_if_changed() : nullptr;
    return live_json(view(), reading.get(), known);
  }
  HttpReply metrics(bool open) {
    const auto reading = run ? run->read_if_changed() : nullptr;
    return {.type = open ? kOpenMetricsType : kTextMetricsType,
            .body = metrics_text(view(), reading ? &reading->run : nullptr, open)};
  }
  // Reports the health of the agent itself, since the agent already checks the workers.
  HttpReply health() const {
    if (const double age = board.age(); age > kDead)
      return {.status = 503, .body = str("the agent has not checked its workers for ", age, " s\n")};
    return {.body = "ok\n"};
  }

  JobView view() {
    JobView v = board.read();
    const bool again = seconds_now() >= ask_at;
    if (again) ask_at = seconds_now() + kSensorSeconds;
    for (RankView& r : v.ranks) {
      if (r.gpu.empty() || !r.alive) continue;
      if (again || !readings.contains(r.gpu)) readings[r.gpu] = sensors.read(r.gpu);
      const GpuReading& reading = readings[r.gpu];
      r.gpu_celsius = reading.celsius, r.gpu_memory = reading.used_bytes, r.gpu_watts = reading.watts;
      r.gpu_utilization = reading.utilization, r.gpu_sm_mhz = reading.sm_mhz;
      r.gpu_slowed_by = throttle_text(reading.throttle);
    }
    return v;
  }

  std::string title;
  const JobBoard& board;
  std::optional<LiveRun> run;
  GpuSensors sensors;
  std::map<std::string, GpuReading> readings;
  double ask_at = 0;
  std::optional<HttpServer> server;  // destroyed first, since its thread uses the members above
};

Dashboard::Dashboard(HttpOptions o, const std::string& run, const JobBoard& board)
    : impl_(std::make_unique<Impl>(std::move(o), run, board)) {
  log::info("launch: the dashboard is at http://", to_string(endpoint()), "/");
}
Dashboard::~Dashboard() = default;
const Endpoint& Dashboard::endpoint() const { return impl_->server->endpoint(); }

std::string run_directory_of(Command app, const std::vector<std::string>& command) try {
  if (command.empty() || command[0] != "train") return "";
  const Command train = app.find_command("train");
  std::string settings;
  std::vector<std::string> changes;
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (const Option option = train.option_before_values(word)) i += option.min_values();
    if (word.starts_with("-")) continue;
    if (settings.empty() && std::filesystem::exists(word))
      settings = word;
    else if (word.find('=') != std::string::npos)
      changes.push_back(word);
  }
  if (settings.empty() || std::filesystem::is_directory(settings)) return settings;
  return load_settings(settings, changes).run.path();
} catch (const std::exception&) {
  return "";
}

}  // namespace ring
