#pragma once
// Checks that all ranks of a job have equal facts, such as settings. Ranks compare hashes through the store, and
// details only if the hashes differ: a few requests per rank, whatever the number of ranks. Needs no communicator, so
// incompatible layouts are found before groups are formed.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "job/store.h"

namespace ring {

// Unique names and their values, in the order of the report.
using Facts = std::vector<std::pair<std::string, std::string>>;

struct Topic {
  std::string name;    // used only once per job
  std::string title;   // e.g. "the ranks were started with different settings"
  std::string remedy;  // a sentence with the fix
};

// Collective. If facts differ, throws Error with the same text on all ranks: each fact that differs, its values, and
// the ranks that have them. Also throws Error if ranks do not arrive within the timeout, or if two processes have the
// same rank or different world sizes. `meanwhile` is called every 200 ms while this rank waits; an exception from it
// ends the wait.
void agree(Store&, int rank, int world, const Topic&, const Facts&, Timeout,
           const std::function<void()>& meanwhile = {});

}  // namespace ring
