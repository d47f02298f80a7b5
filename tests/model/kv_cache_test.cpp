// The cache of every kind of attention: rows that a new token sees, rows that are kept, and logits that equal those of
// whole passes.
#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "core/fields.h"
#include "core/philox.h"
#include "kernels/attention/blocks.h"
#include "kernels/elementwise.h"
#include "model/decoder.h"
#include "model/patterns.h"
#include "tests/e4m3.h"
#include "tests/error_of.h"
#include "tests/model/index_biases.h"

namespace ring {
namespace {

ModelConfig config_of(const std::string& attention, std::int64_t context = 300) {
  ModelConfig c;
  load_config_text(c,
                   str("{vocab_size: 37, context: ", context,
                       ", layers: 3, width: 32, heads: 4, kv_heads: 2, init_std: 0.3, attention: ", attention, "}"),
                   "test");
  return c.resolved();
}

const std::vector<std::string> kSections = {
    "{kind: dense}",
    "{kind: window, window: 1}",
    "{kind: window, window: 7}",
    "{kind: window, window: 5, sinks: 3}",
    "{kind: window, window: 1000, sinks: 2}",
    "{kind: window, window: 4, sinks: 1000}",
    "{kind: dilated, segments: [4, 9, 64], rates: [1, 2, 5]}",
    "{kind: dilated, segments: [4, 16, 512], rates: [1, 2, 4], dedup: true}",
    "{kind: dilated, segments: [1], rates: [1]}",
    "{kind: block_sparse, block: 64, rules: [{local: 2, first: 1}, {pattern: strided, every: 2}], heads: [0, 1]}",
    "{kind: block_sparse, block: 64, rules: [{pattern: hierarchical}, {pattern: random, density: 0.5}], heads: [1, 0]}",
};

// Returns how often query t counts key u, by the definition of the kind. The pattern gives the layer's blocks and
// shift.
int count_pair(const AttentionConfig& c, const Pattern& p, int head, std::int64_t t, std::int64_t u) {
  if (u > t) return 0;
  if (c.kind == "dense") return 1;
  if (c.kind == "window") return u > t - c.window || u < c.sinks;
  if (c.kind == "block_sparse")
    return p.blocks->keeps(head, static_cast<int>(t / c.block), static_cast<int>(u / c.block));
  int count = 0;
  for (std::size_t i = 0; i < c.segments.size(); ++i) {
    const std::int64_t segment = c.segments[i], rate = c.rates[i];
    const auto sampled = [&](std::int64_t x) { return x % segment % rate == (head + p.shift) % rate; };
    count += t / segment == u / segment && sampled(t) && sampled(u);
  }
  return c.dedup ? std::min(count, 1) : count;
}

// Returns the token in each row of a used cache, -1 for an empty row.
std::vector<std::int64_t> tokens_after(const LayerCache& cache, std::int64_t newest) {
  std::vector<std::int64_t> held(static_cast<std::size_t>(cache.token_rows), -1);
  for (std::int64_t t = 0; t <= newest; ++t) held[static_cast<std::size_t>(cache.row_of(t))] = t;
  return held;
}

TEST(CacheRows, FollowTheDefinition) {
  const ExecContext ctx{Stream::cpu(1)};
  for (const std::string& section : kSections) {
    const ModelConfig c = config_of(section);
    const Decoder model(c);
    const KvCache cache = model.make_cache(2, 300, ctx);
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
      const Pattern pattern = pattern_of(c, layer);
      const LayerCache& rows = cache.layers[static_cast<std::size_t>(layer)];
      for (std::int32_t t = 0; t < 300; ++t) {
        AttentionDecode args;
        rows.set_key_rows(pattern, {299 - t, t}, args);
        ASSERT_EQ(args.starts.size(), 5u);
        const std::vector<std::int64_t> held = tokens_after(rows, t);
        for (int head = 0; head < 2; ++head) {
          std::vector<int> got(300, 0), want(300, 0);
          for (std::int32_t i = args.starts[static_cast<std::size_t>(2 + head)];
               i < args.starts[static_cast<std::size_t>(3 + head)]; ++i) {
            const CacheRows& r = args.rows[static_cast<std::size_t>(i)];
            EXPECT_GT(r.count, 0);
            for (std::int32_t j = 0; j < r.count; ++j)
              ++got[static_cast<std::size_t>(held.at(static_cast<std::size_t>(r.first + j * r.stride)))];
          }
          for (std::int32_t u = 0; u < 300; ++u)
            want[static_cast<std::size_t>(u)] = count_pair(c.attention, pattern, head, t, u);
          ASSERT_EQ(got, want) << section << " layer " << layer << " head " << head << " token " << t;
        }
      }
    }
  }
}

TEST(CacheRows, FormFewRanges) {
  const ExecContext ctx{Stream::cpu(1)};
  const auto most = [&](const std::string& section) {
    const ModelConfig c = config_of(section);
    const Decoder model(c);
    const KvCache cache = model.make_cache(1, 300, ctx);
    std::size_t most = 0;
    for (std::int32_t t = 0; t < 300; ++t) {
      AttentionDecode args;
      cache.layers[0].set_key_rows(pattern_of(c, 0), {t}, args);
      most = std::max(most, args.rows.size());
    }
    return most;
  };
  EXPECT_EQ(most("{kind: dense}"), 2u);  // one per KV head
  EXPECT_EQ(most("{kind: window, window: 5, sinks: 3}"), 6u);
  EXPECT_EQ(most("{kind: block_sparse, block: 64, rules: [{local: 2, first: 2}]}"), 4u);  // neighbours are merged
}

TEST(KvCache, StaysSmallForAWindow) {
  const ExecContext ctx{Stream::cpu(1)};
  const ModelConfig c = config_of("{kind: window, window: 16, sinks: 4}", 1 << 20);
  const std::size_t before = ctx.stream.allocator()->stats().in_use;
  const Decoder model(c);
  const KvCache cache = model.make_cache(2, c.context, ctx);
  const std::size_t bytes = 2 * 2 * 20 * 2 * 8 * sizeof(float);  // keys and values, sequences, rows, heads, channels
  for (const LayerCache& layer : cache.layers) EXPECT_EQ(layer.keys.bytes() + layer.values.bytes(), bytes);
  EXPECT_LE(ctx.stream.allocator()->stats().in_use - before, std::size_t{1} << 20);
  EXPECT_EQ(model.make_cache(1, 10, ctx).layers[0].token_rows, 10);  // and at most the capacity
  const Decoder dilated(config_of("{kind: dilated, segments: [8], rates: [1]}"));
  EXPECT_EQ(dilated.make_cache(1, 90, ctx).layers[0].token_rows, 90);
}

Tensor tokens(const ExecContext& ctx, std::int64_t n, std::uint32_t salt) {
  Tensor t = ctx.empty({n}, DType::i32);
  for (std::int64_t i = 0; i < n; ++i)
    t.data<std::int32_t>()[i] =
        static_cast<std::int32_t>(random_bits({9, salt, 1}, static_cast<std::uint64_t>(i)) % 37);
  return t;
}

// In a model with one layer, a token's logits change with an earlier token only if a head keeps the pair.
TEST(AttentionLayer, SeesTheTokensThatItsPatternKeeps) {
  for (const std::string& section : kSections) {
    ModelConfig c = config_of(section);
    c.layers = 1;
    const Pattern pattern = pattern_of(c, 0);
    const ExecContext ctx{Stream::cpu(2)};
    Decoder model(c);
    model.allocate(ctx, 7);
    const Tensor ids = tokens(ctx, 280, 4);
    ring::Run run{ctx};
    const auto logits = [&] {
      return model.logits(run, model.hidden(run, ids, Sequences::uniform(1, 280, ctx)).value);
    };
    const Tensor before = logits();
    for (std::int64_t u : {0, 3, 71, 130, 259}) {
      std::int32_t& id = ids.data<std::int32_t>()[u];
      id = (id + 5) % 37;
      const Tensor after = logits();
      for (std::int64_t t = 0; t < 280; ++t) {
        const bool changed = std::memcmp(before.narrow(0, t, 1).raw(), after.narrow(0, t, 1).raw(), 37 * 4) != 0;
        EXPECT_EQ(changed,
                  t == u || count_pair(c.attention, pattern, 0, t, u) + count_pair(c.attention, pattern, 1, t, u) > 0)
            << section << t << " " << u;
      }
      id = (id + 32) % 37;
    }
  }
}

// Fills parameters of learned pools with random numbers: their initial zeros would test little.
void fill_pool_parameters(Decoder& model, const ExecContext& ctx) {
  for (const Param* p : test::params_named(model, ".attention.pool."))
    random_normal_kernel({p->var.value, {3, 1, 4}, 1.0f}, ctx);
  for (const Param* p : test::params_named(model, ".attention.pool_gate."))
    random_normal_kernel({p->var.value, {3, 1, 5}, 0.5f}, ctx);
}

// Feeds two sequences of `length` tokens: `first` tokens at once, and then one at a time. Returns the largest
// difference from the logits of a whole pass. begins: the model is in the first step of a run.
double cached_error(const ModelConfig& c, std::int64_t length, std::int64_t first, bool begins = false) {
  const ExecContext ctx{Stream::cpu(2)};
  Decoder model(c);
  model.allocate(ctx, 7);
  test::fill_index_biases(model);
  fill_pool_parameters(model, ctx);
  if (begins) model.set_attention_step(0);
  const Tensor ids = tokens(ctx, 2 * length, 4);
  ring::Run run{ctx};
  const Var whole = model.hidden(run, ids, Sequences::uniform(2, length, ctx));
  const Tensor want = model.logits(run, whole.value);
  KvCache cache = model.make_cache(2, length, ctx);
  double worst = 0;
  for (std::int64_t from = 0; from < length;) {
    const std::int64_t count = from == 0 ? first : 1;
    std::vector<std::int32_t> part;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < count; ++i) part.push_back(ids.data<std::int32_t>()[b * length + from + i]);
    const Var h = model.hidden(run, from_host(part, ctx.stream), Sequences::uniform(2, count, ctx, from), cache);
    const Tensor got = model.logits(run, h.value);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < count * 37; ++i) {
        const double x = got.data<float>()[b * count * 37 + i], y = want.data<float>()[(b * length + from) * 37 + i];
        EXPECT_TRUE(std::isfinite(x));
        worst = std::max(worst, std::abs(x - y));
      }
    from += count;
  }
  return worst;
}

TEST(KvCache, GivesTheLogitsOfWholePasses) {
  for (const std::string& section : kSections)
    for (std::int64_t first : {1, 6, 41, 90}) EXPECT_LT(cached_error(config_of(section), 90, first), 2e-4) << section;
}

TEST(KvCache, GivesTheLogitsOfWholePassesOverManyBlocks) {
  for (const std::string& section : kSections) EXPECT_LT(cached_error(config_of(section), 280, 100), 2e-4) << section;
}

// Selection by content, and heads with other rules beside it.
const std::vector<std::string> kSelecting = {
    "{kind: block_sparse, block: 64, rules: [{pattern: content, keep: 2}]}",
    "{kind: block_sparse, block: 64, rules: [{pattern: content, keep: 4, local: 2, first: 1}, {local: 2}], heads: [1, "
    "0]}",
    "{kind: block_sparse, block: 128, rules: [{pattern: content, keep: 3, first: 1}]}",
    "{kind: block_sparse, block: 64, rules: [{pattern: learned, keep: 3, first: 1}, {local: 2}], heads: [1, 0], "
    "index_heads: 2, index_distances: 5, index_warmup_steps: 4}",
    "{kind: block_sparse, block: 128, rules: [{pattern: learned, keep: 2}], index_head_dim: 8}",
    "{kind: block_sparse, block: 64, rules: [{pattern: content, keep: 7, mass: 0.55}]}",
    "{kind: block_sparse, block: 64, rules: [{pattern: learned, keep: 7, mass: 0.55}], index_heads: 2}"};

// Pools that are completed within the first pass and after it, beside every kind that supports pools.
const std::vector<std::string> kPooling = {"{kind: window, window: 3, pools: [2]}",
                                           "{kind: window, window: 5, sinks: 1, pools: [16, 50]}",
                                           "{kind: window, window: 2, pools: [140]}",
                                           "{kind: block_sparse, block: 64, rules: [{local: 1}, {pattern: content, "
                                           "keep: 2}], heads: [0, 1], pools: [16, 64]}",
                                           "{kind: window, window: 5, pools: [3, 50], pooling: learned}",
                                           "{kind: window, window: 5, sinks: 1, pools: [16, 50], pool_gates: true}",
                                           "{kind: block_sparse, block: 64, rules: [{pattern: content, keep: 2}], "
                                           "pools: [16], pooling: learned, pool_gates: true}",
                                           "{kind: block_sparse, block: 64, rules: [{pattern: learned, keep: 2}], "
                                           "pools: [16], pool_gates: true}"};

TEST(KvCache, PoolsTheKeysOfWholePasses) {
  for (const std::string& section : kPooling)
    for (std::int64_t first : {1, 16, 131})
      EXPECT_LT(cached_error(config_of(section), 150, first), 2e-4) << section << first;
}

// A new token sees the pools that end before it. Rows of pools are stored after the rows of all tokens.
TEST(CacheRows, IncludePools) {
  const ExecContext ctx{Stream::cpu(1)};
  const ModelConfig c = config_of("{kind: window, window: 3, pools: [16, 50]}");
  const Decoder model(c);
  const KvCache cache = model.make_cache(2, 300, ctx);
  const LayerCache& layer = cache.layers[0];
  EXPECT_EQ(layer.token_rows, 300);
  EXPECT_EQ(layer.keys.dim(1), 300 + 18 + 6);
  for (const auto& [token, small, large] : {std::tuple{15, 0, 0}, {16, 1, 0}, {49, 3, 0}, {50, 3, 1}, {299, 18, 5}}) {
    AttentionDecode args;
    layer.set_key_rows(pattern_of(c, 0), {token, token}, args);
    std::vector<CacheRows> want = {{token - 2, 3, 1}};
    if (small > 0) want.push_back({300, small, 1});
    if (large > 0) want.push_back({318, large, 1});
    ASSERT_EQ(args.starts.size(), 5u);
    EXPECT_EQ((std::vector<CacheRows>{args.rows.begin(), args.rows.begin() + args.starts[1]}), want) << token;
  }
}

TEST(KvCache, SelectsTheBlocksOfWholePasses) {
  for (const std::string& section : kSelecting)
    for (std::int64_t first : {1, 128, 385})
      EXPECT_LT(cached_error(config_of(section, 520), 520, first), 2e-4) << section << first;
}

TEST(KvCache, SharesSelectionsBetweenLayers) {
  for (const char* rule : {"keep: 2", "keep: 7, mass: 0.55"}) {
    const ModelConfig c = config_of(
        str("{kind: block_sparse, block: 64, rules: [{pattern: content, ", rule, "}], layers_per_selection: 2}"), 520);
    for (std::int64_t first : {1, 385}) EXPECT_LT(cached_error(c, 520, first), 2e-4) << first;
  }
}

// While an indexer warms up, all blocks are selected.
TEST(KvCache, SelectsTheBlocksOfTheStep) {
  const ModelConfig c = config_of(kSelecting[3], 520);
  EXPECT_LT(cached_error(c, 520, 385, true), 2e-4);
}

// Expects that a changed token leaves all earlier logits bit-identical, through several layers.
void expect_no_future(const std::vector<std::string>& sections) {
  for (const std::string& section : sections) {
    const ModelConfig c = config_of(section, 520);
    const ExecContext ctx{Stream::cpu(2)};
    Decoder model(c);
    model.allocate(ctx, 7);
    test::fill_index_biases(model);
    fill_pool_parameters(model, ctx);
    const Tensor ids = tokens(ctx, 520, 4);
    ring::Run run{ctx};
    const auto logits = [&] {
      return to_host<float>(model.logits(run, model.hidden(run, ids, Sequences::uniform(1, 520, ctx)).value),
                            ctx.stream);
    };
    const std::vector<float> before = logits();
    std::int64_t changed_later = 0;
    for (std::int64_t u : {0, 63, 64, 200, 319, 320, 447, 511}) {
      std::int32_t& id = ids.data<std::int32_t>()[u];
      id = (id + 5) % 37;
      const std::vector<float> after = logits();
      EXPECT_TRUE(std::equal(before.begin(), before.begin() + u * 37, after.begin())) << section << u;
      EXPECT_FALSE(std::equal(before.begin() + u * 37, before.begin() + (u + 1) * 37, after.begin() + u * 37));
      changed_later += !std::equal(before.begin() + (u + 1) * 37, before.end(), after.begin() + (u + 1) * 37);
      id = (id + 32) % 37;
    }
    EXPECT_EQ(changed_later, 8) << section;
  }
}
TEST(Selections, DoNotSeeTheFuture) { expect_no_future(kSelecting); }
TEST(Pools, DoNotSeeTheFuture) { expect_no_future(kPooling); }

// Until they have learned, learned pools give exactly the logits of means.
TEST(Pools, LearnedPoolsBeginAsMeansWithoutGates) {
  const ExecContext ctx{Stream::cpu(2)};
  const Tensor ids = tokens(ctx, 150, 4);
  const auto logits = [&](const std::string& more, bool learns) {
    Decoder model(config_of("{kind: window, window: 5, pools: [3, 50]" + more + "}"));
    model.allocate(ctx, 7);
    if (learns) fill_pool_parameters(model, ctx);
    ring::Run run{ctx};
    return to_host<float>(model.logits(run, model.hidden(run, ids, Sequences::uniform(1, 150, ctx)).value), ctx.stream);
  };
  const std::vector<float> means = logits("", false);
  for (const char* more : {", pooling: learned", ", pool_gates: true"}) {
    EXPECT_EQ(logits(more, false), means) << more;
    EXPECT_NE(logits(more, true), means) << more;
  }
}

TEST(Pools, AreNamedAndShardedByHead) {
  Decoder model(config_of("{kind: window, window: 5, pools: [3, 50], pooling: learned}"));
  const Param& p = *test::params_named(model, "blocks.1.attention.pool").at(0);
  const std::string at = "blocks.1.attention.pool.";
  ASSERT_EQ(p.parts.size(), 4u);
  EXPECT_EQ(p.parts[0].name, at + "3.positions");
  EXPECT_EQ(p.parts[1].name, at + "3.query");
  EXPECT_EQ(p.parts[2].name, at + "50.positions");
  EXPECT_EQ(p.parts[2].whole, (Shape{2 * 50}));
  EXPECT_EQ(p.parts[3].whole, (Shape{2 * 8}));
  EXPECT_FALSE(p.decay) << "pools would be drawn back to means";
  EXPECT_TRUE(test::params_named(model, "pool_gate").empty());
  Decoder gated(config_of("{kind: window, window: 5, pools: [3], pool_gates: true}"));
  EXPECT_TRUE(test::params_named(gated, "attention.pool.").empty());
  const ParamList gate = test::params_named(gated, "blocks.0.attention.pool_gate");
  ASSERT_EQ(gate.size(), 2u);
  EXPECT_EQ(gate[0]->parts[0].name, "blocks.0.attention.pool_gate.weight");
  EXPECT_EQ(gate[0]->parts[0].whole, (Shape{4, 32}));
  EXPECT_EQ(gate[1]->parts[0].name, "blocks.0.attention.pool_gate.bias");
}

TEST(KvCache, ServesLayersOfAllKinds) {
  ModelConfig c = config_of("{kind: dilated, segments: [8, 32], rates: [1, 4]}");
  load_config_text(c, R"({attention_layers: [{layers: "0", attention: {kind: window, window: 4, sinks: 1}},
                          {layers: "2", attention: {kind: block_sparse, block: 64, rules: [{}]}}]})",
                   "test");
  c.qk_norm = true;
  EXPECT_LT(cached_error(c.resolved(), 150, 11), 2e-4);
}

TEST(KvCache, RefusesMoreThanItsCapacity) {
  const ExecContext ctx{Stream::cpu(1)};
  const ModelConfig c = config_of("{kind: window, window: 4}");
  Decoder model(c);
  model.allocate(ctx, 7);
  KvCache cache = model.make_cache(1, 10, ctx);
  ring::Run run{ctx};
  EXPECT_THROW(model.hidden(run, tokens(ctx, 11, 1), Sequences::uniform(1, 11, ctx), cache), Error);
  model.hidden(run, tokens(ctx, 10, 1), Sequences::uniform(1, 10, ctx), cache);
  EXPECT_THROW(model.hidden(run, tokens(ctx, 1, 1), Sequences::uniform(1, 1, ctx, 10), cache), Error);
  EXPECT_THROW(model.hidden(run, tokens(ctx, 2, 1), Sequences::uniform(2, 1, ctx, 10), cache), Error);
}

// Rounds all keys and values of a cache by the definition of e4m3 with a scale for each row of a head, before new
// tokens attend. Rounding twice changes nothing.
class RoundedRows final : public VariantCache {
 public:
  void append(const LayerCache& cache, const NewTokens&, const Tensor&) override {
    for (const Tensor& t : {cache.keys, cache.values}) {
      const std::int64_t dim = t.dim(3);
      for (std::int64_t row = 0; row < t.numel() / dim; ++row) {
        const std::span x(t.data<float>() + row * dim, static_cast<std::size_t>(dim));
        double max = 0;
        for (const float e : x) max = std::max(max, std::abs(double{e}));
        const double scale = test::scale_of(max);
        for (float& e : x) e = static_cast<float>(test::e4m3_value(test::nearest_code(e / scale)) * scale);
      }
    }
  }
};

// Returns the values of a cache's keys or values on a CPU.
std::vector<double> cached_values(const Tensor& t, const Tensor& scales) {
  if (!scales.defined()) return {t.data<float>(), t.data<float>() + t.numel()};
  std::vector<double> values;
  for (std::int64_t i = 0; i < t.numel(); ++i)
    values.push_back(test::e4m3_value(t.data<std::uint8_t>()[i]) *
                     std::ldexp(1, scales.data<std::uint8_t>()[i / t.dim(3)] - 127));
  return values;
}

struct Steps {
  std::vector<float> logits;                         // of each step, one step after the other
  std::vector<std::vector<double>> keys_and_values;  // of each layer: the keys in its cache, then the values
};

// Feeds two sequences of `length` tokens: `first` tokens at once, and then one at a time. rounded: the cache has the
// activation type, and RoundedRows rounds it.
Steps run_steps(const ModelConfig& c, std::int64_t length, std::int64_t first, KvCacheType type, bool rounded = false) {
  const ExecContext ctx{Stream::cpu(2)};
  Decoder model(c);
  model.allocate(ctx, 7);
  test::fill_index_biases(model);
  const Tensor ids = tokens(ctx, 2 * length, 4);
  ring::Run run{ctx};
  KvCache cache = model.make_cache(2, length, ctx, type);
  for (LayerCache& layer : cache.layers)
    for (const Tensor& t : {layer.keys, layer.values}) fill_zero(t, ctx.stream);
  if (rounded)
    for (LayerCache& layer : cache.layers) layer.variants.push_back(std::make_shared<RoundedRows>());
  Steps steps;
  for (std::int64_t from = 0; from < length;) {
    const std::int64_t count = from == 0 ? first : 1;
    std::vector<std::int32_t> part;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < count; ++i) part.push_back(ids.data<std::int32_t>()[b * length + from + i]);
    const Var h = model.hidden(run, from_host(part, ctx.stream), Sequences::uniform(2, count, ctx, from), cache);
    const std::vector<float> logits = to_host<float>(model.logits(run, h.value), ctx.stream);
    steps.logits.insert(steps.logits.end(), logits.begin(), logits.end());
    from += count;
  }
  for (const LayerCache& layer : cache.layers) {
    steps.keys_and_values.push_back(cached_values(layer.keys, layer.key_scales));
    steps.keys_and_values.push_back(cached_values(layer.values, layer.value_scales));
  }
  return steps;
}

// Returns the same model with one layer. Its keys before rounding do not depend on the cache, so that different caches
// store the same numbers.
ModelConfig with_one_layer(ModelConfig c) {
  c.layers = 1;
  return c;
}

TEST(Fp8KvCache, GivesTheLogitsOfRoundedKeysAndValues) {
  const auto expect_equal = [](const std::string& section, std::int64_t length, std::int64_t first) {
    const ModelConfig c = with_one_layer(config_of(section));
    const std::vector<float> got = run_steps(c, length, first, KvCacheType::fp8).logits,
                             want = run_steps(c, length, first, KvCacheType::automatic, true).logits;
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << section << first << " " << i;
  };
  for (const std::string& section : kSections)
    for (std::int64_t first : {1, 90}) expect_equal(section, 100, first);
  for (int i : {3, 4})  // an indexer scores tokens, not cached keys
    expect_equal(kSelecting[static_cast<std::size_t>(i)], 280, 250);
}

// e4m3 changes a normal number by at most 1/16 of itself. Smaller numbers are multiples of scale / 512, and the scale
// is at most 1/224 of the largest element of a row. The first pass attends to exact keys and values.
TEST(Fp8KvCache, IsNearExactKeysAndValues) {
  for (const std::string& section : kSections) {
    const ModelConfig c = with_one_layer(config_of(section));
    const Steps got = run_steps(c, 90, 41, KvCacheType::fp8), want = run_steps(c, 90, 41, KvCacheType::automatic);
    const auto of_first_pass = static_cast<std::ptrdiff_t>(2 * 41 * c.vocab_size);
    EXPECT_TRUE(std::equal(got.logits.begin(), got.logits.begin() + of_first_pass, want.logits.begin())) << section;
    EXPECT_NE(got.logits, want.logits) << section;
    for (std::size_t t = 0; t < 2; ++t) {
      const std::vector<double>&x = want.keys_and_values[t], &y = got.keys_and_values[t];
      ASSERT_EQ(x.size(), y.size());
      double largest = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (i % 8 == 0)
          largest = std::abs(*std::max_element(x.begin() + static_cast<std::ptrdiff_t>(i),
                                               x.begin() + static_cast<std::ptrdiff_t>(i) + 8,
                                               [](double a, double b) { return std::abs(a) < std::abs(b); }));
        ASSERT_LE(std::abs(y[i] - x[i]), std::max(std::abs(x[i]) / 16, largest / 224 / 1024)) << section << i;
      }
    }
  }
}

TEST(Fp8KvCache, TakesOneByteForEachNumberAndOneForEachRow) {
  const ExecContext ctx{Stream::cpu(1)};
  const ModelConfig c = config_of("{kind: window, window: 16, sinks: 4}");
  const Decoder model(c);
  const std::int64_t rows = 2 * 20 * 2;  // sequences, rows, heads
  for (const LayerCache& layer : model.make_cache(2, 300, ctx, KvCacheType::fp8).layers) {
    EXPECT_EQ(layer.keys.bytes() + layer.key_scales.bytes(), static_cast<std::size_t>(rows * (8 + 1)));
    EXPECT_EQ(layer.values.bytes() + layer.value_scales.bytes(), static_cast<std::size_t>(rows * (8 + 1)));
  }
}

// Pools and selections by content are computed from cached keys. An indexer scores tokens.
TEST(Fp8KvCache, IsRefusedByLayersThatComputeWithCachedKeys) {
  const ExecContext ctx{Stream::cpu(1)};
  std::vector<std::string> sections = kPooling;
  for (const std::string& section : kSelecting)
    if (section.find("content") != std::string::npos) sections.push_back(section);
  for (const std::string& section : sections) {
    const Decoder model(config_of(section));
    const std::string error = error_of([&] { model.make_cache(1, 10, ctx, KvCacheType::fp8); });
    EXPECT_NE(error.find("a KV cache in FP8 is not possible"), std::string::npos) << section << error;
  }
}

}  // namespace
}  // namespace ring
