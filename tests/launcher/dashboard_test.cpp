// The program's dashboard during a run, also with clients of bad intent.
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "core/exit_code.h"
#include "job/http_server.h"
#include "tests/http_client.h"
#include "tests/launcher/training.h"

namespace ring {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::http_get;

double value_of(const std::string& metrics, const std::string& name) {
  const std::size_t at = metrics.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(metrics.substr(at + name.size() + 2));
}

class DistDashboard : public test::TrainingRuns {
 protected:
  void SetUp() override {
    if (!http_available()) GTEST_SKIP() << "this build has no HTTP";
    TrainingRuns::SetUp();
  }
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    TrainingRuns::TearDown();
  }

  // Starts training that continues until it is stopped.
  void begin(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = launch(2, "run", "train.steps=1000000");
    command.insert(command.begin() + 1, {"--dashboard", "0"});
    command.insert(command.begin() + 1, more.begin(), more.end());
    pid_ = start(command);
    const auto end = AwakeClock::now() + seconds(60);
    for (std::size_t at = 0; AwakeClock::now() < end; std::this_thread::sleep_for(milliseconds(20))) {
      const std::string log = test::read_file(dir_ / "log"), line = "the dashboard is at http://127.0.0.1:";
      if ((at = log.find(line)) == std::string::npos) continue;
      at_ = {"127.0.0.1", std::stoi(log.substr(at + line.size()))};
      return;
    }
    FAIL() << test::read_file(dir_ / "log");
  }
  int stop() {
    kill(pid_, SIGTERM);
    return wait(std::exchange(pid_, 0));
  }
  std::string metrics() const { return http_get(at_, "/metrics").body; }
  // Waits until both ranks are beyond `step`. Returns the smaller step of the two.
  double step_after(double step) const {
    double least = -1;
    for (const auto end = AwakeClock::now() + seconds(60); AwakeClock::now() < end && least <= step;) {
      std::this_thread::sleep_for(milliseconds(100));
      const std::string text = metrics();
      least = INFINITY;
      for (const char* rank : {"0", "1"}) {
        const std::size_t at = text.find(str("\nringmaster_rank_step{rank=\"", rank, "\""));
        least = std::min(least, at == std::string::npos ? -1 : std::stod(text.substr(text.find("} ", at) + 2)));
      }
    }
    return least;
  }

  pid_t pid_ = 0;
  Endpoint at_;
};

TEST_F(DistDashboard, ShowsARunUntilItEnds) {
  begin();
  const double step = step_after(5);
  EXPECT_GT(step, 5);
  EXPECT_EQ(http_get(at_, "/healthz").body, "ok\n");
  const test::HttpAnswer page = http_get(at_, "/");
  EXPECT_EQ(page.headers.at("Content-Type"), "text/html; charset=utf-8");
  EXPECT_NE(page.body.find("<h1>Run run</h1>"), std::string::npos);
  const auto live = nlohmann::json::parse(http_get(at_, "/live?known=0").body);
  EXPECT_NE(live.at("job").get<std::string>().find("<h3>rank 1</h3>"), std::string::npos);
  EXPECT_NE(live.at("run").get<std::string>().find("Training loss"), std::string::npos);
  EXPECT_GT(value_of(metrics(), "ringmaster_loss"), 0);
  EXPECT_GT(value_of(metrics(), "ringmaster_step"), 0);
  EXPECT_EQ(http_get(at_, "/../../etc/passwd").status, 404);
  EXPECT_EQ(test::http_post(at_, "/", "").status, 405);
  EXPECT_EQ(stop(), kExitInterrupted);
  EXPECT_THROW(connect_to(at_, AwakeClock::now() + seconds(1)), Error);
}

TEST_F(DistDashboard, AWaitingNodeShowsNoNodeNumber) {
  ASSERT_EQ(run({"launch", "--make-secret", "token"}), 0);
  const int port = local_endpoint(listen_on({"127.0.0.1", 0})).port;
  begin({"--nnodes", "2", "--rdzv-endpoint", str("127.0.0.1:", port), "--secret-file", "token"});
  std::string job;
  const auto end = AwakeClock::now() + seconds(60);
  while (job.find("No worker is running") == std::string::npos && AwakeClock::now() < end) {
    std::this_thread::sleep_for(milliseconds(20));
    job = nlohmann::json::parse(http_get(at_, "/live").body).at("job");
  }
  EXPECT_NE(job.find("No worker is running"), std::string::npos) << job;
  EXPECT_EQ(job.find("<dt>node</dt>"), std::string::npos) << job;
  EXPECT_EQ(job.find("<dt>processes</dt>"), std::string::npos) << job;
  EXPECT_EQ(metrics().find("ringmaster_processes"), std::string::npos) << metrics();
  stop();
}

TEST_F(DistDashboard, CountsRestarts) {
  begin();
  EXPECT_GT(step_after(5), 5);
  const std::string cards = nlohmann::json::parse(http_get(at_, "/live").body).at("job"), word = ", process ";
  kill(std::stoi(cards.substr(cards.find(word) + word.size())), SIGKILL);
  const auto end = AwakeClock::now() + seconds(60);
  while (value_of("\n" + metrics(), "ringmaster_restarts_total") < 1 && AwakeClock::now() < end)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(value_of("\n" + metrics(), "ringmaster_restarts_total"), 1);
  EXPECT_GT(step_after(0), 0);
  EXPECT_NE(http_get(at_, "/live").body.find("was killed by signal 9"), std::string::npos);
  EXPECT_EQ(stop(), kExitInterrupted);
}

// There are more connections than the dashboard accepts and than the launcher may have files open.
TEST_F(DistDashboard, AThousandIdleConnectionsDoNotDisturbARun) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 1200) GTEST_SKIP() << "needs 1200 descriptors";
  const rlim_t before = limit.rlim_cur;
  begin();
  limit.rlim_cur = std::max<rlim_t>(before, 1200);
  setrlimit(RLIMIT_NOFILE, &limit);
  const double step = step_after(5);
  std::vector<Fd> idle;
  for (int i = 0; i < 1000; ++i) idle.push_back(connect_to(at_, AwakeClock::now() + seconds(60)));
  for (int i = 0; i < 1000; i += 3)
    send_all(idle[static_cast<std::size_t>(i)], "GET /metrics HTT", AwakeClock::now() + seconds(60));
  const std::size_t records = this->records("run", "train").size();
  const auto end = AwakeClock::now() + seconds(60);
  while (this->records("run", "train").size() < records + 50 && AwakeClock::now() < end)
    std::this_thread::sleep_for(milliseconds(20));
  EXPECT_GE(this->records("run", "train").size(), records + 50);
  EXPECT_GT(step_after(step), step);  // other clients are still answered
  const auto told = AwakeClock::now();
  EXPECT_EQ(stop(), kExitInterrupted);
  EXPECT_LT(AwakeClock::now() - told, seconds(100));
  EXPECT_EQ(test::read_file(dir_ / "log").find("restart 1"), std::string::npos);
  limit.rlim_cur = before;
  setrlimit(RLIMIT_NOFILE, &limit);
}

TEST_F(DistDashboard, ATokenIsRequired) {
  ASSERT_EQ(run({"launch", "--make-secret", "token"}), 0);
  const std::string token = test::read_file(dir_ / "token");
  begin({"--dashboard-token-file", "token"});
  EXPECT_EQ(http_get(at_, "/metrics").status, 401);
  const std::string line = token.substr(0, token.find('\n'));
  EXPECT_EQ(http_get(at_, "/healthz", "Authorization: Bearer " + line + "\r\n").status, 200);
}

TEST_F(DistDashboard, ContradictoryOptionsAreRefused) {
  const auto refused = [&](const std::vector<std::string>& options, const std::string& why) {
    std::vector<std::string> command = launch(2, "run");
    command.insert(command.begin() + 1, options.begin(), options.end());
    EXPECT_NE(run(command), 0);
    EXPECT_NE(test::read_file(dir_ / "log").find(why), std::string::npos) << test::read_file(dir_ / "log");
  };
  refused({"--dashboard", "0.0.0.0:8080"}, "Give --dashboard-token-file");
  refused({"--dashboard", "many"}, "--dashboard: 'many' is not HOST:PORT");
  refused({"--dashboard-token-file", "token"}, "--dashboard-token-file requires --dashboard PORT");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "run"));
}

}  // namespace
}  // namespace ring
