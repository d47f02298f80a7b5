#pragma once
// Memory that a worker shares with the agent that started it. The agent hands on by it what no environment
// should show, and reads from it how far the worker has come, also once the worker is dead. The descriptor is
// inherited; RINGMASTER_PAGE is its number.

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "job/flight.h"
#include "job/job_time.h"
#include "job/phases.h"
#include "job/socket.h"
#include "job/start_times.h"

namespace ring {

struct WorkerPage {
  std::uint64_t magic = 0;
  std::array<char, 128> cookie{};         // of the store, ends with 0; from the agent
  std::array<char, 128> kept_key{};       // KeptMemory::key(), ends with 0; from the agent
  std::atomic<std::int64_t> stepping{0};  // 1: nothing was refused, and steps follow
  std::atomic<std::int64_t> step{0};      // optimizer steps done
  std::atomic<RunPhase> phase{RunPhase::start}, writing{RunPhase::nothing};
  std::atomic<std::int64_t> entered_ns{0};             // when the newest phase was, as nanoseconds_now()
  std::atomic<std::int64_t> phases{0};                 // entered so far, of steps and writing: a sign of progress
  std::atomic<std::int64_t> validations{0}, saves{0};  // begun; those phases may be too short to be seen
  std::atomic<std::int64_t> begun{0};  // 1: the run's directory is this job's, since this attempt or an earlier one
  std::int64_t least_nodes = 1, most_nodes = 1;  // that the job may go on with
  std::atomic<std::int64_t> misfit{0};           // 1: the settings want another number of processes
  JobTime time;                                  // rank 0's
  StartTimes start;                              // of this attempt
  FlightRing flights;                            // operations of groups
};

// The agent's side. Error: there is no memory.
class SharedPage {
 public:
  explicit SharedPage(const std::string& cookie, const std::string& kept_key = {});
  ~SharedPage();
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  int fd() const { return fd_.get(); }  // closed by exec unless the child decides otherwise
  WorkerPage& operator*() const { return *page_; }
  WorkerPage* operator->() const { return page_; }

 private:
  Fd fd_;
  WorkerPage* page_;
};

// The worker's side: what RINGMASTER_PAGE names, mapped at the first call, with the descriptor closed; a page of its
// own when there is none. Error: the variable names no such page.
WorkerPage& own_page();

}  // namespace ring
