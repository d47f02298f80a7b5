#pragma once
// Generates docs/configuration.md.

#include <string>

namespace ring {

// Returns the file's text, in Markdown.
std::string configuration_reference();

}  // namespace ring
