#pragma once
// Exit codes of the program other than 0.

namespace ring {

inline constexpr int kExitError = 1;         // an error; the message says what failed and what to do
inline constexpr int kExitUsage = 2;         // invalid command line
inline constexpr int kExitInterrupted = 75;  // stopped by a signal, after saving: run the same command to resume
inline constexpr int kExitPeerLost = 83;     // a different rank failed (PeerLost in comm/communicator.h)
inline constexpr int kExitTakenOver = 84;    // another process trains this run now (WriterSuperseded in checkpoint/)

inline constexpr int kExitOutOfMemory = 85;  // settings that need less memory are recorded: run the same command again

inline constexpr int kExitDeviceFailure = 86;  // a GPU failed (DeviceFailure): run the same command to resume

// Thrown by a command that has finished its work and exits with a code of its own.
struct ExitCode {
  int code;
};

}  // namespace ring
