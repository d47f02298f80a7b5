// Checks the CPU before anything else runs. A program built for newer instructions dies of SIGILL without a message,
// often while globals are constructed before main. This file is the only one that is compiled for the oldest CPU of the
// architecture. It uses no library that could contain newer code, hence plain write().
#include <unistd.h>

#include <cstring>

#include "generated/build_info.h"
#include "generated/cpu_features.h"

namespace {

void say(const char* text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

__attribute__((constructor(101))) void check_cpu() {
  const char* missing = ring::build_info::missing_cpu_feature();
  if (!missing) return;
  say("ringmaster: this CPU lacks ");
  say(missing);
  say(", which this program requires (it was built with -march=");
  say(ring::build_info::kArch);
  say("). Build it on this machine, or with a RING_ARCH that this CPU supports\n");
  _exit(1);  // nothing is set up yet, so no cleanup is needed
}

}  // namespace
