#include "launcher/rank_view.h"

#include <unistd.h>

#include <fstream>

#include "job/liveness.h"

namespace ring {
namespace {

// Reads the second number in statm, the number of resident pages.
std::optional<double> resident_bytes(std::int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  double all = 0, resident = 0;
  if (!(file >> all >> resident)) return std::nullopt;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

}  // namespace

RankView view_of(const Worker& worker, const std::string& gpu) {
  const RankState s = worker.state();
  RankView v{.rank = s.rank, .host = host_name(), .pid = s.pid, .step = s.step, .phase = s.phase, .silent = s.silent};
  v.alive = worker.alive();
  v.stopped = s.stopped;
  v.gpu = gpu;
  if (v.alive) v.memory = resident_bytes(s.pid);
  return v;
}

}  // namespace ring
