#pragma once
// Default port of a job: the same on every node, seldom the same for two jobs, and below the ephemeral range.

#include <string>

#include "core/philox.h"

namespace ring {

inline int port_from(const std::string& job) { return 20000 + static_cast<int>(site_of(job) % 10000u); }

}  // namespace ring
