#pragma once
// Lets a process suffer the failures of a FaultPlan: kills or stops it, slows its phases, changes messages of its
// collectives, fails its calls of the file system. Without a plan each hook is one branch that is never taken.

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/awake_clock.h"
#include "job/environment.h"
#include "job/fault_plan.h"

namespace ring {

class Injector {
 public:
  using Bytes = std::span<std::byte>;
  struct Change {  // of a byte of a message
    std::byte* at = nullptr;
    std::byte before{};
  };

  // Error: a fault is meant for a rank or a node that the job does not have, or for an agent where there is none.
  Injector(const FaultPlan&, const WorkerEnvironment&);

  void leave(RunPhase next);                   // before it begins
  void enter(RunPhase, std::int64_t step);     // step: that is being taken from now on; 0: as before
  int failure_of(IoCall, std::size_t* bytes);  // an errno, or 0; of a read or write fewer bytes may be left
  bool refuses_memory(bool within_step);       // of this allocation
  Change change(std::string_view operation, bool sent, std::span<const Bytes> message);
  void stop_clocks();  // nothing strikes by the clock any more
  // Warns of each fault that this process should have suffered and did not, as far as chance has no say in it.
  void warn_of_idle() const;

 private:
  using Clock = AwakeClock;
  enum class Draw : std::uint32_t { whom, chance, moment, byte };
  struct Planned {
    Fault fault;
    std::uint32_t place;  // in the list
    std::atomic<bool> struck{false};
    mutable std::atomic<bool> suffered{false};  // of all kinds
    std::atomic<std::int64_t> calls{0};
    bool ends() const {
      return fault.kind == FaultKind::kill || fault.kind == FaultKind::stop || fault.kind == FaultKind::device;
    }
    bool by_the_clock() const;
  };
  struct Visit {
    RunPhase phase = RunPhase::start;
    Clock::time_point begin{};
  };

  void check(const Fault&) const;
  int own_number(const Fault& f) const { return f.whom.agents ? here_.node : here_.rank; }
  int numbers(const Fault& f) const { return f.whom.agents ? here_.nodes : here_.world; }
  double uniform(const Planned&, Draw, std::int64_t event) const;
  bool meant(const Planned&, std::int64_t event) const;
  bool chance(const Planned&, std::int64_t event) const;
  bool idle(const Planned&) const;
  bool now(const Fault&) const;
  bool now(const Fault& f, RunPhase p) const { return now(f) && (!f.phase || *f.phase == p); }
  bool strikes(const Planned&, RunPhase, bool step_begins) const;
  bool next_call_fits(Planned&);
  void run_clock(const std::stop_token&, const Planned&);
  void strike(const Planned&, std::string_view phase) const;

  std::uint64_t seed_;
  WorkerEnvironment here_;
  std::deque<Planned> plan_;
  std::array<Visit, 2> visits_{};  // of steps, of writing
  std::atomic<std::int64_t> step_{0};
  Clock::time_point begin_ = Clock::now();
  std::mutex clock_mutex_;
  std::condition_variable_any clock_wake_;  // by a request to stop
  std::vector<std::jthread> clocks_;        // last: they end before what they use
};

inline std::atomic<Injector*> injector{nullptr};  // of this process; null: nothing fails on purpose

// Lets this process suffer a plan; rank 0 warns. Construct it at most once, before what is to be disturbed. Throws
// Error as parse_fault_plan() and Injector do. Once it is destroyed no thread of it runs, and other faults still
// strike.
class Injection {
 public:
  Injection(const std::string& plan, const WorkerEnvironment&);
  ~Injection();
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;
};

// `call`, which returns -1 and sets errno when it fails, unless it is to fail.
template <class Call>
auto tried(IoCall what, const Call& call, std::size_t* bytes = nullptr) -> decltype(call()) {
  Injector* const i = injector.load(std::memory_order_relaxed);
  const int error = i ? i->failure_of(what, bytes) : 0;
  if (error == 0) return call();
  errno = error;
  return -1;
}

}  // namespace ring
