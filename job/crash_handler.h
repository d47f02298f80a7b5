#pragma once
// Reports a crash (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, std::terminate): the signal, what the process was doing,
// and a stack trace. The handler runs on an alternate stack (only on the main thread; other threads use their own
// stack) and only wakes a thread that was started before; that thread writes to standard error and to the error file.
// Neither the handler nor the thread allocates memory. The process then dies of the same signal, with its usual core
// dump.
//
// The trace lists everything on the stack that looks like a return address, including stale addresses, as MODULE+OFFSET
// for addr2line.

#include <string_view>

namespace ring {

// Call once, before other threads are started. Does nothing in builds with sanitizers, which have their own handlers.
void install_crash_handler();

// Writes the failure to the file that TORCHELASTIC_ERROR_FILE names, in torchrun's format. Does nothing if the variable
// is not set or the file exists, so that the first of several failures is kept.
void write_error_file(std::string_view message, std::string_view stack = "") noexcept;

}  // namespace ring
