#pragma once
// Failures that a run is to suffer on purpose, as `--inject SEED:FAULT;FAULT...` writes them; docs/inject.md has the
// words. Random choices follow from the seed, the fault's place in the list, the attempt, the step and the rank.

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
  // One that is drawn, all, or the numbers that are listed.
  struct Whom {
    bool agents = false;  // of nodes; else ranks
    bool all = false;
    std::vector<int> listed = {};
    bool drawn() const { return !all && listed.empty(); }
  };

  FaultKind kind = FaultKind::kill;
  Whom whom;
  // Whatever is given must hold. Without any of them it strikes as soon as it can.
  std::int64_t step = 0, until = 0;  // from this one on, to that one; 0: not given
  std::optional<RunPhase> phase;
  double after = 0;                         // seconds since the process began
  double mean = 0;                          // seconds between strikes of a Poisson process; 0: not given
  double probability = 0;                   // of each step, or of each call; 0: not given
  std::optional<std::int64_t> attempt = 0;  // none: each

  double factor = 1, wait = 0;      // slow: phases take so many times as long, or so many seconds more; io: wait
  std::string operation;            // corrupt: such as all_reduce; empty: any
  bool sent = false;                // corrupt: what goes out, else what came in
  std::int64_t bytes = 1;           // corrupt: in messages of at least so many
  std::optional<IoCall> call;       // io; none: any
  int error = 0;                    // io: an errno, or kShortIo
  std::int64_t nth = 1, times = 1;  // corrupt, io, memory: of calls that fit, and how many
  std::string text;                 // as it was written
};
inline constexpr int kShortIo = -1;  // half of the bytes

struct FaultPlan {
  std::uint64_t seed = 0;
  std::vector<Fault> faults;
};

// Error: names the character at which the text makes no sense, and the words that are known there.
FaultPlan parse_fault_plan(const std::string& text);

}  // namespace ring
