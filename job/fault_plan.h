#pragma once
// Failures to inject into a run, written as in `--inject SEED:FAULT;FAULT...`; docs/inject.md describes the syntax.
// Random choices are functions of the seed, the fault's index in the list, the attempt, the step and the rank.

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
  // Targets of the fault: the listed ones, or all, or (if neither is given) one that is drawn at random.
  struct Whom {
    bool agents = false;  // true if the targets are agents, given by node; false if they are ranks
    bool all = false;
    std::vector<int> listed = {};
    bool drawn() const { return !all && listed.empty(); }
  };

  FaultKind kind = FaultKind::kill;
  Whom whom;
  // All conditions that are given must hold. Without conditions, the fault strikes as soon as possible.
  std::int64_t step = 0, until = 0;  // first and last step; 0 if not given
  std::optional<RunPhase> phase;
  double after = 0;        // seconds since the start of the process
  double mean = 0;         // mean number of seconds between strikes, which form a Poisson process; 0 if not given
  double probability = 0;  // per step or per call; 0 if not given
  std::optional<std::int64_t> attempt = 0;  // nullopt means every attempt

  // slow: multiplies the duration of phases by `factor`, or adds `wait` seconds; io: adds `wait` seconds.
  double factor = 1, wait = 0;
  std::string operation;       // corrupt: collective, e.g. all_reduce; empty means any
  bool sent = false;           // corrupt: true to change the sent message, false to change the received one
  std::int64_t bytes = 1;      // corrupt: minimum message size
  std::optional<IoCall> call;  // io: nullopt means any call
  int error = 0;               // io: errno, or kShortIo
  // corrupt, io, memory: the first matching call to strike, and the number of calls to strike.
  std::int64_t nth = 1, times = 1;
  std::string text;  // the fault as the user wrote it
};
inline constexpr int kShortIo = -1;  // a short read or write of half of the bytes

struct FaultPlan {
  std::uint64_t seed = 0;
  std::vector<Fault> faults;
};

// Throws Error with the position of the first character that cannot be parsed, and the words that are allowed there.
FaultPlan parse_fault_plan(const std::string& text);

}  // namespace ring
