#pragma once
// Prints the backend in the names of tests that run for each backend.

#include <ostream>

#include "core/dtype.h"

namespace ring {

inline void PrintTo(Backend b, std::ostream* out) { *out << to_string(b); }

}  // namespace ring
