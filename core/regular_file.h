#pragma once
// Opens regular files only. A plain open() or read() would block forever if the path leads to a pipe without a writer,
// or to an endless device.

#include <string>

namespace ring {

// Opens `path` with the flags of open(2), closed on exec. Returns the descriptor, or -1 with the reason in `why` and in
// errno if the system refuses, or if the file is a directory, a pipe, a socket or a device. A character device may be
// opened for writing only (O_WRONLY), such as /dev/null. Never blocks.
int try_open_regular(const std::string& path, int flags, std::string& why, int mode = 0666);

// Returns the descriptor. Throws Error "cannot VERB PATH: WHY" if the file cannot be opened.
int open_regular(const char* verb, const std::string& path, int flags, int mode = 0666);

// Throws Error "cannot VERB PATH: WHY" if open_regular() would. For callers that open the file by other means
// afterwards.
void check_regular(const char* verb, const std::string& path, int flags);

}  // namespace ring
