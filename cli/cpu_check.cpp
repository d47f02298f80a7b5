// Looks at the CPU before anything else runs: a program built for newer instructions dies of SIGILL somewhere, often in
// the set-up of globals before main, and says nothing. This file alone is compiled for the oldest CPU of the
// architecture, and uses no library that could bring newer code in, hence plain write().
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
  say(", which this program was built for (-march=");
  say(ring::build_info::kArch);
  say("). Build it on this machine, or with a lower RING_ARCH\n");
  _exit(1);  // nothing has been set up yet that could be torn down
}

}  // namespace
