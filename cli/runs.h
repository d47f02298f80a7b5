#pragma once
// Shared by `ringmaster runs` and `runs compare`.

#include <optional>
#include <string>

#include "cli/command.h"

namespace ring {

void add_runs_compare(Command runs);

// Returns a sort key for values of which the lowest is best; nullopt for NaN, which has no order.
std::optional<double> smaller_is_better(std::optional<double>);

std::string loss_text(std::optional<double>);     // "2.3456"; "-" if there is none
std::string speed_text(std::optional<double>);    // "12.3k"
std::string percent_text(std::optional<double>);  // 0.987 is "98.7 %"
std::string memory_text(std::optional<double>);   // "1.2 GB"

}  // namespace ring
