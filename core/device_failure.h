#pragma once
// Devices that fail while they compute.

#include "core/check.h"

namespace ring {

// Every later call of this process on the device fails, too. A new process may well succeed with the same command.
struct DeviceFailure : Error {
  using Error::Error;
};

// Makes the device of this thread fail, as a bad kernel does: some later call throws DeviceFailure. Throws it at once
// if this process computes on no device whose failure can be caused.
void fail_device(const std::string& why);
using DeviceBreaker = bool (*)();             // false: this process uses no such device
bool register_device_breaker(DeviceBreaker);  // at load time

}  // namespace ring
