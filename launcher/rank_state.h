#pragma once
// Where a worker is, as its agent reads it from the memory that they share, also when the worker hangs or is dead.

#include <cstdint>
#include <string>
#include <vector>

#include "job/worker_page.h"

namespace ring {

struct PastCall {
  std::int64_t number = 0;
  std::string text, site;
};

// How far a rank is in a group. Collective operations are numbered from 1, the same on all ranks.
struct GroupState {
  std::string name;                                // "dp"
  int first_rank = 0, size = 0;                    // of the run; with the name: which group
  std::int64_t queued = 0, started = 0, done = 0;  // the newest numbers
  std::string waits_in = {};                       // the operation that it started and that is not done; empty: none
  std::string site = {};                           // of that, and
  bool pairwise = false;                           // as in FlightEntry
  std::vector<PastCall> recent = {};               // the last ones that it started and that all ranks run alike
};

struct RankState {
  int rank = 0, node = 0;
  std::int64_t pid = 0;
  std::string host;
  std::int64_t step = 0;  // done
  std::string phase;      // "forward"; while a checkpoint is written beside: "forward, writing: sync"
  bool writes = false;    // a checkpoint, now
  double silent = 0;      // seconds without progress
  bool stopped = false;   // by a signal or a debugger
  std::string last;       // the operation that ended last: "#411 of dp"; empty: none
  std::vector<GroupState> groups = {};

  bool waits() const;  // for others, in an operation of steps
};

RankState state_of(const WorkerPage&, int rank);
// Signs of progress so far: a number that stands still when the worker does.
std::int64_t progress_of(const WorkerPage&);
// When the newest sign of progress came, as nanoseconds_now(). 0: there was none.
std::int64_t last_sign_of(const WorkerPage&);
bool is_stopped(std::int64_t pid);  // as /proc says
// It, and the newest operations with their states and times, as JSON on one line.
std::string flights_json(const RankState&, const WorkerPage&);

}  // namespace ring
