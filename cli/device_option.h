#pragma once
// The option --device.

#include <string>

#include "cli/command.h"
#include "engine/config.h"

namespace ring {

// Adds --device: auto, cpu or cuda.
Option add_device(Command command, DeviceChoice& choice, const std::string& text = "Device to compute on");

}  // namespace ring
