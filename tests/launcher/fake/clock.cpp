// A system clock that jumps ten times a second, by up to three hours in either direction, for a program started with
// this library in LD_PRELOAD. Other clocks are unchanged.
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

// Returns the offset of the system clock in seconds, which depends on the tenth of a second.
long jump() {
  timespec now{};
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  const unsigned long tenth =
      static_cast<unsigned long>(now.tv_sec) * 10 + static_cast<unsigned long>(now.tv_nsec) / 100'000'000;
  const unsigned long random = (tenth * 6364136223846793005UL + 1442695040888963407UL) >> 33;
  return static_cast<long>(random % 21'600) - 10'800;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* t) noexcept {
  const long failed = syscall(SYS_clock_gettime, clock, t);
  if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) t->tv_sec += jump();
  return static_cast<int>(failed);
}

time_t time(time_t* out) noexcept {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  if (out) *out = t.tv_sec;
  return t.tv_sec;
}

int gettimeofday(timeval* out, void*) noexcept {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  *out = {t.tv_sec, t.tv_nsec / 1000};
  return 0;
}
}
