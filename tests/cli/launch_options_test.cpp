#include "cli/launch_options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "cli/command_line.h"
#include "cli/dashboard.h"
#include "core/check.h"
#include "tests/error_of.h"

namespace ring {
namespace {

TEST(LaunchOptions, NodesAreANumberOrARange) {
  LaunchOptions o;
  read_nodes("4", o);
  EXPECT_EQ(std::pair(o.min_nodes, o.max_nodes), std::pair(4, 4));
  read_nodes("2:8", o);
  EXPECT_EQ(std::pair(o.min_nodes, o.max_nodes), std::pair(2, 8));
  for (const char* bad : {"", "0", "-1", "3:2", "1:2:3", "two", "1e3", "99999"})
    EXPECT_NE(error_of([&] { read_nodes(bad, o); }).find("--nnodes"), std::string::npos) << bad;
}

TEST(LaunchOptions, ProcessesAreANumberOrAKindOfDevice) {
  EXPECT_EQ(read_processes("3"), 3);
  EXPECT_EQ(read_processes("cpu"), static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_GE(read_processes("auto"), 1);
  for (const char* bad : {"", "0", "all", "4097"})
    EXPECT_NE(error_of([&] { read_processes(bad); }).find("--nproc-per-node"), std::string::npos) << bad;
}

TEST(LaunchOptions, EndpointsHaveADefaultPort) {
  EXPECT_EQ(read_rdzv_endpoint("10.0.0.1:4711"), (Endpoint{"10.0.0.1", 4711}));
  EXPECT_EQ(read_rdzv_endpoint("node0"), (Endpoint{"node0", 29400}));
  EXPECT_EQ(read_rdzv_endpoint("[fd00::1]:4711"), (Endpoint{"fd00::1", 4711}));
  EXPECT_EQ(read_rdzv_endpoint("[fd00::1]"), (Endpoint{"fd00::1", 29400}));
  EXPECT_EQ(read_rdzv_endpoint("fd00::1"), (Endpoint{"fd00::1", 29400}));
  for (const char* bad : {"a:0", "a:70000", "a:b", ":1"})
    EXPECT_NE(error_of([&] { read_rdzv_endpoint(bad); }).find("--rdzv-endpoint"), std::string::npos) << bad;
}

TEST(LaunchOptions, TimesAreRead) {
  LaunchOptions o;
  read_rdzv_conf("join_timeout=7, last_call_timeout=3,keep_alive_timeout=5,return_timeout=9", o);
  EXPECT_EQ(o.join_timeout, std::chrono::seconds(7));
  EXPECT_EQ(o.last_call, std::chrono::seconds(3));
  EXPECT_EQ(o.silence, std::chrono::seconds(5));
  EXPECT_EQ(o.return_timeout, std::chrono::seconds(9));
  for (const char* bad : {"", "join_timeout", "join_timeout=", "join_timeout=0", "rank=3"})
    EXPECT_NE(error_of([&] { read_rdzv_conf(bad, o); }).find("--rdzv-conf"), std::string::npos) << bad;
}

TEST(LaunchOptions, RanksAndStreamsAreRead) {
  EXPECT_TRUE(read_streams("--tee", "3").has(5));
  EXPECT_FALSE(read_streams("--tee", "0").has(5));
  const LocalRanks some = read_streams("--tee", "0:3,2:1,3:0");
  for (const auto& [rank, expected] : {std::pair(0, true), {1, false}, {2, true}, {3, false}})
    EXPECT_EQ(some.has(rank), expected) << rank;
  for (const char* bad : {"", "4", "0:4", "0:3,1", "x:1"})
    EXPECT_NE(error_of([&] { read_streams("--tee", bad); }).find("--tee"), std::string::npos) << bad;
  EXPECT_TRUE(read_local_ranks("0,2").has(2));
  EXPECT_FALSE(read_local_ranks("0,2").has(1));
  EXPECT_THROW(read_local_ranks("0;2"), Error);
}

TEST(LaunchOptions, SignalsAreReadByName) {
  EXPECT_EQ(read_signals("SIGTERM,SIGUSR1"), (std::vector<int>{SIGTERM, SIGUSR1}));
  EXPECT_NE(error_of([] { read_signals("SIGKILL"); }).find("got 'SIGKILL'"), std::string::npos);
}

TEST(LaunchOptions, ASchedulerFillsInMissingOptions) {
  const AgentEnvironment srun{
      .source = "srun", .agents = 4, .index = 2, .nodes = 4, .endpoint = Endpoint{"n1", 20001}, .job = "7.0"};
  LaunchOptions o;
  apply_agent_environment(srun, false, o);
  EXPECT_EQ(std::pair(o.min_nodes, o.max_nodes), std::pair(4, 4));
  EXPECT_EQ(o.node_rank, 2);
  EXPECT_EQ(o.endpoint, (Endpoint{"n1", 20001}));
  EXPECT_EQ(o.rdzv_id, "7.0");

  LaunchOptions given;
  given.min_nodes = 1;
  given.max_nodes = 2;
  given.rdzv_id = "mine";
  apply_agent_environment(srun, true, given);
  EXPECT_EQ(std::pair(given.min_nodes, given.max_nodes), std::pair(1, 2));
  EXPECT_EQ(given.node_rank, -1) << "a spare: its number is no place of the job";
  EXPECT_EQ(given.rdzv_id, "mine");

  LaunchOptions pod;
  pod.min_nodes = pod.max_nodes = 2;
  apply_agent_environment({.source = "Kubernetes", .index = 1}, true, pod);
  EXPECT_EQ(pod.node_rank, 1);
}

// Several agents that each trained alone would write into the same run directory.
TEST(LaunchOptions, AgentsThatWouldTrainAloneAreRefused) {
  LaunchOptions one;
  const AgentEnvironment two{.source = "srun", .agents = 2, .index = 0, .nodes = 2};
  EXPECT_NE(error_of([&] { apply_agent_environment(two, true, one); }).find("each would train alone"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { apply_agent_environment({.source = "Kubernetes", .index = 1}, false, one); }).find("--nnodes"),
      std::string::npos);
  EXPECT_EQ(error_of([&] { apply_agent_environment({.source = "Kubernetes", .index = 0}, false, one); }), "");
  const AgentEnvironment crowd{.source = "mpirun", .agents = 8, .here = 4, .index = 1, .nodes = 2};
  EXPECT_NE(error_of([&] { apply_agent_environment(crowd, false, one); }).find("--ntasks-per-node=1"),
            std::string::npos);
}

TEST(LaunchOptions, ALoopbackAddressIsRefusedForSeveralMachines) {
  LaunchOptions o;
  o.min_nodes = o.max_nodes = 2;
  for (const char* host : {"localhost", "127.0.0.1", "::1"}) {
    o.endpoint = Endpoint{host, 29400};
    EXPECT_NE(error_of([&] { reject_loopback({.source = "Slurm", .nodes = 2}, o); }).find("this Slurm job has 2"),
              std::string::npos);
    EXPECT_EQ(error_of([&] { reject_loopback({}, o); }), "") << "agents of one machine, as far as one can know";
  }
  o.min_nodes = 1;
  EXPECT_NE(error_of([&] { reject_loopback({}, o); }).find("would train alone"), std::string::npos);
  o.endpoint = Endpoint{"10.0.0.1", 29400};
  EXPECT_EQ(error_of([&] { reject_loopback({.source = "Slurm", .nodes = 2}, o); }), "");
}

TEST(LaunchOptions, NumaBindingIsReadByName) {
  EXPECT_EQ(read_numa_binding("auto"), NumaBinding::automatic);
  EXPECT_EQ(read_numa_binding("core-complex"), NumaBinding::core_complex);
  EXPECT_NE(error_of([] { read_numa_binding("numa"); }).find("none, node, socket"), std::string::npos);
}

// The settings file is not taken for the value of an option before it.
TEST(LaunchOptions, TheRunOfACommandIsFound) {
  Program app("ringmaster", "");
  add_commands(app);
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / str("ring_run_of_", getpid());
  std::filesystem::create_directories(folder);
  const std::string settings = folder / "n.yaml", five = folder / "5";
  std::ofstream(settings) << "run: {directory: there}\ndata: {path: c.h5}\ntrain: {steps: 1}\n";
  std::ofstream(five) << "no settings";
  using Words = std::vector<std::string>;
  EXPECT_EQ(run_directory_of(app, {"train", settings}), "there");
  EXPECT_EQ(run_directory_of(app, {"train", "--inject", five, settings}), "there");
  EXPECT_EQ(run_directory_of(app, {"train", "--fresh", settings, "run.directory=other"}), "other");
  EXPECT_EQ(run_directory_of(app, {"train", folder}), folder);
  for (const Words& none : {Words{"bench", "step", settings}, Words{"train"}, Words{"train", "--inject", settings}})
    EXPECT_EQ(run_directory_of(app, none), "");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace ring
