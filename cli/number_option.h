#pragma once
// Options of the command line that take numbers.

#include <cstdint>
#include <limits>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ring {

inline constexpr std::int64_t kMostThreads = 4096;  // of a process
inline constexpr std::int64_t kMostCount = (std::int64_t{1} << 31) - 1;
inline constexpr std::int64_t kMostLength = std::int64_t{1} << 30;  // tokens of a sequence
inline constexpr std::int64_t kMostSeed = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kMostHeads = 1 << 16, kMostHeadDim = 4096;

inline constexpr const char* kNumberValidator = "number";  // what CLI11 calls the check of these options

// An option for a number, or for several with commas. It is read as settings are (1e3 is 1000, 010 is ten), refused
// outside of [least, most], which --help shows, and reaches `value` exactly. T: int, std::int64_t, std::uint64_t,
// double, or a std::vector of int, std::int64_t or double.
template <class T>
CLI::Option* add_number(CLI::App& command, const std::string& name, T& value, const std::string& text,
                        long double least, long double most);

// An option for a size: a whole number, or one with a unit: 50MB is 50,000,000 and 50MiB is 52,428,800.
CLI::Option* add_bytes(CLI::App& command, const std::string& name, std::uint64_t& value, const std::string& text,
                       std::uint64_t least, std::uint64_t most);

}  // namespace ring
