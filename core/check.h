#pragma once
// Errors: one exception type for all failures. A message says what failed, the values on both sides, and what to do.

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

// Throws Error for a user's mistake (a file, a key, an argument): the message has no source location.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(str(parts...));
}

}  // namespace ring

// Throws Error for a broken contract inside the program: the message ends with the condition and its source location.
#define RING_CHECK(cond, ...)                                                                           \
  do {                                                                                                  \
    if (!(cond)) ::ring::fail(__VA_ARGS__, " [", #cond, " is false at ", __FILE__, ":", __LINE__, "]"); \
  } while (0)
