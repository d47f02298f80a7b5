#include "cli/fit_choices.h"

#include <algorithm>
#include <numeric>

#include "cli/synonyms.h"
#include "core/fields.h"
#include "inspect/attention_cost.h"
#include "model/attention/trained_parts.h"
#include "model/attention_schedule.h"
#include "model/patterns.h"
#include "trainer/attention_fit.h"

namespace ring {
namespace {

constexpr std::int64_t kLongContext = 16384;  // contexts of at least this length use blocks of 128 tokens
constexpr std::int64_t kWarmupSteps = 100, kIndexDistances = 32;

FitChoice choice_of(const ModelConfig& m) {
  FitChoice choice{m.attention, patterns_of(m), {}};
  for (const Pattern& p : choice.patterns)
    choice.densities.push_back(cost_of(p, m.kv_heads, m.context).pairs / causal_pairs(m.context));
  return choice;
}

// Settings with only the section `model`: imported weights have no other settings, and a choice needs none.
struct OnlyModel {
  ModelConfig model;
  void fields(Fields& f) { f("model", model, "the run's"); }
};

FitChoice parse_choice(const ModelConfig& run, const std::string& text) try {
  OnlyModel config{run};
  config.model.attention = {};
  config.model.attention_layers.clear();
  override_config(config, {"model.attention=" + text}, config_aliases());
  if (const std::int64_t layers = config.model.attention.layers_per_selection; layers > 1)
    fail("model.attention.layers_per_selection: got ", layers,
         ", but layers that share a selection cannot be measured one by one. ",
         "Omit layers_per_selection, and add it to the settings that are printed");
  FitChoice choice = choice_of(with_attention_at(config.model.resolved(), kAfterAllTokens));
  choice.section = config.model.attention;
  return choice;
} catch (const Error& e) {
  fail("choice ", text, ": ", e.what());
}

struct Blocks {
  std::int64_t size, local, keep;
};

std::string block_choice(const Blocks& b, bool learned, std::int64_t warmup_start) {
  const std::string index =
      learned ? str(", index_distances: ", kIndexDistances, ", index_warmup_steps: ", warmup_start + kWarmupSteps) : "";
  return str("{kind: block_sparse, block: ", b.size, ", rules: [{pattern: ", learned ? "learned" : "content",
             ", local: ", b.local, ", first: 1, keep: ", b.keep, "}]", index, "}");
}

}  // namespace

double FitChoice::density() const {
  return std::accumulate(densities.begin(), densities.end(), 0.0) / static_cast<double>(densities.size());
}

FitChoice choice_of_run(const ModelConfig& m, const std::string& run) {
  if (has_gated_delta_net(m))
    fail(run,
         ": some layers are gated delta nets (model.mixers), and attention fit measures only models with attention "
         "in all layers. Use ringmaster evaluate with other attention settings instead");
  for (std::int64_t layer = 0; layer < m.layers; ++layer)
    if (const std::string why = why_not_static_pattern(attention_of(m, layer), m.kv_heads); !why.empty())
      fail(run, ": layer ", layer, " ", why,
           ", so a trial with other attention does not show what this layer attends to. ",
           "Give a checkpoint from before the layer had this, for example one with dense attention");
  return choice_of(m);
}

std::vector<std::string> default_choices(std::int64_t context, bool learned, std::int64_t warmup_start) {
  const std::int64_t size = context < kLongContext ? 64 : 128, blocks = (context + size - 1) / size;
  // At least 3: the query's own block, the first block, and one block to select.
  const std::int64_t many = std::max<std::int64_t>(3, 3 * blocks / 8);
  std::vector<std::string> choices;
  if (const std::int64_t window = std::max(size, context / 64); window < context)
    choices.push_back(str("{kind: window, window: ", window, ", sinks: 4}"));
  for (const Blocks& b :
       {Blocks{size, 5, std::max<std::int64_t>(8, blocks / 8)}, Blocks{size, std::min(many / 2 + 1, many - 2), many}})
    if (b.keep < blocks) choices.push_back(block_choice(b, learned, warmup_start));
  return choices;
}

std::vector<FitChoice> fit_choices(const ModelConfig& run, const FitChoice& own, const std::vector<std::string>& texts,
                                   bool learned, std::int64_t warmup_start) {
  std::vector<FitChoice> choices;
  for (const std::string& text : texts.empty() ? default_choices(run.context, learned, warmup_start) : texts)
    choices.push_back(parse_choice(run, text));
  if (texts.empty()) std::erase_if(choices, [&](const FitChoice& c) { return c.density() >= own.density(); });
  std::ranges::stable_sort(choices, {}, &FitChoice::density);
  return choices;
}

}  // namespace ring
