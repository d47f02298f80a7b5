// Behaviour of standard streams that tests/launcher/streams_test.cpp cannot see from outside of the program.
#include "core/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <iostream>

#include "core/check.h"

namespace ring {
namespace {

// Runs `fn` in a child process whose standard output is `path`. Returns the exit code; 99 after an Error.
int in_child(const char* path, const std::function<int()>& fn) {
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(open(path, O_WRONLY), STDOUT_FILENO);
    try {
      _exit(fn());
    } catch (const Error&) {
      _exit(99);
    }
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreams, ClosedStreamsRefuseEveryUse) {
  EXPECT_EQ(in_child("/dev/null",
                     [] {
                       for (const int fd : {0, 1, 2}) close(fd);
                       open_standard_streams();
                       char byte = 0;
                       const bool in = read(0, &byte, 1) < 0 && errno == EBADF;
                       const bool out = write(1, &byte, 1) < 0 && errno == EBADF;
                       const bool err = write(2, &byte, 1) < 0 && errno == EBADF;
                       return in && out && err && open("/dev/null", O_RDONLY) > 2 ? 0 : 1;
                     }),
            0);
}

TEST(StandardStreams, AFailedWriteThrowsAtOnceAndAgainAtTheEnd) {
  EXPECT_EQ(in_child("/dev/full",
                     [] {
                       StandardOutput output;
                       std::cout << "kept for later";  // stays in the buffer
                       std::string reason;
                       try {
                         std::cout << std::flush;
                       } catch (const Error& e) {
                         reason = e.what();
                       }
                       if (reason != "cannot write to standard output: No space left on device") return 1;
                       output.finish();  // throws again
                       return 2;
                     }),
            99);
}

TEST(StandardStreams, WritingToStandardErrorFlushesOutputAndDoesNotThrow) {
  EXPECT_EQ(in_child("/dev/full",
                     [] {
                       StandardOutput output;
                       std::cout << "lost";
                       std::cerr << "";
                       return std::cerr ? 0 : 1;
                     }),
            0);
}

TEST(StandardStreams, LostProgressOutputIsNoError) {
  EXPECT_EQ(in_child("/dev/full",
                     [] {
                       std::ostream& out = progress_output();
                       if (!lost_output_reason(out).empty()) return 1;
                       out << "step 1" << std::endl;
                       return lost_output_reason(out) == "No space left on device" ? 0 : 2;
                     }),
            0);
}

}  // namespace
}  // namespace ring
