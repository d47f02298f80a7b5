#include "inspect/profiler.h"

#include <algorithm>

#include "kernels/observers.h"
#include "trainer/trainer.h"

namespace ring {

// Records events while steps run; Profiler::read_profile() converts them into times.
class StepRecorder final : public KernelObserver {
 public:
  using Clock = std::chrono::steady_clock;

  struct Step {
    // alone, begin: two events recorded back to back, to measure the cost of an event.
    Event alone, begin, end;
  };
  struct Call {
    ProfiledCall call;
    std::size_t step;
    Event begin, end;
  };

  // Takes the zero points of the device's and the host's clock at the same moment.
  void start(const ExecContext& ctx) {
    base = ctx.stream.record_time();
    base.synchronize();  // allowed host wait: diagnosis
    host_base_ = Clock::now();
  }
  void begin_step(const ExecContext& ctx) {
    Step step{.alone = ctx.stream.record_time()};
    step.begin = ctx.stream.record_time();
    steps.push_back(std::move(step));
    open_.clear();
  }
  void end_step(const ExecContext& ctx) { steps.back().end = ctx.stream.record_time(); }

  void call(const KernelCall& c, const ExecContext& ctx, const std::function<void()>& run) override {
    if (inside_ || steps.empty()) return run();  // called by a recorded kernel, or before the first profiled step
    Call made{.call = {.slot = c.slot, .candidate = c.candidate, .cost = c.cost, .part = part()},
              .step = steps.size() - 1};
    made.call.host.begin = now();
    inside_ = true;
    made.begin = ctx.stream.record_time();
    run();
    made.end = ctx.stream.record_time();
    inside_ = false;
    made.call.host.seconds = now() - made.call.host.begin;
    calls.push_back(std::move(made));
  }
  void enter_scope(const ScopeId& id, const ExecContext&) override { enter({.scope = id}); }
  void enter_step(std::string_view op, const ExecContext&) override { enter({.op = op}); }
  void leave(const ExecContext&) override {
    if (open_.empty()) return;  // the scope began before profiling
    ProfileSpan& host = parts[static_cast<std::size_t>(open_.back())].host;
    host.seconds = now() - host.begin;
    open_.pop_back();
  }

  Event base;
  std::vector<Step> steps;
  std::vector<Call> calls;
  std::vector<ProfiledPart> parts;

 private:
  void enter(ProfiledPart p) {
    p.parent = part();
    p.host.begin = now();
    parts.push_back(std::move(p));
    open_.push_back(static_cast<int>(parts.size()) - 1);
  }
  int part() const { return open_.empty() ? -1 : open_.back(); }
  double now() const { return std::chrono::duration<double>(Clock::now() - host_base_).count(); }

  Clock::time_point host_base_;
  std::vector<int> open_;
  bool inside_ = false;
};

Profiler::Profiler(int steps, std::shared_ptr<KernelObserver> also, int warmup)
    : recorder_(std::make_shared<StepRecorder>()), also_(std::move(also)), steps_(steps), warmup_(warmup) {
  if (steps < 1) fail("--profile: expected at least 1 step, got ", steps);
}
Profiler::~Profiler() = default;

void Profiler::before_launch(Trainer& trainer) {
  if (launched_ == 0) recorder_->start(trainer.exec());
  if (launched_ == warmup_) trainer.observe(combine_observers({recorder_, also_}));
  if (watching()) recorder_->begin_step(trainer.exec());
}

bool Profiler::after_launch(Trainer& trainer) {
  if (watching()) recorder_->end_step(trainer.exec());
  if (++launched_ != warmup_ + steps_) return false;
  trainer.observe(also_);
  return true;
}

namespace {

// Extends the device span of a part, and of all enclosing parts, so that it covers the span `by`.
void widen(Profile& p, int part, const ProfileSpan& by) {
  for (; part >= 0; part = p.parts[static_cast<std::size_t>(part)].parent) {
    ProfileSpan& s = p.parts[static_cast<std::size_t>(part)].device;
    const double begin = s.seconds > 0 ? std::min(s.begin, by.begin) : by.begin;
    const double end = s.seconds > 0 ? std::max(s.end(), by.end()) : by.end();
    s = {begin, end - begin};
  }
}

}  // namespace

Profile Profiler::read_profile() const {
  const StepRecorder& r = *recorder_;
  Profile p;
  p.parts = r.parts;
  for (const StepRecorder::Step& s : r.steps) {
    if (!s.end.defined()) break;  // a failure ended the step
    s.end.synchronize();          // allowed host wait: diagnosis
    p.steps.push_back({s.begin.seconds_after(r.base), s.end.seconds_after(s.begin)});
    p.event_seconds += s.begin.seconds_after(s.alone);
  }
  if (p.steps.empty()) return p;
  p.event_seconds /= static_cast<double>(p.steps.size());
  for (const StepRecorder::Call& c : r.calls) {
    if (c.step >= p.steps.size()) break;
    // Times are measured from the step's begin: event times have single precision, which is exact only for short times.
    const double begin = p.steps[c.step].begin + c.begin.seconds_after(r.steps[c.step].begin);
    p.calls.push_back(c.call);
    p.calls.back().device = {begin, c.end.seconds_after(c.begin)};
    widen(p, c.call.part, p.calls.back().device);
  }
  return p;
}

}  // namespace ring
