#include "comm/nccl/channel.h"

#ifdef RING_WITH_NCCL

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <utility>

#include "comm/gloo/gloo.h"
#include "core/awake_clock.h"
#include "core/cuda/counter.h"
#include "core/cuda/handles.h"
#include "core/cuda/stream.h"
#include "core/signals.h"

namespace ring::nccl {

using std::chrono::milliseconds;
using Clock = AwakeClock;

namespace {

constexpr milliseconds kLockTime{2'000};  // time for calls of other threads to return

double seconds(milliseconds t) { return static_cast<double>(t.count() / 10) / 100; }

}  // namespace

struct Handle {
  std::timed_mutex calls;  // held during every call with `comm`; all calls are short
  ncclComm_t comm = nullptr;
  bool gone = false;  // true if `comm` was aborted or destroyed

  std::mutex abort_mutex;
  std::condition_variable abort_done;
  bool aborting = false, aborted = false;
};

namespace {

// Aborts, after a delay, on a separate, detached thread per communicator. ncclCommAbort may wait for hanging kernels,
// also of other communicators, and may never return. copies: may be null.
void start_abort(const std::shared_ptr<Handle>& handle, milliseconds delay = {},
                 const std::shared_ptr<PeerCopies>& copies = nullptr) {
  {
    const std::lock_guard lock(handle->abort_mutex);
    if (std::exchange(handle->aborting, true)) return;
  }
  const BlockSignals block;
  std::thread([handle, delay, copies] {
    std::this_thread::sleep_for(delay);
    if (copies) copies->abort();
    const bool locked = handle->calls.try_lock_for(kLockTime);
    if (handle->comm && !std::exchange(handle->gone, true)) library().abort(handle->comm);
    if (locked) handle->calls.unlock();
    const std::lock_guard lock(handle->abort_mutex);
    handle->aborted = true;
    handle->abort_done.notify_all();
  }).detach();
}

void wait_for_abort(Handle& handle) {
  std::unique_lock lock(handle.abort_mutex);
  handle.abort_done.wait_for(lock, kCloseTime, [&] { return handle.aborted; });
}

void give_up(const std::shared_ptr<Handle>& handle) {
  start_abort(handle);
  wait_for_abort(*handle);
}

}  // namespace

Channel::Channel(const NcclGroup& group, const std::shared_ptr<Store>& store, std::shared_ptr<std::uint32_t> abort_flag,
                 milliseconds notice_time, const CommOptions& options)
    : rank_(group.rank),
      size_(group.size),
      options_(options),
      stream_(cuda::high_priority_stream(group.device.index)),
      abort_flag_(std::move(abort_flag)),
      notice_time_(notice_time),
      handle_(std::make_shared<Handle>()),
      call_check_(group.rank, group.size, options),
      replayed_(stream_.impl().host_buffer(ReplayedOperations::kBytes)) {
  if (options.verify && gloo_available())
    link_ = make_gloo_link(group.rank, group.size, *store, group.name + "/calls", options);
  const std::string who =
      str("rank ", options_.rank_of_run(rank_), " of ", size_, " did not connect to the other ranks over NCCL");
  const auto deadline = Clock::now() + options_.connect_timeout;
  try {
    if (options.copy_engines && group.size > 1) copies_ = PeerCopies::make(group, store, options);
    init_communicator(group, *store);
  } catch (const PeerLost& e) {
    const bool late = Clock::now() >= deadline;
    give_up(handle_);
    if (late) fail(who, " within ", seconds(options.connect_timeout), " s: ", e.what());
    throw PeerLost(str(who, ": ", e.what()));
  } catch (const std::exception& e) {
    give_up(handle_);
    fail(who, ": ", e.what());
  }
}

void Channel::init_communicator(const NcclGroup& group, Store& store) {
  const auto deadline = Clock::now() + options_.connect_timeout;
  const std::string key = group.name + "/nccl";
  ncclUniqueId id;
  if (rank_ == 0) {
    check(library().unique_id(&id), "ncclGetUniqueId");
    store.set(key, std::string(id.internal, sizeof id.internal));
  } else {
    const std::string bytes = store.get(key, options_.connect_timeout);
    RING_CHECK(bytes.size() == sizeof id.internal, "the identifier has ", bytes.size(), " bytes, not ",
               sizeof id.internal);
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  const cuda::OnDevice on(group.device.index);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options_.nccl_max_ctas > 0 && !copies_) config.maxCTAs = options_.nccl_max_ctas;
  {
    const std::lock_guard lock(handle_->calls);
    check(library().init(&handle_->comm, size_, id, rank_, &config), "ncclCommInitRankConfig");
  }
  wait_for_nccl(deadline, "ncclCommInitRankConfig");
}

Channel::~Channel() { start_abort(handle_); }  // does nothing after close()

void Channel::close() {
  const bool calm = std::uncaught_exceptions() == 0;
  if (copies_) {
    const bool failed = [&] {
      const std::lock_guard lock(mutex_);
      return failure_.has_value();
    }();
    copies_->close(calm && !failed);
  }
  if (calm && finalize()) return;
  abort("the communicator was destroyed");
  wait_for_abort(*handle_);
}

bool Channel::finalize() {
  const auto deadline = Clock::now() + kCloseTime;
  try {
    check();
    {
      const std::lock_guard lock(handle_->calls);
      check(library().finalize(handle_->comm), "ncclCommFinalize");
    }
    wait_for_nccl(deadline, "ncclCommFinalize");
    const std::lock_guard lock(handle_->calls);
    if (!std::exchange(handle_->gone, true)) check(library().destroy(handle_->comm), "ncclCommDestroy");
    return true;
  } catch (const Error&) {
    return false;
  }
}

void Channel::check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string text = str(call, ": ", describe(result, nullptr));
  if (result == ncclRemoteError) throw PeerLost(text);
  fail(text);
}

void Channel::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) throw PeerLost(*failure_);
}

// Waits until NCCL has finished a non-blocking call; if the call is an operation, until NCCL has queued it.
void Channel::wait_for_nccl(Clock::time_point deadline, const std::string& what) {
  for (int tries = 0;; ++tries) {
    check();
    ncclResult_t state = ncclSuccess;
    {
      const std::lock_guard lock(handle_->calls);
      if (handle_->gone) continue;  // check() throws the reason
      check(library().async_error(handle_->comm, &state), "ncclCommGetAsyncError");
    }
    check(state, what.c_str());
    if (state == ncclSuccess) return;
    if (Clock::now() > deadline) throw PeerLost(str(what, ": NCCL did not start it: a rank is stopped or stuck"));
    if (tries < 1000)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(milliseconds(1));
  }
}

Event Channel::queue(const std::string& text, const Event& after, const Calls& calls, const Copies& copies) {
  const cuda::OnDevice on(stream_.device().index);
  stream_.wait(after);
  const bool recording = stream_.impl().recording();  // a recording runs many times, but messages are counted once
  if (copies_ && copies && !recording) {
    try {
      const Event done = copies(*copies_, {after, called_});
      stream_.wait(done);
      return done;
    } catch (const PeerLost&) {
      check();  // throws the known reason of an abort
      throw;
    }
  }
  ReplayCounts* counts = nullptr;
  if (recording) {
    const std::lock_guard lock(mutex_);
    counts = &replayed_.add(text + ", in a replayed step");
  }
  auto* const native = static_cast<cudaStream_t>(stream_.native());
  if (counts) cuda::increment_counter(&counts->started, native);
  {
    const std::lock_guard lock(handle_->calls);
    if (handle_->gone) check();
    check(library().group_start(), "ncclGroupStart");
    std::exception_ptr error;
    try {
      calls(handle_->comm, native);
    } catch (...) {
      error = std::current_exception();
    }
    const ncclResult_t ended = library().group_end();  // must end the group even after an error
    if (error) std::rethrow_exception(error);
    check(ended, "ncclGroupEnd");
  }
  wait_for_nccl(Clock::now() + options_.timeout, "ncclGroupEnd");
  if (counts) cuda::increment_counter(&counts->done, native);
  Event done = stream_.record();
  if (!recording) called_ = done;
  return done;
}

Event Channel::run(const Operation& op, const Event& after, const Calls& calls, const Copies& copies) {
  ++operation_;
  try {
    check();
  } catch (const PeerLost& e) {
    throw PeerLost(str(op.where(), ": not started, because the communicator failed before: ", e.what()));
  }
  if (issuer_ == std::thread::id()) issuer_ = std::this_thread::get_id();
  RING_CHECK(
      issuer_ == std::this_thread::get_id(), op.where(),
      ": started by a different thread from the operations before; one thread of a process must start all operations");
  const std::string text = str(op.where(), " (operation ", operation_, " of rank ", options_.rank_of_run(rank_), ")");
  Event done;
  try {
    if (link_) call_check_.run(op, *link_, Clock::now() + options_.timeout);
    done = queue(text, after, calls, copies);
  } catch (const PeerLost& e) {
    op.record.mark_ended(false);
    abort(str(text, ": ", e.what()));
    throw PeerLost(str(text, ": ", e.what()));
  } catch (const OutOfMemory& e) {
    op.record.mark_ended(false);
    abort(str(text, ": ", e.what()));
    throw;
  } catch (const std::exception& e) {
    op.record.mark_ended(false);
    check();  // after an abort, NCCL's calls report other errors
    abort(str(text, ": ", e.what()));
    throw Error(str(text, ": ", e.what()));
  }
  if (stream_.impl().recording()) {
    op.record.mark_ended(true);
  } else {  // recorded operations have no events for pending_; replayed_ watches their counters instead
    const std::lock_guard lock(mutex_);
    pending_.add(text, after, done, op.record);
  }
  return done;
}

void Channel::abort(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = reason;
  }
  std::atomic_ref(*abort_flag_).store(1);  // must be set after failure_, and before any operation ends early
  if (link_) link_->abort(reason);
  start_abort(handle_, notice_time_, copies_);
}

bool Channel::idle() const { return stream_.record().done() && (!copies_ || copies_->is_idle()); }

std::optional<std::string> Channel::find_timed_out() {
  if (auto queued = pending_.find_timed_out(Clock::now(), options_.timeout)) return queued;
  return replayed_.find_timed_out(Clock::now(), options_.timeout);
}

std::optional<std::string> Channel::find_problem() {
  {
    const std::unique_lock lock(handle_->calls, std::try_to_lock);
    if (lock && !handle_->gone) {
      ncclResult_t state = ncclSuccess;
      ncclResult_t asked = library().async_error(handle_->comm, &state);
      if (asked == ncclSuccess) asked = state;
      if (asked != ncclSuccess && asked != ncclInProgress) return str("NCCL: ", describe(asked, handle_->comm));
    }
  }
  const std::lock_guard lock(mutex_);
  if (failure_) return std::nullopt;
  try {
    if (const auto what = find_timed_out())
      return str(*what, ": not finished within ", seconds(options_.timeout),
                 " s: a rank is stopped, stuck, or in a different operation");
  } catch (const Error& e) {
    return e.what();
  }
  return std::nullopt;
}

}  // namespace ring::nccl

#endif
