#pragma once
// Allowed values of model.architecture.

#include <string>
#include <vector>

namespace ring {

// Returns the names in the order in which they are listed. add_architecture() (model/architectures.h) appends to them.
std::vector<std::string>& architecture_names();

}  // namespace ring
