// Target: a settings file, as bytes. Settings that are accepted are printed, read again and resolved.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/fields.h"
#include "engine/config.h"
#include "engine/resolve.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    ring::Config config, again;
    ring::load_config_text(config, std::string(data, data + size), "fuzzed.yaml");
    const std::string printed = ring::to_yaml(config);
    ring::load_config_text(again, printed, "printed");
    if (ring::to_yaml(again) != printed) std::abort();
    ring::resolve_config(config, 300, 1, ring::Backend::cpu, false);
  } catch (const ring::Error&) {
  }
  return 0;
}
