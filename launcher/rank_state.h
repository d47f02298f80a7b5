#pragma once
// State of a worker. The agent reads it from shared memory, even if the worker hangs or is dead.

#include <cstdint>
#include <string>
#include <vector>

#include "job/worker_status.h"

namespace ring {

struct PastCall {
  std::int64_t number = 0;
  std::string text, site;
};

// A rank's progress in a group. Collective operations are numbered from 1, equally on all ranks.
struct GroupState {
  std::string name;              // name of the group, e.g. "dp"
  int first_rank = 0, size = 0;  // first_rank: rank of the first member in the run; it and `name` identify the group
  std::int64_t queued = 0, started = 0, done = 0;  // number of the newest operation in each state
  std::string waits_in = {};                       // operation that was started but is not done; empty if there is none
  std::string site = {};                           // call site of waits_in
  bool pairwise = false;                           // true if waits_in is pairwise, as in FlightEntry
  std::vector<PastCall> recent = {};               // newest operations that were started and that all ranks run alike
};

struct RankState {
  int rank = 0, node = 0;
  std::int64_t pid = 0;
  std::string host;
  std::int64_t step = 0;  // number of steps done
  std::string phase;      // e.g. "forward", or "forward, writing: sync" while a checkpoint is written
  bool writes = false;    // true while the worker is writing a checkpoint
  double silent = 0;      // seconds without progress
  bool stopped = false;   // true if a signal or a debugger has stopped the worker
  std::string last;       // the operation completed last, e.g. "#411 of dp"; empty if there is none
  std::vector<GroupState> groups = {};

  bool is_waiting() const;  // true if the rank waits for other ranks in an operation of a step
};

RankState state_of(const WorkerStatus&, int rank);
// Returns the number of signs of progress so far; while it stays the same, the worker makes no progress.
std::int64_t num_progress_signs(const WorkerStatus&);
// Returns the time of the newest sign of progress, from nanoseconds_now(); 0 if there was none.
std::int64_t last_progress_ns(const WorkerStatus&);
bool is_stopped(std::int64_t pid);  // according to /proc
// Returns true if the process is ending or has ended but was not waited for, according to /proc. A process with a GPU
// takes tenths of a second to end.
bool is_exiting(std::int64_t pid);
// Returns the state and the newest operations, with their states and times, as JSON on one line.
std::string flights_json(const RankState&, const WorkerStatus&);

}  // namespace ring
