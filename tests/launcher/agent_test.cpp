// The agent as a process, with shell scripts as workers: its output, and what it leaves behind.

#include "launcher/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

#include "comm/communicator.h"
#include "core/check.h"
#include "core/exit_code.h"
#include "core/stop_signal.h"
#include "launcher/cpu_binding.h"
#include "launcher/worker.h"
#include "tests/launcher/scratch.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using test::read_file;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

constexpr double kPatience = 40;  // seconds, for a busy machine; a worker that is not ended sleeps for 600

// Returns whether a process is gone, or dead and not yet reaped by its parent.
bool has_ended(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  const std::size_t at = text.rfind(')');
  return at == std::string::npos || text[at + 2] == 'Z';
}

class DistLaunch : public test::ScratchTest {
 protected:
  void TearDown() override {
    if (agent_ > 0) {
      kill(agent_, SIGKILL);
      waitpid(agent_, nullptr, 0);
    }
    ScratchTest::TearDown();
  }

  // Starts an agent whose workers run a script. In the script, $D is the directory of this test and $R the rank.
  void start(int processes, const std::string& script, LaunchOptions options = {}) {
    options.processes = processes;
    options.program = "/bin/sh";
    options.command = {"-c", "D=" + dir_.string() + "; R=$RINGMASTER_RANK; " + script};
    agent_ = fork();
    ASSERT_GE(agent_, 0);
    if (agent_ != 0) return;
    dup2(open((dir_ / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open((dir_ / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    int code = 99;
    try {
      code = launch(options);
    } catch (const std::exception& e) {
      std::cerr << e.what() << std::endl;
    }
    _exit(code);
  }

  int wait() {
    int status = 0;
    waitpid(std::exchange(agent_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int run(int processes, const std::string& script, const LaunchOptions& options = {}) {
    start(processes, script, options);
    return wait();
  }

  std::string out() const { return read_file(dir_ / "out"); }
  std::string err() const { return read_file(dir_ / "err"); }
  bool in_err(const std::string& text) const { return err().find(text) != std::string::npos; }
  int times_in_err(const std::string& text) const {
    int times = 0;
    const std::string all = err();
    for (std::size_t at = 0; (at = all.find(text, at)) != std::string::npos; ++at) ++times;
    return times;
  }
  bool all_there(const std::string& name, int n) const {
    for (int r = 0; r < n; ++r)
      if (read_file(dir_ / (name + std::to_string(r))).empty()) return false;
    return true;
  }
  pid_t pid_of(int rank) const { return std::stoi(read_file(dir_ / ("pid" + std::to_string(rank)))); }

  pid_t agent_ = 0;
};

// The machine's files say that two of its cores are two NUMA nodes.
TEST_F(DistLaunch, WorkersAreBoundToCoresAndNodes) {
  const std::vector<int> cores = allowed_cores();
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores";
  const auto write = [&](const std::string& file, const std::string& text) {
    fs::create_directories((dir_ / "sys/devices/system" / file).parent_path());
    std::ofstream(dir_ / "sys/devices/system" / file) << text << "\n";
  };
  write("cpu/online", format_number_list(cores));
  write("node/online", "0-1");
  for (int node = 0; node < 2; ++node)
    write(str("node/node", node, "/cpulist"), str(cores[static_cast<std::size_t>(node)]));
  LaunchOptions o;
  o.machine_root = dir_.string();
  const std::string look =
      "grep Cpus_allowed_list /proc/self/status > $D/cores$R; echo $RINGMASTER_THREADS >> $D/cores$R; "
      "head -n 1 /proc/self/numa_maps > $D/memory$R";
  EXPECT_EQ(run(2, look, o), 0) << err();
  for (int rank = 0; rank < 2; ++rank) {
    const std::string core = str(cores[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(read_file(dir_ / str("cores", rank)), "Cpus_allowed_list:\t" + core + "\n1\n");
    EXPECT_TRUE(in_err(str("launch: rank ", rank, ": cores ", core, " of NUMA node ", rank))) << err();
  }
  const std::string memory = read_file(dir_ / "memory0");  // empty if the kernel does not show it
  if (memory_can_be_bound() && !memory.empty()) {
    EXPECT_NE(memory.find(" prefer"), std::string::npos) << memory;
  }
  o.numa_binding = NumaBinding::none;
  EXPECT_EQ(run(1, look, o), 0) << err();
  EXPECT_EQ(read_file(dir_ / "cores0"),
            str("Cpus_allowed_list:\t", format_number_list(cores), "\n", cores.size(), "\n"));
}

TEST_F(DistLaunch, SuccessReturnsZeroAndPassesOutputThrough) {
  EXPECT_EQ(run(3, "echo out$R; echo err$R >&2; printf unfinished$R >&2"), 0);
  EXPECT_EQ(out(), "out0\n");
  EXPECT_TRUE(in_err("err0\n")) << err();
  for (const char* line : {"[rank 1] out1\n", "[rank 1] err1\n", "[rank 2] unfinished2\n"})
    EXPECT_TRUE(in_err(line)) << err();
}

TEST_F(DistLaunch, WorkersKnowTheirRank) {
  LaunchOptions options;
  options.threads_per_worker = 3;
  options.comm_timeout_seconds = 77;
  EXPECT_EQ(run(2, "env | grep ^RINGMASTER_ | sort > $D/env$R", options), 0);
  for (int r = 0; r < 2; ++r) {
    Environment env;
    std::istringstream lines(read_file(dir_ / ("env" + std::to_string(r))));
    for (std::string line; std::getline(lines, line);)
      env[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    EXPECT_FALSE(env.contains("RINGMASTER_COOKIE")) << "a secret, which the page has";
    EXPECT_TRUE(env.contains("RINGMASTER_PAGE"));
    env["RINGMASTER_COOKIE"] = "c";
    const WorkerEnvironment w = parse_environment(env);
    EXPECT_EQ(w.rank, r);
    EXPECT_EQ(w.world, 2);
    EXPECT_EQ(w.local_rank, r);
    EXPECT_EQ(w.local_world, 2);
    EXPECT_EQ(w.store.host, "127.0.0.1");
    EXPECT_EQ(env["RINGMASTER_THREADS"], "3");
    EXPECT_EQ(parse_comm_options(env).timeout, std::chrono::seconds(77));
  }
}

// In scripts, $TRY is the number of the attempt.
constexpr const char* kTry = "TRY=$RINGMASTER_RESTART_COUNT; ";

class DistRestart : public DistLaunch {
 protected:
  int run(int processes, const std::string& script, int max_restarts, LaunchOptions options = {}) {
    options.max_restarts = max_restarts;
    return DistLaunch::run(processes, kTry + script, options);
  }
};

TEST_F(DistRestart, AllWorkersAreRestarted) {
  EXPECT_EQ(run(2, "echo $$ > $D/pid$TRY$R; [ $TRY = 1 ] && exit 0; [ $R = 1 ] && kill -9 $$; exec sleep 600", 3), 0);
  EXPECT_TRUE(
      in_err("rank 1 (pid " + std::to_string(std::stoi(read_file(dir_ / "pid01"))) + ") was killed by signal 9"))
      << err();
  EXPECT_EQ(times_in_err("starting all workers again"), 1) << err();
  EXPECT_TRUE(in_err("the workers were restarted once")) << err();
  for (const char* place : {"00", "01", "10", "11"}) EXPECT_FALSE(read_file(dir_ / str("pid", place)).empty()) << place;
  EXPECT_TRUE(has_ended(std::stoi(read_file(dir_ / "pid00")))) << "nobody of the first attempt is left";
}

TEST_F(DistRestart, ErrorsThatARestartCannotCureEndTheJob) {
  for (const int code : {kExitError, kExitUsage, 126, 127}) {
    fs::remove(dir_ / "err");
    EXPECT_EQ(run(2, str("exit ", code), 3), code);
    EXPECT_FALSE(in_err("again")) << err();
  }
}

TEST_F(DistRestart, ThreeFailuresAtTheSameStepEndTheJob) {
  EXPECT_EQ(run(2, "echo x >> $D/starts$R; exit 7", 100), 7);
  EXPECT_EQ(read_file(dir_ / "starts0"), "x\nx\nx\n");
  EXPECT_TRUE(in_err("failed 3 times") && in_err("before its first step")) << err();
}

TEST_F(DistRestart, RestartsAreLimited) {
  EXPECT_EQ(run(1, "echo x >> $D/starts; exit 7", 1), 7);
  EXPECT_EQ(read_file(dir_ / "starts"), "x\nx\n");
  EXPECT_TRUE(in_err("restarted 1 time") && in_err("(--max-restarts)")) << err();
}

TEST_F(DistRestart, ASignalEndsTheJobWhateverTheWorkersReturn) {
  LaunchOptions options;
  options.max_restarts = 3;
  start(2, "trap 'kill -9 $$' TERM; echo x >> $D/up$R; while :; do sleep 0.05; done", options);
  ASSERT_TRUE(eventually([&] { return all_there("up", 2); }, kPatience));
  kill(agent_, SIGTERM);
  EXPECT_EQ(wait(), 128 + SIGKILL);
  EXPECT_EQ(read_file(dir_ / "up0"), "x\n") << err();
}

TEST_F(DistRestart, ASignalWhileWorkersEndPreventsARestart) {
  LaunchOptions options;
  options.max_restarts = 3;
  options.grace = std::chrono::seconds(2);
  start(2, "trap '' TERM; echo x >> $D/up$R; [ $R = 0 ] && sleep 0.2 && exit 7; while :; do sleep 0.05; done", options);
  ASSERT_TRUE(eventually([&] { return in_err("ending the other workers"); }, 3)) << err();
  kill(agent_, SIGTERM);
  EXPECT_EQ(wait(), 7);
  EXPECT_TRUE(in_err("there will be no restart")) << err();
  EXPECT_EQ(read_file(dir_ / "up0"), "x\n") << err();
}

// The second attempt has its own store and a new cookie.
TEST_F(DistRestart, EachAttemptHasItsOwnStoreAndCookie) {
  EXPECT_EQ(run(1,
                "echo $RINGMASTER_STORE > $D/store$TRY; head -c 128 /proc/$$/fd/$RINGMASTER_PAGE | sha256sum > "
                "$D/cookie$TRY; [ $TRY = 1 ] || exit 7",
                3),
            0);
  for (const char* what : {"store", "cookie"}) {
    const std::string first = read_file(dir_ / str(what, 0)), second = read_file(dir_ / str(what, 1));
    EXPECT_FALSE(first.empty() || first == second) << what << ": " << first << second;
  }
}

TEST_F(DistRestart, EachAttemptHasItsLogs) {
  LaunchOptions options;
  options.log_dir = (dir_ / "logs").string();
  EXPECT_EQ(run(2, "echo try $TRY >&2; [ $TRY = 1 ] || exit 7", 3, options), 0);
  for (const char* rank : {"rank0.log", "rank1.log"})
    for (const char* attempt : {"0", "1"})
      EXPECT_EQ(read_file(dir_ / "logs" / str("attempt_", attempt) / rank), str("try ", attempt, "\n"));
}

TEST_F(DistRestart, AFailedDeviceIsRestartedEvenBeforeTheFirstStep) {
  EXPECT_EQ(run(2, str("[ $TRY = 1 ] || exit ", kExitDeviceFailure), 3), 0);
  EXPECT_EQ(times_in_err("starting all workers again"), 1) << err();
}

TEST_F(DistLaunch, GpuCoreDumpsGoBesideTheLogs) {
  LaunchOptions options;
  options.log_dir = (dir_ / "logs").string();
  const std::string script =
      "echo $CUDA_ENABLE_COREDUMP_ON_EXCEPTION $CUDA_COREDUMP_FILE $CUDA_COREDUMP_PIPE "
      "$CUDA_COREDUMP_GENERATION_FLAGS > $D/dumps$R";
  EXPECT_EQ(run(2, script, options), 0);
  EXPECT_EQ(read_file(dir_ / "dumps0"), "\n") << "off by default";
  options.gpu_core_dumps = true;
  EXPECT_EQ(run(2, script, options), 0);
  const std::string file = (dir_ / "logs/attempt_0/rank1.cudacore").string();
  EXPECT_TRUE(read_file(dir_ / "dumps1").starts_with(str("1 ", file, " ", file, ".pipe skip_")))
      << read_file(dir_ / "dumps1");
  setenv("CUDA_COREDUMP_FILE", "own", 1);
  EXPECT_EQ(run(1, script, options), 0);
  unsetenv("CUDA_COREDUMP_FILE");
  EXPECT_TRUE(read_file(dir_ / "dumps0").starts_with("1 own ")) << read_file(dir_ / "dumps0");
}

TEST_F(DistLaunch, TeeRedirectAndFilterSelectRanks) {
  LaunchOptions options;
  options.log_dir = (dir_ / "logs").string();
  options.tee.some = {1};
  options.redirects.some = {0};
  EXPECT_EQ(run(3, "echo line$R >&2", options), 0);
  for (const char* r : {"0", "1", "2"})
    EXPECT_EQ(read_file(dir_ / "logs/attempt_0" / str("rank", r, ".log")), str("line", r, "\n"));
  EXPECT_FALSE(in_err("line0")) << err();
  EXPECT_TRUE(in_err("[rank 1] line1\n")) << err();
  EXPECT_FALSE(in_err("line2")) << err();
  LaunchOptions filter;
  filter.shown = LocalRanks{.some = {1}};
  fs::remove(dir_ / "err");
  EXPECT_EQ(run(2, "echo shown$R; echo shown$R >&2", filter), 0);
  EXPECT_EQ(times_in_err("shown1"), 2) << err();
  EXPECT_FALSE(in_err("shown0")) << err();
  EXPECT_EQ(out(), "") << out();
}

TEST_F(DistLaunch, LogDirectoryHasOneFilePerRank) {
  LaunchOptions options;
  options.log_dir = (dir_ / "a/b").string();
  EXPECT_EQ(run(2, "echo line$R >&2", options), 0);
  EXPECT_EQ(read_file(dir_ / "a/b/attempt_0/rank0.log"), "line0\n");
  EXPECT_EQ(read_file(dir_ / "a/b/attempt_0/rank1.log"), "line1\n");
  EXPECT_TRUE(in_err("line0\n"));
  EXPECT_FALSE(in_err("line1\n")) << "a rank with a file keeps the terminal quiet";
}

TEST_F(DistLaunch, FailedWorkerIsNamedWithItsLastLinesAndTheOthersEnd) {
  const auto begin = Clock::now();
  // The failing worker waits until the others have written their pids.
  EXPECT_EQ(run(3,
                "echo $$ > $D/pid$R; [ $R = 1 ] || exec sleep 600; "
                "until [ -s $D/pid0 ] && [ -s $D/pid2 ]; do sleep 0.01; done; seq -f line%g 100; exit 7"),
            7);
  EXPECT_LT(seconds_since(begin), kPatience);
  EXPECT_TRUE(in_err("rank 1 (pid " + std::to_string(pid_of(1)) + ") exited with code 7")) << err();
  EXPECT_TRUE(in_err("| line51\n") && in_err("| line100\n")) << err();
  EXPECT_FALSE(in_err("| line50\n")) << err();
  for (const int r : {0, 2}) EXPECT_TRUE(has_ended(pid_of(r)));
}

TEST_F(DistLaunch, LastLinesOfTheFailedWorkerArePrintedLast) {
  EXPECT_EQ(run(3,
                "trap 'echo I end >&2; exit 1' TERM; echo x > $D/up$R; "
                "until [ $R = 1 ] && [ -s $D/up0 ] && [ -s $D/up2 ]; do sleep 0.05; done; echo I fail; exit 3"),
            3);
  EXPECT_EQ(times_in_err("I end"), 2) << err();
  EXPECT_LT(err().rfind("I end"), err().find("last lines of rank 1:")) << err();
  EXPECT_TRUE(err().ends_with("  | I fail\n")) << err();
}

TEST_F(DistLaunch, KilledWorkerIsNamedAndStubbornOnesAreKilled) {
  start(3, "trap '' TERM; echo $$ > $D/pid$R; while :; do sleep 0.1; done");
  ASSERT_TRUE(eventually([&] { return all_there("pid", 3); }, kPatience));
  const auto begin = Clock::now();
  kill(pid_of(2), SIGKILL);
  EXPECT_EQ(wait(), 128 + SIGKILL);
  EXPECT_LT(seconds_since(begin), kPatience);
  EXPECT_TRUE(in_err("rank 2 (pid " + std::to_string(pid_of(2)) + ") was killed by signal 9")) << err();
  for (const int r : {0, 1}) EXPECT_TRUE(has_ended(pid_of(r)));
}

// The result does not depend on which worker fails first, or on how late the others fail.
TEST_F(DistLaunch, AnErrorOfAllWorkersIsPrintedOnce) {
  for (const char* late : {"0", "1", "2"}) {
    fs::remove(dir_ / "err");
    EXPECT_EQ(run(3, str("[ $R = ", late, " ] && sleep 0.1; printf 'ringmaster: no such\\nfile\\n' >&2; exit 1")), 1);
    EXPECT_EQ(times_in_err("ringmaster: no such\nfile\n"), 1) << err();
    EXPECT_EQ(times_in_err("file"), 1) << err();
    EXPECT_TRUE(in_err("all 3 workers") && in_err("exit code 1")) << err();
  }
}

TEST_F(DistLaunch, DifferentErrorsAreAllPrinted) {
  EXPECT_EQ(run(4, "echo ringmaster: reason $((R % 3)) >&2; exit 2"), 2);
  EXPECT_TRUE(in_err("ranks 0 and 3") && in_err("exit code 2")) << err();
  for (const char* reason : {"reason 0", "reason 1", "reason 2"}) EXPECT_EQ(times_in_err(reason), 1) << err();
  for (const int r : {1, 2}) EXPECT_TRUE(in_err(str("[rank ", r, "] ringmaster: reason ", r))) << err();
}

TEST_F(DistLaunch, AnErrorOfOneWorkerIsPrintedOnce) {
  const auto begin = Clock::now();
  EXPECT_EQ(run(3, "[ $R = 1 ] || exec sleep 600; echo before >&2; echo ringmaster: the disk is full >&2; exit 1"), 1);
  EXPECT_LT(seconds_since(begin), kPatience);
  EXPECT_TRUE(in_err("rank 1 (pid")) << err();
  EXPECT_TRUE(in_err("| ringmaster: the disk is full\n")) << err();
  EXPECT_EQ(times_in_err("disk"), 1) << err();
}

TEST_F(DistLaunch, LinesThatOnlyLookLikeAnErrorArePrinted) {
  EXPECT_EQ(run(2, "echo ringmaster: all is well >&2; echo more >&2"), 0);
  EXPECT_TRUE(in_err("[rank 1] ringmaster: all is well\n[rank 1] more\n")) << err();
}

TEST_F(DistLaunch, LinesThatNameTheirRankGetNoSecondMark) {
  EXPECT_EQ(run(2, "echo \"12:00:00 W [rank $R] slow\" >&2"), 0);
  EXPECT_TRUE(in_err("12:00:00 W [rank 1] slow\n")) << err();
  EXPECT_EQ(times_in_err("[rank 1]"), 1) << err();
}

TEST_F(DistLaunch, WorkersThatLostAPeerEndByThemselves) {
  EXPECT_EQ(run(3, "[ $R = 1 ] && kill -9 $$; trap 'echo told' TERM; sleep 0.1; echo ringmaster: lost it >&2; exit " +
                       std::to_string(kExitPeerLost)),
            128 + SIGKILL);
  EXPECT_EQ(out(), "");
  EXPECT_EQ(times_in_err("told") + times_in_err("[rank 2]"), 0) << err();
  EXPECT_EQ(times_in_err("lost it"), 1) << err();  // rank 0's line goes to the console at once
}

TEST_F(DistLaunch, LastLinesOfRankZeroArePrinted) {
  EXPECT_EQ(run(2, "[ $R = 0 ] || exec sleep 600; echo 'the reason' >&2; exit 1"), 1);
  EXPECT_TRUE(in_err("rank 0 (pid")) << err();
  EXPECT_TRUE(in_err("| the reason\n")) << err();
}

TEST_F(DistLaunch, TheCauseIsNamedInsteadOfThePeersThatLostIt) {
  const std::string lost = std::to_string(kExitPeerLost);
  EXPECT_EQ(run(3, "[ $R != 1 ] && exit " + lost + "; sleep 0.1; exit 5"), 5);
  EXPECT_TRUE(in_err("rank 1 (pid")) << err();
  EXPECT_FALSE(in_err("rank 0 (pid")) << err();
}

TEST_F(DistLaunch, AWorkerThatRanOutOfMemoryIsReportedInOneLine) {
  EXPECT_EQ(run(2, "[ $R = 0 ] && exec sleep 600; echo 'ringmaster: rank 1 ran out of memory; now less' >&2; exit " +
                       std::to_string(kExitOutOfMemory)),
            kExitOutOfMemory);
  EXPECT_TRUE(in_err("launch: rank 1 ran out of memory; now less; ")) << err();
  EXPECT_EQ(times_in_err("now less"), 1) << err();
}

TEST_F(DistLaunch, LostPeersAloneEndTheLaunch) {
  const auto begin = Clock::now();
  EXPECT_EQ(run(2, "[ $R = 0 ] && exec sleep 600; exit " + std::to_string(kExitPeerLost)), kExitPeerLost);
  EXPECT_LT(seconds_since(begin), kPatience);
  EXPECT_TRUE(in_err("lost another worker")) << err();
}

TEST_F(DistLaunch, SignalsArePassedOnOnceAndWorkersMayFinish) {
  const std::string code = std::to_string(kExitInterrupted);
  start(2, "trap 'sleep 0.2; echo saved >> $D/saved$R; exit " + code +
               "' TERM; echo x > $D/up$R; while :; do sleep 0.05; done");
  ASSERT_TRUE(eventually([&] { return all_there("up", 2); }, kPatience));
  kill(agent_, SIGTERM);
  EXPECT_EQ(wait(), kExitInterrupted);
  for (const char* name : {"saved0", "saved1"}) EXPECT_EQ(read_file(dir_ / name), "saved\n");
  EXPECT_FALSE(in_err("last lines")) << err();
}

TEST_F(DistLaunch, WorkersThatDoNotStopAreKilledInTime) {
  LaunchOptions options;
  options.stop_timeout = milliseconds(300);
  start(2, "trap '' INT; echo $$ > $D/pid$R; while :; do sleep 0.05; done", options);
  ASSERT_TRUE(eventually([&] { return all_there("pid", 2); }, kPatience));
  const auto begin = Clock::now();
  kill(agent_, SIGINT);
  EXPECT_EQ(wait(), 128 + SIGKILL);
  EXPECT_LT(seconds_since(begin), kPatience);
  EXPECT_TRUE(in_err("rank 1 did not stop")) << err();
}

TEST_F(DistLaunch, ASecondSignalEndsTheLaunchAtOnce) {
  LaunchOptions options;
  options.grace = milliseconds(200);
  start(2, "trap '' INT; echo $$ > $D/pid$R; while :; do sleep 0.05; done", options);
  ASSERT_TRUE(eventually([&] { return all_there("pid", 2); }, kPatience));
  kill(agent_, SIGINT);
  ASSERT_TRUE(eventually([&] { return in_err("waiting up to"); }, kPatience));
  EXPECT_FALSE(has_ended(pid_of(0)));
  std::this_thread::sleep_for(kSameSignalWithin + milliseconds(50));
  kill(agent_, SIGINT);
  const auto begin = Clock::now();
  EXPECT_EQ(wait(), 128 + SIGTERM);
  EXPECT_LT(seconds_since(begin), kPatience);
}

// timeout(1) signals its child and then the child's process group.
TEST_F(DistLaunch, ARepeatedSignalIsNotASecondSignal) {
  start(2, "trap 'sleep 0.3; exit " + std::to_string(kExitInterrupted) +
               "' TERM; echo x > $D/up$R; while :; do sleep 0.05; done");
  ASSERT_TRUE(eventually([&] { return all_there("up", 2); }, kPatience));
  kill(agent_, SIGTERM);
  ASSERT_TRUE(eventually([&] { return in_err("waiting up to"); }, kPatience));
  kill(agent_, SIGTERM);
  EXPECT_EQ(wait(), kExitInterrupted);
  EXPECT_FALSE(in_err("second signal")) << err();
}

// The program ignores these signals. A worker that is a different program must not inherit that.
TEST_F(DistLaunch, WorkersHaveDefaultSignalHandlers) {
  const auto pipe = signal(SIGPIPE, SIG_IGN), size = signal(SIGXFSZ, SIG_IGN);
  for (const auto& [name, number] : {std::pair("PIPE", SIGPIPE), std::pair("XFSZ", SIGXFSZ)})
    EXPECT_EQ(run(1, str("kill -", name, " $$; exit 3")), 128 + number);
  signal(SIGPIPE, pipe), signal(SIGXFSZ, size);
}

TEST_F(DistLaunch, KillingTheAgentLeavesNothing) {
  start(3, "trap '' TERM HUP INT; echo $$ > $D/pid$R; exec sleep 600");
  ASSERT_TRUE(eventually([&] { return all_there("pid", 3); }, kPatience));
  kill(agent_, SIGKILL);
  EXPECT_EQ(wait(), -SIGKILL);
  for (int r = 0; r < 3; ++r) EXPECT_TRUE(eventually([&] { return has_ended(pid_of(r)); }, kPatience)) << "rank " << r;
}

TEST_F(DistLaunch, ProcessesOfAWorkerEndWithIt) {
  EXPECT_EQ(run(2, "sleep 600 & echo $! > $D/pid$R; [ $R = 0 ] || sleep 0.2; exit $R"), 1);
  for (int r = 0; r < 2; ++r) EXPECT_TRUE(eventually([&] { return has_ended(pid_of(r)); }, kPatience)) << "rank " << r;
}

TEST_F(DistLaunch, FloodOfOutputDoesNotBlock) {
  EXPECT_EQ(run(2, "seq 100000 >&2"), 0);
  EXPECT_TRUE(in_err("[rank 1] 100000\n"));
}

TEST_F(DistLaunch, MissingProgramIsAnError) {
  LaunchOptions options;
  options.program = "/nowhere/at/all";
  options.command = {"x"};
  agent_ = fork();
  if (agent_ == 0) {
    dup2(open((dir_ / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    _exit(launch(options));
  }
  EXPECT_EQ(wait(), 127);
  EXPECT_TRUE(in_err("could not be executed")) << err();
}

TEST(Launch, BadOptionsAreRefused) {
  LaunchOptions options;
  EXPECT_THROW(launch(options), Error);  // no command
  options.command = {"train"};
  options.processes = 0;
  EXPECT_THROW(launch(options), Error);
  options.processes = 1;
  options.threads_per_worker = -1;
  EXPECT_THROW(launch(options), Error);
  options.threads_per_worker = 1;
  options.log_dir = "/dev/null/logs";
  EXPECT_THROW(launch(options), Error);
}

TEST(WorkerOutput, KeepsABoundedNumberOfLastLines) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  WorkerOutput output(Fd(ends[0]), "", -1, "");
  const std::string live = "step 1\rstep 2\rstep 3", huge(10'000, 'x');
  for (const std::string& text : {live + "\n", huge + "\n", std::string("\n"), std::string("no end")})
    ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  output.finish();
  EXPECT_EQ(output.fd(), -1);
  ASSERT_GE(output.tail().size(), 4u);
  EXPECT_EQ(output.tail().front(), "step 3");
  EXPECT_EQ(output.tail().back(), "no end");
  std::size_t xs = 0;
  for (const std::string& line : output.tail()) {
    EXPECT_LE(line.size(), 4096u);
    if (line.find('x') == 0) xs += line.size();
  }
  EXPECT_EQ(xs, huge.size());
}

TEST(Ending, IsDescribed) {
  EXPECT_EQ(describe(Ending{3, 0}), "exited with code 3");
  EXPECT_EQ(describe(Ending{0, SIGKILL}), "was killed by signal 9 (Killed)");
  EXPECT_EQ((Ending{0, SIGTERM}).exit_code(), 143);
}

}  // namespace
}  // namespace ring
