#pragma once
// The option --rates: the rates that devices sustain.

#include "engine/rates.h"

namespace ring {

inline constexpr const char* kRatesText =
    "Device rates: h200, h100, cpu, or a file of bench calibrate; auto: run.rates, else this machine's device";

// Reads --rates. "auto" uses run.rates or, if that is empty, the rates of this machine's devices.
inline DeviceRates rates_of_option(const std::string& text, const Config& c) {
  return rates_named(text == "auto" ? "" : text, c, "--rates");
}

}  // namespace ring
