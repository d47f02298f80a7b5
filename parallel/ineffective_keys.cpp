#include "parallel/ineffective_keys.h"

#include <algorithm>
#include <cmath>

#include "core/counted.h"
#include "core/fields.h"
#include "model/patterns.h"

namespace ring {
namespace {

// Returns why parallel.cp_keys: referenced has no effect; empty if it has an effect or is not set.
std::string why_keys_are_idle(const ParallelPlan& p, const ModelConfig& m) {
  if (p.cp == 1 || p.config.cp_keys != ContextKeys::referenced) return "";
  if (std::ranges::none_of(patterns_of(m), &Pattern::selects))
    return "no layer selects its blocks (pattern: content or learned), so this has no effect. Leave it out";
  if (p.config.cp_schedule != ContextSchedule::all_to_all) return "";
  return "parallel.cp_schedule is all_to_all, which auto uses if parallel.cp divides the KV heads. Each rank then has "
         "all tokens of some heads, so this has no effect. Leave it out, or set parallel.cp_schedule: ring or gather";
}

// A setting that may have no effect, or not the intended one.
struct IdleKey {
  std::string key, why;  // why: reason, then the remedy; empty if the setting has an effect
};

std::vector<IdleKey> idle_keys(const ParallelPlan& p, const ModelConfig& m) {
  const ParallelConfig& c = p.config;
  const bool codes = c.compress != GradientCompression::none && std::ranges::count(c.chosen, "compress") == 0;
  const auto unless = [](bool effective, const char* why) { return effective ? std::string() : std::string(why); };
  const std::string no_outer =
      unless(c.local_steps > 0,
             "parallel.local_steps is 0, so there is no outer optimizer. Leave it out, or set parallel.local_steps");
  const std::string no_messages =
      p.islands > 1 ? ""
                    : "parallel.islands is 1, so no island receives quantized messages. Leave it out, or set "
                      "parallel.islands";
  return {
      {"cp_keys", why_keys_are_idle(p, m)},
      {"compress", unless(p.dp * p.cp > 1,
                          "parallel.dp and parallel.cp are 1, so no process sends gradients to "
                          "another. Leave it out")},
      {"compress_top", unless(c.compress == GradientCompression::topk,
                              "only parallel.compress: topk uses it. Leave it out, or set parallel.compress: topk")},
      {"reduce", unless(!codes, "gradients are sent as parallel.compress encodes them. Leave one of the two out")},
      {"outer_lr", no_outer},
      {"outer_momentum", no_outer},
      {"outer_fragments", no_outer},
      {"outer_delay", no_outer},
      {"outer_bits", no_outer.empty() ? no_messages : no_outer},
      {"pp_order", unless(p.pp > 1, "parallel.pp is 1, so there are no stages. Leave it out, or set parallel.pp")},
  };
}

// Returns the largest micro-batch that divides `sequences` and leaves at least 4 * stages micro-batches, so each stage
// waits less than 1/5 of a step; 1 if there is none.
std::int64_t micro_batch_of_stages(std::int64_t sequences, int stages) {
  std::int64_t size = std::max<std::int64_t>(1, sequences / (4 * stages));
  while (sequences % size) --size;
  return size;
}

std::string single_micro_batch(const ParallelPlan& p) {
  return str("train.micro_batch: a step has a single micro-batch of ", counted(p.micro_batch, "sequence"),
             ", so each of the ", p.pp, " stages (parallel.pp) waits for others in ",
             std::lround(100.0 * (p.pp - 1) / p.pp), " % of a step. ",
             p.micro_batch > 1 ? str("Set it to ", micro_batch_of_stages(p.micro_batch, p.pp))
                               : std::string("Raise train.batch_size, or set parallel.pp_slices"));
}

}  // namespace

std::vector<std::string> ineffective_keys(const ParallelPlan& p, const ModelConfig& m) {
  const ParallelConfig& c = p.config;
  ParallelConfig given = c, plain;
  const config::Node values = bind_config(given), defaults = bind_config(plain);
  std::vector<std::string> warnings;
  for (const auto& [key, why] : idle_keys(p, m))
    for (std::size_t i = 0; i < values.fields.size(); ++i) {
      if (why.empty() || values.fields[i].name != key) continue;
      const std::string value = config::to_text(values.fields[i].node.get());
      if (value != config::to_text(defaults.fields[i].node.get()))
        warnings.push_back(str("parallel.", key, ": ", value, ", but ", why));
    }
  if (p.pp > 1 && p.micro_batches == 1 && c.pp_slices == 1) warnings.push_back(single_micro_batch(p));
  return warnings;
}

}  // namespace ring
