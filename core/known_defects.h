#pragma once
// Library versions with known defects that affect this program, each with a source. The code that uses a library
// refuses such a version or avoids the defect, and `ringmaster doctor` reports it.

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

struct Version {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const Version&) const = default;
};
std::string to_string(const Version&);  // e.g. "9.19.0"
// Converts 10000 major + 100 minor + patch, as used by cuDNN 9, cuBLAS and NCCL (since 2.9).
constexpr Version from_number(int n) { return {n / 10000, n / 100 % 100, n % 100}; }
// Converts 1000 major + 10 minor, as used by the CUDA driver and runtime.
constexpr Version from_cuda_number(int n) { return {n / 1000, n % 1000 / 10, n % 10}; }

struct KnownDefect {
  std::string_view library;  // e.g. "cuDNN", "NCCL"
  Version from, fixed;       // affected: from <= version < fixed
  bool refused;              // true: never used; false: used without the feature that `what` names
  std::string_view what, remedy, source;
};
const std::vector<KnownDefect>& all_known_defects();
std::vector<KnownDefect> known_defects(std::string_view library, const Version&);

}  // namespace ring
