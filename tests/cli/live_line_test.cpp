// Progress of long computations, on a terminal and in a file.
#include "cli/live_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace ring::test {
namespace {

// Shows 25 seconds of progress, one text every 0.05 s. Returns the text written to standard error.
std::string show_progress(bool terminal) {
  double now = 100;
  testing::internal::CaptureStderr();
  {
    LiveLine line({.terminal = terminal, .now = [&] { return now; }});
    for (int i = 0; i <= 500; ++i) {
      now = 100 + i * 0.05;
      line.show("part " + std::to_string(i));
    }
  }
  return testing::internal::GetCapturedStderr();
}

TEST(LiveLine, WithoutATerminalALineIsWrittenEveryTenSeconds) {
  const std::string text = show_progress(false);
  EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
  for (const char* line : {" part 200\n", " part 400\n"}) EXPECT_NE(text.find(line), std::string::npos) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos) << text;
}

TEST(LiveLine, OnATerminalTheLineIsRemovedAtTheEnd) {
  const std::string text = show_progress(true);
  EXPECT_EQ(std::ranges::count(text, '\n'), 0) << text;
  EXPECT_NE(text.find("\r\x1b[Kpart 49"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << text;
}

TEST(LiveLine, NothingIsShownBeforeItIsDue) {
  testing::internal::CaptureStderr();
  {
    LiveLine line({.terminal = true, .now = [] { return 0.0; }});
    EXPECT_FALSE(line.is_due());
    line.show("too early");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace ring::test
