#include "checkpoint/saver.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "comm/host.h"
#include "core/clock.h"
#include "core/log.h"
#include "job/worker_status.h"

namespace ring {
namespace {

constexpr std::int64_t kMaxStepsToRetry = 256;
constexpr double kPatience = 5;  // patience as a multiple of the longest save's duration
constexpr std::chrono::milliseconds kLook{50};

// Returns the number of steps until the next attempt: it doubles with every failure, up to kMaxStepsToRetry.
std::int64_t steps_to_retry(std::int64_t failures) {
  return failures > 8 ? kMaxStepsToRetry : std::int64_t{1} << (failures - 1);
}

// Takes a snapshot on all ranks. Throws SaveFailed on every rank if one of them runs out of memory. Collective.
Snapshot take_together(const std::function<Snapshot()>& take, Mesh& mesh) {
  std::optional<Snapshot> snapshot;
  std::string problem;
  try {
    snapshot.emplace(take());
  } catch (const OutOfMemory& e) {
    problem = e.what();
  }
  const std::vector<std::string> all = gather_host(mesh.host(), problem);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) throw SaveFailed(all.size() > 1 ? str("rank ", rank, ": ", all[rank]) : all[rank]);
  return *std::move(snapshot);
}

// Seals the snapshot. If that fails, the snapshot stays invalid and the run continues.
void seal(MemoryTier& tier, const Snapshot& snapshot, std::int64_t step, const std::string& metadata) try {
  tier.seal(snapshot, step, metadata);
} catch (const Error& e) {
  log::warn("the snapshot of step ", step, " is not kept in memory, which needs free host memory: ", e.what());
}

}  // namespace

Saver::Saver(const CheckpointConfig& config, std::string folder, Mesh& mesh, SaverParts parts, OnEnd on_end)
    : config_(config), folder_(std::move(folder)), mesh_(mesh), parts_(parts), on_end_(std::move(on_end)) {
  RING_CHECK(!parts.saving.keeps || parts.tier, "snapshots can be kept only in a memory tier");
  group();
}

// Uses mesh.background() for async saves: steps use mesh.host() meanwhile, and a save must not change the order of the
// operations there.
WriterGroup Saver::group() {
  WriterGroup group = make_writer_group(async() ? mesh_.background() : mesh_.host());
  group.token = parts_.token;
  group.all_gather = [this, gather = std::move(group.all_gather)](const std::string& text) {
    exchanging_ = true;
    std::vector<std::string> all = gather(text);
    exchanging_ = false;
    return all;
  };
  return group;
}

// Waits until the snapshot is sealed and releases it, because the next snapshot may need the same slot.
void Saver::wait_for_seal() {
  if (sealed_.valid()) std::exchange(sealed_, {}).get();
}

void Saver::reserve_snapshots(const State& state, const Stream& stream) try {
  if (parts_.saving.copies() > 0 && !parts_.saving.keeps) state.reserve(stream, room_);
} catch (const OutOfMemory&) {
  room_ = {};
}

// Returns the live tensors if copies() is 0, else a copy, which the tier keeps if Saving::keeps is set.
Saver::SharedSnapshot Saver::take_snapshot(const State& state, const Stream& stream, std::int64_t step,
                                           const std::string& metadata) {
  if (parts_.saving.copies() == 0) return std::make_shared<const Snapshot>(state.live_snapshot(stream));
  if (!parts_.saving.keeps)
    return std::make_shared<const Snapshot>(take_together([&] { return state.snapshot(stream, &room_); }, mesh_));
  wait_for_seal();
  const auto snapshot = std::make_shared<const Snapshot>(parts_.tier->take_snapshot(state, stream));
  sealed_ = std::async(async() ? std::launch::async : std::launch::deferred,
                       [tier = parts_.tier, snapshot, step, metadata] { seal(*tier, *snapshot, step, metadata); });
  if (!async()) sealed_.wait();
  return snapshot;
}

AgentSaveOutcome Saver::save_to_agent(const State& state, const Stream& stream, std::int64_t step,
                                      const std::string& metadata) {
  const double asked = seconds_now();
  wait_for_seal();
  AgentSaveOutcome outcome{.bytes = state.bytes(), .waited_seconds = seconds_now() - asked};
  outcome.copied = take_snapshot(state, stream, step, metadata)->copied();
  outcome.stall_seconds = seconds_now() - asked;
  return outcome;
}

void Saver::discard_launcher_snapshots() {
  wait_for_seal();
  if (parts_.tier) parts_.tier->invalidate();
}

Saver::Job Saver::make_job(const State& state, const Stream& stream, std::int64_t step, const std::string& metadata,
                           const Retention& keep, Event& copied) {
  SharedSnapshot snapshot = take_snapshot(state, stream, step, metadata);
  if (parts_.saving.keeps) parts_.tier->protect_latest();
  copied = snapshot->copied();
  return [folder = folder_, step, metadata, keep, group = group(), snapshot = std::move(snapshot), sealed = sealed_] {
    if (sealed.valid()) sealed.wait();
    write_checkpoint(folder, step, *snapshot, metadata, keep, group);
    return seconds_now();
  };
}

double Saver::max_wait_seconds() const { return std::max(parts_.patience_seconds, kPatience * longest_); }

// Waits for the previous save. Returns "" if no rank is still working on it, or, if the time limit is reached, the
// ranks that are. Each poll counts as progress for the watchdog, since this wait has its own time limit. Collective.
std::string Saver::wait_for_previous_save() const {
  for (; is_writing() && seconds_now() < began_ + max_wait_seconds(); written_.wait_for(kLook)) ++own_status().phases;
  const std::string own = !is_writing() ? "" : exchanging_ ? "-" : str("+", to_string(own_status().writing.load()));
  const std::vector<std::string> all = gather_host(mesh_.host(), own);
  std::string who;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].starts_with('+')) who += str(who.empty() ? "" : ", ", "rank ", rank, " (", all[rank].substr(1), ")");
  const bool over = std::ranges::all_of(all, &std::string::empty);
  return over ? "" : who.empty() ? "the exchange between ranks" : who;
}

void Saver::skip_save(std::int64_t step, std::uint64_t bytes, double waited_seconds, const std::string& who) {
  ++failures_;
  on_end_(
      {.step = step,
       .bytes = bytes,
       .waited_seconds = waited_seconds,
       .stall_seconds = waited_seconds,
       .error = str("the save of step ", outcome_.step, " has not ended after ",
                    std::round(10 * (seconds_now() - began_)) / 10, " s; it waits for ", who, ". Does a disk hang?")});
}

Event Saver::begin_save(const State& state, const Stream& stream, std::int64_t step, const std::string& metadata,
                        Retention keep) {
  const double asked = seconds_now();
  if (written_.valid() && config_.on_error == AfterSaveError::go_on)
    if (const std::string who = wait_for_previous_save(); !who.empty())
      return skip_save(step, state.bytes(), seconds_now() - asked, who), Event{};
  end_save(step);
  began_ = seconds_now();
  outcome_ = {.step = step, .bytes = state.bytes(), .waited_seconds = began_ - asked};
  Event copied;
  Job write;
  try {
    write = make_job(state, stream, step, metadata, keep, copied);
  } catch (const SaveFailed& e) {
    write = [error = SaveFailed(e)]() -> double { throw error; };
  }
  written_ = std::async(async() ? std::launch::async : std::launch::deferred, std::move(write));
  if (!async()) written_.wait();
  outcome_.stall_seconds = seconds_now() - asked;
  if (!async()) end_save(step);
  return copied;
}

bool Saver::is_writing() const {
  return written_.valid() && written_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void Saver::collect_result(std::int64_t step) {
  double ended = 0;
  if (parts_.saving.keeps) parts_.tier->unprotect();
  try {
    ended = written_.get();
    saved_step_ = outcome_.step;
    failures_ = 0;
  } catch (const SaveFailed& e) {
    ended = seconds_now();
    outcome_.error = e.what();
    retry_step_ = step + steps_to_retry(++failures_);
  }
  outcome_.seconds = ended - began_;
  // Counts at most max_wait_seconds() seconds, and so ignores most of the time of a disk that hung.
  longest_ = std::max(longest_, std::min(outcome_.seconds, max_wait_seconds()));
  on_end_(outcome_);
}

void Saver::end_save(std::int64_t step) {
  if (!written_.valid()) return;
  collect_result(step);
  if (!outcome_.saved() && config_.on_error == AfterSaveError::stop) throw SaveFailed(outcome_.error);
}

void Saver::end_last_save(std::int64_t step) {
  if (written_.valid()) collect_result(step);
  if (failures_ > 0) throw SaveFailed(outcome_.error);
}

}  // namespace ring
