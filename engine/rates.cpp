#include "engine/rates.h"

#include <algorithm>
#include <cctype>

#include "comm/leader.h"
#include "core/cpu/thread_pool.h"
#include "core/devices.h"
#include "core/fields.h"
#include "core/log.h"
#include "engine/devices.h"

namespace ring {
namespace {

constexpr const char* kShipped[] = {"h200", "h100", "cpu"};

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_shipped(const std::string& name) { return std::ranges::find(kShipped, name) != std::end(kShipped); }

// Returns the model of the device that the settings use on this machine, in the form that `bench calibrate` writes.
std::string model_here(const Config& c) {
  const Backend backend = backend_of(c.run.device);
  return backend == Backend::cpu ? "cpu" : device_model({backend, 0});
}

std::string table_here(const Config& c) {
  return backend_of(c.run.device) == Backend::cpu ? "cpu" : shipped_table(model_here(c));
}

// Throws Error if there are no rates for the precision of the settings. Called before planning begins.
void check_precision(const DeviceRates& rates, const Config& c) {
  Config there = c;
  there.run.device = rates.device == "cpu" ? DeviceChoice::cpu : DeviceChoice::cuda;
  rates.of(precision_of(there));
}

DeviceRates shipped(const std::string& name, const Config& c) {
  return shipped_rates(name, static_cast<int>(c.run.threads > 0 ? c.run.threads : default_threads()));
}

DeviceRates from_file(const std::string& file, const Config& c, const std::string& named_by) {
  DeviceRates rates;
  try {
    load_config(rates, file);
  } catch (const Error& e) {
    fail(named_by, ": ", file, " is not a file of rates (", e.what(),
         "). Give a shipped table (h200, h100, cpu), or a file written by: ringmaster bench calibrate CONFIG --out "
         "FILE");
  }
  try {
    check_precision(rates, c);
  } catch (const Error& e) {
    fail(named_by, ": ", file, ": ", e.what());
  }
  return rates;
}

}  // namespace

std::string shipped_table(const std::string& model) {
  return model.find("H100") != std::string::npos ? "h100" : "h200";
}

DeviceRates rates_named(const std::string& name, const Config& c, const std::string& named_by) {
  if (name.empty() && !c.run.rates.empty()) return rates_named(c.run.rates, c);
  const std::string table = name.empty() ? table_here(c) : lower_case(name);
  if (!is_shipped(table)) return from_file(name, c, named_by);
  const DeviceRates rates = shipped(table, c);
  check_precision(rates, c);
  return rates;
}

DeviceRates agreed_rates(const Config& c, Communicator& host) {
  DeviceRates rates = rates_named("", c);
  const std::string& file = c.run.rates;
  if (const std::string here = model_here(c);
      host.rank() == 0 && !file.empty() && !is_shipped(file) && rates.device != here)
    log::warn("run.rates: ", file, " holds the rates of ", rates.device, ", but this run computes on ", here,
              ", so its plan may not be the fastest. To measure this machine's rates: ringmaster bench calibrate");
  if (host.size() == 1) return rates;
  load_config_text(rates, broadcast_from_rank0(host, [&] { return to_yaml(rates); }), "rates of rank 0");
  return rates;
}

}  // namespace ring
