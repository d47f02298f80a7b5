#pragma once
// How a worker outlives a lost peer: it keeps the state of the run in its own memory and offers its agent to stay. The
// agent starts a new worker in place of the lost one, and tells the others where all workers of the next attempt meet.

#include <functional>

namespace ring {

// Offers to stay, and waits for the agent's answer. Returns true if a new attempt begins: the environment of this
// process then describes it (RINGMASTER_STORE, RINGMASTER_RESTART_COUNT and the cookie in the shared page). Returns
// false if this process must end, because the agent refuses or `stopped` returns true. Requires own_status().replaces,
// and that no communicator exists.
bool wait_for_replacement(const std::function<bool()>& stopped);

}  // namespace ring
