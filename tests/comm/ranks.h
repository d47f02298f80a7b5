#pragma once
// Runs a function as several ranks: one thread per rank, with its own store, queue and communicator.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/gloo/gloo.h"
#include "job/store.h"

namespace ring::test {

using RankFn = std::function<void(Communicator&)>;

// Returns the message of each rank's error; "" if there was none.
inline std::vector<std::string> run_ranks(int size, const RankFn& fn, const CommOptions& options = {}) {
  const std::string cookie = random_cookie();
  const StoreServer server({"127.0.0.1", 0}, cookie);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        std::shared_ptr<Store> store = connect_store(server.endpoint(), cookie, Timeout(5000));
        auto queue = std::make_shared<CommQueue>();
        const auto comm = make_gloo_communicator(rank, size, store, "test", queue, options);
        fn(*comm);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return errors;
}

inline std::string joined(const std::vector<std::string>& errors) {
  std::string all;
  for (const std::string& e : errors) all += e.empty() ? "" : e + "\n";
  return all;
}

}  // namespace ring::test
