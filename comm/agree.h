#pragma once
// Do all ranks of a job have the same of what must be the same? They compare hashes through the store, and details only
// where these differ: a few requests of each rank, whatever the number of ranks. Needs no communicator, so that layouts
// that do not fit together are found before a group is made of them.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "job/store.h"

namespace ring {

using Facts = std::vector<std::pair<std::string, std::string>>;  // names, each once, and values, in an order to report

struct Topic {
  std::string name;    // once per job
  std::string title;   // "the ranks were started with different settings"
  std::string remedy;  // a sentence
};

// Every rank calls. Error, with the same text on all of them: each fact that differs with its values and the ranks that
// have them. Error: ranks that did not come within the timeout; a rank or a number of ranks that contradicts others.
// meanwhile: called now and then while this rank waits; what it throws ends the wait.
void agree(Store&, int rank, int world, const Topic&, const Facts&, Timeout,
           const std::function<void()>& meanwhile = {});

}  // namespace ring
