#include "bench/ops.h"

#include <algorithm>

namespace ring {
namespace {

// Repeats each kernel at its first call. Kernels that accumulate into their output thus accumulate many times: the step
// continues with meaningless values and must be the last one.
class Repeater final : public KernelObserver {
 public:
  Repeater(StepArena& arena, double seconds, const std::function<bool(const OpTiming&)>& wanted)
      : arena_(arena), seconds_(seconds), wanted_(wanted) {}

  void call(const KernelCall& c, const ExecContext& ctx, const std::function<void()>& run) override {
    if (inside_) return run();
    inside_ = true;
    run();
    OpTiming* op = find(c);
    if (!op) {
      op = &ops.emplace_back(OpTiming{std::string(c.slot), std::string(c.candidate), c.cost});
      const StepPause beside(arena_);  // keeps the step's memory plan valid: repetitions allocate outside of it
      if (wanted_(*op)) op->seconds = measure_sustained_seconds(ctx, seconds_, run);
    }
    ++op->calls;
    inside_ = false;
  }

  std::vector<OpTiming> ops;

 private:
  OpTiming* find(const KernelCall& c) {
    const auto at = std::find_if(ops.begin(), ops.end(), [&](const OpTiming& o) {
      return o.slot == c.slot && o.candidate == c.candidate && o.cost.shape == c.cost.shape &&
             o.cost.flops == c.cost.flops && o.cost.bytes == c.cost.bytes;
    });
    return at == ops.end() ? nullptr : &*at;
  }

  StepArena& arena_;
  double seconds_;
  std::function<bool(const OpTiming&)> wanted_;
  bool inside_ = false;
};

}  // namespace

StepFloor OpsReport::step_floor() const {
  StepFloor f;
  for (const OpTiming& o : ops) {
    const double calls = o.calls;
    if (o.slot.find("matmul") != std::string::npos)
      f.products += calls * o.seconds;
    else if (o.slot.starts_with("attention"))
      f.attention += calls * o.seconds;
    else
      f.rest += calls * o.cost.bytes / (kFusedShareOfCopy * ceilings.bytes_per_second);
  }
  return f;
}

std::vector<OpTiming> repeat_ops(StepBenchmark& bench, double seconds_each,
                                 const std::function<bool(const OpTiming&)>& wanted) {
  const auto repeater = std::make_shared<Repeater>(bench.trainer().arena(), seconds_each, wanted);
  bench.trainer().observe(repeater);
  bench.trainer().launch();
  bench.trainer().finish();  // the values of this step may be non-finite
  bench.trainer().observe(nullptr);
  return std::move(repeater->ops);
}

OpsReport time_ops(StepBenchmark& bench, double seconds_each, int steps, const std::string& filter) {
  OpsReport report;
  report.step_seconds = time_steps(bench, 3, steps).median();
  report.ops = repeat_ops(bench, seconds_each, [&](const OpTiming& o) {
    return o.slot.find(filter) != std::string::npos || o.cost.shape.find(filter) != std::string::npos;
  });
  std::stable_sort(report.ops.begin(), report.ops.end(),
                   [](const OpTiming& a, const OpTiming& b) { return a.calls * a.seconds > b.calls * b.seconds; });
  report.ceilings = measure_ceilings(bench.exec());
  return report;
}

}  // namespace ring
