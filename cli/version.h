#pragma once

#include <string>

namespace ring {

// Returns e.g. "0.1.0 (COMMIT, Release, GNU 12.2.0, native)".
std::string version_text();

}  // namespace ring
