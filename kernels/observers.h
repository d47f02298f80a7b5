#pragma once
// Those who watch kernels: several at once, what their calls belong to, and ranges for a profiler outside of the
// process.

#include <initializer_list>
#include <memory>
#include <string_view>

#include "kernels/kernel.h"

namespace ring {

// All of them, the first outermost; null ones are left out. Null when none is left.
std::shared_ptr<KernelObserver> observe_by(std::initializer_list<std::shared_ptr<KernelObserver>> observers);

// A range per scope, step of the backward and kernel call (see core/ranges.h). Error: this build has no ranges.
std::shared_ptr<KernelObserver> make_range_observer();

// While it lives, kernels belong to this step of the tape for those who watch.
class ObservedStep {
 public:
  ObservedStep(const ExecContext& ctx, std::string_view op) : ctx_(ctx) {
    if (ctx_.observer) ctx_.observer->enter_step(op, ctx_);
  }
  ~ObservedStep() {
    if (ctx_.observer) ctx_.observer->leave(ctx_);
  }
  ObservedStep(const ObservedStep&) = delete;
  ObservedStep& operator=(const ObservedStep&) = delete;

 private:
  const ExecContext& ctx_;
};

// While it lives, whoever is the observer of `ctx` is told about its scopes.
class ObservedScopes final : public ScopeListener {
 public:
  explicit ObservedScopes(const ExecContext& ctx) : ctx_(ctx), subscription_(ctx.scopes, *this) {}
  void enter(const ScopeId& id, ScopePass) override {
    if (ctx_.observer) ctx_.observer->enter_scope(id, ctx_);
  }
  void leave(const ScopeId&, ScopePass) noexcept override {
    if (ctx_.observer) ctx_.observer->leave(ctx_);
  }

 private:
  const ExecContext& ctx_;
  ScopeSubscription subscription_;
};

}  // namespace ring
