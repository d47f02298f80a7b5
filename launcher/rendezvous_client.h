#pragma once
// An agent's line to the leader. A thread of its own connects, says that this agent lives, and takes orders; another
// one sends reports, in their order: nobody waits for a link that is cut.

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
    std::chrono::milliseconds join_timeout{600'000};  // to be let in
    std::chrono::milliseconds silence{30'000};        // of the leader, that counts as its loss
  };
  explicit RendezvousClient(Setup);
  ~RendezvousClient();
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;

  int fd() const { return wake_.get(); }  // readable when there is an order
  // The loss of the leader, and that nobody let this agent in, are orders to end.
  std::optional<Order> next_order();
  void report(int attempt, const NodeFailure&);
  void report(int attempt, const NodeEnd&);
  void report(int attempt, const std::vector<RankState>&);
  std::string waiting_for();    // while it is not let in: what for; then empty
  std::string local_address();  // of the connection; empty before

 private:
  void run();
  bool connect();
  void push(Order);
  void end(const std::string& why);
  void send(const Report&);

  Setup setup_;
  Fd wake_;
  std::mutex mutex_;
  std::deque<Order> orders_;
  std::string waiting_for_, local_address_;
  std::unique_ptr<Store> store_;    // the thread's
  std::unique_ptr<Store> reports_;  // for reports, once this agent was let in
  std::atomic<bool> closing_{false};
  std::thread thread_;
  std::unique_ptr<CommQueue> outbox_ = std::make_unique<CommQueue>();
};

}  // namespace ring
