#pragma once
// Functions shared by `ringmaster runs` and `runs compare`.

#include <optional>
#include <string>

#include "cli/command.h"

namespace ring {

void add_runs_compare(Command runs);

// Returns a value's sort key if smaller values are better; nullopt for NaN, which has no order.
std::optional<double> ascending_key(std::optional<double>);

std::string loss_text(std::optional<double>);     // e.g. "2.3456"; "-" if there is none
std::string speed_text(std::optional<double>);    // e.g. "12.3k"
std::string percent_text(std::optional<double>);  // e.g. "98.7 %" for 0.987
std::string memory_text(std::optional<double>);   // e.g. "1.2 GB"

}  // namespace ring
