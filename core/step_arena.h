#pragma once
// Memory of a repeating training step. Once two consecutive steps have allocated and freed the same sizes in the same
// order, all blocks of a step are placed in one slab by a plan, at the same addresses in every step.
//
// Four kinds of blocks come from the upstream allocator: blocks before there is a plan, blocks between steps
// (evaluation, checkpoints), blocks of Lifetime::run, and blocks that outlive their step. If a step deviates from the
// plan, its unexpected blocks also come from upstream and never overlap a live block. If the next step deviates in the
// same way, a new plan is made.
//
// All work is on one stream and runs in the order in which it was queued, so a freed block's memory can be reused at
// once, without events. Work on other streams that uses a block must be ordered before the block is freed.
//
// A recorded step (CUDA graph) may be replayed only if none of its blocks came from upstream and prepare_step() still
// returns the generation of the recording. Call prepare_step() before each replay: if memory ran short in between, the
// slab was released and may be allocated at a different address.

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

// Fault injection, for tests and --inject: called before each allocation of an arena. If it returns true, the
// allocation fails as if there were no memory. May be null.
inline std::atomic<bool (*)(bool within_step)> refuse_allocation{nullptr};

class StepArena final : public Allocator, public ScopeListener {
 public:
  explicit StepArena(std::shared_ptr<Allocator> upstream);
  ~StepArena() override;

  void* allocate(std::size_t bytes) override;  // OutOfMemory names the phases that hold most
  void* allocate_for_run(std::size_t bytes) override;
  void free(void* p, std::size_t bytes) override;
  MemoryStats stats() const override;
  void reset_peak() override;
  void trim() override;
  // Starts a phase of the memory accounting: the whole backward, or in other passes the part of the model that contains
  // the scope.
  void enter(const ScopeId&, ScopePass) override;
  void leave(const ScopeId&, ScopePass) noexcept override;

  // Begin and end a repeating step; use StepScope. begin_step() also does the work of prepare_step().
  void begin_step();
  void end_step();
  // Prepares the next step, and must be called between steps. If a new plan is due, computes it. If the slab is
  // missing, trims upstream and allocates it. Returns the generation. The host may wait only here, once per plan.
  std::uint64_t prepare_step();
  // Between pause() and resume(), allocations within a step do not belong to the step; use StepPause. Calls may nest.
  void pause();
  void resume();
  // From now on, memory that host nodes (core/host_node.h) allocate does not belong to the step.
  void exclude_host_nodes();
  bool excludes_host_nodes() const;
  // Call it if later steps will differ: drops the plan and releases the slab, unless the slab holds a live block. Must
  // not be called within a step.
  void forget_plan();
  // Call it after the last step: releases the slab as soon as it holds no live block.
  void retire();

  bool has_slab() const;                // true if there is a slab
  std::uint64_t generation() const;     // 0 before the first slab; a new number means new addresses
  std::uint64_t num_fallbacks() const;  // blocks that did not fit the plan, so far
  // Returns the number of blocks of the current or last step outside of the slab, except while paused.
  std::uint64_t num_upstream_blocks() const;
  MemoryPlan plan() const;
  // Returns the maximum number of bytes in Lifetime::run blocks that were alive at once in the current or last step.
  // Such blocks are not planned.
  std::size_t unplanned_peak() const;
  // Returns the scope in which an allocation failed last: "the backward of blocks.3.mlp". Returns "" if none failed, or
  // if it was outside of all scopes.
  std::string last_failed_scope() const;
  const std::shared_ptr<Allocator>& upstream() const { return upstream_; }

 private:
  struct Held {
    std::uint32_t phase = 0;
    std::uint64_t step = 0;  // step that the block belongs to; 0 if it belongs to none
    std::size_t number = 0;  // index of the block within the step
    bool in_slab = false;
    bool unplanned = false;  // a block of Lifetime::run, allocated within a step
  };

  void* register_block(void* p, std::size_t bytes, Held held);  // registers a block; returns p
  void* take_planned(std::size_t bytes);
  void* take_upstream(std::size_t bytes);
  bool is_free(std::size_t offset, std::size_t bytes) const;  // true if no live block overlaps
  void prepare_slab();                                        // computes a plan and allocates a slab if due
  void take_slab();
  void release_slab();
  [[noreturn]] void fail_out_of_memory(const OutOfMemory&);

  const std::shared_ptr<Allocator> upstream_;
  mutable std::mutex mutex_;
  PhaseLedger ledger_;
  std::vector<std::pair<ScopeId, ScopePass>> open_;  // current scopes, outermost first
  std::string failed_in_;
  std::unordered_map<void*, Held> held_;
  std::size_t taken_ = 0;  // bytes allocated from upstream, including the slab

  std::uint64_t step_ = 0;
  bool in_step_ = false, retired_ = false, apart_ = false;
  int pauses_ = 0;           // nesting depth
  std::uint32_t clock_ = 0;  // allocations and frees in this step
  // Traces (sizes and lifetimes of blocks) of this step, the previous one, and the one for which plan_ was made.
  std::vector<BlockLife> trace_, last_, model_;
  bool replan_ = false;  // the next plan is made for last_

  MemoryPlan plan_;
  std::byte* slab_ = nullptr;
  std::map<std::size_t, std::size_t> live_;  // live blocks in the slab: begin -> end
  bool given_up_ = false;
  std::uint64_t generation_ = 0, fallbacks_ = 0, from_upstream_ = 0;
  std::size_t unplanned_ = 0, unplanned_peak_ = 0;  // bytes; peak of this step
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

// While it lives, allocations do not belong to the current step: for measurements of the step's kernels.
class StepPause {
 public:
  explicit StepPause(StepArena& arena) : arena_(arena) { arena_.pause(); }
  ~StepPause() { arena_.resume(); }
  StepPause(const StepPause&) = delete;
  StepPause& operator=(const StepPause&) = delete;

 private:
  StepArena& arena_;
};

// While it lives, allocations on the stream go through the arena, whose upstream is the stream's allocator. Throws
// Error if the stream already uses an arena. Tensors may outlive it, because they keep the arena, which is then
// retired.
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
