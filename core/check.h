#pragma once
// Errors: one exception type for everything. A message says what failed, both sides' values, and what to do.

#include <sstream>
#include <stdexcept>
#include <string>

namespace ring {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// For a mistake of the user's (a file, a key, an argument): the message alone, no source location.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(str(parts...));
}

}  // namespace ring

// For a broken contract between parts of the program: the message, then where it was found.
#define RING_CHECK(cond, ...)                                                                           \
  do {                                                                                                  \
    if (!(cond)) ::ring::fail(__VA_ARGS__, " [", #cond, " is false at ", __FILE__, ":", __LINE__, "]"); \
  } while (0)
