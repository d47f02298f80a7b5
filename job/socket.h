#pragma once
// TCP sockets as values. Addresses are numeric wherever a program made them; nothing looks up the host's own name.

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "core/awake_clock.h"
#include "core/check.h"

struct sockaddr;

namespace ring {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    if (this != &o) {
      reset();
      fd_ = std::exchange(o.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

struct Endpoint {
  std::string host;
  int port = 0;
  bool operator==(const Endpoint&) const = default;
};
std::string to_string(const Endpoint&);            // "127.0.0.1:4711", "[::1]:4711"
Endpoint parse_endpoint(const std::string& text);  // Error names the text

bool is_numeric(const std::string& host);
bool is_loopback(const std::string& host);  // 127.x.y.z, ::1 or localhost

// The number is errno's.
struct ListenError : Error {
  ListenError(int number, const std::string& what) : Error(what), code(number) {}
  int code;
};

using SocketDeadline = AwakeClock::time_point;

Fd listen_on(const Endpoint&);                            // non-blocking; port 0: an ephemeral one; ListenError
Fd connect_to(const Endpoint&, SocketDeadline deadline);  // one attempt; Error says why not
Endpoint local_endpoint(const Fd&);
// Returns the bytes by which one client is told from another: its IPv4 address, or the first half of its IPv6 address,
// since a client may have all addresses of such a network. Empty if the socket has neither.
std::string client_of(const sockaddr&);
void send_all(const Fd&, const std::string& bytes, SocketDeadline deadline);
std::string recv_exactly(const Fd&, std::size_t bytes, SocketDeadline deadline);

}  // namespace ring
