#pragma once
// State of a worker, which its agent reads from shared memory, even if the worker hangs or is dead.

#include <cstdint>
#include <string>
#include <vector>

#include "job/worker_status.h"

namespace ring {

struct PastCall {
  std::int64_t number = 0;
  std::string text, site;
};

// Progress of a rank in a group. Collective operations are numbered from 1, the same on all ranks.
struct GroupState {
  std::string name;                                // "dp"
  int first_rank = 0, size = 0;                    // first_rank: rank in the run; with `name` it identifies the group
  std::int64_t queued = 0, started = 0, done = 0;  // newest operation in each state
  std::string waits_in = {};                       // operation started but not done; empty if none
  std::string site = {};                           // call site of waits_in
  bool pairwise = false;                           // true if waits_in is pairwise, as in FlightEntry
  std::vector<PastCall> recent = {};               // last started operations that are the same on all ranks
};

struct RankState {
  int rank = 0, node = 0;
  std::int64_t pid = 0;
  std::string host;
  std::int64_t step = 0;  // steps done
  std::string phase;      // "forward"; "forward, writing: sync" while a checkpoint is written
  bool writes = false;    // is writing a checkpoint
  double silent = 0;      // seconds without progress
  bool stopped = false;   // stopped by a signal or a debugger
  std::string last;       // last completed operation, "#411 of dp"; empty if none
  std::vector<GroupState> groups = {};

  bool is_waiting() const;  // waits for other ranks in an operation of a step
};

RankState state_of(const WorkerStatus&, int rank);
// Returns the number of signs of progress so far; it stands still if the worker does.
std::int64_t progress_of(const WorkerStatus&);
// Returns the time of the newest sign of progress, as nanoseconds_now(); 0 if there was none.
std::int64_t last_sign_of(const WorkerStatus&);
bool is_stopped(std::int64_t pid);  // according to /proc
// Returns the state and the newest operations, with their states and times, as JSON on one line.
std::string flights_json(const RankState&, const WorkerStatus&);

}  // namespace ring
