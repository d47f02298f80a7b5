#pragma once
// Saves the state of a run while its steps go on: takes a snapshot, which a thread of its own writes and reads back.
// One save is under way at a time. All ranks call the same functions, after the same steps, and learn the same of each
// save.

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <string>

#include "checkpoint/config.h"
#include "checkpoint/memory_tier.h"
#include "checkpoint/state.h"
#include "checkpoint/writer.h"
#include "comm/mesh/mesh.h"

namespace ring {

// How one attempt to save went. Seconds are of this rank.
struct SaveOutcome {
  std::int64_t step = 0;
  std::uint64_t bytes = 0;    // of this rank's state
  double waited_seconds = 0;  // for the save before
  double stall_seconds = 0;   // that steps were held up, the former included
  double seconds = 0;         // from the beginning of the snapshot to the end of the read-back
  std::string error;          // empty: the checkpoint is there
  bool saved() const { return error.empty(); }
};

// What a saver works with; both outlive it.
struct SaverParts {
  Saving saving{};
  const WriterToken* token = nullptr;  // rank 0's (writer.h)
  MemoryTier* tier = nullptr;          // where Saving::keeps: with its room reserved
  double patience_seconds = 60;        // that steps wait for a save since it began, or 5 x the longest so far
};

// A snapshot that the launcher keeps. Seconds are of this rank, for which its steps were held up.
struct KeptOutcome {
  std::uint64_t bytes = 0;
  double waited_seconds = 0;  // for the one before
  double stall_seconds = 0;   // the former included
  Event copied{};             // what changes the state from now on comes after it
};

class Saver {
 public:
  using OnEnd = std::function<void(const SaveOutcome&)>;
  // Collective. on_end: told of every save, by the thread that calls.
  Saver(const CheckpointConfig&, std::string folder, Mesh&, SaverParts, OnEnd on_end);
  Saver(const Saver&) = delete;  // its end waits for the save under way
  Saver& operator=(const Saver&) = delete;

  // Takes the memory of snapshots ahead, so that the first one holds no step up for it. Without it, or where there is
  // none, the first save takes it, and says so if it can not.
  void reserve(const State& state, const Stream& stream);
  // Waits for the save before, then takes a snapshot of `state`, as the work queued on `stream` leaves it, and has it
  // written. What changes the state from now on comes after the event. Where the save before outlasts all patience (a
  // disk hangs) and a run is to go on, this one fails without having begun.
  Event begin(const State& state, const Stream& stream, std::int64_t step, const std::string& metadata, Retention keep);
  // Takes a snapshot for the launcher to keep; nothing is written. Goes on beside a save that is under way.
  KeptOutcome keep(const State& state, const Stream& stream, std::int64_t step, const std::string& metadata);
  // Whether this rank still works on one: it has ended once no rank does. Then call end().
  bool working() const;
  // Waits for the save under way, if any, without a limit. What it found: SaveFailed where checkpoint.on_error says so,
  // and everything that is no failure of a disk, such as PeerLost, TakenOver or DirectoryMoved.
  void end(std::int64_t step);
  // The same, but a failure is always an error: for the last save of a process.
  void end_last(std::int64_t step);

  // Whether a save that failed is due to be tried again: some steps later, and after each failure in a row twice as
  // many; not while it is being tried.
  bool retry_due(std::int64_t step) const { return failures_ > 0 && step >= retry_step_ && !written_.valid(); }
  std::int64_t saved_step() const { return saved_step_; }  // the latest; -1: none
  bool has_begun(std::int64_t step) const { return saved_step_ == step || (written_.valid() && outcome_.step == step); }
  void start_from(std::int64_t step) { saved_step_ = step; }
  void forget_kept();  // the run has gone another way than the snapshots that the launcher keeps
  std::int64_t failures() const { return failures_; }  // in a row

 private:
  using Job = std::function<double()>;  // returns when it was done, on the clock of seconds_now()
  using SharedSnapshot = std::shared_ptr<const Snapshot>;
  Job job(const State&, const Stream&, std::int64_t step, const std::string& metadata, const Retention&, Event& copied);
  WriterGroup group();
  bool async() const { return parts_.saving.mode == SaveMode::async; }
  SharedSnapshot take(const State&, const Stream&, std::int64_t step, const std::string& metadata);
  void wait_for_seal();
  double patience() const;
  std::string wait_with_patience() const;
  void leave_out(std::int64_t step, std::uint64_t bytes, double waited_seconds, const std::string& who);
  void learn(std::int64_t step);

  CheckpointConfig config_;
  std::string folder_;
  Mesh& mesh_;
  SaverParts parts_;
  OnEnd on_end_;
  SnapshotRoom room_;
  SaveOutcome outcome_;  // of the save under way, as far as it is known
  double began_ = 0;
  double longest_ = 0;  // seconds of a save
  std::int64_t saved_step_ = -1, retry_step_ = 0, failures_ = 0;
  std::atomic<bool> exchanging_{false};  // the thread that writes is told what the other ranks' have to say
  std::shared_future<void> sealed_;      // the latest snapshot that is kept counts
  std::future<double> written_;          // last: its end waits for the thread
};

}  // namespace ring
