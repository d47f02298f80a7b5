#include "job/inject.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <thread>
#include <utility>

#include "core/counted.h"
#include "core/device_failure.h"
#include "core/log.h"
#include "core/philox.h"
#include "core/signals.h"
#include "core/step_arena.h"
#include "job/worker_status.h"

namespace ring {
namespace {

using std::chrono::duration;

constexpr double kHeard = 0.1;  // seconds to wait until the agent has forwarded its worker's output
constexpr double kEnded = 1;    // seconds to wait until the kernel has killed a dead agent's children

void wait(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(duration<double>(seconds));
}

}  // namespace

bool Injector::Planned::is_timed() const {
  return ends() && (fault.mean > 0 || (fault.after > 0 && !fault.step && !fault.phase && !(fault.probability > 0)));
}

Injector::Injector(const FaultPlan& plan, const WorkerEnvironment& here) : seed_(plan.seed), here_(here) {
  for (const Fault& f : plan.faults) {
    check(f);
    plan_.emplace_back(f, static_cast<std::uint32_t>(plan_.size()));
  }
  const BlockSignals block;
  for (const Planned& p : plan_)
    if (p.is_timed() && (!p.fault.attempt || *p.fault.attempt == here_.restarts))
      clocks_.emplace_back([this, &p](const std::stop_token& stop) { run_clock(stop, p); });
}

void Injector::check(const Fault& f) const {
  for (const int n : f.whom.listed)
    if (here_.restarts == 0 && n >= numbers(f))  // after a restart there may be fewer ranks
      fail("--inject: ", f.text, ": there is no ", f.whom.agents ? "node " : "rank ", n, " among ", numbers(f));
  if (f.whom.agents && here_.source != "ringmaster")
    fail("--inject: ", f.text, ": this process has no agent; start it with ringmaster launch");
}

// Returns a number in [0, 1) that is the same in every process with the same arguments.
double Injector::draw_uniform(const Planned& p, Draw what, std::int64_t event) const {
  const RandomSite site{seed_, static_cast<std::uint32_t>(here_.restarts),
                        4 * p.place + static_cast<std::uint32_t>(what)};
  const int who = p.fault.whom.drawn() ? 0 : own_number(p.fault);  // all processes must draw the same target
  return to_uniform(random_bits(site, static_cast<std::uint64_t>(event) << 22 | static_cast<std::uint64_t>(who) << 2));
}

// An agent's faults are carried out by its first worker.
bool Injector::is_scheduled(const Planned& p, std::int64_t event) const {
  const Fault::Whom& whom = p.fault.whom;
  if (whom.agents && here_.local_rank != 0) return false;
  if (whom.drawn())
    return static_cast<int>(draw_uniform(p, Draw::whom, event) * numbers(p.fault)) == own_number(p.fault);
  return whom.all || std::ranges::count(whom.listed, own_number(p.fault)) > 0;
}

bool Injector::draw_hits(const Planned& p, std::int64_t event) const {
  return !(p.fault.probability > 0) || draw_uniform(p, Draw::chance, event) < p.fault.probability;
}

bool Injector::strikes_now(const Fault& f) const {
  return (!f.attempt || *f.attempt == here_.restarts) && step_ >= f.step && (!f.until || step_ <= f.until) &&
         duration<double>(Clock::now() - begin_).count() >= f.after;
}

void Injector::leave(RunPhase next) {
  const Visit& v = visits_[is_of_writing(next)];
  if (v.phase == RunPhase::start || v.phase == RunPhase::nothing) return;
  const double took = duration<double>(Clock::now() - v.begin).count();
  for (const Planned& p : plan_)
    if (p.fault.factor > 1 && strikes_now(p.fault, v.phase) && is_scheduled(p, 0)) {
      p.suffered = true;
      wait((p.fault.factor - 1) * took);
    }
}

// A fault without a phase strikes when a step begins.
bool Injector::strikes(const Planned& p, RunPhase phase, bool step_begins) const {
  const Fault& f = p.fault;
  if (!p.ends() || p.is_timed() || p.struck || !strikes_now(f, phase) || (!f.phase && !step_begins)) return false;
  const std::int64_t event = f.probability > 0 ? step_.load() : 0;
  return is_scheduled(p, event) && draw_hits(p, event);
}

void Injector::enter(RunPhase phase, std::int64_t step) {
  if (step > 0) step_ = step;
  for (Planned& p : plan_) {
    if (strikes(p, phase, step > 0) && !p.struck.exchange(p.fault.probability == 0)) strike(p, to_string(phase));
    const bool slows = p.fault.kind == FaultKind::slow && phase != RunPhase::nothing;
    if (!slows || !strikes_now(p.fault, phase) || !is_scheduled(p, 0)) continue;
    p.suffered = true;
    wait(p.fault.wait);
  }
  visits_[is_of_writing(phase)] = {phase, Clock::now()};
}

// Counts matching calls; returns true if the fault strikes this call.
bool Injector::count_call(Planned& p) {
  const Fault& f = p.fault;
  const WorkerStatus& page = own_status();
  if (!strikes_now(f) || !is_scheduled(p, 0) || (f.phase && page.phase != *f.phase && page.writing != *f.phase))
    return false;
  const std::int64_t call = ++p.calls;
  const bool fits = f.probability > 0 ? draw_hits(p, call) : call >= f.nth && call < f.nth + f.times;
  if (fits) p.suffered = true;
  return fits;
}

int Injector::errno_to_inject(IoCall call, std::size_t* bytes) {
  for (Planned& p : plan_) {
    const Fault& f = p.fault;
    if (f.kind != FaultKind::io || (f.call && f.call != call) || !count_call(p)) continue;
    log::warn("--inject: ", f.text, ": at a call of ", to_string(call));
    wait(f.wait);
    if (f.error == kShortIo && bytes) *bytes = (*bytes + 1) / 2;
    if (f.error > 0) return f.error;
  }
  return 0;
}

// Faults with phase=validate apply only outside steps, all others only within steps.
bool Injector::must_refuse_memory(bool within_step) {
  for (Planned& p : plan_) {
    if (p.fault.kind != FaultKind::memory) continue;
    if (within_step == (p.fault.phase == RunPhase::validate) || !count_call(p)) continue;
    log::warn("--inject: ", p.fault.text, ": an allocation ", within_step ? "of" : "after", " step ", step_.load(),
              " is refused");
    return true;
  }
  return false;
}

Injector::Change Injector::change_message(std::string_view operation, bool sent, std::span<const Bytes> message) {
  std::size_t bytes = 0;
  for (const Bytes& part : message) bytes += part.size();
  for (Planned& p : plan_) {
    const Fault& f = p.fault;
    if (f.kind != FaultKind::corrupt || f.sent != sent || !operation.starts_with(f.operation)) continue;
    if (bytes < static_cast<std::size_t>(f.bytes) || !count_call(p)) continue;
    auto at = static_cast<std::size_t>(draw_uniform(p, Draw::byte, p.calls) * static_cast<double>(bytes));
    log::warn("--inject: ", f.text, ": byte ", at, " of ", bytes, " of ", operation);
    auto part = message.begin();
    for (; at >= part->size(); ++part) at -= part->size();
    std::byte& changed = (*part)[at];
    return {&changed, std::exchange(changed, ~changed)};
  }
  return {};
}

// Returns true if a fault that is not random should have struck this process but did not. Ignores faults of earlier
// attempts, which concerned a different process.
bool Injector::has_never_struck(const Planned& p) const {
  const Fault& f = p.fault;
  const bool drawn = f.mean > 0 || f.probability > 0;
  return !drawn && !p.suffered && f.attempt.value_or(here_.restarts) >= here_.restarts && is_scheduled(p, 0);
}

void Injector::warn_of_idle() const {
  for (const Planned& p : plan_)
    if (has_never_struck(p))
      log::warn("--inject: ", p.fault.text, ": was never triggered on rank ", here_.rank, ", whose last step was ",
                step_.load(), p.calls > 0 ? str(", and which made only ", counted(p.calls, "matching call")) : "",
                p.fault.attempt.value_or(0) > here_.restarts ? str(", in attempt ", here_.restarts) : "");
}

void Injector::stop_clocks() { clocks_.clear(); }

void Injector::run_clock(const std::stop_token& stop, const Planned& p) {
  double at = p.fault.after;
  for (std::int64_t event = 0;; ++event) {
    // Strikes form a Poisson process.
    if (p.fault.mean > 0) at -= p.fault.mean * std::log1p(-draw_uniform(p, Draw::moment, event));
    const auto when = begin_ + std::chrono::duration_cast<Clock::duration>(duration<double>(at));
    std::unique_lock lock(clock_mutex_);
    clock_wake_.wait_until(lock, stop, when, [] { return false; });
    if (stop.stop_requested()) return;
    lock.unlock();
    if (is_scheduled(p, event)) strike(p, to_string(own_status().phase));
    if (!(p.fault.mean > 0)) return;
  }
}

void Injector::strike(const Planned& p, std::string_view phase) const {
  p.suffered = true;
  const bool agent = p.fault.whom.agents, stops = p.fault.kind == FaultKind::stop;
  const bool device = p.fault.kind == FaultKind::device;
  const std::string what =
      str(device  ? "failing the device of "
          : stops ? "stopping "
                  : "killing ",
          agent ? "the agent of node " : "rank ", own_number(p.fault), " in phase ", phase, " of step ", step_.load());
  log::warn("--inject: ", p.fault.text, ": ", what);
  if (device) return fail_device(str("--inject: ", p.fault.text, ": ", what));
  if (agent) wait(kHeard);
  ::kill(agent ? ::getppid() : ::getpid(), stops ? SIGSTOP : SIGKILL);
  if (agent && !stops) wait(kEnded);
}

Injection::Injection(const std::string& plan, const WorkerEnvironment& here) {
  injector = new Injector(parse_fault_plan(plan), here);  // never freed, because any thread may use it
  refuse_allocation = [](bool within_step) { return injector.load()->must_refuse_memory(within_step); };
  if (here.rank == 0) log::warn("--inject: this job will fail on purpose, as requested: ", plan);
}

Injection::~Injection() { injector.load()->stop_clocks(); }

}  // namespace ring
