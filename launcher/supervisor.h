#pragma once
// `ringmaster launch` on one node: meets the agents on the other nodes, and runs attempts until the job is over.

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
  std::unique_ptr<Leader> start_leader() const;
  void start_leader_if_absent();
  RendezvousClient::Setup client_setup() const;
  std::optional<Order> wait_for_order();  // nullopt if a signal requested a stop
  void log_waiting();
  void show_waiting_on_board() const;
  bool is_stop_requested();
  // Returns the order that ended the job during the attempt, if there was one.
  std::optional<Order> run_attempt(const Order& start);
  void log_attempt_start(const Order& start) const;
  std::string replacement_text(const Order& start) const;  // e.g. "replacing rank 1; 2 workers keep running"
  std::string restarts_text() const;                       // e.g. "the workers were restarted once"
  int report_end(const Order& end);

  const LaunchOptions& options_;
  SignalSource signals_;
  Job job_;
  AgentId id_;
  std::unique_ptr<Leader> leader_;
  RendezvousClient client_;
  std::string waiting_for_, logged_text_;  // who is missing, and what was last logged about that
  Clock::time_point logged_at_{};
  JobTime time_;
  StartTimes failure_times_;             // times of the stages since the previous attempt's failure
  std::vector<AgentMemory> kept_;        // memory kept over all attempts, one per worker of this node
  Agent::StayingWorkers staying_;        // survivors that wait for the next attempt; empty if there are none
  int restarts_ = 0, replacements_ = 0;  // replacements_: number of the restarts that survivors joined
  std::optional<int> node_, world_;      // node and world size of the previous attempt
  std::string failure_;                  // the failure last reported by this agent
};

// Returns the exit code: 0 if all workers returned 0, else the exit code of the first failure (128 + signal if killed
// by a signal). Throws Error if options are invalid, the endpoint cannot be served, a worker cannot be started, or a
// log directory cannot be written.
int launch(const LaunchOptions&);

}  // namespace ring
