#include "bench/block_sizes.h"

#include <algorithm>

#include "bench/ops.h"
#include "core/checked.h"
#include "core/fields.h"
#include "inspect/attention_cost.h"
#include "kernels/attention/pairs.h"
#include "model/attention/block_patterns.h"
#include "model/attention/block_size.h"
#include "model/attention/kinds.h"
#include "model/attention_schedule.h"
#include "model/patterns.h"

namespace ring {
namespace {

constexpr double kClearly = 0.97;  // share of the first size's time: smaller gains are noise, as in kernels/choice.cpp

// Returns the attention without occasional work (warmup, moving averages, schedules) and without shared selections.
AttentionConfig measured_part(AttentionConfig a) {
  a.layers_per_selection = 1;
  a.index_warmup_steps = 0;
  // Pools run in kernel calls of their own, which do not depend on the block size.
  a.pools.clear(), a.pooling = Pooling::mean, a.pool_gates = false;
  for (BlockRuleConfig& r : a.rules) {
    if (block_pattern_of(r).reads_setting("interval")) r.interval = 1 << 30;
    r.keep = value_at(r.keeps, kAfterAllTokens, r.keep);
    r.keeps.clear();
  }
  return a;
}

// Returns the smallest configuration that trains such a layer.
Config with_layer(Config c, const AttentionConfig& attention, std::int64_t length) {
  ModelConfig& m = c.model;
  m = m.resolved();
  m.attention = measured_part(attention);
  m.attention_layers.clear();
  m.layers = 1, m.context = length, m.vocab_size = 0, m.mlp_width = 32;
  TrainConfig& t = c.train;
  t.batch_size = t.micro_batch > 0 ? t.micro_batch : t.micro_batch == kAutoMicroBatch ? 1 : t.batch_size;
  t.micro_batch = t.batch_size;
  check_tokens_at_once("train.micro_batch", t.micro_batch, length);
  t.batch_sizes.clear(), t.contexts.clear(), t.eval_tasks.clear();
  t.context = t.mlp_chunk = t.diagnostics_interval = 0, t.ema = t.memory_budget = 0;
  t.recompute = RecomputeChoice::none;
  t.activation_offload = t.cuda_graph = Switch::off;
  c.optimizer = {};
  c.parallel = {};
  c.run.init_from.clear();
  return c;
}

bool routes(const OpTiming& o) { return o.slot.starts_with("block_") || o.slot.starts_with("index_"); }
bool attends(const OpTiming& o) { return o.slot == "attention" || o.slot == "attention_backward"; }

void add(BlockTiming& t, const OpTiming& o, const Config& c) {
  const double seconds = o.calls * o.seconds;
  if (routes(o)) t.routing += seconds / static_cast<double>(t.attention.layers_per_selection);
  if (o.slot == "attention_backward") t.backward += seconds, t.backward_candidate = o.candidate;
  if (o.slot != "attention") return;
  t.forward += seconds, t.forward_candidate = o.candidate;
  const ModelConfig& m = c.model;
  t.keys += o.calls * o.cost.flops / (4 * static_cast<double>(m.heads * m.head_dim * c.train.micro_batch * m.context));
}

[[noreturn]] void short_of_memory(std::int64_t length, const std::string& why) {
  fail("sequences of ", length,
       " tokens need more memory than is available. Give shorter ones (--length) or fewer at a time ",
       "(train.micro_batch): ", why);
}

BlockTiming time_block(const Config& config, const AttentionConfig& attention, std::int64_t length, double seconds) {
  BlockTiming t{.attention = attention};
  StepBenchmark bench(with_layer(config, attention, length));
  bench.trainer().step();  // tunes the kernels
  for (const OpTiming& o : repeat_ops(bench, seconds, [](const OpTiming& o) { return routes(o) || attends(o); }))
    add(t, o, bench.config());
  if (!bench.trainer().oom_fallbacks().empty()) short_of_memory(length, bench.trainer().latest_oom_text());
  return t;
}

// Throws Error if the rules keep all pairs of such sequences: every block size would then be dense attention.
void check_length(const BlockLayers& layers, const ModelConfig& m, std::int64_t length) {
  const std::vector<Span> all = {{.count = narrow<std::int32_t>(length)}};
  const AttentionKind& kind = attention_kind(layers.attention.kind);
  for (const std::int64_t block : {64, 128}) {
    const Pattern p = kind.pattern(measured_part(with_block_size(layers.attention, block)),
                                   {.kv_heads = m.kv_heads, .context = length});
    if (kept_pairs(p, all, all, m.kv_heads) < causal_pairs(length)) continue;
    fail(layers.keys.front(), ".rules: with blocks of ", block, " they keep all pairs of sequences of ", length,
         " tokens, so no size is better than dense attention. Give longer sequences (--length, model.context), or ",
         "rules that keep less");
  }
}

}  // namespace

std::vector<BlockLayers> block_sparse_layers(const ModelConfig& m) {
  std::vector<BlockLayers> all;
  const std::vector<const AttentionConfig*> of_layers = attentions_of(m);
  const auto add = [&](const std::string& key, const AttentionConfig& section) {
    const std::int64_t layers = std::ranges::count(of_layers, &section);
    if (layers == 0 || section.kind != "block_sparse") return;
    const auto same = [text = to_yaml(section)](const BlockLayers& l) { return to_yaml(l.attention) == text; };
    auto at = std::ranges::find_if(all, same);
    if (at == all.end()) at = all.insert(at, {.attention = section});
    at->keys.push_back(key);
    at->layers += layers;
  };
  add("model.attention", m.attention);
  for (std::size_t i = 0; i < m.attention_layers.size(); ++i)
    add(str("model.attention_layers[", i, "].attention"), m.attention_layers[i].attention);
  return all;
}

std::vector<BlockTiming> time_blocks(const Config& config, const BlockLayers& layers, std::int64_t length,
                                     double seconds_each) {
  Config c = config;
  c.model = c.model.resolved();
  check_length(layers, c.model, length);
  const std::int64_t own = block_size_of(layers.attention);
  const std::int64_t other = own == 64 ? 128 : 64;
  std::vector<BlockTiming> times;
  for (const std::int64_t block : {own, other}) try {
      times.push_back(time_block(c, with_block_size(layers.attention, block), length, seconds_each));
    } catch (const OutOfMemory& e) {
      short_of_memory(length, e.what());
    }
  return times;
}

std::size_t index_of_fastest(const std::vector<BlockTiming>& times) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < times.size(); ++i)
    if (times[i].seconds() < kClearly * times[0].seconds()) best = i;
  return best;
}

}  // namespace ring
