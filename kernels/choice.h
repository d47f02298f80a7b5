#pragma once
// Chooses the fastest of several candidates by measuring them, because no rule predicts which tile sizes suit a shape
// and pattern. A key stands for all calls of the same kind. The first such call times every candidate, unless the
// choice is known (kernels/tuning.h); later calls, layers and runs reuse the choice.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace ring {

// Returns the index of the chosen name. names: at least one, highest priority first. If the choice is unknown, measures
// all candidates: run(i) queues candidate i and may be called any number of times. During CUDA graph capture, or if
// ctx.tuning does not measure, takes the first candidate instead.
// shape: a text with everything that the speed depends on besides the slot, the device, the names and determinism;
// includes the versions of libraries.
std::size_t measured_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                            const std::function<void(std::size_t)>& run, const ExecContext&);
// Records the index of the chosen name, for known_choice() with the same slot, shape and names.
void record_choice(std::string_view slot, const std::string& shape, const std::vector<std::string_view>& names,
                   std::size_t chosen, const ExecContext&);
// Returns the index that measured_choice() returns if the choice is already known, else nullopt. Measures nothing.
std::optional<std::size_t> known_choice(std::string_view slot, const std::string& shape,
                                        const std::vector<std::string_view>& names, const ExecContext&);

// Registers the function that returns the name and version of the library that a candidate calls. They become part of
// the keys, because results and speed depend on them. Call it from a static initializer. Returns true.
bool add_choice_library(std::string_view candidate, std::string (*library)());
// Returns ", LIBRARY VERSION" for a candidate that calls one, else "".
std::string library_key(std::string_view candidate);

// The candidates of a slot that support `args`, and their names, highest priority first. cheaply: tests may_support for
// candidates that have it, so some of them may not support `args` after all.
template <class Args>
struct AbleCandidates {
  std::vector<const typename Kernel<Args>::Candidate*> able;
  std::vector<std::string_view> names;

  AbleCandidates(const Kernel<Args>& slot, const Args& args, const ExecContext& ctx, bool cheaply) {
    for (const auto& c : slot.candidates(ctx.stream.device().backend)) {
      if (c.priority <= 0 && !able.empty()) break;
      const auto supports = cheaply && c.may_support ? c.may_support : c.supports;
      if (supports && !supports(args, ctx)) continue;
      able.push_back(&c);
      names.push_back(c.name);
    }
  }
  // Returns key(args), followed by the versions of the libraries that the candidates call.
  template <class Key>
  std::string shape(const Args& args, const Key& key) const {
    std::string text = key(args);
    for (const auto* c : able) text += library_key(c->name);
    return text;
  }
};

// Chooses a candidate of a slot with measured_choice(). `key(args)` returns the shape. `repeatable(args, ctx)`
// returns the arguments to measure with in place of `args`: a run may overwrite their outputs, and every run must do
// the same work. Requires ctx.tuning.
template <class Args, class Key, class Repeatable>
const typename Kernel<Args>::Candidate& choose_measured(const Kernel<Args>& slot, const Args& args,
                                                        const ExecContext& ctx, const Key& key,
                                                        const Repeatable& repeatable) {
  const AbleCandidates<Args> likely(slot, args, ctx, true);
  const std::string likely_shape = likely.able.size() > 1 ? likely.shape(args, key) : "";
  std::optional<std::size_t> known;
  if (likely.able.size() > 1) known = known_choice(slot.name(), likely_shape, likely.names, ctx);
  if (known && !likely.able[*known]->may_support) return *likely.able[*known];

  const AbleCandidates<Args> of(slot, args, ctx, false);
  if (of.able.empty()) return slot.first(args, ctx);
  std::size_t chosen = 0;
  if (of.able.size() > 1) {
    std::optional<Args> copy;
    const auto run = [&](std::size_t i) {
      if (!copy) copy = repeatable(args, ctx);
      of.able[i]->fn(*copy, ctx);
    };
    chosen = measured_choice(slot.name(), of.shape(args, key), of.names, run, ctx);
  }
  // If a candidate does not support the call after all, the next call finds this choice without a slow test.
  const auto same = std::ranges::find(likely.names, of.names[chosen]);
  if (!known && of.names != likely.names && same != likely.names.end())
    record_choice(slot.name(), likely_shape, likely.names, static_cast<std::size_t>(same - likely.names.begin()), ctx);
  return *of.able[chosen];
}

}  // namespace ring
