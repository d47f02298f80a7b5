#pragma once

#include <string>

namespace ring {

// Returns e.g. "0.1.0 (COMMIT, Release, GNU 12.2.0, native, GPUs sm_90a)", or "no GPU support" at its end.
std::string version_text();

}  // namespace ring
