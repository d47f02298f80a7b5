#pragma once
// Saves the state of a run while training continues: takes a snapshot, which a background thread writes and reads back.
// Only one save is in progress at a time. All ranks make the same calls after the same steps and get the same result of
// each save.

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

// Result of one attempt to save. Seconds are measured on this rank.
struct SaveOutcome {
  std::int64_t step = 0;
  std::uint64_t bytes = 0;    // size of this rank's state
  double waited_seconds = 0;  // time waited for the previous save
  double stall_seconds = 0;   // time for which steps were stalled, including waited_seconds
  double seconds = 0;         // time from the start of the snapshot to the end of the read-back
  std::string error;          // empty if the checkpoint was saved
  bool saved() const { return error.empty(); }
};

// Inputs of a Saver; `token` and `tier` must outlive it.
struct SaverParts {
  Saving saving{};
  const WriterToken* token = nullptr;  // used only on rank 0 (writer.h)
  MemoryTier* tier = nullptr;          // required if Saving::keeps; its memory must be reserved
  // Steps wait for a save until this many seconds after its start, or 5 x the duration of the longest save if that is
  // more.
  double patience_seconds = 60;
};

// Result of Saver::save_to_agent(). Seconds are those for which this rank's steps were stalled.
struct AgentSaveOutcome {
  std::uint64_t bytes = 0;
  double waited_seconds = 0;  // time waited for the previous snapshot
  double stall_seconds = 0;   // time for which steps were stalled, including waited_seconds
  Event copied{};             // the state must not change before this event
};

class Saver {
 public:
  using OnEnd = std::function<void(const SaveOutcome&)>;
  // Collective. on_end: called with the outcome of every save, on the thread that calls begin_save(), end_save() or
  // end_last_save().
  Saver(const CheckpointConfig&, std::string folder, Mesh&, SaverParts, OnEnd on_end);
  Saver(const Saver&) = delete;  // not copyable, since the destructor waits for the save in progress
  Saver& operator=(const Saver&) = delete;

  // Allocates the memory of snapshots in advance, so that the first save does not stall for the allocation. If there is
  // too little memory now, or reserve_snapshots() is not called, the first save allocates it, and fails if it cannot.
  void reserve_snapshots(const State& state, const Stream& stream);
  // Waits for the previous save, then takes a snapshot of `state` as the work queued on `stream` leaves it, and starts
  // writing it. The state must not change before the returned event. If the previous save takes longer than the
  // patience allows (a disk hangs) and checkpoint.on_error is continue, this save fails without having started.
  Event begin_save(const State& state, const Stream& stream, std::int64_t step, const std::string& metadata,
                   Retention keep);
  // Takes a snapshot that the launcher keeps in memory; no file is written. A save to disk may be in progress.
  AgentSaveOutcome save_to_agent(const State& state, const Stream& stream, std::int64_t step,
                                 const std::string& metadata);
  // Returns true while this rank is still writing. Once this is false on all ranks, the save has ended: then call
  // end_save().
  bool is_writing() const;
  // Waits for the save in progress, if any, without a time limit. Throws SaveFailed if the save failed and
  // checkpoint.on_error is stop, and rethrows anything that is not a failed save, such as PeerLost, WriterSuperseded or
  // DirectoryMoved.
  void end_save(std::int64_t step);
  // Like end_save(), but throws SaveFailed after any failure. Call for the last save of a process.
  void end_last_save(std::int64_t step);

  // Returns true if a failed save should be retried now: the number of steps until the retry doubles with each
  // consecutive failure. False while a save is in progress.
  bool retry_due(std::int64_t step) const { return failures_ > 0 && step >= retry_step_ && !written_.valid(); }
  std::int64_t saved_step() const { return saved_step_; }  // step of the latest checkpoint; -1 if there is none
  bool has_begun(std::int64_t step) const { return saved_step_ == step || (written_.valid() && outcome_.step == step); }
  void start_from(std::int64_t step) { saved_step_ = step; }
  // Invalidates the snapshots that the launcher keeps, e.g. after the run was rewound.
  void discard_launcher_snapshots();
  std::int64_t failures() const { return failures_; }  // number of consecutive failures

 private:
  using Job = std::function<double()>;  // returns the time when the job finished, on the clock of seconds_now()
  using SharedSnapshot = std::shared_ptr<const Snapshot>;
  Job make_job(const State&, const Stream&, std::int64_t step, const std::string& metadata, const Retention&,
               Event& copied);
  WriterGroup group();
  bool async() const { return parts_.saving.mode == SaveMode::async; }
  SharedSnapshot take_snapshot(const State&, const Stream&, std::int64_t step, const std::string& metadata);
  void wait_for_seal();
  double max_wait_seconds() const;
  std::string wait_for_previous_save() const;
  void skip_save(std::int64_t step, std::uint64_t bytes, double waited_seconds, const std::string& who);
  void collect_result(std::int64_t step);

  CheckpointConfig config_;
  std::string folder_;
  Mesh& mesh_;
  SaverParts parts_;
  OnEnd on_end_;
  SnapshotRoom room_;
  SaveOutcome outcome_;  // outcome of the save in progress, as far as known
  double began_ = 0;
  double longest_ = 0;  // duration of the longest save, in seconds
  std::int64_t saved_step_ = -1, retry_step_ = 0, failures_ = 0;
  // True while the writing thread is in a collective exchange with the other ranks.
  std::atomic<bool> exchanging_{false};
  std::shared_future<void> sealed_;  // ready once the latest snapshot for the launcher is sealed
  std::future<double> written_;      // declared last, since its destructor waits for the thread
};

}  // namespace ring
