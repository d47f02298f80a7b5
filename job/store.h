#pragma once
// The rendezvous store: short values by name, over TCP, with which ranks find each other. One process hosts a
// StoreServer, and all processes connect to it. Both ends of a connection first prove that they know the job's cookie,
// so that two jobs on a host never mix and, if the cookie is a secret, nobody else can connect. Later traffic is not
// encrypted. Every wait has a timeout; errors contain the key and the address.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "job/secret.h"
#include "job/socket.h"

namespace ring {

using Timeout = std::chrono::milliseconds;

// The last sign of life of a rank or agent that sends heartbeats.
struct Heartbeat {
  std::string name;
  Timeout age{};          // time since the last heartbeat, on the server's clock
  std::string last_word;  // last message of a sender that has ended; empty while the sender is alive
};

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set; returns nullopt after the timeout.
  virtual std::optional<std::string> wait_for(const std::string& key, Timeout timeout) = 0;
  std::optional<std::string> try_get(const std::string& key) { return wait_for(key, Timeout(0)); }
  std::string get(const std::string& key, Timeout timeout);  // throws Error after the timeout
  // Adds to a number, which is initially 0, and returns the new value.
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;
  // Stores the value as "<list>/<n>", with n = 0, 1, ... in call order; returns n.
  virtual std::int64_t append(const std::string& list, const std::string& value) = 0;
  virtual std::string local_address() const = 0;  // numeric address of this host that the store's host can reach

  // Reports that `name` is alive or, if last_word is not empty, that it has ended. If a connection closes without a
  // last word, its last word is kConnectionClosed. Returns the senders that have been silent for longer than `silent`
  // and those that have ended; returns all senders if `silent` < 0.
  virtual std::vector<Heartbeat> beat(const std::string& name, const std::string& last_word, Timeout silent,
                                      Timeout timeout) = 0;
  // Opens another connection to the same server, for another thread: a wait on one connection does not block the other
  // connections.
  virtual std::unique_ptr<Store> another_connection(Timeout timeout) const = 0;
  virtual std::string server() const = 0;  // e.g. "127.0.0.1:4711"
};

inline constexpr std::string_view kConnectionClosed = "closed";
inline constexpr std::size_t kMaxStoreValue = std::size_t{1} << 20;  // in bytes

// Serves on one thread until it is destroyed. Port 0 selects an ephemeral port. The constructor throws Error if the
// address cannot be bound.
class StoreServer {
 public:
  StoreServer(const Endpoint& bind, std::string cookie);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  Endpoint endpoint() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Thrown if the store belongs to a different job: retrying is useless.
struct StoreRefused : Error {
  using Error::Error;
};

// Maximum time for which a client waits for an answer, in addition to the time for which the server itself may wait.
inline constexpr Timeout kAnswerTime{10'000};
// Answer time for a server in another process on this host, practically unlimited: if the server dies, its connections
// close, so a server that does not answer has only been stopped.
inline constexpr Timeout kWhileConnected = std::chrono::hours(24 * 365);

// Tries to connect once. Throws Error, which says why, if it cannot.
std::unique_ptr<Store> try_store(const Endpoint& server, const std::string& cookie, Timeout timeout,
                                 Timeout answer_time = kAnswerTime);
// Tries to connect until the timeout. The store can be used by several threads. A host name is resolved in each
// attempt.
std::unique_ptr<Store> connect_store(const Endpoint& server, const std::string& cookie, Timeout timeout,
                                     Timeout answer_time = kAnswerTime);

}  // namespace ring
