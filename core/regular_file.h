#pragma once
// Opening files. Where a file is expected, there may be a pipe that nobody writes to, or a device that never ends: a
// plain open or read would wait for it without end.

#include <string>

namespace ring {

// Opens `path` with the flags of open(2), closed on exec. Returns the descriptor, or -1 with the reason in `why` and in
// errno if the system refuses, or if the file is a directory, a pipe, a socket or a device. A device may only be
// written to (O_WRONLY), as /dev/null. Never waits.
int try_open_regular(const std::string& path, int flags, std::string& why, int mode = 0666);

// Returns the descriptor. Throws Error "cannot VERB PATH: WHY" if there is none.
int open_regular(const char* verb, const std::string& path, int flags, int mode = 0666);

// Throws Error "cannot VERB PATH: WHY" if open_regular() would. For callers that open the file by other means
// afterwards.
void check_regular(const char* verb, const std::string& path, int flags);

}  // namespace ring
