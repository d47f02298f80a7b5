#include "data/output_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "core/check.h"
#include "tests/error_of.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

// Limits the size of files to `bytes` for as long as the object lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit cap{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &cap);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  sighandler_t handler_;
};

class OutputTextFile : public testing::Test {
 protected:
  OutputTextFile() : path_((fs::temp_directory_path() / str("ring_text_file_", getpid())).string()) {}
  ~OutputTextFile() override { fs::remove(path_); }
  std::string path_;
};

TEST_F(OutputTextFile, IsWrittenWholeOrNotAtAll) {
  write_whole(path_, "first");
  std::string error;
  {
    const FileLimit limit(1000);
    error = error_of([&] { write_whole(path_, std::string(2000, 'x')); });
  }
  EXPECT_NE(error.find(path_), std::string::npos) << error;
  EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  EXPECT_EQ(read_file(path_), "first");
}

TEST_F(OutputTextFile, DevicesStayDevices) {
  EXPECT_NE(error_of([] { write_whole("/dev/full", "x"); }).find("/dev/full: No space left on device"),
            std::string::npos);
  write_whole("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(OutputTextFile, LinesAreAddedWholeOrNotAtAll) {
  LineFile file(path_);
  file.add("first");
  std::string error;
  {
    const FileLimit limit(10);
    error = error_of([&] { file.add("a second one that does not fit"); });
  }
  EXPECT_NE(error.find(path_), std::string::npos) << error;
  EXPECT_NE(error.find("File too large"), std::string::npos) << error;
  EXPECT_EQ(read_file(path_), "first\n");
  file.add("third");
  EXPECT_EQ(read_file(path_), "first\nthird\n");
  EXPECT_NE(error_of([] { LineFile("/dev/full").add("x"); }).find("No space left on device"), std::string::npos);
}

}  // namespace
}  // namespace ring
