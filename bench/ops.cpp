#include "bench/ops.h"

#include <algorithm>

namespace ring {
namespace {

// Repeats each kernel that it has not seen yet. A kernel that adds to its output adds many times: the step goes on with
// values that mean nothing, and is the last one.
class Repeater final : public KernelObserver {
 public:
  Repeater(StepArena& arena, double seconds, std::string filter)
      : arena_(arena), seconds_(seconds), filter_(std::move(filter)) {}

  void call(const KernelCall& c, const ExecContext& ctx, const std::function<void()>& run) override {
    if (inside_) return run();
    inside_ = true;
    run();
    OpTiming* op = find(c);
    if (!op) {
      op = &ops.emplace_back(OpTiming{std::string(c.slot), std::string(c.candidate), c.cost});
      const StepPause beside(arena_);  // the plan of the step's memory stays valid
      if (wanted(*op)) op->seconds = sustained_seconds(ctx, seconds_, run);
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
  bool wanted(const OpTiming& o) const {
    return o.slot.find(filter_) != std::string::npos || o.cost.shape.find(filter_) != std::string::npos;
  }

  StepArena& arena_;
  double seconds_;
  std::string filter_;
  bool inside_ = false;
};

}  // namespace

StepFloor OpsReport::floor() const {
  StepFloor f;
  for (const OpTiming& o : ops) {
    const double calls = o.calls;
    if (o.slot.ends_with("matmul"))
      f.products += calls * o.seconds;
    else if (o.slot.starts_with("attention"))
      f.attention += calls * o.seconds;
    else
      f.rest += calls * o.cost.bytes / (kFusedShareOfCopy * ceilings.bytes_per_second);
  }
  return f;
}

OpsReport time_ops(StepBenchmark& bench, double seconds_each, int steps, const std::string& filter) {
  OpsReport report;
  report.step_seconds = time_steps(bench, 3, steps).median();
  const auto repeater = std::make_shared<Repeater>(bench.trainer().arena(), seconds_each, filter);
  bench.trainer().observe(repeater);
  bench.trainer().launch();
  bench.trainer().finish();  // of a step that may well not be finite
  bench.trainer().observe(nullptr);
  report.ops = std::move(repeater->ops);
  std::stable_sort(report.ops.begin(), report.ops.end(),
                   [](const OpTiming& a, const OpTiming& b) { return a.calls * a.seconds > b.calls * b.seconds; });
  report.ceilings = measure_ceilings(bench.exec());
  return report;
}

}  // namespace ring
