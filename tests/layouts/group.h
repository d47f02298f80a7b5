#pragma once
// Worker processes, one for each rank, that are told what to train.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/store.h"
#include "tests/layouts/order.h"

namespace ring::test {

class WorkerGroup {
 public:
  // Starts the processes. Their logs are FOLDER/rank-N.log, which earlier groups may have begun.
  WorkerGroup(int ranks, std::filesystem::path folder);
  ~WorkerGroup();  // kills them
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // Orders all ranks to train together, in the groups of the order before if its axes were the same. Returns the
  // answers by rank. Throws Error, which names the ranks, if some of them end, or have not answered after `limit`.
  std::vector<Answer> train(const Order&, const std::string& axes, std::chrono::seconds limit);
  // Orders the first ranks to train alone, each something else, before any trained together. Returns the answers.
  std::vector<Answer> train_alone(const std::vector<Order>&, std::chrono::seconds limit);

  void signal(int rank, int number) const;

 private:
  struct Process {
    pid_t pid;
    int socket;
  };
  struct World {
    std::string cookie;
    std::unique_ptr<StoreServer> server;
  };
  void start(int rank);
  const World& world(const std::string& axes);  // the last one, or a new one
  std::vector<Answer> collect(std::size_t ranks, std::chrono::seconds limit);
  std::string end_of(std::size_t rank);

  std::filesystem::path folder_;
  std::vector<Process> processes_;
  std::vector<World> worlds_;  // ranks leave one when they are ordered into the next
  std::string axes_;           // of the last one
};

}  // namespace ring::test
