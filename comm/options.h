#pragma once
// What every transport needs to know.

#include <chrono>
#include <string>

namespace ring {

#ifdef NDEBUG
inline constexpr bool kVerifyByDefault = false;
#else
inline constexpr bool kVerifyByDefault = true;
#endif

struct CommOptions {
  std::string address = "127.0.0.1";                  // numeric, of this host, that the other ranks can reach
  std::chrono::milliseconds connect_timeout{60'000};  // until all ranks have met
  std::chrono::milliseconds timeout{300'000};         // of one operation
  bool verify = kVerifyByDefault;  // compare operation, shape and dtype between ranks before each collective
};

}  // namespace ring
