#include "engine/dry_step.h"

#include <algorithm>
#include <numeric>

#include "core/checked.h"
#include "core/fake.h"
#include "engine/devices.h"
#include "engine/train_step.h"
#include "kernels/matmul.h"
#include "optim/outer_optimizer.h"
#include "optim/update_ratio.h"

namespace ring {
namespace {

// Records the parts of the model, and the kernel calls and memory of each part.
class Recorder final : public KernelObserver, public ScopeListener {
 public:
  explicit Recorder(DryStep& to) : to_(to) {}
  void begin(TrainStep& step) { step_ = &step, arena_ = &step.arena(); }

  void call(const KernelCall& call, const ExecContext&, const std::function<void()>& run) override {
    if (arena_) to_.calls.push_back({part_, pass_, call.slot, call.cost});
    run();
  }
  void sent(const FakeTransfer& t) {
    if (arena_) to_.transfers.push_back({part_, pass_, t});
  }

  void enter(const ScopeId& id, ScopePass pass) override {
    if (!arena_ || id != id.part() || id.kind == scopes::backward) return;
    part_ = id;
    pass_ = pass;
    before_ = arena_->stats().in_use;
    moved_before_ = moved();
    arena_->reset_peak();
    if (pass == ScopePass::inference)
      at(id).once_before = std::max(at(id).once_before, before_);
    else if (pass == ScopePass::forward)
      at(id).before = std::max(at(id).before, before_), at(id).min_before = std::min(at(id).min_before, before_);
  }
  void leave(const ScopeId& id, ScopePass pass) noexcept override {
    if (!arena_ || id != part_) return;
    part_ = {};
    const MemoryStats now = arena_->stats();
    if (pass == ScopePass::inference) {
      at(id).once_peak = std::max(at(id).once_peak, now.peak - before_);
    } else if (pass == ScopePass::forward) {
      at(id).host = std::max(at(id).host, moved() - moved_before_);
      at(id).kept = std::max(at(id).kept, now.in_use - std::min(now.in_use, before_));
      at(id).forward_peak = std::max(at(id).forward_peak, now.peak - before_);
    } else if (pass == ScopePass::backward) {
      const std::size_t before = at(id).before;
      at(id).backward_peak = std::max(at(id).backward_peak, now.peak - std::min(now.peak, before));
    }
  }

 private:
  std::size_t moved() const { return step_->offload() ? step_->offload()->bytes().moved : 0; }
  PartMemory& at(const ScopeId& id) {
    const auto found = std::ranges::find(to_.parts, id, &PartMemory::part);
    return found != to_.parts.end() ? *found : to_.parts.emplace_back(PartMemory{.part = id});
  }

  DryStep& to_;
  TrainStep* step_ = nullptr;
  StepArena* arena_ = nullptr;
  ScopeId part_;
  ScopePass pass_ = ScopePass::inference;
  std::size_t before_ = 0, moved_before_ = 0;
};

// Runs two steps and records the second one: it is the first step with a memory plan, and later steps are the same.
void run_twice(TrainStep& step, Recorder& recorder) {
  for (int i = 0; i < 2; ++i) {
    const StepScope scope(step.arena());
    if (i == 1) recorder.begin(step);
    step.compute();
  }
  step.arena().prepare_step();
}

// Returns the settings. If neither they nor `world` place the ranks on nodes, sets the number of ranks per node for
// hybrid: as many as can exchange the heads. Memory does not depend on this number.
Config with_ranks_per_node(Config c, WorldSize world) {
  const ParallelPlan plan = plan_of(c, world);
  if (c.parallel.cp_schedule == ContextSchedule::hybrid && c.parallel.cp_ranks_per_node == 0 && world.nodes() == 1)
    c.parallel.cp_ranks_per_node = std::gcd(std::int64_t{plan.cp}, c.model.resolved().kv_heads / plan.tp);
  return c;
}

}  // namespace

int first_rank_of_stage(const Config& c, WorldSize world, int stage) {
  return stage * (world.ranks / narrow<int>(c.parallel.pp));
}

DryStep dry_step(const Config& given, WorldSize world, const ActivationPlan& plan, int rank) {
  DryStep out;
  const Config config = with_ranks_per_node(given, world);
  const FakeMode fake;
  const auto recorder = std::make_shared<Recorder>(out);
  const Device device{backend_of(config.run.device), 0};
  MeshLayout layout = mesh_layout(plan_of(config, world), device);
  layout.emulate_nodes = world.per_node;
  const std::unique_ptr<Mesh> mesh = Mesh::fake(layout, rank, [&](const FakeTransfer& t) { recorder->sent(t); });
  ExecContext ctx = make_exec_context(config);
  ctx.tuning = nullptr;
  ctx.observer = recorder;
  const std::int64_t room = config.train.activation_offload_bytes;
  TrainStep step(config, ctx, *mesh, plan, room ? static_cast<std::size_t>(room) : kBoundless, false);
  const ScopeSubscription parts(step.exec().scopes, *recorder);
  out.lasting = step.exec().stream.allocator()->stats().in_use;
  if (config.train.diagnostics_interval)
    out.lasting += UpdateRatios::device_bytes(step.data().shard().size, config.optimizer.master);
  if (device.backend == Backend::cuda) out.lasting += kMatmulWorkspaceBytes;
  out.weights = step.data().weight_bytes() + (step.average() ? step.average()->device_bytes() : 0);
  out.gradients = step.data().gradient_bytes();
  out.weight_buffers = step.data().weight_buffer_bytes();
  out.gradient_buffers = step.data().gradient_buffer_bytes();
  out.optimizer_states = step.optimizer().device_bytes();
  out.host_states = step.optimizer().host_bytes();
  if (config.parallel.local_steps > 0) {
    ParallelConfig of_run = config.parallel;
    of_run.islands *= world.islands;
    const OuterOptimizer::HostMemory outer = OuterOptimizer::host_memory(
        of_run, step.model(), step.data().shard(), mesh->group(kDataAxes), step.data().sharded());
    // A CPU has only host memory, so its outer optimizer counts towards the budget.
    (device.backend == Backend::cpu ? out.lasting : out.host_outer) += outer.states + outer.buffers;
  }
  out.host_weights = step.data().host_weight_bytes();
  run_twice(step, *recorder);
  for (PartMemory& part : out.parts) {
    part.weights = step.data().uploaded_bytes(part.part, ScopePass::forward);
    part.weights_again = step.data().uploaded_bytes(part.part, ScopePass::backward);
  }
  out.plan = step.arena().plan();
  out.unplanned = step.arena().unplanned_peak();
  if (const ChunkedContext* chunked = step.cp_batches().chunked()) out.host_keys = chunked->host_bytes();
  if (step.offload()) out.host = step.offload()->bytes().moved, out.stayed = step.offload()->bytes().stayed;
  return out;
}

}  // namespace ring
