#include "job/replacement.h"

#include <chrono>
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
  setenv("RINGMASTER_RESTART_COUNT", std::to_string(page.attempt).c_str(), 1);
  clear(page.flights);
  page.can_stay = 0;
  page.stay = Stay::none;
  return true;
}

}  // namespace ring
