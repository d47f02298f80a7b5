#include "cli/rates.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/fields.h"
#include "data/output_file.h"

namespace ring {
namespace {

constexpr double kMaxLinkRate = 1e15;  // bytes per second

// Returns the bytes of a unit such as "Gb/s" (bits) or "GB/s" (bytes); 0 if there is no such unit.
double bytes_of_unit(std::string_view unit) {
  constexpr std::array<std::pair<std::string_view, double>, 8> kNames = {{{"bit/s", 1.0 / 8},
                                                                          {"bits/s", 1.0 / 8},
                                                                          {"bps", 1.0 / 8},
                                                                          {"b/s", 1.0 / 8},
                                                                          {"B/s", 1},
                                                                          {"byte/s", 1},
                                                                          {"bytes/s", 1},
                                                                          {"Bps", 1}}};
  constexpr std::array<std::pair<char, double>, 6> kPrefixes = {
      {{'k', 1e3}, {'K', 1e3}, {'M', 1e6}, {'G', 1e9}, {'T', 1e12}, {'P', 1e15}}};
  for (const auto& [name, bytes] : kNames) {
    if (unit == name) return bytes;
    for (const auto& [prefix, factor] : kPrefixes)
      if (unit.size() == name.size() + 1 && unit[0] == prefix && unit.substr(1) == name) return factor * bytes;
  }
  return 0;
}

}  // namespace

DeviceRates rates_to_update(const std::string& file, const std::string& device) {
  check_writable(file);
  DeviceRates rates;
  if (!std::filesystem::exists(file) || std::filesystem::file_size(file) == 0) return {.device = ""};
  load_config(rates, file);
  if (rates.device != device)
    fail("--out ", file, ": expected rates of this device (", device, "), got rates of ", rates.device,
         ". Give another file");
  return rates;
}

double parse_link_rate(const std::string& text, const std::string& option) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const double rate = error == std::errc() ? number * bytes_of_unit(unit) : 0;
  if (rate > 0 && rate <= kMaxLinkRate) return rate;
  fail(option, ": expected a rate above 0 with a unit, such as 400Gb/s (bits) or 50GB/s (bytes), got '", text, "'");
}

}  // namespace ring
