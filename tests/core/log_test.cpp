#include "core/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <thread>
#include <vector>

namespace ring {
namespace {

namespace fs = std::filesystem;

class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / str("ring_log_test_", getpid());
    fs::create_directories(folder_);
    log::set_console(false);
  }
  void TearDown() override {
    log::close_file();
    log::set_console(true);
    log::set_level(log::Level::info);
    log::set_rank(0, 1);
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string text(const std::string& name) const {
    std::ifstream in(path(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  fs::path folder_;
};

TEST_F(LogTest, AFileGetsDatedLinesAtOnce) {
  log::open_file(path("a.log"));
  log::info("loss ", 1.5, " at step ", 3);
  EXPECT_TRUE(
      std::regex_match(text("a.log"), std::regex(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} I loss 1.5 at step 3\n)")))
      << text("a.log");
}

TEST_F(LogTest, AFileThatCannotBeWrittenIsNamedOnce) {
  log::open_file("/dev/full");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) log::info("a line");
  const std::string said = testing::internal::GetCapturedStderr();
  const std::size_t first = said.find("/dev/full: No space left on device");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("/dev/full", first + 1), std::string::npos) << said;
}

// Static objects are destroyed in reverse order of construction: this object outlives everything that logging
// constructs later.
struct LogsWhenDestroyed {
  ~LogsWhenDestroyed() { log::warn("last words"); }
};

TEST(LogAtExit, OutlivesOtherStaticObjects) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, in which nothing has been logged
  EXPECT_EXIT(
      {
        static const LogsWhenDestroyed last;
        log::info("the first line");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "last words");
}

TEST_F(LogTest, BracesAndPercentSignsArePlainText) {
  log::open_file(path("a.log"));
  log::info("{} {0} %v %n {unbalanced");
  EXPECT_NE(text("a.log").find("{} {0} %v %n {unbalanced"), std::string::npos) << text("a.log");
}

TEST_F(LogTest, LevelsBelowTheChosenOneAreDropped) {
  log::open_file(path("a.log"));
  log::debug("quiet");
  log::set_level(log::Level::debug);
  log::debug("loud");
  log::set_level(log::Level::error);
  log::info("dropped");
  log::error("kept");
  EXPECT_EQ(text("a.log").find("quiet"), std::string::npos);
  EXPECT_NE(text("a.log").find("loud"), std::string::npos);
  EXPECT_EQ(text("a.log").find("dropped"), std::string::npos);
  EXPECT_NE(text("a.log").find("kept"), std::string::npos);
}

TEST_F(LogTest, RanksAreNamedWhateverIsSetFirst) {
  log::set_rank(1, 4);
  log::open_file(path("a.log"));
  log::info("one");
  log::set_rank(2, 4);
  log::info("two");
  log::set_rank(0, 1);
  log::info("alone");
  const std::string all = text("a.log");
  EXPECT_TRUE(std::regex_search(all, std::regex(R"(\d{4}-\d\d-\d\d .* \[rank 1\] one\n)"))) << all;
  EXPECT_TRUE(std::regex_search(all, std::regex(R"(\d{4}-\d\d-\d\d .* \[rank 2\] two\n)"))) << all;
  EXPECT_TRUE(std::regex_search(all, std::regex(R"(\d{4}-\d\d-\d\d \S+ I alone\n)"))) << all;
}

TEST_F(LogTest, ASecondFileReplacesTheFirstAndIsAppendedTo) {
  log::open_file(path("a.log"));
  log::info("one");
  log::open_file(path("b.log"));
  log::info("two");
  log::open_file(path("a.log"));
  log::info("three");
  EXPECT_EQ(text("a.log").find("two"), std::string::npos);
  EXPECT_NE(text("a.log").find("one"), std::string::npos);
  EXPECT_NE(text("a.log").find("three"), std::string::npos);
  EXPECT_NE(text("b.log").find("two"), std::string::npos);
}

TEST_F(LogTest, AFileThatCannotBeOpenedIsNamed) {
  const std::string bad = path("a_file");
  std::ofstream(bad) << "x";
  try {
    log::open_file(bad + "/run.log");
    ADD_FAILURE() << "opened a file below a file";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(bad + "/run.log"), std::string::npos) << e.what();
  }
}

TEST_F(LogTest, ThreadsDoNotMixLines) {
  log::open_file(path("a.log"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) log::info("thread ", t, " line ", i, " end");
    });
  for (std::thread& t : threads) t.join();
  std::ifstream in(path("a.log"));
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines)
    EXPECT_TRUE(std::regex_search(line, std::regex("I thread [0-3] line [0-9]+ end$"))) << line;
  EXPECT_EQ(lines, 400);
}

TEST(Check, MessageNamesConditionAndPlace) {
  const int got = 3;
  try {
    RING_CHECK(got == 4, "expected 4, got ", got);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_TRUE(
        std::regex_match(e.what(), std::regex(R"(expected 4, got 3 \[got == 4 is false at .*log_test\.cpp:\d+\])")))
        << e.what();
  }
}

TEST(Check, NanDoesNotPass) {
  const double loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(RING_CHECK(loss < 10, "loss ", loss), Error);
}

}  // namespace
}  // namespace ring
