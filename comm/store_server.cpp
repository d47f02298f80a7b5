#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "comm/signals.h"
#include "comm/store.h"
#include "comm/store_protocol.h"

namespace ring {

using namespace store_protocol;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kMaxConnections = 4096;
constexpr std::chrono::seconds kHelloTime{5};
constexpr std::size_t kMaxHello = 512;

struct Connection {
  Fd fd;
  bool trusted = false;  // has shown the cookie
  std::string in, out;
  std::string waiting_for;                     // key of an open get
  std::string beats_as;                        // whose heartbeat it brings
  std::optional<Clock::duration> asks_silent;  // a heartbeat to be answered with those silent for so long
  Clock::time_point deadline;                  // of the hello or of the open get
  bool closing = false;                        // after `out` is sent
};

}  // namespace

class StoreServer::Impl {
 public:
  Impl(const Endpoint& bind, std::string cookie)
      : cookie_(std::move(cookie)), listen_(listen_on(bind)), wake_(eventfd(0, EFD_CLOEXEC)) {
    RING_CHECK(wake_, "eventfd: ", std::strerror(errno));
    const BlockSignals block;
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    const std::uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof one) == sizeof one)
      thread_.join();
    else
      thread_.detach();
  }
  Endpoint endpoint() const { return local_endpoint(listen_); }

 private:
  void run();
  void accept_all();
  bool serve(Connection& c, short events);  // false: close it
  bool read_some(Connection& c);
  bool write_some(Connection& c);
  void handle(Connection& c, const Request& r);
  void put_value(const std::string& key, std::string value);
  void beat(Connection& c, const Request& r);
  void answer_beats();
  void close_connection(Connection& c);
  void expire();
  int poll_timeout() const;

  std::string cookie_;
  Fd listen_, wake_;
  std::list<Connection> connections_;
  std::map<std::string, std::string> values_;
  struct Pulse {
    Clock::time_point last;
    std::string word;
  };
  std::map<std::string, Pulse> pulses_;
  std::thread thread_;
};

void StoreServer::Impl::run() {
  for (;;) {
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}, {listen_.get(), POLLIN, 0}};
    for (const Connection& c : connections_)
      fds.push_back({c.fd.get(), static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (poll(fds.data(), fds.size(), poll_timeout()) < 0 && errno != EINTR) return;
    if (fds[0].revents) return;
    std::size_t i = 2;
    for (auto c = connections_.begin(); c != connections_.end(); ++i) {
      const bool keep = serve(*c, fds[i].revents);
      if (!keep) close_connection(*c);
      c = keep ? std::next(c) : connections_.erase(c);
    }
    answer_beats();
    if (fds[1].revents) accept_all();
    expire();
  }
}

int StoreServer::Impl::poll_timeout() const {
  auto next = Clock::now() + std::chrono::seconds(60);
  for (const Connection& c : connections_)
    if (!c.trusted || !c.waiting_for.empty()) next = std::min(next, c.deadline);
  return static_cast<int>(
      std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count()));
}

void StoreServer::Impl::accept_all() {
  for (;;) {
    Fd fd(accept4(listen_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    if (connections_.size() >= kMaxConnections) continue;
    Connection c;
    c.fd = std::move(fd);
    c.deadline = Clock::now() + kHelloTime;
    connections_.push_back(std::move(c));
  }
}

bool StoreServer::Impl::serve(Connection& c, short events) {
  try {
    if (events & (POLLIN | POLLHUP | POLLERR) && !c.closing && !read_some(c)) return false;
    return write_some(c);
  } catch (const Error&) {
    return false;  // not our protocol
  }
}

bool StoreServer::Impl::read_some(Connection& c) {
  char buffer[16384];
  const ssize_t n = recv(c.fd.get(), buffer, sizeof buffer, 0);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
  if (n > 0) c.in.append(buffer, static_cast<std::size_t>(n));
  while (c.in.size() >= 4 && !c.closing) {
    std::size_t at = 0;
    const auto length = take<std::uint32_t>(c.in, at);
    if (length > (c.trusted ? kMaxFrame : kMaxHello)) return false;
    if (c.in.size() < 4 + length) break;
    const Request request = decode(c.in.substr(4, length));
    c.in.erase(0, 4 + length);
    if (!c.waiting_for.empty()) return false;  // one request at a time
    handle(c, request);
  }
  return true;
}

bool StoreServer::Impl::write_some(Connection& c) {
  while (!c.out.empty()) {
    const ssize_t n = send(c.fd.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    c.out.erase(0, static_cast<std::size_t>(n));
  }
  return !c.closing;
}

void StoreServer::Impl::handle(Connection& c, const Request& r) {
  if (!c.trusted) {
    c.trusted = r.op == Op::hello && r.value == cookie_;
    c.out += reply(c.trusted ? Status::ok : Status::refused);
    c.closing = !c.trusted;
    return;
  }
  const auto found = values_.find(r.key);
  switch (r.op) {
    case Op::set:
      put_value(r.key, r.value);
      c.out += reply(Status::ok);
      return;
    case Op::add: {
      const std::int64_t before = found == values_.end() ? 0 : std::strtoll(found->second.c_str(), nullptr, 10);
      const std::string sum = std::to_string(before + r.number);
      put_value(r.key, sum);
      c.out += reply(Status::ok, sum);
      return;
    }
    case Op::get:
      if (found != values_.end()) {
        c.out += reply(Status::ok, found->second);
      } else if (r.number <= 0) {
        c.out += reply(Status::absent);
      } else {
        c.waiting_for = r.key;
        c.deadline = Clock::now() + std::chrono::milliseconds(std::min<std::int64_t>(r.number, 86'400'000));
      }
      return;
    case Op::beat: beat(c, r); return;
    default: fail("store: unknown operation");
  }
}

void StoreServer::Impl::beat(Connection& c, const Request& r) {
  c.beats_as = r.key;
  c.asks_silent = std::chrono::milliseconds(r.number);
  Pulse& pulse = pulses_[r.key];
  if (pulse.word.empty()) pulse = {Clock::now(), r.value};
}

// After all heartbeats that have arrived were counted: when this process itself was held up, nobody else was silent.
void StoreServer::Impl::answer_beats() {
  for (Connection& c : connections_) {
    if (!c.asks_silent) continue;
    const auto now = Clock::now();
    std::string list;
    for (const auto& [name, pulse] : pulses_) {
      const auto age = now - pulse.last;
      if (age > *c.asks_silent || !pulse.word.empty())
        put_heartbeat(list, name, std::chrono::duration_cast<std::chrono::milliseconds>(age).count(), pulse.word);
    }
    c.asks_silent.reset();
    c.out += reply(Status::ok, list);
  }
}

void StoreServer::Impl::close_connection(Connection& c) {
  const auto pulse = pulses_.find(c.beats_as);
  if (pulse != pulses_.end() && pulse->second.word.empty())
    pulse->second = {Clock::now(), std::string(kConnectionClosed)};
}

void StoreServer::Impl::put_value(const std::string& key, std::string value) {
  for (Connection& c : connections_) {
    if (c.waiting_for != key) continue;
    c.out += reply(Status::ok, value);
    c.waiting_for.clear();
  }
  values_[key] = std::move(value);
}

void StoreServer::Impl::expire() {
  const auto now = Clock::now();
  for (auto c = connections_.begin(); c != connections_.end();) {
    const bool late = c->deadline <= now;
    if (late && !c->waiting_for.empty()) {
      c->waiting_for.clear();
      c->out += reply(Status::absent);
    }
    const bool keep = (c->trusted || !late) && (c->closing || write_some(*c));
    if (!keep) close_connection(*c);
    c = keep ? std::next(c) : connections_.erase(c);
  }
}

StoreServer::StoreServer(const Endpoint& bind, std::string cookie)
    : impl_(std::make_unique<Impl>(bind, std::move(cookie))) {}
StoreServer::~StoreServer() = default;
Endpoint StoreServer::endpoint() const { return impl_->endpoint(); }

}  // namespace ring
