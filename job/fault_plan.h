#pragma once
// Failures to inject into a run, as written in `--inject SEED:FAULT;FAULT...`; docs/inject.md describes the syntax.
// Random choices are a function of the seed, the fault's index in the list, the attempt, the step and the rank.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/phases.h"

namespace ring {

enum class FaultKind : std::uint8_t { kill, stop, slow, corrupt, io, memory, device };
enum class IoCall : std::uint8_t { create, read, reserve, write, resize, fsync, rename };

std::string_view to_string(FaultKind);
std::string_view to_string(IoCall);

struct Fault {
  // Targets: the listed ones, all, or, if neither is given, one that is drawn at random.
  struct Whom {
    bool agents = false;  // targets are agents, by node; otherwise ranks
    bool all = false;
    std::vector<int> listed = {};
    bool drawn() const { return !all && listed.empty(); }
  };

  FaultKind kind = FaultKind::kill;
  Whom whom;
  // All given conditions must hold. Without any, the fault strikes as soon as possible.
  std::int64_t step = 0, until = 0;  // first and last step; 0 if not given
  std::optional<RunPhase> phase;
  double after = 0;                         // seconds since the start of the process
  double mean = 0;                          // mean seconds between strikes of a Poisson process; 0 if not given
  double probability = 0;                   // per step or per call; 0 if not given
  std::optional<std::int64_t> attempt = 0;  // nullopt means every attempt

  double factor = 1, wait = 0;      // slow: multiplies the time of phases by factor or adds `wait` seconds; io: wait
  std::string operation;            // corrupt: collective, such as all_reduce; empty means any
  bool sent = false;                // corrupt: changes the sent message, otherwise the received one
  std::int64_t bytes = 1;           // corrupt: minimum size of a message
  std::optional<IoCall> call;       // io: nullopt means any call
  int error = 0;                    // io: an errno, or kShortIo
  std::int64_t nth = 1, times = 1;  // corrupt, io, memory: first matching call to strike, and number of calls
  std::string text;                 // the fault as the user wrote it
};
inline constexpr int kShortIo = -1;  // a short read or write, of half of the bytes

struct FaultPlan {
  std::uint64_t seed = 0;
  std::vector<Fault> faults;
};

// Throws Error with the position of the first character that cannot be parsed and the words allowed there.
FaultPlan parse_fault_plan(const std::string& text);

}  // namespace ring
