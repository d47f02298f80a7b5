#pragma once
// Runs one attempt on one node: starts the workers, watches them, and ends them together. Reports the first worker that
// fails, with its last lines; an error with which several workers end is shown once. Passes signals on to the workers.
//
// If a signal kills one of several workers and all others can survive the loss (job/replacement.h), only this worker is
// replaced: the survivors leave their step and save their state in memory, run() returns, and the Agent of the next
// attempt takes over the survivors. The same happens if the leader reports such a loss on a different node.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/awake_clock.h"
#include "job/agent_memory.h"
#include "job/environment.h"
#include "launcher/options.h"
#include "launcher/rendezvous_client.h"
#include "launcher/signal_source.h"
#include "launcher/worker.h"
#include "launcher/worker_bindings.h"

namespace ring {

class Agent {
 public:
  // order: of kind start. before: start times since the previous attempt's failure. kept: memory that is held for each
  // worker over all attempts. Throws Error if a worker cannot be started or its log file cannot be opened.
  Agent(const LaunchOptions&, const Order& order, const std::string& cookie, const JobTime&, const StartTimes& before,
        const std::vector<AgentMemory>& kept, SignalSource&, RendezvousClient&);

  // Surviving workers of the previous attempt, by local rank; null for a worker that must be started.
  using StayingWorkers = std::vector<std::unique_ptr<Worker>>;
  // Call before run(). Passes the survivors of the previous attempt; empty if there are none.
  void take_over(StayingWorkers);
  NodeEnd run();  // returns when all workers have ended, or when all but the lost one can be taken over
  // Call after run(). Returns the survivors, for the next attempt; empty if there are none.
  StayingWorkers staying_workers();
  const std::string& failure() const { return failure_; }  // failure as reported; empty if nothing failed
  JobTime job_time() const;                                // time lost so far, as recorded by the first worker
  // Returns the times at which the restart reached its stages so far.
  StartTimes failure_times() const { return failure_times_; }
  const std::optional<Order>& end() const { return end_order_; }  // set if the leader ended the job during the attempt

 private:
  // stopping: after a signal. ending: after a failure. replacing: after the loss of a single worker or of a different
  // node, while the other workers leave their step and save their state.
  enum class Phase { running, stopping, ending, replacing };

  std::vector<WorkerBinding> find_bindings();
  int threads_of(const WorkerBinding&) const;
  void start_worker(int local_rank);
  // Adds a surviving worker, and tells it to begin this attempt.
  void continue_with(std::unique_ptr<Worker>, int local_rank);
  void describe_attempt(WorkerStatus&) const;  // sets the attempt's fields in a worker's status page
  WorkerCommand command_of(int local_rank) const;
  void add_gpu_core_dumps(int rank, Environment&) const;
  std::string attempt_file_path(const std::string& name) const;
  std::string log_path_of(int rank) const;
  int console_fd_of(int local_rank, const std::string& log) const;
  void wait_for_events();
  void handle_signal(int signal);
  void handle_order(const Order&);
  void reap_workers();
  // Finds the worker whose failure is the root cause, reports it and starts to end the other workers. If the workers
  // that failed may only have lost a peer, waits up to kBlameTime for a root cause. Sets failed_, error_ and phase_.
  void check_for_failure();
  // Returns true if all workers of this node except `lost`, which may be null, can survive the loss of a peer.
  bool can_stay(const Worker* lost) const;
  void begin_replacement();
  bool is_ready_to_replace() const;               // true once all survivors have left their step and wait
  void check_replacement();                       // ends all workers if a survivor ends or takes too long
  void refuse_offers();                           // tells waiting survivors to end if no worker is replaced
  void record_failure_time(const Worker* first);  // sets failure_times_
  void check_for_hangs();                         // checks for hanging workers and for the leader's verdict about them
  void update_board();                            // writes the state of the job to options_.board
  void report_hang();                             // asks the leader for a verdict, and sets verdict_deadline_
  void end_after_hang();                          // ends the workers because the leader sent no verdict
  std::vector<RankState> rank_states() const;
  void write_last_operations() const;  // writes the workers' last operations to the log directory
  // Logs the failure and what happens to the other workers (`others`), then reports the failure to the leader.
  // replaceable: as in NodeFailure.
  void report_failure(Worker& first, const char* others, bool replaceable = false);
  void show_last_lines(const Worker& first) const;
  bool is_restartable(const Worker& first) const;
  static std::string prefix_of(int rank);  // begins each line of a worker's output
  std::string failure_text(const Worker& first, const std::vector<int>& same_error) const;
  std::vector<int> ranks_with_same_error(const Worker& first) const;
  void show_or_drop_error(Worker& worker) const;  // shows the held-back error message, unless it was already reported
  // Returns true if the failure that was reported makes the worker's message redundant.
  bool is_already_reported(const Worker& ended) const;
  void pass_on_stop_signal(int signal);  // passes the signal on to the workers, which have stop_timeout to end
  void prevent_restart(int signal);
  void end_workers(std::chrono::milliseconds patience);  // sends SIGTERM after `patience`, SIGKILL after `grace`
  void enforce_deadlines();                              // sends SIGTERM and SIGKILL when they are due
  bool any_worker_alive() const;
  bool any_worker_stopped() const;
  bool any_worker_exiting() const;
  bool has_begun() const;
  std::set<int> misfits() const;
  std::int64_t step() const;
  Worker* first_failure() const;
  int exit_code() const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  using Clock = AwakeClock;

  const LaunchOptions& options_;
  Order order_;
  std::string cookie_;
  JobTime time_;
  StartTimes previous_start_times_, failure_times_;
  const std::vector<AgentMemory>& kept_;
  SignalSource& signals_;
  RendezvousClient& client_;
  Environment environment_;
  std::vector<WorkerBinding> bindings_;  // one per worker
  std::vector<Gpu> gpus_;  // one per worker, by CUDA index; empty if there are none or if they are unknown
  Clock::time_point begin_ = Clock::now();
  std::vector<std::unique_ptr<Worker>> workers_;
  Phase phase_ = Phase::running;
  StayingWorkers from_previous_;  // survivors of the previous attempt, until run() adds them to workers_
  bool stop_requested_ = false, failed_elsewhere_ = false;
  Clock::time_point stop_time_;                        // time of the first stop signal
  Clock::time_point next_board_update_{};              // time of the next update of options_.board
  std::optional<Clock::time_point> sigkill_time_;      // time at which the phase ends with SIGKILL
  std::optional<Clock::time_point> sigterm_time_;      // time of SIGTERM in phase `ending`
  std::optional<Clock::time_point> blame_deadline_;    // end of the wait for a root cause
  std::optional<Clock::time_point> verdict_deadline_;  // set if a worker hangs
  std::optional<Clock::time_point> offer_deadline_;    // deadline for survivors to leave their step, or to be refused
  Worker* failed_ = nullptr;
  std::string error_;  // error of failed_, which is not shown again for other workers
  std::string failure_;
  std::optional<Order> end_order_;
};

}  // namespace ring
