#pragma once
// Memory of a training step, which repeats: once two steps allocated and freed the same sizes in the same order, all
// blocks of a step get planned places in one slab, the same addresses in every step.
//
// Until then, between steps (evaluation, checkpoints) and for Lifetime::run, memory comes from the upstream allocator,
// and so do blocks that outlive their step without having said so. A step that deviates gets what the plan does not fit
// from there too, never memory that a live block occupies; when the next step deviates in the same way, the plan is
// made anew.
//
// Everything is on one stream, on which work runs in the order it was queued: a place may be given away as soon as its
// block is freed, without events. Work of other streams on a block must be ordered before its free.
//
// Whoever records a step's work (a CUDA graph) may replay it, if no block of the recorded step came from upstream, as
// long as prepare() returns the generation of then. It comes before each replay: where memory was short in between, the
// slab had to go, and it may be taken again somewhere else.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/memory_plan.h"
#include "core/phase_ledger.h"
#include "core/storage.h"
#include "core/stream.h"

namespace ring {

// Says, before each allocation by way of an arena, whether it is to fail, as if there were no memory; null: none is.
// For tests and for --inject.
inline std::atomic<bool (*)(bool within_step)> refuse_allocation{nullptr};

class StepArena final : public Allocator, public ScopeListener {
 public:
  explicit StepArena(std::shared_ptr<Allocator> upstream);
  ~StepArena() override;

  void* allocate(std::size_t bytes) override;  // OutOfMemory also names the phases that hold most
  void* allocate_for_run(std::size_t bytes) override;
  void free(void* p, std::size_t bytes) override;
  MemoryStats stats() const override;
  void reset_peak() override;
  void trim() override;
  // What is allocated within a scope counts as its block's, in the backward as the backward's.
  void enter(const ScopeId&, ScopePass) override;
  void leave(const ScopeId&, ScopePass) noexcept override;

  // Around everything that repeats; see StepScope. begin_step() prepares.
  void begin_step();
  void end_step();
  // Makes the plan and takes the slab where it is time to, after upstream was trimmed: the only place where the host
  // may wait, once per plan. Returns the generation. Not to be called within a step.
  std::uint64_t prepare();
  // Between the two, whatever is allocated within a step is not of the step; see StepPause.
  void pause();
  void resume();
  // From now on, work that is queued anew in each step (core/queue_anew.h) has memory that is not of the step.
  void set_apart();
  bool sets_apart() const;
  // Steps will be others: their plan goes, and its slab unless a block lies in it. Not to be called within a step.
  void forget();
  // There will be no more steps: the slab goes back as soon as no block lies in it.
  void retire();

  bool planned() const;                 // there is a slab
  std::uint64_t generation() const;     // 0: never planned; another number: other addresses
  std::uint64_t fallbacks() const;      // blocks that should have been in the slab and were not, since the beginning
  std::uint64_t from_upstream() const;  // blocks taken in the last step (or in this one), not paused, outside the slab
  MemoryPlan plan() const;
  // Where an allocation failed last: "the backward of blocks.3.mlp"; empty: none did, or in no scope.
  std::string failed_in() const;
  const std::shared_ptr<Allocator>& upstream() const { return upstream_; }

 private:
  struct Held {
    std::uint32_t phase = 0;
    std::uint64_t step = 0;  // of which it is; 0: of none
    std::size_t number = 0;  // in that step
    bool in_slab = false;
  };

  void* hold(void* p, std::size_t bytes, Held held);
  void* take_planned(std::size_t bytes);
  void* take_upstream(std::size_t bytes);
  bool fits(std::size_t offset, std::size_t bytes) const;
  void prepare_slab();
  void take_slab();
  void release_slab();
  [[noreturn]] void fail_out_of_memory(const OutOfMemory&);

  const std::shared_ptr<Allocator> upstream_;
  mutable std::mutex mutex_;
  PhaseLedger ledger_;
  std::vector<std::pair<ScopeId, ScopePass>> open_;  // scopes
  std::string failed_in_;
  std::unordered_map<void*, Held> held_;
  std::size_t taken_ = 0;  // bytes of upstream in use by this allocator, the slab included

  std::uint64_t step_ = 0;
  bool in_step_ = false, retired_ = false, apart_ = false;
  int pauses_ = 0;                               // within each other
  std::uint32_t clock_ = 0;                      // events in this step
  std::vector<BlockLife> trace_, last_, model_;  // of this step, of the last one, of the one that the plan is for
  bool replan_ = false;                          // last_ is what the next plan is for

  MemoryPlan plan_;
  std::byte* slab_ = nullptr;
  std::map<std::size_t, std::size_t> live_;  // in the slab: begin -> end
  bool given_up_ = false;
  std::uint64_t generation_ = 0, fallbacks_ = 0, from_upstream_ = 0;
};

class StepScope {
 public:
  explicit StepScope(StepArena& arena) : arena_(arena) { arena_.begin_step(); }
  ~StepScope() { arena_.end_step(); }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  StepArena& arena_;
};

// Within a step, for what is done besides: measurements of its kernels.
class StepPause {
 public:
  explicit StepPause(StepArena& arena) : arena_(arena) { arena_.pause(); }
  ~StepPause() { arena_.resume(); }
  StepPause(const StepPause&) = delete;
  StepPause& operator=(const StepPause&) = delete;

 private:
  StepArena& arena_;
};

// While it lives, what is allocated on the stream comes by way of the arena, whose upstream is the stream's allocator.
// Error: the stream has another one. Tensors may outlive it: they hold the arena, which retires.
class StepMemory {
 public:
  StepMemory(const Stream& stream, std::shared_ptr<StepArena> arena);
  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

 private:
  Stream stream_;
  std::shared_ptr<StepArena> arena_;
};

}  // namespace ring
