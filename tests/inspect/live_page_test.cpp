// Contents of a dashboard: markup, metrics and the Grafana file that queries them.
#include "inspect/live_page.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "core/check.h"
#include "inspect/open_metrics.h"
#include "tests/inspect/svg_check.h"
#include "tests/paths.h"
#include "text/utf8.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

JobView a_job() {
  JobView job{.failure = "rank 1 <b> was \"killed\" & more", .attempt = 2, .nodes = 2, .world = 4};
  job.time.begin_ms = now_ms() - 10'000;
  job.time.restart_seconds = 2.5;
  job.ranks = {{.rank = 0, .host = "a\"b\\c\n\xff", .pid = 7, .step = 12, .phase = "forward", .memory = 1e6},
               {.rank = 1, .host = "h", .pid = 8, .step = 12, .phase = "data", .silent = 9, .gpu_celsius = 61.0},
               {.rank = 2, .host = "h", .pid = 9, .step = 11, .phase = "<i>", .stopped = true},
               {.rank = 3,
                .host = "h",
                .pid = 10,
                .alive = false,
                .gpu_memory = 5e10,
                .gpu_watts = 412.4,
                .gpu_utilization = 0.97,
                .gpu_sm_mhz = 1980,
                .gpu_slowed_by = "heat"}};
  return job;
}

class LivePageTest : public testing::Test {
 protected:
  LivePageTest() : folder_(fs::temp_directory_path() / str("ring_live_", getpid())) { fs::create_directories(folder_); }
  ~LivePageTest() override { fs::remove_all(folder_); }
  std::string run_with(const std::string& records) const {
    std::ofstream(folder_ / "metrics.jsonl", std::ios::binary) << records;
    return folder_.string();
  }
  const fs::path folder_;
};

const std::string kRecords =
    R"({"step":0,"group":"start","time":1,"device_name":"NVIDIA H200","processes":1})"
    "\n"
    R"({"step":10,"group":"train","time":2,"loss":null,"loss_text":"nan","grad_norm":0.5,"lr":1e-3,"tokens":5120,)"
    R"("tokens_per_second":100.5,"flops_per_second":494.5e12,"step_ms":250,"data_ms":25,"exchange_ms":50,)"
    R"("memory_peak":2000,"memory_in_use":1000})"
    "\n"
    R"({"step":10,"group":"validation","time":2,"loss":3.5})"
    "\n"
    R"({"step":10,"group":"checkpoint","time":2,"seconds":1.25})"
    "\n";

TEST_F(LivePageTest, IsWellFormedWhateverItShows) {
  const std::string page = live_page("Run <x>&\xff");
  EXPECT_EQ(utf8::valid_prefix_length(page), page.size());
  test::expect_well_formed(page.substr(page.find("<html")));
  EXPECT_NE(page.find("connect-src 'self'"), std::string::npos);
  const LiveReading reading{read_report_run(run_with(kRecords), 0), "<p>body</p>", 3};
  const auto live = nlohmann::json::parse(live_json(a_job(), &reading, 2));
  const std::string job = live.at("job");
  test::expect_well_formed("<div>" + job + "</div>");
  EXPECT_EQ(live.at("run"), "<p>body</p>");
  EXPECT_NE(job.find("<h3>rank 1 <em>silent for 9s</em></h3>"), std::string::npos) << job;
  EXPECT_NE(job.find("<h3>rank 2 <em>stopped</em></h3>"), std::string::npos);
  EXPECT_NE(job.find("<h3>rank 3 <em>ended</em></h3>"), std::string::npos);
  EXPECT_NE(job.find("<dd>61 \u00b0C</dd>"), std::string::npos);
  EXPECT_NE(job.find("was &quot;killed&quot; &amp; more"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(live_json(a_job(), &reading, 3)).contains("run"));
  EXPECT_FALSE(nlohmann::json::parse(live_json(a_job(), nullptr, 0)).contains("run"));
}

// Before the nodes have met, the index of this node is unknown.
TEST_F(LivePageTest, UnknownValuesAreNotShown) {
  JobView job = a_job();
  const auto shown = [&] { return nlohmann::json::parse(live_json(job, nullptr, 0)).at("job").get<std::string>(); };
  EXPECT_NE(shown().find("<dt>processes</dt><dd>4</dd>"), std::string::npos) << shown();
  job.node = 1;
  EXPECT_NE(shown().find("<dt>node</dt><dd>1 of 2</dd>"), std::string::npos) << shown();
  job = {.waits_for = "other nodes", .nodes = 2};
  EXPECT_EQ(shown().find("<dt>node</dt>"), std::string::npos) << shown();
  EXPECT_EQ(shown().find("<dt>processes</dt>"), std::string::npos) << shown();
  EXPECT_EQ(metrics_text(job, nullptr, true).find("ringmaster_processes"), std::string::npos);
}

// Returns the lines of a text, without comments.
std::vector<std::string> samples(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("#")) out.push_back(line);
  return out;
}

bool has(const std::string& text, const std::string& line) {
  const auto all = samples(text);
  return std::ranges::find(all, line) != all.end();
}

TEST(LivePage, ShowsTheSensorsOfAGpuAndExplainsItsWords) {
  const std::string page = live_json(a_job(), nullptr, 0);
  for (const char* text :
       {"<dt>power</dt><dd>412 W</dd>", "<dt>GPU utilization</dt><dd>97 %</dd>", "<dt>SM clock</dt><dd>1980 MHz</dd>",
        "<dt>clock lowered by</dt><dd>heat</dd>", "<dt>goodput (share of time not lost)</dt>"})
    EXPECT_NE(page.find(text), std::string::npos) << text << "\n" << page;
}

TEST_F(LivePageTest, MetricsEqualTheRecords) {
  const ReportRun run = read_report_run(run_with(kRecords), 0);
  for (const bool open : {false, true}) {
    const std::string text = metrics_text(a_job(), &run, open);
    for (const char* line : {"ringmaster_restarts_total 2",
                             "ringmaster_processes 4",
                             R"(ringmaster_lost_seconds_total{cause="restart"} 2.5)",
                             "ringmaster_rank_step{rank=\"0\",host=\"a\\\"b\\\\c\\n\uFFFD\"} 12",
                             R"(ringmaster_rank_up{rank="2",host="h"} 0)",
                             R"(ringmaster_rank_up{rank="3",host="h"} 0)",
                             R"(ringmaster_rank_silent_seconds{rank="1",host="h"} 9)",
                             R"(ringmaster_rank_gpu_temperature_celsius{rank="1",host="h"} 61)",
                             R"(ringmaster_rank_gpu_memory_bytes{rank="3",host="h"} 5e+10)",
                             R"(ringmaster_rank_gpu_power_watts{rank="3",host="h"} 412.4)",
                             R"(ringmaster_rank_gpu_utilization_ratio{rank="3",host="h"} 0.97)",
                             R"(ringmaster_rank_gpu_sm_clock_hertz{rank="3",host="h"} 1.98e+09)",
                             R"(ringmaster_rank_phase{rank="2",host="h",phase="<i>"} 1)",
                             "ringmaster_step 10",
                             "ringmaster_loss NaN",
                             "ringmaster_validation_loss 3.5",
                             "ringmaster_tokens_total 5120",
                             "ringmaster_mfu_ratio 0.5",
                             "ringmaster_step_seconds 0.25",
                             "ringmaster_data_wait_ratio 0.1",
                             "ringmaster_exchange_wait_ratio 0.2",
                             "ringmaster_checkpoint_seconds 1.25",
                             "ringmaster_checkpoint_step 10",
                             "ringmaster_memory_peak_bytes 2000"})
      EXPECT_TRUE(has(text, line)) << line << "\n" << text;
    EXPECT_EQ(text.ends_with("# EOF\n"), open);
    EXPECT_EQ(text.find("# TYPE ringmaster_restarts counter\n") != std::string::npos, open);
    EXPECT_EQ(text.find("# TYPE ringmaster_restarts_total counter\n") != std::string::npos, !open);
    EXPECT_EQ(utf8::valid_prefix_length(text), text.size());
  }
  const std::string alone = metrics_text({}, nullptr, true);
  EXPECT_EQ(alone.find("ringmaster_loss"), std::string::npos);
  EXPECT_EQ(alone.find("ringmaster_goodput"), std::string::npos);  // unknown metrics have no line, not even a comment
}

std::set<std::string> names_in(const std::string& text) {
  static const std::regex name("ringmaster_[a-z_]+");
  std::set<std::string> names;
  for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at) names.insert(at->str());
  return names;
}

std::string source(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(fs::path(test::source_dir()) / path).rdbuf();
  return out.str();
}

TEST_F(LivePageTest, TheGrafanaFileQueriesMetricsThatExist) {
  ReportRun run = read_report_run(run_with(kRecords), 0);
  run.summary.steps = 100;
  JobView job = a_job();
  for (RankView& r : job.ranks) r.gpu_celsius = r.gpu_memory = r.gpu_watts = r.gpu_utilization = r.gpu_sm_mhz = 1;
  std::set<std::string> there;
  for (const std::string& line : samples(metrics_text(job, &run, true)))
    there.merge(names_in(line.substr(0, line.find_first_of("{ "))));
  const auto grafana = nlohmann::json::parse(source("configs/cluster/grafana.json"));
  std::set<std::string> asked;
  std::set<int> ids;
  for (const auto& panel : grafana.at("panels")) {
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second);
    for (const auto& target : panel.value("targets", nlohmann::json::array()))
      asked.merge(names_in(target.at("expr").get<std::string>()));
  }
  EXPECT_GT(asked.size(), 15u);
  for (const std::string& name : asked) EXPECT_TRUE(there.contains(name)) << name;
  const std::string documented = source("docs/runs.md");
  for (const std::string& name : there) EXPECT_NE(documented.find("`" + name), std::string::npos) << name;
}

TEST_F(LivePageTest, ARunIsReadAgainWhenItRecords) {
  LiveRun run(run_with(kRecords));
  const auto first = run.read_if_changed();
  EXPECT_EQ(run.read_if_changed(), first);
  EXPECT_EQ(first->run.summary.step, 10);
  EXPECT_NE(first->markup.find("<h1>"), std::string::npos);
  std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << R"({"step":20,"group":"train","time":3,"loss":2})"
                                                          << "\n";
  auto next = run.read_if_changed();
  for (int i = 0; i < 300 && next == first; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    next = run.read_if_changed();
  }
  EXPECT_EQ(next->run.summary.step, 20);
  EXPECT_GT(next->version, first->version);
}

TEST_F(LivePageTest, ARunMayNotExistYet) {
  LiveRun run((folder_ / "none").string());
  EXPECT_EQ(run.read_if_changed()->run.summary.step, 0);
  EXPECT_NE(live_json({}, run.read_if_changed().get(), 0).find("run"), std::string::npos);
}

}  // namespace
}  // namespace ring
