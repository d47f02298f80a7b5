#pragma once
// The option of the command line that says where to compute.

#include <string>

#include "engine/config.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ring {

// --device: auto, cpu or cuda.
CLI::Option* add_device(CLI::App& command, DeviceChoice& choice, const std::string& text = "Where to compute");

}  // namespace ring
