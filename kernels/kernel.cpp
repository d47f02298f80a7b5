#include "kernels/kernel.h"

namespace ring {

std::vector<KernelInfo>& kernel_registry() {
  static std::vector<KernelInfo> registry;
  return registry;
}

}  // namespace ring
