#pragma once
// Generates docs/configuration.md.

#include <string>

namespace ring {

// Returns the text of the file, in Markdown.
std::string configuration_reference();

}  // namespace ring
