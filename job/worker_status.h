#pragma once
// Memory that a worker shares with the agent that started it. The agent passes secrets in it, which must not appear in
// the environment, and reads the worker's progress from it, even after the worker died. The worker inherits the
// descriptor, whose number is in RINGMASTER_PAGE.

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

struct WorkerStatus {
  std::uint64_t magic = 0;
  std::array<char, 128> cookie{};         // the store's cookie, ends with 0; written by the agent
  std::array<char, 128> kept_key{};       // AgentMemory::key(), ends with 0; written by the agent
  std::atomic<std::int64_t> stepping{0};  // 1 once start-up has succeeded and steps follow
  std::atomic<std::int64_t> step{0};      // optimizer steps done
  std::atomic<RunPhase> phase{RunPhase::start}, writing{RunPhase::nothing};
  std::atomic<std::int64_t> entered_ns{0};  // start of the newest phase, as nanoseconds_now()
  std::atomic<std::int64_t> phases{0};      // phases entered so far, of steps and writing: a sign of progress
  std::atomic<std::int64_t> validations{0}, saves{0};  // number started; the phases may be too short to be seen
  std::atomic<std::int64_t> begun{0};  // 1 if this attempt or an earlier one has started the run in its directory
  std::int64_t min_nodes = 1, max_nodes = 1;  // the job may continue with this many nodes
  std::atomic<std::int64_t> misfit{0};        // 1 if the settings need a different number of processes
  JobTime time;                               // only on rank 0
  StartTimes start;                           // times of this attempt
  FlightRing flights;                         // recorded operations of groups
};

// The agent's side. The constructor throws Error if there is no memory.
class SharedStatus {
 public:
  explicit SharedStatus(const std::string& cookie, const std::string& kept_key = {});
  ~SharedStatus();
  SharedStatus(const SharedStatus&) = delete;
  SharedStatus& operator=(const SharedStatus&) = delete;
  int fd() const { return fd_.get(); }  // FD_CLOEXEC is set; the child must clear it
  WorkerStatus& operator*() const { return *page_; }
  WorkerStatus* operator->() const { return page_; }

 private:
  Fd fd_;
  WorkerStatus* page_;
};

// The worker's side: returns the page that RINGMASTER_PAGE names, which the first call maps, closing the descriptor;
// without the variable, a private page. Throws Error if the variable does not name such a page.
WorkerStatus& own_status();

}  // namespace ring
