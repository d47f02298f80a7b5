#pragma once
// Records when a start or a restart reached each of its stages, up to the first step. After a failure, the launcher
// records the first stages; rank 0's worker records the others in its page (job/worker_status.h). All times are from
// nanoseconds_now().

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ring {

enum class StartStage : std::uint8_t {
  failed,   // last sign of life of the failed worker, or of this node's workers if another node's worker failed
  noticed,  // the launcher has noticed the failure
  ended,    // all workers of this node have ended
  spawned,  // the new workers have been started
  running,  // the worker has read its settings
  met,      // all ranks have connected to the store and agreed on their settings
  opened,   // the process has opened its device
  meshed,   // the groups of ranks are connected
  planned,  // data files are open, and memory and activations are planned
  chosen,   // the checkpoint to resume from is verified
  built,    // the model and its optimizer exist
  loaded,   // the checkpoint's state is loaded into them
  stepped,  // the first step has been done
  count
};

struct StartTimes {
  std::array<std::int64_t, static_cast<std::size_t>(StartStage::count)> at{};  // nanoseconds; 0 if not reached

  std::int64_t& operator[](StartStage s) { return at[static_cast<std::size_t>(s)]; }
  // Records the time of a stage when it is reached for the first time. Returns true if it was the first time.
  bool mark_reached(StartStage);
  // Records the start of this process as `spawned`, unless the launcher has recorded that stage.
  void mark_process_start();
  // Returns e.g. "4.61 s: noticed 0.7, ended 0.5, ..., first step 0.7": each stage with the seconds since the previous
  // stage. Stages that were not reached are omitted.
  std::string text() const;
};

// Returns the age of this process in seconds, to the resolution of Linux's clock ticks (10 ms).
double seconds_since_process_start();

}  // namespace ring
