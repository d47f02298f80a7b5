#pragma once
// Decides which connections of an HttpServer close so that nobody can fill it: those that take too long over a request
// or over reading a reply, and, if there are too many, those that have waited longest for a request. Knows sockets by
// their numbers only, and the time from its caller.

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/awake_clock.h"

namespace ring {

struct HttpClientLimits {
  std::size_t connections = 0, per_address = 0;
  std::chrono::seconds request{0};  // from the connect, or the end of the reply before, to the last byte of a request
  std::chrono::seconds reply{0};    // to read a whole reply that is not a stream
};

class HttpClients {
 public:
  using Time = AwakeClock::time_point;

  explicit HttpClients(const HttpClientLimits& limits) : limits_(limits) {}

  // Adds a connection, which waits for a request. Returns the socket to close if there are too many now: one that waits
  // for a request, of the same address if that has too many, else of the address that has the most; the oldest of
  // those. That may be the new one.
  std::optional<int> opened(int socket, const std::string& address, Time now);
  void request_arrived(int socket);  // has no deadline while the server works on it, or streams
  void reply_begins(int socket, Time now);
  void reply_ended(int socket, Time now);  // waits for the next request
  void closed(int socket);

  // Returns the sockets whose deadline has passed, each of them once.
  std::vector<int> overdue(Time now);
  bool empty() const { return clients_.empty(); }

 private:
  enum class State { waits_for_request, working, replying, closing };
  struct Client {
    std::string address;
    State state;
    Time since;  // the beginning of the state
  };

  void enter(int socket, State, Time now);
  std::map<std::string, std::size_t> connections_by_address() const;  // without those that are closing
  std::optional<Time> deadline_of(const Client&) const;

  HttpClientLimits limits_;
  std::map<int, Client> clients_;
};

}  // namespace ring
