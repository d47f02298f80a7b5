#pragma once
// What `ringmaster plan` prints of layouts, in GiB of one device.

#include "engine/layouts.h"

namespace ring {

// Those that fit, the fastest first, with their memory by kind; and of those that do not, the least that would do.
void print_layouts(const Layouts&, std::size_t rows);
// One as settings, and what its blocks keep, compute again and move.
void print_planned(const PlannedStep&);

}  // namespace ring
