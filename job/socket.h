#pragma once
// TCP sockets. The addresses of this host are always numeric: nothing resolves the name of this host.

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
std::string to_string(const Endpoint&);            // e.g. "127.0.0.1:4711", "[::1]:4711"
Endpoint parse_endpoint(const std::string& text);  // throws Error, which contains the text, if it is not an endpoint

bool is_numeric(const std::string& host);
bool is_loopback(const std::string& host);  // true for 127.x.y.z, ::1 and localhost

// Thrown if listening fails; `code` is the errno.
struct ListenError : Error {
  ListenError(int number, const std::string& what) : Error(what), code(number) {}
  int code;
};

using SocketDeadline = AwakeClock::time_point;

// Returns a non-blocking socket; port 0 selects an ephemeral port. Throws ListenError.
Fd listen_on(const Endpoint&);
Fd connect_to(const Endpoint&, SocketDeadline deadline);  // tries once; throws Error, which says why, if it fails
Endpoint local_endpoint(const Fd&);
// Returns bytes that identify a client: its IPv4 address, or the first half of its IPv6 address, since one client may
// own all addresses of such a network. Empty if the socket has no such address.
std::string client_of(const sockaddr&);
// For non-blocking sockets. Throw Error if the deadline passes or the connection fails.
void send_all(const Fd&, const std::string& bytes, SocketDeadline deadline);
std::string recv_exactly(const Fd&, std::size_t bytes, SocketDeadline deadline);

}  // namespace ring
