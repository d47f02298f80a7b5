#pragma once
// Starts one worker process per rank and sends each of them what to train.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "job/store.h"
#include "tests/layouts/request.h"

namespace ring::test {

class WorkerGroup {
 public:
  // Starts the processes. They append to the logs FOLDER/rank-N.log.
  WorkerGroup(int ranks, std::filesystem::path folder);
  ~WorkerGroup();  // kills the processes
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // Makes all ranks train together. They reuse the mesh of the previous call if its axes were the same. Returns the
  // replies by rank. Throws Error, which names the ranks, if a rank ends or has not replied within `limit`.
  std::vector<Reply> train(const Request&, const std::string& axes, std::chrono::seconds limit);
  // Makes the first ranks train alone, one request each, and returns their replies. Requires that train() has not been
  // called yet.
  std::vector<Reply> train_alone(const std::vector<Request>&, std::chrono::seconds limit);

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
  const World& world(const std::string& axes);  // the newest world if it has these axes, else a new one
  std::vector<Reply> collect(std::size_t ranks, std::chrono::seconds limit);
  std::string describe_exit(std::size_t rank);

  std::filesystem::path folder_;
  std::vector<Process> processes_;
  std::vector<World> worlds_;  // ranks leave a world when they get a request for the next one
  std::string axes_;           // of the newest world
};

}  // namespace ring::test
