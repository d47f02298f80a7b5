// Tests that other users of the machine can neither read a job's secrets nor change its files.

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/launcher/long_runs.h"

namespace ring {
namespace {

constexpr uid_t kNobody = 65534;

class DistStrangers : public test::LongRuns {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    LongRuns::SetUp();
  }
  std::string log() const { return test::read_file(dir_ / "log"); }
};

// Returns the paths that another user can open with this mode.
std::vector<std::string> opened_by_others(const std::vector<std::string>& paths, int mode) {
  int ends[2];
  if (pipe(ends) != 0) return {"no pipe"};
  const pid_t stranger = fork();
  if (stranger == 0) {
    close(ends[0]);
    if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(1);
    for (std::size_t i = 0; i < paths.size(); ++i)
      if (open(paths[i].c_str(), mode | O_NONBLOCK | O_CLOEXEC) >= 0 && write(ends[1], &i, sizeof i) != sizeof i)
        _exit(1);
    _exit(0);
  }
  close(ends[1]);
  std::vector<std::string> opened;
  for (std::size_t i = 0; read(ends[0], &i, sizeof i) == sizeof i;) opened.push_back(paths[i]);
  close(ends[0]);
  int status = 0;
  waitpid(stranger, &status, 0);
  if (status != 0) opened.emplace_back("the other user's process failed");
  return opened;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> all;
  std::error_code gone;
  for (test::fs::recursive_directory_iterator at(folder, gone), end; at != end; at.increment(gone))
    if (!at->is_directory(gone)) all.push_back(at->path().string());
  return all;
}

std::string listed(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += path + "\n";
  return text;
}

TEST_F(DistStrangers, OtherUsersNeitherReadSecretsNorChangeFiles) {
  ASSERT_EQ(chmod(dir_.c_str(), 0755), 0);  // so that other users can enter the folder
  ASSERT_EQ(run({"launch", "--make-secret", "secret"}), 0) << log();
  const pid_t agent = start(long_run("r", {"-n", "2", "--log-dir", "logs", "--secret-file", "secret"}));
  ASSERT_TRUE(reaches("r", 7)) << log();
  std::vector<pid_t> all = children(agent);
  all.push_back(agent);
  for (const pid_t p : all) kill(p, SIGSTOP);
  std::vector<std::string> hidden = {(dir_ / "secret").string()};
  for (const pid_t p : all) {
    const std::string own = "/proc/" + std::to_string(p);
    for (const char* file : {"/environ", "/mem", "/maps"}) hidden.push_back(own + file);
    for (const auto& fd : test::fs::directory_iterator(own + "/fd")) hidden.push_back(fd.path().string());
  }
  for (const std::string& path : files_below("/dev/shm"))
    if (path.find("ringmaster") != path.npos) hidden.push_back(path);
  EXPECT_EQ(listed(opened_by_others(hidden, O_RDONLY)), "");
  EXPECT_GT(hidden.size(), 20u);
  std::vector<std::string> files = files_below((dir_ / "r").string());
  for (const std::string& path : files_below((dir_ / "logs").string())) files.push_back(path);
  EXPECT_GT(files.size(), 5u);
  EXPECT_EQ(listed(opened_by_others(files, O_WRONLY)), "");
  EXPECT_EQ(opened_by_others({"/dev/null"}, O_RDONLY).size(), 1u) << "the other user can open public files";
  for (const pid_t p : all) kill(p, SIGCONT);
  EXPECT_EQ(wait(agent), 0) << log();
}

}  // namespace
}  // namespace ring
