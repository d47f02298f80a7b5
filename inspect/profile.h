#pragma once
// Shows where training steps spent their time (recorded by inspect/profiler.h), as a table and as a trace.

#include <string>
#include <vector>

#include "core/scope.h"
#include "kernels/ceilings.h"

namespace ring {

// A time span in seconds since the start of the profile. Device and host spans use the same clock.
struct ProfileSpan {
  double begin = 0, seconds = 0;
  double end() const { return begin + seconds; }
};

// One execution of a scope, or of the backward of one op on the tape.
struct ProfiledPart {
  ScopeId scope;
  std::string_view op;       // name of the op; empty for a scope
  int parent = -1;           // index of the enclosing part; -1 if there is none
  ProfileSpan device, host;  // device: first to last kernel; empty without kernels
  std::string name() const { return op.empty() ? str(scope) : std::string(op); }
};

struct ProfiledCall {
  std::string_view slot, candidate;
  Cost cost;
  int part = -1;             // index of the part; -1 if there is none
  ProfileSpan device, host;  // host: until the call was queued; on a CPU, until it was done
};

struct Profile {
  std::vector<ProfileSpan> steps;   // device time of each step
  std::vector<ProfiledPart> parts;  // parents before children
  std::vector<ProfiledCall> calls;  // in launch order
  double event_seconds = 0;         // time that the two events around a kernel add to the kernel's measured time
  double seconds_per_step() const;
};

// Returns two tables, ops by time and parts in order, and the time when no kernel ran. If a ceiling is 0 (unknown), its
// lower bounds are left out.
std::string profile_table(const Profile&, const Ceilings&);

// Writes a trace for Perfetto (ui.perfetto.dev) and chrome://tracing. Throws Error if the file cannot be written.
void write_trace(const Profile&, const std::string& path);

}  // namespace ring
