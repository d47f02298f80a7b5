#pragma once
// Those who watch kernels: several at once, named parts of the model, and ranges for a profiler outside of the process.

#include <initializer_list>
#include <memory>
#include <string_view>

#include "kernels/kernel.h"

namespace ring {

// All of them, the first outermost; null ones are left out. Null when none is left.
std::shared_ptr<KernelObserver> observe_by(std::initializer_list<std::shared_ptr<KernelObserver>> observers);

// A range per named part and per kernel call (see core/ranges.h). Error: this build has no ranges.
std::shared_ptr<KernelObserver> make_range_observer();

// While it lives, kernels belong to this part for those who watch.
class NamedPart {
 public:
  NamedPart(const ExecContext& ctx, std::string_view name) : ctx_(ctx) {
    if (ctx_.observer) ctx_.observer->push(name, ctx_);
  }
  ~NamedPart() {
    if (ctx_.observer) ctx_.observer->pop(ctx_);
  }
  NamedPart(const NamedPart&) = delete;
  NamedPart& operator=(const NamedPart&) = delete;

 private:
  const ExecContext& ctx_;
};

}  // namespace ring
