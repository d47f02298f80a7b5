#pragma once
// What devices sustain, as the command line names it.

#include "engine/rates.h"

namespace ring {

// Text of --rates.
inline constexpr const char* kRatesText =
    "What devices sustain: h200, h100, cpu, or a file that bench calibrate wrote; auto = run.rates, else what this "
    "machine computes on";

inline DeviceRates rates_of_option(const std::string& text, const Config& c) {
  return rates_named(text == "auto" ? "" : text, c, "--rates");
}

}  // namespace ring
