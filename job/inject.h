#pragma once
// Injects the failures of a FaultPlan into this process: kills or stops it, slows its phases, corrupts messages of
// collectives, and makes file system calls and allocations fail. Without a plan, each hook is a branch that is never
// taken.

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
  struct Change {  // a byte that was changed in a message, and its previous value; null if none was
    std::byte* at = nullptr;
    std::byte before{};
  };

  // Throws Error if a fault names a rank or node that the job does not have, or if it names an agent and this process
  // has none.
  Injector(const FaultPlan&, const WorkerEnvironment&);

  void leave(RunPhase next);                // ends the current phase; call before enter(next)
  void enter(RunPhase, std::int64_t step);  // step: the step that starts now; 0 keeps the current one
  // Returns the errno with which the call must fail, or 0. May reduce *bytes for a short read or write.
  int errno_to_inject(IoCall, std::size_t* bytes);
  bool must_refuse_memory(bool within_step);  // true if this allocation must fail
  Change change_message(std::string_view operation, bool sent, std::span<const Bytes> message);
  void stop_clocks();  // ends the faults that strike at given times
  // Warns about each fault that should have struck this process but did not, except random ones.
  void warn_of_idle() const;

 private:
  using Clock = AwakeClock;
  enum class Draw : std::uint32_t { whom, chance, moment, byte };
  struct Planned {
    Fault fault;
    std::uint32_t place;  // index in the list of faults
    std::atomic<bool> struck{false};
    mutable std::atomic<bool> suffered{false};  // true once the fault has struck, whatever its kind
    std::atomic<std::int64_t> calls{0};
    bool ends() const {
      return fault.kind == FaultKind::kill || fault.kind == FaultKind::stop || fault.kind == FaultKind::device;
    }
    bool is_timed() const;
  };
  struct Visit {
    RunPhase phase = RunPhase::start;
    Clock::time_point begin{};
  };

  void check(const Fault&) const;
  int own_number(const Fault& f) const { return f.whom.agents ? here_.node : here_.rank; }
  int numbers(const Fault& f) const { return f.whom.agents ? here_.nodes : here_.world; }
  double draw_uniform(const Planned&, Draw, std::int64_t event) const;
  bool is_scheduled(const Planned&, std::int64_t event) const;
  bool draw_hits(const Planned&, std::int64_t event) const;
  bool has_never_struck(const Planned&) const;
  bool strikes_now(const Fault&) const;
  bool strikes_now(const Fault& f, RunPhase p) const { return strikes_now(f) && (!f.phase || *f.phase == p); }
  bool strikes(const Planned&, RunPhase, bool step_begins) const;
  bool count_call(Planned&);
  void run_clock(const std::stop_token&, const Planned&);
  void strike(const Planned&, std::string_view phase) const;

  std::uint64_t seed_;
  WorkerEnvironment here_;
  std::deque<Planned> plan_;
  std::array<Visit, 2> visits_{};  // current phase: [0] of steps, [1] of writing a checkpoint
  std::atomic<std::int64_t> step_{0};
  Clock::time_point begin_ = Clock::now();
  std::mutex clock_mutex_;
  std::condition_variable_any clock_wake_;  // notified to request a stop
  std::vector<std::jthread> clocks_;        // declared last, so that the threads end before the objects that they use
};

inline std::atomic<Injector*> injector{nullptr};  // injector of this process; null if no faults are injected

// Activates a fault plan in this process; rank 0 logs a warning. At most one Injection may exist at a time. Construct
// the Injection before anything that the faults should affect. Throws what parse_fault_plan() and the constructor of
// Injector throw. The destructor cancels only timed faults; other faults can still strike.
class Injection {
 public:
  Injection(const std::string& plan, const WorkerEnvironment&);
  ~Injection();
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;
};

// Returns the result of `call`, which returns -1 and sets errno if it fails. If a fault strikes, fails in the same way.
template <class Call>
auto tried(IoCall what, const Call& call, std::size_t* bytes = nullptr) -> decltype(call()) {
  Injector* const i = injector.load(std::memory_order_relaxed);
  const int error = i ? i->errno_to_inject(what, bytes) : 0;
  if (error == 0) return call();
  errno = error;
  return -1;
}

}  // namespace ring
