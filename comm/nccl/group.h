#pragma once
// This rank among those that share a communicator.

#include <string>

#include "core/dtype.h"

namespace ring {

struct NcclGroup {
  int rank = 0, size = 1;
  Device device;     // of this rank
  std::string name;  // separates groups in the store
};

}  // namespace ring
