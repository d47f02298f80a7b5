#include "job/worker_status.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/check.h"

namespace ring {
namespace {

constexpr std::uint64_t kStatusMagic = 0x3447504D52;  // "RMPG4"

void* map(int fd) { return mmap(nullptr, sizeof(WorkerStatus), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); }

WorkerStatus* inherited(const std::string& text) {
  int number = -1;
  struct stat facts {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool sound = error == std::errc{} && end == text.data() + text.size() && fstat(number, &facts) == 0 &&
                     facts.st_size >= static_cast<off_t>(sizeof(WorkerStatus));
  void* memory = sound ? map(number) : MAP_FAILED;
  auto* page = memory == MAP_FAILED ? nullptr : static_cast<WorkerStatus*>(memory);
  if (!page || page->magic != kStatusMagic)
    fail("environment: RINGMASTER_PAGE='", text, "' is not a descriptor that `ringmaster launch` opened: unset it");
  close(number);
  return page;
}

}  // namespace

SharedStatus::SharedStatus(const std::string& cookie, const std::string& kept_key)
    : fd_(memfd_create("ringmaster-worker", MFD_CLOEXEC)) {
  void* memory = fd_ && ftruncate(fd_.get(), sizeof(WorkerStatus)) == 0 ? map(fd_.get()) : MAP_FAILED;
  if (memory == MAP_FAILED) fail("launch: cannot create a page of shared memory: ", std::strerror(errno));
  page_ = new (memory) WorkerStatus;
  RING_CHECK(cookie.size() < page_->cookie.size() && kept_key.size() < page_->kept_key.size(),
             "too long for the page: a cookie of ", cookie.size(), " bytes or a key of ", kept_key.size(), " bytes");
  std::ranges::copy(cookie, page_->cookie.begin());
  std::ranges::copy(kept_key, page_->kept_key.begin());
  page_->magic = kStatusMagic;
}

SharedStatus::~SharedStatus() { munmap(page_, sizeof(WorkerStatus)); }

WorkerStatus& own_status() {
  static WorkerStatus none;
  static const char* const text = std::getenv("RINGMASTER_PAGE");
  static WorkerStatus& page = text && *text ? *inherited(text) : none;
  return page;
}

}  // namespace ring
