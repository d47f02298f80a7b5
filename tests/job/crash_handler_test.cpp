// The message of a process that crashes, and how the process ends.

#include "job/crash_handler.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "comm/flight_log.h"
#include "job/run_phase.h"
#include "job/worker_status.h"
#include "tests/launcher/files.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using test::read_file;

void write_to(std::uintptr_t address) {
  const volatile std::uintptr_t at = address;  // hidden from the compiler
  *reinterpret_cast<volatile int*>(at) = 1;
}

int overflow_stack(int n) {  // recurses until the stack overflows
  volatile char frame[4096] = {};
  frame[0] = static_cast<char>(n);
  return n < 0 ? 0 : overflow_stack(n + 1) + frame[0];
}

class DistCrash : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers have handlers of their own";
#endif
    std::string pattern = (fs::temp_directory_path() / "ring_crash_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  // Runs `crash` in a child process. Returns the signal that ended it, or minus its exit code.
  int run(const std::function<void()>& crash) const {
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("TORCHELASTIC_ERROR_FILE", (dir_ / "error.json").c_str(), 1);
      dup2(open((dir_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      install_crash_handler();
      own_status().step = 119;
      enter(RunPhase::backward);
      FlightLog log(own_status().flights, "dp", 0, 2);
      log.record_queued({"all_reduce sum of f32[1000]", Site::current()}).mark_started();
      crash();
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
  }
  void expect_said(const std::string& text) const {
    const std::string err = read_file(dir_ / "err");
    EXPECT_NE(err.find(text), std::string::npos) << err;
    for (const char* part :
         {"in phase backward after step 119", "#1 of dp, all_reduce sum of f32[1000] at job/crash_handler_test.cpp:"})
      EXPECT_NE(err.find(part), std::string::npos) << err;
    const auto file = nlohmann::json::parse(read_file(dir_ / "error.json"));
    const auto& message = file.at("message");
    EXPECT_NE(message.at("message").get<std::string>().find(text), std::string::npos) << file;
    const auto& extra = message.at("extraInfo");
    EXPECT_NE(extra.at("py_callstack").get<std::string>().find("test_job+0x"), std::string::npos) << file;
    EXPECT_GT(std::stoll(extra.at("timestamp").get<std::string>()), 1'700'000'000);
  }

  fs::path dir_;
};

TEST_F(DistCrash, EachSignalStillEndsTheProcess) {
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    fs::remove(dir_ / "error.json");
    EXPECT_EQ(run([number] { raise(number); }), number);
    expect_said("ringmaster: crashed by signal " + std::to_string(number) + " (");
  }
}

TEST_F(DistCrash, ABadAddressIsNamed) {
  EXPECT_EQ(run([] { write_to(0x40); }), SIGSEGV);
  expect_said(" at address 0x40");
}

TEST_F(DistCrash, AStackOverflowIsReported) {
  EXPECT_EQ(run([] { _exit(overflow_stack(0)); }), SIGSEGV);
  expect_said("crashed by signal 11");
}

TEST_F(DistCrash, ACrashOfAnotherThreadIsReported) {
  EXPECT_EQ(run([] { std::thread([] { write_to(0x48); }).join(); }), SIGSEGV);
  expect_said(" at address 0x48");
}

TEST_F(DistCrash, AnUncaughtExceptionIsReported) {
  EXPECT_EQ(run([] { std::thread([] { throw std::runtime_error("a \"lost\" one"); }).join(); }), SIGABRT);
  expect_said("uncaught exception: a \"lost\" one");
}

// The message appears although the crashing thread holds the lock of the heap.
TEST_F(DistCrash, ACrashInsideTheHeapIsReported) {
  EXPECT_EQ(run([] {
              void* volatile block = std::malloc(24);
              std::free(block);
              std::free(block);
            }),
            SIGABRT);
  expect_said("crashed by signal 6");
}

TEST_F(DistCrash, AChildProcessDiesAlone) {
  EXPECT_EQ(run([] {
              int status = 0;
              const pid_t child = fork();
              if (child == 0) raise(SIGSEGV), _exit(0);
              waitpid(child, &status, 0);
              _exit(WIFSIGNALED(status) ? WTERMSIG(status) : 99);
            }),
            -SIGSEGV);
}

TEST_F(DistCrash, TheHandlersThreadDoesNotDelayTheEnd) {
  EXPECT_EQ(run([] { std::exit(0); }), -0);
  EXPECT_EQ(run([] {  // a child has no such thread to wait for
              int status = 0;
              const pid_t child = fork();
              if (child == 0) std::exit(7);
              waitpid(child, &status, 0);
              std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
            }),
            -7);
}

TEST_F(DistCrash, TheErrorFileKeepsTheFirstError) {
  EXPECT_EQ(run([] {
              write_error_file("data.path: there is no \\ \"corpus\"\n");
              write_error_file("a second one");
            }),
            0);
  const auto file = nlohmann::json::parse(read_file(dir_ / "error.json"));
  EXPECT_EQ(file.at("message").at("message"), "data.path: there is no \\ \"corpus\"\n");
}

}  // namespace
}  // namespace ring
