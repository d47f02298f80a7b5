#pragma once
// This rank's place in the group of a communicator.

#include <string>

#include "core/dtype.h"

namespace ring {

struct NcclGroup {
  int rank = 0, size = 1;
  Device device;     // this rank's device
  std::string name;  // separates groups in the store
};

}  // namespace ring
