#include "launcher/cpu_binding.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace ring {
namespace {

constexpr int kMaxCores = 1 << 16;
constexpr int kPreferred = 1, kPreferredMany = 5;  // MPOL_* in <linux/mempolicy.h>
constexpr int kBits = 8 * sizeof(unsigned long);

}  // namespace

CpuBinding::CpuBinding(const std::vector<int>& cores, const std::vector<int>& memory_nodes)
    : cores_(mask_of(cores)), nodes_(mask_of(memory_nodes)) {}

CpuBinding::Mask CpuBinding::mask_of(const std::vector<int>& numbers) {
  Mask mask(numbers.empty() ? 0 : static_cast<std::size_t>(numbers.back() / kBits) + 1);
  for (const int n : numbers) mask[static_cast<std::size_t>(n / kBits)] |= 1ul << (n % kBits);
  return mask;
}

bool CpuBinding::apply() const {
  const bool bound =
      cores_.empty() || syscall(SYS_sched_setaffinity, 0, cores_.size() * sizeof cores_[0], cores_.data()) == 0;
  const std::size_t bits = nodes_.size() * kBits + 1;
  if (!nodes_.empty() && syscall(SYS_set_mempolicy, kPreferredMany, nodes_.data(), bits) != 0)
    syscall(SYS_set_mempolicy, kPreferred, nodes_.data(), bits);
  return bound;
}

std::vector<int> allowed_cores() {
  std::vector<unsigned long> mask(kMaxCores / kBits);
  const long bytes = syscall(SYS_sched_getaffinity, 0, mask.size() * sizeof mask[0], mask.data());
  std::vector<int> cores;
  for (int n = 0; bytes > 0 && n < kMaxCores; ++n)
    if (mask[static_cast<std::size_t>(n / kBits)] >> (n % kBits) & 1) cores.push_back(n);
  return cores;
}

// Calls set_mempolicy with an invalid mode, which changes nothing: EINVAL means that the call is allowed.
bool memory_can_be_bound() { return syscall(SYS_set_mempolicy, -1, nullptr, 0) != 0 && errno == EINVAL; }

}  // namespace ring
