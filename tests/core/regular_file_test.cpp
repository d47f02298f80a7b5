#include "core/regular_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/check.h"
#include "core/files.h"
#include "core/log.h"
#include "core/message.h"
#include "core/text_file.h"
#include "core/yaml.h"
#include "tests/error_of.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

class RegularFile : public testing::Test {
 protected:
  RegularFile() : folder_(fs::temp_directory_path() / str("ring_regular_", getpid())) {
    fs::create_directories(folder_ / "folder");
    std::ofstream(folder_ / "file") << "text";
    EXPECT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, (folder_ / "socket").c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ::close(fd);
  }
  ~RegularFile() override {
    log::close_file();
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return name[0] == '/' ? name : (folder_ / name).string(); }
  // Returns why `name` cannot be opened; "" if it can.
  std::string problem(const std::string& name, int flags) const {
    std::string why;
    const int fd = try_open_regular(path(name), flags, why);
    if (fd >= 0) ::close(fd);
    EXPECT_EQ(fd < 0, !why.empty());
    return why;
  }

  const fs::path folder_;
};

// A plain open() of the pipe would block forever, for reading and for writing.
TEST_F(RegularFile, OtherFilesAreRefusedWithoutBlocking) {
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR, O_WRONLY | O_CREAT | O_TRUNC, O_WRONLY | O_CREAT | O_APPEND}) {
    EXPECT_EQ(problem("file", flags), "");
    EXPECT_EQ(problem("pipe", flags), "it is a named pipe, not a file");
    EXPECT_EQ(problem("socket", flags), "it is a socket, not a file");
    EXPECT_EQ(problem("folder", flags), "it is a directory, not a file");
    EXPECT_EQ(problem("/dev/zero", flags), (flags & O_ACCMODE) == O_WRONLY ? "" : "it is a device, not a file");
  }
  EXPECT_EQ(problem("none", O_RDONLY), "No such file or directory");
  EXPECT_EQ(problem("file/none", O_RDONLY), "Not a directory");
  EXPECT_EQ(problem(std::string("a\0b", 3), O_RDONLY), "the name contains a NUL byte");
  EXPECT_EQ(problem("new", O_WRONLY | O_CREAT), "");
  EXPECT_TRUE(fs::is_regular_file(folder_ / "new"));
}

// With a reader or a writer at its other end, open() of a pipe succeeds, but a pipe is still not a file.
TEST_F(RegularFile, AConnectedPipeIsRefused) {
  const int end = ::open(path("pipe").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(end, 0);
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR})
    EXPECT_EQ(problem("pipe", flags), "it is a named pipe, not a file");
  ::close(end);
}

TEST_F(RegularFile, ErrorsNameTheFile) {
  EXPECT_EQ(error_of([&] { open_regular("read", path("pipe"), O_RDONLY); }),
            "cannot read " + path("pipe") + ": it is a named pipe, not a file");
  EXPECT_EQ(error_of([&] { check_regular("write", path("folder"), O_WRONLY | O_CREAT); }),
            "cannot write " + path("folder") + ": it is a directory, not a file");
  EXPECT_EQ(error_of([&] { read_text_file(path("pipe"), 10); }),
            "cannot read " + path("pipe") + ": it is a named pipe, not a file");
  EXPECT_EQ(error_of([&] { log::open_file(path("pipe")); }),
            "cannot open the log file " + path("pipe") + ": it is a named pipe, not a file");
}

TEST(Shown, LongTextsAreShortened) {
  EXPECT_EQ(shown("a\nb\x01"), "a\\nb\\x01");
  EXPECT_EQ(shown(std::string(80, 'a')), std::string(80, 'a'));
  EXPECT_EQ(shown(std::string(1000000, 'a')), std::string(80, 'a') + "... (1000000 bytes)");
  EXPECT_EQ(shown("ab\xC3\xA4", 3), "ab... (4 bytes)");
}

TEST(Shown, AShortenedMessageKeepsItsBeginningAndEnd) {
  const std::string short_one(kMaxMessage, 'a');
  EXPECT_EQ(bounded_message(short_one), short_one);
  const std::string message = bounded_message("FILE: '" + std::string(1000000, 'a') + "' is wrong: mend it");
  EXPECT_LT(message.size(), kMaxMessage);
  EXPECT_TRUE(message.starts_with("FILE: 'aaa"));
  EXPECT_TRUE(message.ends_with("aaa' is wrong: mend it"));
  EXPECT_NE(message.find(" ... (1000026 bytes) ... "), std::string::npos);
}

TEST_F(RegularFile, PipesAndSocketsAreNotReplacedByFiles) {
  for (const char* name : {"pipe", "socket"}) {
    const std::string path = (folder_ / name).string();
    const fs::file_type before = fs::status(path).type();
    EXPECT_NE(
        error_of([&] { write_atomically(path, [](FileHandle& f) { f.write("x", 1); }); }).find("a pipe or a socket"),
        std::string::npos);
    EXPECT_EQ(fs::status(path).type(), before) << name;
  }
}

}  // namespace
}  // namespace ring
