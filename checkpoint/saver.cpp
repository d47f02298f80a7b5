#include "checkpoint/saver.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "comm/host.h"

namespace ring {
namespace {

constexpr std::int64_t kMostStepsToRetry = 256;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Doubles with every failure.
std::int64_t steps_to_retry(std::int64_t failures) {
  return failures > 8 ? kMostStepsToRetry : std::int64_t{1} << (failures - 1);
}

// Error, on every rank, where one has no memory for it.
Snapshot take_snapshot(const State& state, const Stream& stream, SnapshotRoom& room, Mesh& mesh) {
  std::optional<Snapshot> snapshot;
  std::string problem;
  try {
    snapshot.emplace(state.snapshot(stream, &room));
  } catch (const OutOfMemory& e) {
    problem = e.what();
  }
  const std::vector<std::string> all = gather_host(mesh.host(), problem);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) throw SaveFailed(all.size() > 1 ? str("rank ", rank, ": ", all[rank]) : all[rank]);
  return *std::move(snapshot);
}

}  // namespace

Saver::Saver(const CheckpointConfig& config, std::string folder, Mesh& mesh, OnEnd on_end)
    : config_(config), folder_(std::move(folder)), mesh_(mesh), on_end_(std::move(on_end)) {
  group();
}

// Steps that go on exchange through host(), in an order that a save must not disturb.
WriterGroup Saver::group() { return writer_group(config_.mode == SaveMode::async ? mesh_.background() : mesh_.host()); }

Saver::Job Saver::job(const State& state, const Stream& stream, std::int64_t step, const std::string& metadata,
                      const Retention& keep, Event& copied) {
  auto snapshot = std::make_shared<const Snapshot>(take_snapshot(state, stream, room_, mesh_));
  copied = snapshot->copied();
  return [folder = folder_, step, metadata, keep, group = group(), snapshot = std::move(snapshot)] {
    write_checkpoint(folder, step, *snapshot, metadata, keep, group);
    return now();
  };
}

Event Saver::begin(const State& state, const Stream& stream, std::int64_t step, const std::string& metadata,
                   Retention keep) {
  const double asked = now();
  end(step);
  began_ = now();
  outcome_ = {.step = step, .bytes = state.bytes(), .waited_seconds = began_ - asked};
  Event copied;
  Job write;
  try {
    write = job(state, stream, step, metadata, keep, copied);
  } catch (const SaveFailed& e) {
    write = [error = SaveFailed(e)]() -> double { throw error; };
  }
  const bool async = config_.mode == SaveMode::async;
  written_ = std::async(async ? std::launch::async : std::launch::deferred, std::move(write));
  if (!async) written_.wait();
  outcome_.stall_seconds = now() - asked;
  if (!async) end(step);
  return copied;
}

bool Saver::working() const {
  return written_.valid() && written_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

void Saver::learn(std::int64_t step) {
  double ended = 0;
  try {
    ended = written_.get();
    saved_step_ = outcome_.step;
    failures_ = 0;
  } catch (const SaveFailed& e) {
    ended = now();
    outcome_.error = e.what();
    retry_step_ = step + steps_to_retry(++failures_);
  }
  outcome_.seconds = ended - began_;
  on_end_(outcome_);
}

void Saver::end(std::int64_t step) {
  if (!written_.valid()) return;
  learn(step);
  if (!outcome_.saved() && config_.on_error == AfterSaveError::stop) throw SaveFailed(outcome_.error);
}

void Saver::end_last(std::int64_t step) {
  if (written_.valid()) learn(step);
  if (failures_ > 0) throw SaveFailed(outcome_.error);
}

}  // namespace ring
