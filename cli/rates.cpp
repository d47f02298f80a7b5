#include "cli/rates.h"

#include <algorithm>

#include "core/cpu/thread_pool.h"
#include "core/fields.h"
#include "engine/devices.h"

namespace ring {
namespace {

constexpr const char* kShipped[] = {"h200", "h100", "cpu"};

DeviceRates found(const std::string& name, const Config& c) {
  if (std::ranges::find(kShipped, name) != std::end(kShipped))
    return shipped_rates(name, static_cast<int>(c.run.threads > 0 ? c.run.threads : default_threads()));
  DeviceRates rates;
  load_config(rates, name);
  return rates;
}

}  // namespace

DeviceRates rates_named(const std::string& name, const Config& c) {
  const bool here = backend_of(c.run.device) == Backend::cpu;
  const DeviceRates rates = found(name != "auto" ? name : here ? "cpu" : "h200", c);
  Config there = c;
  there.run.device = rates.device == "cpu" ? DeviceChoice::cpu : DeviceChoice::cuda;
  rates.of(precision_of(there));
  return rates;
}

}  // namespace ring
