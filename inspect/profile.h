#pragma once
// Where the time of training steps went: what inspect/profiler.h recorded, as a table and as a trace.

#include <string>
#include <vector>

#include "core/scope.h"
#include "kernels/ceilings.h"

namespace ring {

// Seconds on one clock for the device and the host, from where the profile begins.
struct ProfileSpan {
  double begin = 0, seconds = 0;
  double end() const { return begin + seconds; }
};

// A scope each time that it ran, or within the backward a step of the tape.
struct ProfiledPart {
  ScopeId scope;
  std::string_view op;       // of a step, which is no scope
  int parent = -1;           // index of the part that it ran in
  ProfileSpan device, host;  // device: from its first kernel to its last; empty where it has none
  std::string name() const { return op.empty() ? str(scope) : std::string(op); }
};

struct ProfiledCall {
  std::string_view slot, candidate;
  Cost cost;
  int part = -1;
  ProfileSpan device, host;  // host: until the call was queued; on a CPU until it was done
};

struct Profile {
  std::vector<ProfileSpan> steps;   // on the device
  std::vector<ProfiledPart> parts;  // parents first
  std::vector<ProfiledCall> calls;  // in order
  double event_seconds = 0;         // what marking a kernel's begin and end adds to its time
  double seconds_per_step() const;
};

// Two tables, ops by time and parts in order, and what was not in kernels. Unknown ceilings (0): no floors.
std::string profile_table(const Profile&, const Ceilings&);

// A file for Perfetto (ui.perfetto.dev) and chrome://tracing. Error: it cannot be written.
void write_trace(const Profile&, const std::string& path);

}  // namespace ring
