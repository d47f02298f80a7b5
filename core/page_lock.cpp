#include "core/page_lock.h"

#include <map>
#include <utility>

namespace ring {
namespace {

std::map<Backend, PageLock>& locks() {
  static std::map<Backend, PageLock> all;
  return all;
}

}  // namespace

bool register_page_lock(Backend backend, PageLock lock) { return locks().emplace(backend, lock).second; }

std::shared_ptr<void> with_locked_pages(std::shared_ptr<void> memory, std::size_t bytes, Device device) {
  const auto lock = locks().find(device.backend);
  return lock == locks().end() ? memory : lock->second(std::move(memory), bytes);
}

}  // namespace ring
