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

#include "comm/secret.h"
#include "core/check.h"
#include "core/joined.h"
#include "tests/launcher/files.h"

namespace ring::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kWorkersSocket = 3;                   // its number in the worker
constexpr std::size_t kShownLog = 600;              // characters
constexpr std::chrono::seconds kAfterAFailure{10};  // for the other ranks to notice

[[noreturn]] void become_worker(int socket, const std::string& log) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // with the thread of the test
  const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  if (socket == kWorkersSocket)
    fcntl(socket, F_SETFD, 0);
  else
    dup2(socket, kWorkersSocket);
  execl("/proc/self/exe", "test_layouts", "--worker", std::to_string(kWorkersSocket).c_str(), nullptr);
  _exit(127);
}

// What ranks failed with is part of the problem, too, if others did not answer.
std::vector<Answer> complete(const std::vector<std::optional<Answer>>& answers, std::vector<std::string> problems,
                             std::chrono::seconds limit) {
  std::vector<Answer> all;
  for (std::size_t r = 0; r < answers.size(); ++r)
    if (answers[r])
      all.push_back(*answers[r]);
    else if (problems[r].empty())
      problems[r] = str("rank ", r, " did not answer (within ", limit.count(), " s)");
  if (all.size() == answers.size()) return all;
  for (std::size_t r = 0; r < answers.size(); ++r)
    if (answers[r] && !answers[r]->error.empty()) problems[r] = str("rank ", r, " failed: ", answers[r]->error);
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

// Names in a store are taken once: ranks that meet again need another one.
const WorkerGroup::World& WorkerGroup::world(const std::string& axes) {
  if (!worlds_.empty() && axes_ == axes) return worlds_.back();
  axes_ = axes;
  World w{random_cookie(), nullptr};
  w.server = std::make_unique<StoreServer>(Endpoint{"127.0.0.1", 0}, w.cookie);
  worlds_.push_back(std::move(w));
  return worlds_.back();
}

std::vector<Answer> WorkerGroup::train(const Order& all, const std::string& axes, std::chrono::seconds limit) {
  const World& w = world(axes);
  for (std::size_t r = 0; r < processes_.size(); ++r) {
    Order o = all;
    o.rank = o.gpu = static_cast<int>(r);
    o.world = static_cast<int>(processes_.size());
    o.groups = static_cast<int>(worlds_.size());
    o.store_port = w.server->endpoint().port;
    o.cookie = w.cookie;
    send_message(processes_[r].socket, to_text(o));
  }
  return collect(processes_.size(), limit);
}

std::vector<Answer> WorkerGroup::train_alone(const std::vector<Order>& orders, std::chrono::seconds limit) {
  RING_CHECK(worlds_.empty(), "ranks of a group train alone first");
  RING_CHECK(orders.size() <= processes_.size(), orders.size(), " orders for ", processes_.size(), " workers");
  for (std::size_t r = 0; r < orders.size(); ++r) {
    Order o = orders[r];
    o.gpu = static_cast<int>(r);
    send_message(processes_[r].socket, to_text(o));
  }
  return collect(orders.size(), limit);
}

std::vector<Answer> WorkerGroup::collect(std::size_t ranks, std::chrono::seconds limit) {
  auto deadline = Clock::now() + limit;
  std::vector<std::optional<Answer>> answers(ranks);
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
        answers[r] = answer_of(text);
      else
        problems[r] = end_of(r);
      if (!answers[r] || !answers[r]->error.empty()) deadline = std::min(deadline, Clock::now() + kAfterAFailure);
    }
  }
  return complete(answers, problems, limit);
}

// "rank 1 was ended by signal 9; its log ends with: ..".
std::string WorkerGroup::end_of(std::size_t rank) {
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(processes_[rank].pid), &info, WEXITED | WNOWAIT);
  const std::string log = read_file(folder_ / str("rank-", rank, ".log"));
  return str("rank ", rank, info.si_code == CLD_EXITED ? " ended with code " : " was ended by signal ", info.si_status,
             "; its log ends with: ", log.substr(log.size() - std::min(log.size(), kShownLog)));
}

void WorkerGroup::signal(int rank, int number) const {
  kill(processes_.at(static_cast<std::size_t>(rank)).pid, number);
}

}  // namespace ring::test
