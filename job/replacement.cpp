#include "job/replacement.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include "job/worker_status.h"

namespace ring {

// Polls, because writing to the shared page cannot wake a process. If the agent dies, the kernel kills this process.
bool wait_for_replacement(const std::function<bool()>& stopped) {
  constexpr std::chrono::milliseconds kLook{2};
  WorkerStatus& page = own_status();
  page.stay = Stay::offered;
  while (page.stay == Stay::offered && !stopped()) std::this_thread::sleep_for(kLook);
  if (page.stay != Stay::accepted) return false;
  setenv("RINGMASTER_STORE", page.store.data(), 1);
  const auto set = [](const char* name, std::int64_t value) { setenv(name, std::to_string(value).c_str(), 1); };
  set("RINGMASTER_RESTART_COUNT", page.attempt);
  set("RINGMASTER_RANK", page.rank);
  set("RINGMASTER_WORLD", page.world);
  set("RINGMASTER_NODE_RANK", page.node_rank);
  set("RINGMASTER_NODES", page.nodes);
  clear(page.flights);
  page.can_stay = 0;
  page.stay = Stay::none;
  return true;
}

}  // namespace ring
