#pragma once
// When a restart reached each of its stages, from the failure to the first step after it. The launcher notes the first
// stages, and the worker of rank 0 the others in its page (comm/worker_page.h). All read one clock, nanoseconds_now().

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ring {

enum class StartStage : std::uint8_t {
  failed,   // the last sign of life of the worker that failed, or of this node's workers if another node's failed
  noticed,  // the launcher knows of the failure
  ended,    // all workers of this node have ended
  spawned,  // the new workers are started
  running,  // the program runs and has read its settings
  met,      // all ranks are at the store and agree on what they were started with
  opened,   // this process has its device
  meshed,   // the groups of ranks are connected
  planned,  // data are open, and memory and activations are planned
  chosen,   // the checkpoint to go on from is verified
  built,    // the model and its optimizer are there
  loaded,   // and hold the checkpoint's state
  stepped,  // the first step is done
  count
};

struct StartTimes {
  std::array<std::int64_t, static_cast<std::size_t>(StartStage::count)> at{};  // ns; 0: not reached

  std::int64_t& operator[](StartStage s) { return at[static_cast<std::size_t>(s)]; }
  // Notes that a stage is reached now, if it was not before. Returns whether it was not.
  bool reach(StartStage);
  // Returns "4.61 s: noticed 0.7, ended 0.5, ..., first step 0.7", in seconds since the stage before. Leaves out stages
  // that were not reached.
  std::string text() const;
};

}  // namespace ring
