#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>
#include <vector>

#include "core/awake_clock.h"
#include "core/signals.h"
#include "job/store.h"
#include "job/store_sessions.h"

namespace ring {

using Clock = AwakeClock;

namespace {

constexpr std::size_t kMaxConnections = 16384;          // two connections per rank
constexpr std::chrono::milliseconds kCrowdedPause{20};  // pause before accepting again when there was no room

constexpr int kAccepted = 64;  // maximum number of accepts in a row

struct Connection {
  Fd fd;
  StoreSessions::Iterator session;
};

}  // namespace

class StoreServer::Impl {
 public:
  Impl(const Endpoint& bind, std::string cookie)
      : sessions_(std::move(cookie)), listen_(listen_on(bind)), wake_(eventfd(0, EFD_CLOEXEC)) {
    RING_CHECK(wake_, "eventfd: ", std::strerror(errno));
    const BlockSignals block;
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    const std::uint64_t one = 1;
    while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) continue;
    thread_.join();
  }
  Endpoint endpoint() const { return local_endpoint(listen_); }

 private:
  using Iterator = std::list<Connection>::iterator;

  void run();
  std::vector<pollfd> awaited() const;
  int poll_timeout() const;
  void accept_some();
  bool make_room();
  bool serve(Connection& c, short events);  // returns false if the connection must be closed
  bool read_some(Connection& c);
  bool write_some(Connection& c);
  Iterator close_connection(Iterator);
  void close_session(StoreSessions::Iterator);

  StoreSessions sessions_;
  Fd listen_, wake_;
  std::list<Connection> connections_;
  bool crowded_ = false;  // true while nothing is accepted until kCrowdedPause is over
  std::thread thread_;
};

void StoreServer::Impl::run() {
  for (;;) {
    std::vector<pollfd> fds = awaited();
    if (poll(fds.data(), fds.size(), poll_timeout()) < 0 && errno != EINTR) return;
    if (fds[0].revents) return;
    std::size_t i = 2;
    for (auto c = connections_.begin(); c != connections_.end(); ++i)
      c = serve(*c, fds[i].revents) ? std::next(c) : close_connection(c);
    sessions_.answer_heartbeats(Clock::now());
    if (fds[1].revents || crowded_) accept_some();
    sessions_.handle_timeouts(Clock::now());
    for (auto c = connections_.begin(); c != connections_.end();) c = serve(*c, 0) ? std::next(c) : close_connection(c);
  }
}

// Returns the sockets and events to poll for. A connection is not read from while too many reply bytes are unsent.
std::vector<pollfd> StoreServer::Impl::awaited() const {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}, {crowded_ ? -1 : listen_.get(), POLLIN, 0}};
  for (const Connection& c : connections_) {
    const StoreSessions::Session& s = *c.session;
    fds.push_back({c.fd.get(), static_cast<short>((s.full() ? 0 : POLLIN) | (s.out.empty() ? 0 : POLLOUT)), 0});
  }
  return fds;
}

int StoreServer::Impl::poll_timeout() const {
  const auto now = Clock::now();
  const auto next =
      sessions_.next_deadline(now + (crowded_ ? Clock::duration(kCrowdedPause) : std::chrono::seconds(60)));
  return static_cast<int>(std::max<std::int64_t>(0, std::chrono::ceil<std::chrono::milliseconds>(next - now).count()));
}

void StoreServer::Impl::accept_some() {
  crowded_ = false;
  for (int i = 0; i < kAccepted; ++i) {
    if (sessions_.num_strangers() >= kMaxStrangers || connections_.size() >= kMaxConnections) crowded_ = !make_room();
    if (crowded_) return;
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    auto* from = reinterpret_cast<sockaddr*>(&address);
    Fd fd(accept4(listen_.get(), from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      const bool too_many = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      crowded_ = too_many && !make_room();
      if (crowded_ || !too_many) return;
      continue;
    }
    connections_.push_back({std::move(fd), sessions_.open(Clock::now(), client_of(*from))});
    if (const auto session = sessions_.crowding_stranger(connections_.back().session, Clock::now()))
      close_session(*session);
  }
}

bool StoreServer::Impl::make_room() {
  const std::optional<StoreSessions::Iterator> oldest = sessions_.stranger_to_replace(Clock::now());
  if (oldest) close_session(*oldest);
  return oldest.has_value();
}

void StoreServer::Impl::close_session(StoreSessions::Iterator session) {
  close_connection(std::ranges::find(connections_, session, &Connection::session));
}

bool StoreServer::Impl::serve(Connection& c, short events) {
  try {
    const bool open = (events & (POLLIN | POLLHUP | POLLERR)) != 0;
    if (open && !c.session->closing && !c.session->full() && !read_some(c)) return false;
    if ((events & POLLERR) || !write_some(c)) return false;
    sessions_.receive(*c.session, {}, Clock::now());  // handles requests that waited for space for their answers
    return true;
  } catch (const Error&) {
    return false;  // protocol violation
  }
}

bool StoreServer::Impl::read_some(Connection& c) {
  char buffer[16384];
  const ssize_t n = recv(c.fd.get(), buffer, sizeof buffer, 0);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
  if (n > 0) sessions_.receive(*c.session, {buffer, static_cast<std::size_t>(n)}, Clock::now());
  return true;
}

bool StoreServer::Impl::write_some(Connection& c) {
  std::string& out = c.session->out;
  std::size_t sent = 0;
  while (sent < out.size()) {
    const ssize_t n = send(c.fd.get(), out.data() + sent, out.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  out.erase(0, sent);
  return !out.empty() || !c.session->closing;
}

StoreServer::Impl::Iterator StoreServer::Impl::close_connection(Iterator c) {
  sessions_.close(c->session, Clock::now());
  return connections_.erase(c);
}

StoreServer::StoreServer(const Endpoint& bind, std::string cookie)
    : impl_(std::make_unique<Impl>(bind, std::move(cookie))) {}
StoreServer::~StoreServer() = default;
Endpoint StoreServer::endpoint() const { return impl_->endpoint(); }

}  // namespace ring
