#pragma once
// The operations that a process asked its groups for, in memory that its agent reads when it hangs or is dead
// (job/worker_page.h): the last of them in a ring, and for each group how far it has come. Collective operations of a
// group have the same number on all its ranks. Writing one costs no allocation and no system call.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ring {

// The group whose operations go on beside steps, from a thread of their own.
inline constexpr const char* kBackgroundGroup = "background";

enum class FlightState : std::uint8_t { none, queued, started, done, failed };
std::string_view to_string(FlightState);

struct FlightEntry {
  static constexpr std::int64_t kBeingWritten = -1;
  std::atomic<std::int64_t> sequence{0};  // of the process, from 1; 0: never written
  std::atomic<std::int64_t> number{0};    // of the group, from 1; of a pairwise one: of the collective one before
  std::atomic<std::int64_t> queued_ns{0}, started_ns{0}, ended_ns{0};  // by the steady clock
  std::atomic<FlightState> state{FlightState::none};
  std::atomic<bool> pairwise{false};  // only those that send or receive run it
  std::atomic<bool> alike{true};      // all ranks of the group run the same text
  std::atomic<std::int16_t> group{0};
  std::array<char, 124> text{};  // "all_reduce sum of f32[1000]", cut where it is longer; ends with 0
  std::array<char, 48> site{};   // "parallel/data_parallel.cpp:88"
};

struct FlightGroup {
  std::array<char, 40> name{};
  std::int32_t first_rank = 0, size = 0;                     // of the run; ranks of a group share name and first_rank
  std::atomic<std::int64_t> queued{0}, started{0}, done{0};  // the newest number of each kind
};

struct FlightRing {
  static constexpr int kEntries = 256, kGroups = 24;
  std::atomic<std::int64_t> queued{0};   // the newest sequence
  std::atomic<std::int64_t> changes{0};  // of any entry: a process in which it stands still makes no progress here
  std::atomic<std::int32_t> known{0};    // groups, also those that found no place
  std::array<FlightGroup, kGroups> groups{};
  std::array<FlightEntry, kEntries> entries{};

  static std::size_t slot(std::int64_t sequence) { return static_cast<std::size_t>(sequence) % kEntries; }
};

// One operation on its way. Of an entry that newer ones have replaced it says nothing.
class Flight {
 public:
  Flight() = default;  // is not recorded
  Flight(FlightRing& ring, std::int64_t sequence) : ring_(&ring), sequence_(sequence) {}
  void started() const;
  void ended(bool well) const;

 private:
  FlightEntry* entry() const;
  FlightRing* ring_ = nullptr;
  std::int64_t sequence_ = 0;
};

}  // namespace ring
