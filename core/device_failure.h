#pragma once
// Failures of a device during a computation.

#include "core/check.h"

namespace ring {

// A kernel or the device failed: every later call of this process on the device also fails. A new process may well
// succeed with the same command.
struct DeviceFailure : Error {
  using Error::Error;
};

// Makes the device of this thread fail as a faulty kernel does: some later call throws DeviceFailure. Throws
// DeviceFailure(why) at once if this process has no device that can be made to fail.
void fail_device(const std::string& why);
using DeviceBreaker = bool (*)();  // returns false if this process uses no such device
// Sets the function that fail_device() calls. Returns true, so that a static initializer can call it.
bool register_device_breaker(DeviceBreaker);

}  // namespace ring
