#include "tests/layouts/group.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/joined.h"
#include "job/secret.h"
#include "tests/launcher/files.h"

namespace ring::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kWorkerSocket = 3;                   // descriptor number in the worker
constexpr std::size_t kMaxShownLog = 600;          // characters
constexpr std::chrono::seconds kFailureGrace{10};  // time for the other ranks to notice a failure

[[noreturn]] void become_worker(int socket, const std::string& log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // when the thread of the test ends
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  if (socket == kWorkerSocket)
    fcntl(socket, F_SETFD, 0);
  else
    dup2(socket, kWorkerSocket);
  execl("/proc/self/exe", "test_layouts", "--worker", std::to_string(kWorkerSocket).c_str(), nullptr);
  _exit(127);
}

// Returns the replies if all ranks have replied. Otherwise throws Error with the problems of the ranks that have not,
// and with the errors in the other replies.
std::vector<Reply> require_all(const std::vector<std::optional<Reply>>& replies, std::vector<std::string> problems,
                               std::chrono::seconds limit) {
  std::vector<Reply> all;
  for (std::size_t r = 0; r < replies.size(); ++r)
    if (replies[r])
      all.push_back(*replies[r]);
    else if (problems[r].empty())
      problems[r] = str("rank ", r, " did not answer (within ", limit.count(), " s)");
  if (all.size() == replies.size()) return all;
  for (std::size_t r = 0; r < replies.size(); ++r)
    if (replies[r] && !replies[r]->error.empty()) problems[r] = str("rank ", r, " failed: ", replies[r]->error);
  std::erase(problems, "");
  fail(joined(problems, "; "));
}

}  // namespace

WorkerGroup::WorkerGroup(int ranks, std::filesystem::path folder) : folder_(std::move(folder)) {
  for (int rank = 0; rank < ranks; ++rank) start(rank);
}

WorkerGroup::~WorkerGroup() {
  for (const Process& p : processes_) kill(p.pid, SIGKILL);
  for (const Process& p : processes_) {
    waitpid(p.pid, nullptr, 0);
    close(p.socket);
  }
}

void WorkerGroup::start(int rank) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair: ", std::strerror(errno));
  const std::string log = (folder_ / str("rank-", rank, ".log")).string();
  const pid_t pid = fork();
  if (pid < 0) fail("fork: ", std::strerror(errno));
  if (pid == 0) become_worker(ends[1], log);
  close(ends[1]);
  processes_.push_back({pid, ends[0]});
}

// Each name in a store can be used only once, so ranks that connect again need a new store.
const WorkerGroup::World& WorkerGroup::world(const std::string& axes) {
  if (!worlds_.empty() && axes_ == axes) return worlds_.back();
  axes_ = axes;
  World w{random_cookie(), nullptr};
  w.server = std::make_unique<StoreServer>(Endpoint{"127.0.0.1", 0}, w.cookie);
  worlds_.push_back(std::move(w));
  return worlds_.back();
}

std::vector<Reply> WorkerGroup::train(const Request& all, const std::string& axes, std::chrono::seconds limit) {
  const World& w = world(axes);
  for (std::size_t r = 0; r < processes_.size(); ++r) {
    Request o = all;
    o.rank = o.gpu = static_cast<int>(r);
    o.world = static_cast<int>(processes_.size());
    o.mesh = static_cast<int>(worlds_.size());
    o.store_port = w.server->endpoint().port;
    o.cookie = w.cookie;
    send_message(processes_[r].socket, to_text(o));
  }
  return collect(processes_.size(), limit);
}

std::vector<Reply> WorkerGroup::train_alone(const std::vector<Request>& requests, std::chrono::seconds limit) {
  RING_CHECK(worlds_.empty(), "train_alone() was called after train()");
  RING_CHECK(requests.size() <= processes_.size(), requests.size(), " requests for ", processes_.size(), " workers");
  for (std::size_t r = 0; r < requests.size(); ++r) {
    Request o = requests[r];
    o.gpu = static_cast<int>(r);
    send_message(processes_[r].socket, to_text(o));
  }
  return collect(requests.size(), limit);
}

std::vector<Reply> WorkerGroup::collect(std::size_t ranks, std::chrono::seconds limit) {
  auto deadline = Clock::now() + limit;
  std::vector<std::optional<Reply>> replies(ranks);
  std::vector<std::string> problems(ranks);
  std::vector<pollfd> wanted;
  for (std::size_t r = 0; r < ranks; ++r) wanted.push_back({processes_[r].socket, POLLIN, 0});
  const auto waiting = [&] { return std::ranges::any_of(wanted, [](const pollfd& p) { return p.fd >= 0; }); };
  while (waiting() && Clock::now() < deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    poll(wanted.data(), wanted.size(), static_cast<int>(left.count()));
    for (std::size_t r = 0; r < ranks; ++r) {
      if (wanted[r].fd < 0 || wanted[r].revents == 0) continue;
      wanted[r].fd = -1;
      if (std::string text; receive_message(processes_[r].socket, text))
        replies[r] = reply_of(text);
      else
        problems[r] = describe_exit(r);
      if (!replies[r] || !replies[r]->error.empty()) deadline = std::min(deadline, Clock::now() + kFailureGrace);
    }
  }
  return require_all(replies, problems, limit);
}

// Returns "rank 1 was ended by signal 9; its log ends with: ..".
std::string WorkerGroup::describe_exit(std::size_t rank) {
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(processes_[rank].pid), &info, WEXITED | WNOWAIT);
  const std::string log = read_file(folder_ / str("rank-", rank, ".log"));
  return str("rank ", rank, info.si_code == CLD_EXITED ? " ended with code " : " was ended by signal ", info.si_status,
             "; its log ends with: ", log.substr(log.size() - std::min(log.size(), kMaxShownLog)));
}

void WorkerGroup::signal(int rank, int number) const {
  kill(processes_.at(static_cast<std::size_t>(rank)).pid, number);
}

}  // namespace ring::test
