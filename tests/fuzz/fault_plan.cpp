// Target: the argument of --inject.
#include "job/fault_plan.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const ring::FaultPlan plan = ring::parse_fault_plan(std::string(reinterpret_cast<const char*>(data), size));
    for (const ring::Fault& f : plan.faults) {
      const bool sound = f.step >= 0 && f.after >= 0 && f.mean >= 0 && f.probability >= 0 && f.probability <= 1 &&
                         f.factor >= 1 && f.wait >= 0 && f.nth >= 1 && f.times >= 1 && f.bytes >= 1;
      if (!sound || plan.faults.empty()) std::abort();
    }
  } catch (const ring::Error&) {
  }
  return 0;
}
