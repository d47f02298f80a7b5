#pragma once
// Lets a worker process survive the loss of a peer. The survivor saves the state of the run in its own memory and asks
// its agent whether it may join the next attempt. The agent starts a new worker in place of the lost one, and tells the
// survivors where the workers of the next attempt meet.

#include <functional>

namespace ring {

// Offers the agent that this process joins the next attempt, and waits for the answer. Returns true once that attempt
// begins; the variables RINGMASTER_* and the cookie in the shared page then describe it. This process may have a new
// rank, and the world a new size. Returns false if this process must end, because the agent refuses or `stopped`
// returns true. Requires own_status().replaces. Call only after all communicators are destroyed.
bool wait_for_replacement(const std::function<bool()>& stopped);

}  // namespace ring
