#pragma once
// Named ranges on the host's timeline for a profiler that watches this process from outside (NVTX, for Nsight Systems).

namespace ring {

struct RangeMarks {
  void (*push)(const char* name);
  void (*pop)();
};

// Registered at load time by core/cuda if it is part of the build.
bool register_range_marks(const RangeMarks&);
const RangeMarks* range_marks();  // null if this build has none

}  // namespace ring
