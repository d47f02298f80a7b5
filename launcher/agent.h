#pragma once
// One attempt on one node: starts the workers, watches them, and ends them together. The first worker that fails is
// named, with its last lines, and an error that several end with is said once; the others are ended. Signals are passed
// on to the workers.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/awake_clock.h"
#include "job/environment.h"
#include "job/kept_memory.h"
#include "launcher/options.h"
#include "launcher/places.h"
#include "launcher/rendezvous_client.h"
#include "launcher/signal_source.h"
#include "launcher/worker.h"

namespace ring {

class Agent {
 public:
  // order: to start. before: of the failure that this attempt follows. kept: of each worker, for all attempts. Throws
  // Error if a worker cannot be started or its log file not be opened.
  Agent(const LaunchOptions&, const Order& order, const std::string& cookie, const JobTime&, const StartTimes& before,
        const std::vector<KeptMemory>& kept, SignalSource&, RendezvousClient&);

  NodeEnd run();                                                  // until no worker is left
  const std::string& failure() const { return failure_; }         // as it was reported; empty: there was none
  JobTime time() const;                                           // of the first worker
  StartTimes failure_times() const { return failure_times_; }     // the first stages of a restart
  const std::optional<Order>& end() const { return end_order_; }  // of the job, where that came first

 private:
  enum class Phase { running, stopping, ending };  // stopping: told to by a signal; ending: after a failure

  std::vector<Place> find_places();
  int threads_of(const Place&) const;
  void start_worker(int local_rank);
  WorkerCommand command_of(int local_rank) const;
  void add_gpu_core_dumps(int rank, Environment&) const;
  std::string file_of_attempt(const std::string& name) const;
  std::string log_of(int rank) const;
  int console_of(int local_rank, const std::string& log) const;
  void wait_for_events();
  void handle_signal(int number);
  void handle_order(const Order&);
  void reap();
  void judge();
  void note_failure(const Worker* first);
  void watch();
  void show();
  void report_hang();
  void give_up();
  std::vector<RankState> states() const;
  void dump() const;
  void report(Worker& first);
  void show_last_lines(const Worker& first) const;
  bool curable(const Worker& first) const;
  std::string sentence(const Worker& first, const std::vector<int>& alike) const;
  std::vector<int> ended_alike(const Worker& first) const;
  void settle(Worker& worker) const;
  bool said(const Worker& ended) const;
  void stop_with(int number);
  void stay_ended(int number);
  void end(std::chrono::milliseconds patience);
  void enforce_deadline();
  bool any_alive() const;
  bool somebody_is_stopped() const;
  bool begun() const;
  std::int64_t step() const;
  Worker* first_failure() const;
  int exit_code() const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  using Clock = AwakeClock;

  const LaunchOptions& options_;
  Order order_;
  std::string cookie_;
  JobTime time_;
  StartTimes before_, failure_times_;
  const std::vector<KeptMemory>& kept_;
  SignalSource& signals_;
  RendezvousClient& client_;
  Environment environment_;
  std::vector<Place> places_;  // of the workers
  std::vector<Gpu> gpus_;      // theirs, in the order of their numbers; empty: none, or not known
  Clock::time_point begin_ = Clock::now();
  std::vector<std::unique_ptr<Worker>> workers_;
  Phase phase_ = Phase::running;
  bool told_to_stop_ = false, failed_elsewhere_ = false;
  Clock::time_point told_;                      // to stop
  Clock::time_point show_at_{};                 // the job's state, next
  std::optional<Clock::time_point> deadline_;   // of the phase: then SIGKILL
  std::optional<Clock::time_point> terminate_;  // when ending: then SIGTERM
  std::optional<Clock::time_point> blame_;      // no failure so far that others cannot share: judge by then
  std::optional<Clock::time_point> hung_;       // a worker hangs: the leader gives the verdict until then
  Worker* failed_ = nullptr;
  std::string error_;  // of the one that failed: the others need not repeat it
  std::string failure_;
  std::optional<Order> end_order_;
};

}  // namespace ring
