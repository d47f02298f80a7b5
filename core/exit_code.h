#pragma once
// Exit codes of the program, beside 0.

namespace ring {

inline constexpr int kExitError = 1;         // the message says what and what to do
inline constexpr int kExitUsage = 2;         // the command line itself
inline constexpr int kExitInterrupted = 75;  // stopped by a signal after a checkpoint: run the same command to go on
inline constexpr int kExitPeerLost = 83;     // another rank was the cause (see PeerLost in comm/communicator.h)
inline constexpr int kExitTakenOver = 84;    // another process trains this run now (see TakenOver in checkpoint/)

inline constexpr int kExitOutOfMemory = 85;  // a smaller choice is recorded: run the same command to go on

inline constexpr int kExitDeviceFailure = 86;  // a GPU failed (DeviceFailure): run the same command to resume

// Thrown by a command that has done its work and ends with a code of its own.
struct ExitCode {
  int code;
};

}  // namespace ring
