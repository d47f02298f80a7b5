#pragma once
// How tests that run for each backend name it.

#include <ostream>

#include "core/dtype.h"

namespace ring {

inline void PrintTo(Backend b, std::ostream* out) { *out << to_string(b); }

}  // namespace ring
