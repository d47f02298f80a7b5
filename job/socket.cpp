#include "job/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "core/awake_clock.h"
#include "core/check.h"
#include "job/connection_refused.h"

namespace ring {
namespace {

constexpr std::int64_t kLongestPoll = 1'000'000;  // in ms

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const Endpoint& at, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST | (passive ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const std::string port = std::to_string(at.port);
  int rc = getaddrinfo(at.host.c_str(), port.c_str(), &hints, &list);
  if (rc == EAI_NONAME) {
    hints.ai_flags &= ~AI_NUMERICHOST;
    rc = getaddrinfo(at.host.c_str(), port.c_str(), &hints, &list);
  }
  if (rc != 0) fail("address '", at.host, "' cannot be resolved: ", gai_strerror(rc), "; give a numeric address");
  return {list, freeaddrinfo};
}

// Waits until the socket is ready. The timeout is measured on the deadline's clock, because poll() also counts time in
// which this process was stopped.
void wait_ready(const Fd& fd, short events, SocketDeadline deadline, const char* what) {
  for (bool over = false;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - AwakeClock::now()).count();
    pollfd p{fd.get(), events, 0};
    const int n = poll(&p, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, kLongestPoll)));
    if (n > 0) return;
    if (n < 0 && errno != EINTR) fail(what, ": ", std::strerror(errno));
    if (n == 0 && over) fail(what, ": ", kNoAnswer);
    // Polls once more after the deadline, since the answer may have come while this process was stopped.
    over = AwakeClock::now() >= deadline;
  }
}

Fd connect_one(const addrinfo& a, SocketDeadline deadline) {
  Fd fd(socket(a.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) fail("socket: ", std::strerror(errno));
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(fd.get(), a.ai_addr, a.ai_addrlen) == 0) return fd;
  if (errno == ECONNREFUSED) throw ConnectionRefused(std::strerror(errno));
  // After EINTR, connecting also continues in the background.
  if (errno != EINPROGRESS && errno != EINTR) fail(std::strerror(errno));
  wait_ready(fd, POLLOUT, deadline, "connect");
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == ECONNREFUSED) throw ConnectionRefused(std::strerror(error));
  if (error != 0) fail(std::strerror(error));
  return fd;
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

std::string to_string(const Endpoint& e) {
  const bool v6 = e.host.find(':') != std::string::npos;
  return (v6 ? "[" + e.host + "]" : e.host) + ":" + std::to_string(e.port);
}

bool is_numeric(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool is_loopback(const std::string& host) {
  return (host.starts_with("127.") && is_numeric(host)) || host == "::1" || host == "localhost";
}

Endpoint parse_endpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  Endpoint e;
  if (colon == std::string::npos || colon == 0) fail("'", text, "' is not HOST:PORT");
  e.host = text.substr(0, colon);
  if (e.host.front() == '[' && e.host.back() == ']')
    e.host = e.host.substr(1, e.host.size() - 2);
  else if (e.host.find(':') != std::string::npos)
    fail("'", text, "' is not HOST:PORT; write IPv6 as [ADDRESS]:PORT");
  const char *first = text.data() + colon + 1, *last = text.data() + text.size();
  const auto [end, error] = std::from_chars(first, last, e.port);
  if (error != std::errc{} || end != last || e.port < 1 || e.port > 65535 || e.host.empty())
    fail("'", text, "' is not HOST:PORT with a port in 1..65535");
  return e;
}

Fd listen_on(const Endpoint& at) {
  const AddressList list = resolve(at, true);
  Fd fd(socket(list->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || bind(fd.get(), list->ai_addr, list->ai_addrlen) != 0 || listen(fd.get(), 512) != 0)
    throw ListenError(errno, str("cannot listen on ", to_string(at), ": ", std::strerror(errno)));
  return fd;
}

Fd connect_to(const Endpoint& to, SocketDeadline deadline) {
  const AddressList list = resolve(to, false);
  std::string reasons;
  bool refused = true;
  const auto add_reason = [&](const Error& e) { reasons += (reasons.empty() ? "" : "; ") + std::string(e.what()); };
  for (const addrinfo* a = list.get(); a; a = a->ai_next) {
    try {
      return connect_one(*a, deadline);
    } catch (const ConnectionRefused& e) {
      add_reason(e);
    } catch (const Error& e) {
      add_reason(e);
      refused = false;
    }
  }
  const std::string text = str("cannot connect to ", to_string(to), ": ", reasons);
  if (refused) throw ConnectionRefused(text);
  throw Error(text);
}

Endpoint local_endpoint(const Fd& fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    fail("cannot read the address of a socket: ", std::strerror(errno));
  return {host, std::stoi(port)};
}

std::string client_of(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return {reinterpret_cast<const char*>(&v4), sizeof v4};
  }
  if (address.sa_family != AF_INET6) return "";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  const auto* bytes = reinterpret_cast<const char*>(&v6);
  return IN6_IS_ADDR_V4MAPPED(&v6) ? std::string(bytes + 12, 4) : std::string(bytes, 8);
}

void send_all(const Fd& fd, const std::string& bytes, SocketDeadline deadline) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n > 0)
      sent += static_cast<std::size_t>(n);
    else if (errno == EAGAIN)
      wait_ready(fd, POLLOUT, deadline, "send");
    else if (errno != EINTR)
      fail("send: ", std::strerror(errno));
  }
}

std::string recv_exactly(const Fd& fd, std::size_t bytes, SocketDeadline deadline) {
  std::string out(bytes, '\0');
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t n = recv(fd.get(), out.data() + got, bytes - got, 0);
    if (n > 0)
      got += static_cast<std::size_t>(n);
    else if (n == 0)
      fail("the other side closed the connection");
    else if (errno == EAGAIN)
      wait_ready(fd, POLLIN, deadline, "receive");
    else if (errno != EINTR)
      fail("receive: ", std::strerror(errno));
  }
  return out;
}

}  // namespace ring
