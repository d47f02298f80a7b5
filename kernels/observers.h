#pragma once
// Helpers for kernel observers: combine several observers, report the scopes and steps that kernel calls belong to, and
// open ranges for external profilers.

#include <initializer_list>
#include <memory>
#include <string_view>

#include "kernels/kernel.h"

namespace ring {

// Returns an observer that calls all the given observers, the first outermost. Null observers are skipped; returns null
// if all are.
std::shared_ptr<KernelObserver> combine_observers(std::initializer_list<std::shared_ptr<KernelObserver>> observers);

// Returns an observer that opens a profiler range for each scope, backward step and kernel call (core/ranges.h). Throws
// Error if this build has no ranges.
std::shared_ptr<KernelObserver> make_range_observer();

// Tells the observer of `ctx`, if there is one, that kernels belong to this step of the tape while the object lives.
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

// Forwards the scopes of `ctx` to the observer of `ctx`, if there is one, while the object lives.
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
