#pragma once
// Chooses the fastest of several candidates by measuring them, because no rule predicts which tile sizes suit a shape
// and pattern. A key stands for all calls of the same kind. The first such call times every candidate, unless the
// choice is known (kernels/tuning.h); later calls, layers and runs reuse the choice.

#include <optional>
#include <string>
#include <string_view>

#include "kernels/kernel.h"

namespace ring {

// Returns the index of the chosen name. names: at least one, highest priority first. If the choice is unknown, measures
// all candidates: run(i) queues candidate i and may be called any number of times. During CUDA graph capture, or if
// ctx.tuning does not measure, takes the first candidate instead.
// shape: a text with everything that the speed depends on besides the slot, the device, the names and determinism;
// includes the versions of libraries.
std::size_t measured_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                            const std::function<void(std::size_t)>& run, const ExecContext&);

// Registers the function that returns the name and version of the library that a candidate calls. They become part of
// the keys, because results and speed depend on them. Call it from a static initializer. Returns true.
bool add_choice_library(std::string_view candidate, std::string (*library)());
// Returns ", LIBRARY VERSION" for a candidate that calls one, else "".
std::string library_key(std::string_view candidate);

// Chooses a candidate of a slot with measured_choice(). `key(args)` returns the shape. `repeatable(args, ctx)`
// returns the arguments to measure with in place of `args`: a run may overwrite their outputs, and every run must do
// the same work. Requires ctx.tuning.
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
  std::optional<Args> copy;
  const auto run = [&](std::size_t i) {
    if (!copy) copy = repeatable(args, ctx);
    able[i]->fn(*copy, ctx);
  };
  std::string shape = key(args);
  for (const auto* c : able) shape += library_key(c->name);
  return *able[measured_choice(slot.name(), shape, names, run, ctx)];
}

}  // namespace ring
