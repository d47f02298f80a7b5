#pragma once
// An agent's connection to the leader. One thread connects, sends heartbeats and receives orders; another thread sends
// reports, in order. The caller never waits for a broken connection.

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/queue.h"
#include "job/store.h"
#include "launcher/messages.h"

namespace ring {

class RendezvousClient {
 public:
  struct Setup {
    AgentId id;
    Endpoint leader;
    std::string cookie;
    NodeOffer offer;
    std::chrono::milliseconds join_timeout{600'000};  // time limit for being admitted
    std::chrono::milliseconds silence{30'000};        // time after which a silent leader counts as lost
  };
  explicit RendezvousClient(Setup);
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  int fd() const { return wake_.get(); }  // readable if there is an order
  // Returns the next order, or nullopt. If the leader is lost or did not admit this agent in time, returns an order to
  // end.
  std::optional<Order> next_order();
  void report(int attempt, const NodeFailure&);
  void report(int attempt, const NodeEnd&);
  void report(int attempt, const std::vector<RankState>&);
  std::string who_is_missing();  // what the agent waits for until it is admitted; empty after that
  std::string local_address();   // local address of the connection; empty before the connection is made

 private:
  void run();
  bool connect();
  void queue_order(Order);
  void queue_end_order(const std::string& why);
  void send(const Report&);

  Setup setup_;
  Fd wake_;
  std::mutex mutex_;
  std::deque<Order> orders_;
  std::string waiting_for_, local_address_;
  std::unique_ptr<Store> store_;    // used only by thread_
  std::unique_ptr<Store> reports_;  // used for reports, once this agent has been admitted
  std::atomic<bool> closing_{false};
  std::thread thread_;
  std::unique_ptr<CommQueue> outbox_ = std::make_unique<CommQueue>();
};

}  // namespace ring
