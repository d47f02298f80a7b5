#pragma once
// What a process says when it crashes (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, std::terminate): the signal, what it
// was doing, and where. The handler runs on a stack of its own (of the main thread; other threads have one stack) and
// only wakes a thread that was started before, which writes to standard error and to the error file; neither of them
// asks for memory. Then the process dies by the same signal, with its usual core dump.
//
// The trace lists what looks like return addresses on the stack, also stale ones, as MODULE+OFFSET for addr2line.

#include <string_view>

namespace ring {

// Once, before other threads are started. Does nothing in builds with sanitizers, which have handlers of their own.
void install_crash_handler();

// Where TORCHELASTIC_ERROR_FILE names a file that is not there yet: the failure, as torchrun reads it. Of several
// failures the first one stays.
void write_error_file(std::string_view message, std::string_view stack = "") noexcept;

}  // namespace ring
