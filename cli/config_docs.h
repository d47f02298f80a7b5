#pragma once
// docs/configuration.md as text.

#include <string>

namespace ring {

std::string configuration_reference();

}  // namespace ring
