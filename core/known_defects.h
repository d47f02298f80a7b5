#pragma once
// Versions of libraries that are known to be bad for what this program does with them, each with where that is written.
// Those who use a library refuse such a version, and `ringmaster doctor` shows it.

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

struct Version {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const Version&) const = default;
};
std::string to_string(const Version&);  // "9.19.0"
// From 10000 major + 100 minor + patch, as cuDNN 9, cuBLAS and NCCL (since 2.9) count.
constexpr Version from_number(int n) { return {n / 10000, n / 100 % 100, n % 100}; }
// From 1000 major + 10 minor, as the CUDA driver and runtime count.
constexpr Version from_cuda_number(int n) { return {n / 1000, n % 1000 / 10, n % 10}; }

struct KnownDefect {
  std::string_view library;  // "cuDNN", "NCCL"
  Version from, fixed;       // [from, fixed)
  bool refused;              // never used then; else only what the text names is bad, and avoided
  std::string_view what, remedy, source;
};
const std::vector<KnownDefect>& all_known_defects();
std::vector<KnownDefect> known_defects(std::string_view library, const Version&);

}  // namespace ring
