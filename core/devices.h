#pragma once
// How many devices of a backend this machine has.

#include "core/dtype.h"

namespace ring {

int device_count(Backend);  // cpu: 1. Others: 0 when the backend is not in this build or has no driver or device here

// Filled at load time by core/cuda when it is part of the build.
using DeviceCounter = int (*)();
bool register_device_counter(Backend, DeviceCounter);

}  // namespace ring
