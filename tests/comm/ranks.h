#pragma once
// Runs a function as several ranks: one thread per rank, with its own store, queue and communicator. By
// default, messages are copied between threads (LocalLink); options without make_link use Gloo.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/gloo/gloo.h"
#include "comm/self.h"
#include "job/store.h"
#include "tests/comm/local_link.h"

namespace ring::test {

using RankFn = std::function<void(Communicator&)>;
// Takes the communicators of all ranks, of the ranks on this rank's node, and of the ranks on each node that have this
// rank's index within the node.
using NodeRankFn = std::function<void(Communicator& all, Communicator& node, Communicator& between_nodes)>;
// Makes a communicator of `size` ranks, in which the caller is `rank`. `name` tells groups apart.
using MakeGroup = std::function<std::unique_ptr<Communicator>(int rank, int size, const std::string& name)>;

// Calls fn(rank, MakeGroup) for each rank. Returns the message of each rank's error; "" if there was none.
template <class Fn>
std::vector<std::string> run_threads(int size, const Fn& fn, const CommOptions& options) {
  const std::string cookie = random_cookie();
  const StoreServer server({"127.0.0.1", 0}, cookie);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        std::shared_ptr<Store> store = connect_store(server.endpoint(), cookie, Timeout(5000));
        auto queue = std::make_shared<CommQueue>();
        fn(rank, [&](int own, int ranks, const std::string& name) {
          return ranks == 1 ? make_self_communicator()
                            : make_gloo_communicator(own, ranks, store, name, queue, options);
        });
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return errors;
}

// Returns the message of each rank's error; "" if there was none.
inline std::vector<std::string> run_ranks(int size, const RankFn& fn, const CommOptions& options = between_threads()) {
  return run_threads(
      size, [&](int rank, const MakeGroup& group) { fn(*group(rank, size, "test")); }, options);
}
// Same for ranks on nodes of `per_node` adjacent ranks.
inline std::vector<std::string> run_ranks_on_nodes(int size, int per_node, const NodeRankFn& fn,
                                                   const CommOptions& options = between_threads()) {
  const auto run = [&](int rank, const MakeGroup& group) {
    const int node = rank / per_node, index = rank % per_node;
    const auto all = group(rank, size, "test");
    const auto here = group(index, per_node, "test/node/" + std::to_string(node));
    const auto between = group(node, size / per_node, "test/between/" + std::to_string(index));
    fn(*all, *here, *between);
  };
  return run_threads(size, run, options);
}

inline std::string joined(const std::vector<std::string>& errors) {
  std::string all;
  for (const std::string& e : errors) all += e.empty() ? "" : e + "\n";
  return all;
}

}  // namespace ring::test
