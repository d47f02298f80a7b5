#pragma once
// The rendezvous store: short values under names, over TCP, for ranks to find each other. One process hosts a
// StoreServer, everybody connects. Both ends of a connection show first that they know the job's cookie, so that two
// jobs on a host never mix, and, where the cookie is a secret, nobody else gets in. What follows is not encrypted.
// Every wait has a timeout; errors name the key and the address.

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

// Somebody who says now and then that he is alive.
struct Heartbeat {
  std::string name;
  Timeout age{};     // since the last one, by the server's clock
  std::string word;  // the last word of one who ended; empty while he lives
};

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is there; nothing when it still is not.
  virtual std::optional<std::string> wait_for(const std::string& key, Timeout timeout) = 0;
  std::optional<std::string> try_get(const std::string& key) { return wait_for(key, Timeout(0)); }
  std::string get(const std::string& key, Timeout timeout);                  // Error: nobody set it in time
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;  // returns the new value; starts from 0
  // Keeps the value as "<list>/<n>", n = 0, 1, ... for whoever comes first, second, ...; returns n.
  virtual std::int64_t append(const std::string& list, const std::string& value) = 0;
  virtual std::string local_address() const = 0;  // numeric, of this host, as the store's host can reach it

  // Says that `name` is alive, or, with a last word, that it ended; a connection that closes without one leaves the
  // word kConnectionClosed. Returns those who are silent for longer than `silent` and those who ended; with `silent` <
  // 0 all.
  virtual std::vector<Heartbeat> beat(const std::string& name, const std::string& word, Timeout silent,
                                      Timeout timeout) = 0;
  // To the same server, for another thread: waiting on one connection does not hold up another.
  virtual std::unique_ptr<Store> another_connection(Timeout timeout) const = 0;
  virtual std::string server() const = 0;  // "127.0.0.1:4711"
};

inline constexpr std::string_view kConnectionClosed = "closed";
inline constexpr std::size_t kMaxStoreValue = std::size_t{1} << 20;  // bytes

// Serves until destroyed, on one thread. Port 0: an ephemeral one. Error: the address cannot be bound.
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

// The store belongs to somebody else: to try again is of no use.
struct StoreRefused : Error {
  using Error::Error;
};

// How long a client waits for an answer, beyond the time for which the server itself may wait.
inline constexpr Timeout kAnswerTime{10'000};
// For a server in another process of this host: its connections close when it dies, so one that does not answer was
// only stopped.
inline constexpr Timeout kWhileConnected = std::chrono::hours(24 * 365);

// Tries once. Throws Error that says why there is no connection.
std::unique_ptr<Store> try_store(const Endpoint& server, const std::string& cookie, Timeout timeout,
                                 Timeout answer_time = kAnswerTime);
// Tries until the timeout; usable from several threads. A name instead of an address is resolved once.
std::unique_ptr<Store> connect_store(const Endpoint& server, const std::string& cookie, Timeout timeout,
                                     Timeout answer_time = kAnswerTime);

}  // namespace ring
