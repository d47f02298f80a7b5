#pragma once
// Memory that a worker shares with the agent that started it. Through it the agent passes secrets, which must not
// appear in the environment, and reads the worker's progress, even after the worker has died. The worker inherits the
// file descriptor; RINGMASTER_PAGE contains its number.

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

// Progress of the handshake by which a worker that lost a peer joins the next attempt ("stays"; job/replacement.h).
enum class Stay : std::int32_t {
  none,
  offered,   // set by the worker: it has saved the state of the run in its memory and waits for the agent
  refused,   // set by the agent: the worker must end
  accepted,  // set by the agent: `cookie`, and the fields from `store` on, describe the next attempt
};

struct WorkerStatus {
  std::uint64_t magic = 0;
  std::array<char, 128> cookie{};         // the store's cookie, zero-terminated; written by the agent
  std::array<char, 128> kept_key{};       // AgentMemory::key(), zero-terminated; written by the agent
  std::atomic<std::int64_t> stepping{0};  // 1 once start-up has succeeded and steps follow
  std::atomic<std::int64_t> step{0};      // number of optimizer steps done
  std::atomic<RunPhase> phase{RunPhase::start}, writing{RunPhase::nothing};
  std::atomic<std::int64_t> entered_ns{0};  // start of the newest phase, from nanoseconds_now()
  std::atomic<std::int64_t> phases{0};      // number of phases of steps and writing entered so far: a sign of progress
  // Number of validations and saves started; their phases may be too short to be seen.
  std::atomic<std::int64_t> validations{0}, saves{0};
  std::atomic<std::int64_t> begun{0};  // 1 if this attempt or an earlier one has started the run in its directory
  std::int64_t min_nodes = 1, max_nodes = 1;  // node counts with which the job may continue
  std::atomic<std::int64_t> misfit{0};        // 1 if the settings need a different number of processes
  JobTime time;                               // used only on rank 0
  StartTimes start;                           // times of this attempt
  FlightRing flights;                         // recorded operations of all groups
  std::atomic<std::int64_t> replaces{0};      // 1 if the agent can replace a lost worker; written by the agent
  // 1 while this worker can survive the loss of a peer. After a loss, remains 1 until the next attempt begins.
  std::atomic<std::int64_t> can_stay{0};
  std::atomic<Stay> stay{Stay::none};
  std::array<char, 320> store{};  // address of the next attempt's store, zero-terminated; written by the agent
  // Number of the next attempt, and the worker's place in it; written by the agent.
  std::int64_t attempt = 0, rank = 0, world = 1, node_rank = 0, nodes = 1;
  // 1 once the agent starts to replace a lost worker. Islands that do not wait for the lost worker then leave after
  // their current step.
  std::atomic<std::int64_t> must_leave{0};
  std::atomic<std::uint64_t> unfit_nodes{0};  // bit i is set if the settings do not fit min_nodes + i nodes
};

// The agent's side. The constructor throws Error if there is not enough memory.
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

// The worker's side: returns the page that RINGMASTER_PAGE names; the first call maps the page and closes the file
// descriptor. Without the variable, returns a private page. Throws Error if the variable does not name such a page.
WorkerStatus& own_status();

}  // namespace ring
