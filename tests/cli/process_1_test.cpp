// Process 1 of a container, for which the kernel takes no default action on a signal.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

const std::vector<std::string> kInContainer = {"/usr/bin/unshare", "--user", "--map-root-user", "--pid", "--fork"};

std::vector<std::string> in_container(const std::vector<std::string>& command) {
  std::vector<std::string> all = kInContainer;
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

// Returns the first child of a process; 0 if there is none.
pid_t child_of(pid_t parent) {
  std::ifstream in("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  pid_t child = 0;
  in >> child;
  return child;
}

// The command does not end by itself within the test and does not handle signals itself.
TEST(DistProcess1, EndsOnSignals) {
  if (run_process(in_container({"/bin/true"})).code != 0) GTEST_SKIP() << "unshare may not make a container here";
  for (const int number : {SIGTERM, SIGINT}) {
    Process command(in_container({ring_binary(), "bench", "step", source_dir() + "/configs/nanogpt_cpu.yaml", "--steps",
                                  "1000000", "--no-ceilings", "run.device=cpu", "run.threads=1"}));
    // Signals are repeated, because the first ones may arrive before the program handles signals.
    while (command.running()) {
      if (const pid_t child = child_of(command.pid()); child > 0) kill(child, number);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const Finished end = command.wait();
    EXPECT_EQ(end.code, 128 + number) << end.output;
  }
}

}  // namespace
}  // namespace ring::test
