// Target: the variables of a launcher, one NAME=VALUE per line.
#include "job/environment.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ring::Environment environment;
  std::istringstream lines(std::string(data, data + size));
  for (std::string line; std::getline(lines, line);)
    if (const std::size_t equals = line.find('='); equals != std::string::npos)
      environment[line.substr(0, equals)] = line.substr(equals + 1);
  try {
    const ring::WorkerEnvironment w = ring::parse_environment(environment);
    const bool sound = w.rank >= 0 && w.rank < w.world && w.world <= ring::kMaxProcesses && w.local_rank >= 0 &&
                       w.local_world >= 1 && w.local_world <= w.world && w.store_ports >= 1 &&
                       w.store.port + w.store_ports - 1 <= 65535;
    if (!sound) std::abort();
  } catch (const ring::Error&) {
  }
  try {
    ring::parse_comm_options(environment);
  } catch (const ring::Error&) {
  }
  return 0;
}
