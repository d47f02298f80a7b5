#pragma once
// The option of the command line that says where to compute.

#include <string>

#include "cli/command.h"
#include "engine/config.h"

namespace ring {

// --device: auto, cpu or cuda.
Option add_device(Command command, DeviceChoice& choice, const std::string& text = "Where to compute");

}  // namespace ring
