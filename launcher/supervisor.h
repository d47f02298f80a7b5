#pragma once
// `ringmaster launch` on one node: meets the agents of the other nodes, and runs an attempt after the other until the
// job is over.

#include <memory>
#include <optional>
#include <string>

#include "core/awake_clock.h"
#include "launcher/agent.h"
#include "launcher/job.h"
#include "launcher/leader.h"
#include "launcher/options.h"

namespace ring {

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions&);
  int run();

 private:
  using Clock = AwakeClock;

  RendezvousRules rules() const;
  std::unique_ptr<Leader> lead() const;
  void lead_if_nobody_does();
  RendezvousClient::Setup line_to_leader() const;
  std::optional<Order> wait_for_order();  // none: a signal asked to stop
  void say_waiting();
  void show_waiting() const;
  bool told_to_stop();
  std::optional<Order> attempt(const Order& start);  // the end of the job, where it came meanwhile
  void announce(const Order& start) const;
  int finish(const Order& end) const;

  const LaunchOptions& options_;
  SignalSource signals_;
  Job job_;
  AgentId id_;
  std::unique_ptr<Leader> leader_;
  RendezvousClient client_;
  std::string waiting_for_, said_;  // who is missing, and what was said of it
  Clock::time_point said_at_{};
  JobTime time_;
  StartTimes failure_times_;      // of the attempt before
  std::vector<KeptMemory> kept_;  // of each worker here
  int restarts_ = 0;
  std::optional<int> node_, world_;  // of the attempt before
  std::string failure_;              // that this agent reported last
};

// Returns the exit code: 0 when all workers returned 0, else the first failure's (128 + signal when it was killed).
// Error: options that make no sense, an endpoint that cannot be served, a worker that cannot be started, a log
// directory that cannot be written.
int launch(const LaunchOptions&);

}  // namespace ring
