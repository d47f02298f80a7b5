#pragma once

#include <string>

namespace ring {

// Returns e.g. "0.1.0 (COMMIT, Release, GNU 12.2.0, native, GPUs sm_90a)"; without GPU kernels, the text ends with
// "no GPU support)".
std::string version_text();

}  // namespace ring
