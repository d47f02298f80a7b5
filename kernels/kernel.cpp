#include "kernels/kernel.h"

namespace ring {

std::vector<KernelInfo>& kernel_registry() {
  static std::vector<KernelInfo> registry;
  return registry;
}

double bytes_of(std::initializer_list<Tensor> operands) {
  double bytes = 0;
  for (const Tensor& t : operands)
    if (t.defined()) bytes += static_cast<double>(t.bytes());
  return bytes;
}

std::string short_text(const Tensor& t) { return t.defined() ? str(t.dtype(), t.shape()) : "none"; }

}  // namespace ring
