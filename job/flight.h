#pragma once
// Records the operations that a process queued on its communication groups (a flight recorder): the latest operations
// in a ring buffer, and the progress of each group. The agent reads this memory if the process hangs or has died
// (job/worker_status.h). A collective operation has the same number on all ranks of its group. Recording needs no
// allocation and no system call.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ring {

// Name of the group whose operations run concurrently with the steps, on their own thread.
inline constexpr const char* kBackgroundGroup = "background";

enum class FlightState : std::uint8_t { none, queued, started, done, failed };
std::string_view to_string(FlightState);

struct FlightEntry {
  static constexpr std::int64_t kBeingWritten = -1;
  // Number of the operation in this process, starting at 1; 0 if the entry was never written.
  std::atomic<std::int64_t> sequence{0};
  // Number of the collective operation in its group, starting at 1; for a pairwise operation, number of the last
  // collective operation before it.
  std::atomic<std::int64_t> number{0};
  std::atomic<std::int64_t> queued_ns{0}, started_ns{0}, ended_ns{0};  // nanoseconds on the steady clock
  std::atomic<FlightState> state{FlightState::none};
  std::atomic<bool> pairwise{false};  // true if only the sending and the receiving rank run it
  std::atomic<bool> alike{true};      // true if all ranks of the group run it with the same `text`
  std::atomic<std::int16_t> group{0};
  std::array<char, 124> text{};  // e.g. "all_reduce sum of f32[1000]"; truncated, zero-terminated
  std::array<char, 48> site{};   // e.g. "parallel/data_parallel.cpp:88"
};

struct FlightGroup {
  std::array<char, 40> name{};
  // first_rank: rank in the run of the group's first member. All ranks of a group have the same name and first_rank.
  std::int32_t first_rank = 0, size = 0;
  std::atomic<std::int64_t> queued{0}, started{0}, done{0};  // number of the newest operation in each state
};

struct FlightRing {
  static constexpr int kEntries = 256, kGroups = 24;
  std::atomic<std::int64_t> queued{0};  // sequence number of the newest queued operation
  // Number of state changes: while it stays the same, communication makes no progress.
  std::atomic<std::int64_t> changes{0};
  std::atomic<std::int32_t> known{0};  // number of groups, including those without an entry in `groups`
  std::array<FlightGroup, kGroups> groups{};
  std::array<FlightEntry, kEntries> entries{};

  static std::size_t slot(std::int64_t sequence) { return static_cast<std::size_t>(sequence) % kEntries; }
};

// Removes all groups and operations. Call only while no communicator records into the ring.
void clear(FlightRing&);

// Handle to a recorded operation. Does nothing if newer operations have overwritten the entry.
class RecordedOperation {
 public:
  RecordedOperation() = default;  // operation that is not recorded
  RecordedOperation(FlightRing& ring, std::int64_t sequence) : ring_(&ring), sequence_(sequence) {}
  void mark_started() const;
  void mark_ended(bool ok) const;

 private:
  FlightEntry* entry() const;
  FlightRing* ring_ = nullptr;
  std::int64_t sequence_ = 0;
};

}  // namespace ring
