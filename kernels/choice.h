#pragma once
// The fastest of several candidates, measured: block sizes suit some shapes and patterns and not others, and no rule
// says which. A key stands for all calls that are alike. The first such call times every candidate unless the choice is
// known (kernels/tuning.h); later calls, layers and runs reuse it.

#include <optional>
#include <string>
#include <string_view>

#include "kernels/kernel.h"

namespace ring {

// Returns the index of the chosen name; `names` holds at least one, the highest priority first. Measures an unknown
// choice with `run`, which queues one candidate and may be called any number of times. The choice is the first
// candidate while work is recorded, when nothing can be measured, and if ctx.tuning goes by rule. `shape`: what the
// speed depends on besides the slot, the device, the names and determinism, versions of libraries included.
std::size_t measured_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                            const std::function<void(std::size_t)>& run, const ExecContext&);

// Names the library that a candidate calls, with its version: results and speed depend on both, so that keys hold them.
// Call from a static initializer. Returns true.
bool add_choice_library(std::string_view candidate, std::string (*library)());
// Returns ", LIBRARY VERSION" for a candidate that calls one, else "".
std::string library_key(std::string_view candidate);

// For the choosers of slots. `key(args)` is the shape; `repeatable(args, ctx)` gives arguments that stand for `args`,
// whose results may be overwritten and that give the same however often they are run. Needs ctx.tuning.
template <class Args, class Key, class Repeatable>
const typename Kernel<Args>::Candidate& choose_measured(const Kernel<Args>& slot, const Args& args,
                                                        const ExecContext& ctx, const Key& key,
                                                        const Repeatable& repeatable) {
  std::vector<const typename Kernel<Args>::Candidate*> able;
  std::vector<std::string_view> names;
  for (const auto& c : slot.candidates(ctx.stream.device().backend)) {
    if (c.priority <= 0 && !able.empty()) break;
    if (c.supports && !c.supports(args, ctx)) continue;
    able.push_back(&c);
    names.push_back(c.name);
  }
  if (able.size() < 2) return able.empty() ? slot.first(args, ctx) : *able[0];
  std::optional<Args> again;
  const auto run = [&](std::size_t i) {
    if (!again) again = repeatable(args, ctx);
    able[i]->fn(*again, ctx);
  };
  std::string shape = key(args);
  for (const auto* c : able) shape += library_key(c->name);
  return *able[measured_choice(slot.name(), shape, names, run, ctx)];
}

}  // namespace ring
