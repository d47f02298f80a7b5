#include "core/step_arena.h"

#include <utility>

#include "core/fake.h"
#include "core/host_node_queue.h"
#include "core/log.h"

namespace ring {
namespace {

constexpr std::size_t kBlockAlignment = 256;

std::size_t rounded(std::size_t bytes) { return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment; }

std::string text_of(const ScopeId& id, ScopePass pass) {
  const bool backward = pass == ScopePass::backward && id.kind != scopes::backward;
  return str(backward ? "the backward of " : pass == ScopePass::forward ? "the forward of " : "", id);
}

}  // namespace

StepArena::StepArena(std::shared_ptr<Allocator> upstream) : upstream_(std::move(upstream)) {}

StepArena::~StepArena() { release_slab(); }

void* StepArena::allocate(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (const auto refuse = refuse_allocation.load(); refuse && !FakeMode::on() && refuse(in_step_ && !pauses_))
    fail_out_of_memory(OutOfMemory(str("out of memory: ", bytes, " bytes requested, refused on purpose")));
  if (!in_step_ || pauses_) return register_block(take_upstream(bytes), bytes, {});
  Held h{0, step_, trace_.size(), false};
  void* p = take_planned(bytes);
  h.in_slab = p != nullptr;
  if (!p) p = take_upstream(bytes);
  trace_.push_back({bytes, clock_++});
  return register_block(p, bytes, h);
}

void* StepArena::allocate_for_run(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  void* p = take_upstream(bytes);
  const bool unplanned = in_step_ && !pauses_;
  if (unplanned) unplanned_peak_ = std::max(unplanned_peak_, unplanned_ += bytes);
  return register_block(p, bytes, {.unplanned = unplanned});
}

void* StepArena::register_block(void* p, std::size_t bytes, Held held) {
  held.phase = ledger_.add(bytes);
  held_.emplace(p, held);
  return p;
}

// Returns the planned address of the step's next block; null if the block must come from upstream.
void* StepArena::take_planned(std::size_t bytes) {
  if (!slab_ || !bytes) return nullptr;
  const std::size_t i = trace_.size();
  const bool known = i < model_.size() && model_[i].bytes == bytes;
  if (known && model_[i].escapes()) return nullptr;
  if (!known || !is_free(plan_.offsets[i], rounded(bytes))) {
    ++fallbacks_;
    return nullptr;
  }
  const std::size_t offset = plan_.offsets[i];
  live_.emplace(offset, offset + rounded(bytes));
  return slab_ + offset;
}

// Returns true if no live block overlaps. Always true in a step that follows the plan.
bool StepArena::is_free(std::size_t offset, std::size_t bytes) const {
  const auto after = live_.lower_bound(offset + bytes);
  return after == live_.begin() || std::prev(after)->second <= offset;
}

void* StepArena::take_upstream(std::size_t bytes) {
  void* p = nullptr;
  try {
    p = upstream_->allocate(bytes);
  } catch (const OutOfMemory& e) {
    if (in_step_ || !slab_ || !live_.empty()) fail_out_of_memory(e);
  }
  if (!p) try {  // between steps, gives up the slab and tries again; the next step reallocates it
      release_slab();
      upstream_->trim();
      p = upstream_->allocate(bytes);
    } catch (const OutOfMemory& e) {
      fail_out_of_memory(e);
    }
  taken_ += bytes;
  if (in_step_ && !pauses_) ++from_upstream_;
  return p;
}

void StepArena::fail_out_of_memory(const OutOfMemory& e) {
  failed_in_ = open_.empty() ? "" : text_of(open_.back().first, open_.back().second);
  const bool held = ledger_.in_use() > 0;
  throw OutOfMemory(held ? str(e.facts, "; the largest holders are ", ledger_.largest_holders()) : e.facts, e.advice);
}

void StepArena::free(void* p, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = held_.find(p);
  const Held h = found->second;
  held_.erase(found);
  ledger_.remove(h.phase, bytes);
  if (h.unplanned) unplanned_ -= bytes;
  if (in_step_ && h.step == step_) trace_[h.number].end = clock_++;
  if (h.in_slab) {
    live_.erase(static_cast<std::size_t>(static_cast<std::byte*>(p) - slab_));
    if (retired_ && live_.empty()) release_slab();
    return;
  }
  upstream_->free(p, bytes);
  taken_ -= bytes;
}

void StepArena::begin_step() {
  std::lock_guard lock(mutex_);
  RING_CHECK(!in_step_, "a step begins inside another step");
  prepare_slab();
  in_step_ = true;
  ++step_;
  trace_.clear();
  clock_ = 0;
  from_upstream_ = 0;
  unplanned_peak_ = unplanned_;
}

std::uint64_t StepArena::prepare_step() {
  std::lock_guard lock(mutex_);
  RING_CHECK(!in_step_, "memory is planned between steps, not within one");
  prepare_slab();
  return generation_;
}

void StepArena::prepare_slab() {
  if (replan_ && live_.empty()) {
    replan_ = given_up_ = false;
    release_slab();
    model_ = last_;
    plan_ = plan_memory(model_, kBlockAlignment);
  }
  if (plan_.bytes && !slab_ && !given_up_) take_slab();
}

// Allocates the slab. First trims upstream, which may cache the memory of earlier steps that the slab replaces.
void StepArena::take_slab() {
  upstream_->trim();
  try {
    slab_ = static_cast<std::byte*>(upstream_->allocate(plan_.bytes));
    taken_ += plan_.bytes;
    ++generation_;
  } catch (const OutOfMemory& e) {
    given_up_ = true;
    log::warn("steps continue without planned memory: ", e.facts);
  }
}

void StepArena::release_slab() {
  if (!slab_) return;
  upstream_->free(slab_, plan_.bytes);
  taken_ -= plan_.bytes;
  slab_ = nullptr;
}

// Requests a new plan if the last two steps had the same trace, and the current plan was made for a different one.
void StepArena::end_step() {
  std::lock_guard lock(mutex_);
  RING_CHECK(in_step_, "a step ends that has not begun");
  in_step_ = false;
  replan_ = !trace_.empty() && trace_ == last_ && trace_ != model_;
  last_.swap(trace_);
  trace_.clear();
}

void StepArena::pause() {
  std::lock_guard lock(mutex_);
  ++pauses_;
}

void StepArena::resume() {
  std::lock_guard lock(mutex_);
  --pauses_;
}

void StepArena::exclude_host_nodes() {
  std::lock_guard lock(mutex_);
  apart_ = true;
}

bool StepArena::excludes_host_nodes() const {
  std::lock_guard lock(mutex_);
  return apart_;
}

void StepArena::forget_plan() {
  std::lock_guard lock(mutex_);
  RING_CHECK(!in_step_, "the memory of steps can be forgotten only between steps");
  last_.clear();
  replan_ = given_up_ = false;
  if (!live_.empty()) return;
  release_slab();
  plan_ = {};
  model_.clear();
  upstream_->trim();
}

void StepArena::retire() {
  std::lock_guard lock(mutex_);
  retired_ = true;
  if (live_.empty()) release_slab();
}

MemoryStats StepArena::stats() const {
  MemoryStats s = upstream_->stats();
  std::lock_guard lock(mutex_);
  const std::size_t outside = s.in_use > taken_ ? s.in_use - taken_ : 0;  // bytes that others allocated from upstream
  s.in_use = ledger_.in_use() + outside;
  s.peak = ledger_.peak() + outside;
  s.phases = ledger_.phases();
  return s;
}

void StepArena::reset_peak() {
  std::lock_guard lock(mutex_);
  ledger_.reset_peak();
  upstream_->reset_peak();
}

void StepArena::trim() { upstream_->trim(); }

void StepArena::enter(const ScopeId& id, ScopePass pass) {
  std::lock_guard lock(mutex_);
  open_.emplace_back(id, pass);
  ledger_.enter(pass == ScopePass::backward ? ScopeId{scopes::backward} : id.part());
}

void StepArena::leave(const ScopeId&, ScopePass) noexcept {
  std::lock_guard lock(mutex_);
  open_.pop_back();
  ledger_.leave();
}

bool StepArena::has_slab() const {
  std::lock_guard lock(mutex_);
  return slab_ != nullptr;
}

std::uint64_t StepArena::generation() const {
  std::lock_guard lock(mutex_);
  return generation_;
}

std::uint64_t StepArena::num_fallbacks() const {
  std::lock_guard lock(mutex_);
  return fallbacks_;
}

std::uint64_t StepArena::num_upstream_blocks() const {
  std::lock_guard lock(mutex_);
  return from_upstream_;
}

std::size_t StepArena::unplanned_peak() const {
  std::lock_guard lock(mutex_);
  return unplanned_peak_;
}

std::string StepArena::last_failed_scope() const {
  std::lock_guard lock(mutex_);
  return failed_in_;
}

MemoryPlan StepArena::plan() const {
  std::lock_guard lock(mutex_);
  return plan_;
}

StepMemory::StepMemory(const Stream& stream, std::shared_ptr<StepArena> arena)
    : stream_(stream), arena_(std::move(arena)) {
  std::shared_ptr<Allocator>& installed = stream_.impl().step_allocator;
  RING_CHECK(!installed, "two trainers cannot run their steps on one stream");
  installed = arena_;
  stream_.impl().resource<HostNodeQueue>().arena = arena_.get();
}

StepMemory::~StepMemory() {
  stream_.impl().step_allocator = nullptr;
  stream_.impl().resource<HostNodeQueue>().arena = nullptr;
  arena_->retire();
}

}  // namespace ring
