#include "core/device_failure.h"

namespace ring {
namespace {

DeviceBreaker breaker = nullptr;

}  // namespace

bool register_device_breaker(DeviceBreaker function) {
  breaker = function;
  return true;
}

void fail_device(const std::string& why) {
  if (!breaker || !breaker()) throw DeviceFailure(why);
}

}  // namespace ring
