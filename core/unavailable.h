#pragma once
// Errors about resources that this machine or build lacks. The message gives the facts. A caller that knows the
// settings adds which setting avoids the resource (cli/main.cpp).

#include <cstdint>

#include "core/check.h"

namespace ring {

enum class Resource : std::uint8_t { gpu, threads, recorded_lists };

struct Unavailable : Error {
  Unavailable(Resource which, const std::string& facts) : Error(facts), resource(which) {}
  Resource resource;
};

template <class... Parts>
[[noreturn]] void fail_without(Resource resource, const Parts&... parts) {
  throw Unavailable(resource, str(parts...));
}

}  // namespace ring
