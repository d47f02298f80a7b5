#pragma once
// Records the operations that a process queued on its groups (a flight recorder), in memory that its agent reads if the
// process hangs or died (job/worker_status.h): the latest ones in a ring buffer, and the progress of each group. A
// collective operation has the same number on all ranks of its group. Recording needs no allocation and no system call.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ring {

// Name of the group whose operations run beside the steps, from their own thread.
inline constexpr const char* kBackgroundGroup = "background";

enum class FlightState : std::uint8_t { none, queued, started, done, failed };
std::string_view to_string(FlightState);

struct FlightEntry {
  static constexpr std::int64_t kBeingWritten = -1;
  std::atomic<std::int64_t> sequence{0};  // counts in this process, from 1; 0 if never written
  // Counts the group's collective operations, from 1; for a pairwise operation, number of the last collective one
  // before it.
  std::atomic<std::int64_t> number{0};
  std::atomic<std::int64_t> queued_ns{0}, started_ns{0}, ended_ns{0};  // nanoseconds of the steady clock
  std::atomic<FlightState> state{FlightState::none};
  std::atomic<bool> pairwise{false};  // only the sending and the receiving rank run it
  std::atomic<bool> alike{true};      // all ranks of the group run it with the same `text`
  std::atomic<std::int16_t> group{0};
  std::array<char, 124> text{};  // "all_reduce sum of f32[1000]", truncated, ends with 0
  std::array<char, 48> site{};   // "parallel/data_parallel.cpp:88"
};

struct FlightGroup {
  std::array<char, 40> name{};
  // first_rank: rank in the run. All ranks of a group have the same name and first_rank.
  std::int32_t first_rank = 0, size = 0;
  std::atomic<std::int64_t> queued{0}, started{0}, done{0};  // newest operation in each state
};

struct FlightRing {
  static constexpr int kEntries = 256, kGroups = 24;
  std::atomic<std::int64_t> queued{0};   // newest sequence number
  std::atomic<std::int64_t> changes{0};  // counts state changes: if it stands still, communication makes no progress
  std::atomic<std::int32_t> known{0};    // number of groups, including those without an entry in `groups`
  std::array<FlightGroup, kGroups> groups{};
  std::array<FlightEntry, kEntries> entries{};

  static std::size_t slot(std::int64_t sequence) { return static_cast<std::size_t>(sequence) % kEntries; }
};

// Handle of one recorded operation. Does nothing if newer operations have overwritten the entry.
class RecordedOperation {
 public:
  RecordedOperation() = default;  // an operation that is not recorded
  RecordedOperation(FlightRing& ring, std::int64_t sequence) : ring_(&ring), sequence_(sequence) {}
  void mark_started() const;
  void mark_ended(bool ok) const;

 private:
  FlightEntry* entry() const;
  FlightRing* ring_ = nullptr;
  std::int64_t sequence_ = 0;
};

}  // namespace ring
