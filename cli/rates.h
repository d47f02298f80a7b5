#pragma once
// The options --rates and --node-link: the rates that devices and links sustain.

#include "engine/rates.h"

namespace ring {

inline constexpr const char* kRatesText =
    "Device rates: h200, h100, cpu, or a file of bench calibrate; auto: run.rates, else this machine's device";

// Reads --rates. "auto" uses run.rates or, if that is empty, the rates of this machine's devices.
inline DeviceRates rates_of_option(const std::string& text, const Config& c) {
  return rates_named(text == "auto" ? "" : text, c, "--rates");
}

// Returns the rates that the file already contains, e.g. for other precisions or for links; without a file, rates whose
// device is "". Throws Error if the file cannot be written or contains rates of a different device, so call this before
// measuring.
DeviceRates rates_to_update(const std::string& file, const std::string& device);

// Returns the bytes per second of a link's rate such as "400Gb/s" or "50GB/s". Throws Error, which names the option, if
// it is not a positive rate with a unit.
double parse_link_rate(const std::string& text, const std::string& option);

}  // namespace ring
