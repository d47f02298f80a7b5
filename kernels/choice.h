#pragma once
// The fastest of several candidates, measured: block sizes suit some shapes and patterns and not others, and no rule
// says which. A key stands for all calls that are alike. The first of them times every candidate; the tuning file keeps
// the fastest, and later calls, layers and runs take it from there.

#include <optional>

#include "kernels/kernel.h"

namespace ring {

// Which of these names, at least one, the higher priority first. Measures what the file lacks with `run`, which queues
// one of them and may be called any number of times. While work is recorded nothing can be measured: then it is, and
// stays, the first. `shape`: what the speed depends on, beside the slot, the device, the names and determinism.
std::size_t measured_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                            const std::function<void(std::size_t)>& run, const ExecContext&);

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
  return *able[measured_choice(slot.name(), key(args), names, run, ctx)];
}

}  // namespace ring
