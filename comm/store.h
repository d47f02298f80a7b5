#pragma once
// The rendezvous store: short values under names, over TCP, for ranks to find each other. One process hosts a
// StoreServer, everybody connects. A connection starts with the job's cookie, so that two jobs on a host never mix.
// Every wait has a timeout; errors name the key and the address.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/socket.h"

namespace ring {

using Timeout = std::chrono::milliseconds;

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::string get(const std::string& key, Timeout timeout) = 0;  // waits until the key is there
  virtual std::optional<std::string> try_get(const std::string& key) = 0;
  virtual std::int64_t add(const std::string& key, std::int64_t delta) = 0;  // returns the new value; starts from 0
  virtual std::string local_address() const = 0;  // numeric, of this host, as the store's host can reach it
};

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

// Tries until the timeout; usable from several threads. A name instead of an address is resolved once.
std::unique_ptr<Store> connect_store(const Endpoint& server, const std::string& cookie, Timeout timeout);

std::string random_cookie();  // 128 bits, hexadecimal

}  // namespace ring
