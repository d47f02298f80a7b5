#pragma once
// Decides which connections an HttpServer closes, so that no client can use up all connections: those that take too
// long to send a request or to read a reply and, if there are too many, the one that has waited longest for a request.
// It makes no system calls: sockets are identified by file descriptors, and callers pass the time.

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/awake_clock.h"

namespace ring {

struct HttpClientLimits {
  std::size_t connections = 0, per_address = 0;  // maximum number of connections: in total, and from one address
  // Maximum time from the connect, or from the end of the previous reply, to the last byte of a request.
  std::chrono::seconds request{0};
  std::chrono::seconds reply{0};  // maximum time for a client to read a whole reply that is not a stream
};

class HttpClients {
 public:
  using Time = AwakeClock::time_point;

  explicit HttpClients(const HttpClientLimits& limits) : limits_(limits) {}

  // Adds a connection that waits for a request. If there are now too many connections, returns the socket to close:
  // from one address, the connection that has waited longest for a request, which may be the new one. This address is
  // the new connection's if there are too many connections from it, else the one with the most connections.
  std::optional<int> on_open(int socket, const std::string& address, Time now);
  void on_request(int socket);                // removes the deadline: there is none while the server works or streams
  void on_reply_begin(int socket, Time now);  // starts the deadline of the reply
  void on_reply_end(int socket, Time now);    // starts the deadline of the next request
  void on_close(int socket);

  // Returns the sockets to close because their deadline has passed. Each socket is returned only once.
  std::vector<int> take_overdue(Time now);
  bool empty() const { return clients_.empty(); }

 private:
  enum class State { waits_for_request, working, replying, closing };
  struct Client {
    std::string address;
    State state;
    Time since;  // time when the state began
  };

  void set_state(int socket, State, Time now);  // does nothing if the connection is being closed
  // Returns the number of connections from each address.
  std::map<std::string, std::size_t> connections_by_address() const;  // excludes connections that are being closed
  std::optional<Time> deadline_of(const Client&) const;

  HttpClientLimits limits_;
  std::map<int, Client> clients_;
};

}  // namespace ring
