#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "autograd/host_offload.h"
#include "core/cpu/thread_pool.h"
#include "core/philox.h"
#include "model/scopes.h"

namespace ring {
namespace {

ModelConfig tiny() {
  ModelConfig c;
  c.vocab_size = 37;
  c.context = 24;
  c.layers = 2;
  c.width = 32;
  c.heads = 4;
  c.kv_heads = 2;
  c.init_std = 0.2;
  return c;
}

struct Family {
  std::string name;
  ModelConfig config;
};
void PrintTo(const Family& f, std::ostream* out) { *out << f.name; }

// Returns models with settings of families that were published since 2024.
std::vector<Family> newer_families() {
  const LayerAttentionConfig local{.layers = "0", .attention = {.kind = "window", .window = 5}};
  ModelConfig olmo = tiny();
  olmo.norm_place = NormPlace::reordered;
  olmo.qk_norm = true;
  olmo.qk_norm_over = QkNormOver::projection;
  olmo.dropout = 0.1;
  olmo.rope = {.scaling = RopeScaling::yarn, .factor = 4, .original_context = 6, .beta_fast = 1, .beta_slow = 0.1};
  olmo.attention_layers = {local};
  olmo.rope_layers = {{.layers = "0", .rope = {}}};
  ModelConfig gemma = tiny();
  gemma.norm_place = NormPlace::sandwich;
  gemma.norm_zero_centered = true;
  gemma.mlp = Mlp::geglu_tanh;
  gemma.embedding_scale = 5.5;
  gemma.attention_scale = 0.2;
  gemma.attention_layers = {local};
  ModelConfig gemma3 = gemma;
  gemma3.qk_norm = true;
  gemma3.rope = {.theta = 1e6, .scaling = RopeScaling::linear};
  gemma3.rope_layers = {{.layers = "0", .rope = {.theta = 100}}};
  gemma.attention_soft_cap = 2;
  gemma.logit_soft_cap = 3;
  ModelConfig partial = tiny();
  partial.head_dim = 16;
  partial.rope.partial_rotary_factor = 0.25;
  partial.rope_layers = {{.layers = "1", .rope = {.partial_rotary_factor = 0}}};
  partial.attention_layers = {local};
  partial.learned_sinks = true;
  return {{"olmo", olmo}, {"gemma2", gemma}, {"gemma3", gemma3}, {"partial_rotary", partial}};
}

// Returns one family per row: every choice of every field occurs in at least one family.
std::vector<Family> families() {
  std::vector<Family> out;
  ModelConfig c = tiny();
  out.push_back({"llama", c});
  c.tied_embeddings = false;
  c.qk_norm = true;
  c.biases = Biases::qkv;
  c.rope.scaling = RopeScaling::llama3;
  c.rope.original_context = 8;
  out.push_back({"qwen", c});
  c = tiny();
  c.kv_heads = 4;
  c.norm = NormKind::layer;
  c.positions = Positions::learned;
  c.mlp = Mlp::gelu_tanh;
  c.biases = Biases::all;
  out.push_back({"gpt2", c});
  c.norm_place = NormPlace::post;
  c.mlp = Mlp::gelu;
  out.push_back({"post", c});
  c.mlp = Mlp::gelu_tanh;
  out.push_back({"post_tanh", c});
  c.norm_place = NormPlace::sub;
  c.init = InitScheme::magneto;
  c.mlp = Mlp::relu2;
  c.positions = Positions::none;
  out.push_back({"magneto", c});
  c = tiny();
  c.heads = 1;
  c.kv_heads = 1;
  c.head_dim = 40;
  c.rope.scaling = RopeScaling::linear;
  c.dropout = 0.2;
  c.attention_dropout = 0.3;
  out.push_back({"wide_head", c});
  c = tiny();
  c.rope = {.scaling = RopeScaling::yarn, .factor = 4, .original_context = 6, .beta_fast = 1, .beta_slow = 0.1};
  out.push_back({"yarn", c});
  c = tiny();
  c.mixers = {Mixer::gated_delta_net, Mixer::attention};
  c.gated_delta_net = {.key_heads = 2, .value_heads = 4, .key_width = 8, .value_width = 12};
  c.norm_place = NormPlace::sandwich;
  c.norm_zero_centered = true;
  out.push_back({"hybrid", c});
  c.norm_place = NormPlace::reordered_attention;
  c.qk_norm = true;
  c.qk_norm_over = QkNormOver::projection;
  c.gated_delta_net.negative_eigenvalues = true;
  c.gated_delta_net.norm_eps = 1e-3;
  c.attention_output_gate = true;
  c.attention_layers = {{.layers = "1", .attention = {.kind = "window", .window = 5}}};
  out.push_back({"gated_hybrid", c});
  for (Family& f : newer_families()) out.push_back(std::move(f));
  return out;
}

Tensor tokens(const ExecContext& ctx, std::int64_t n, std::int64_t vocab, std::uint32_t salt) {
  Tensor t = ctx.empty({n}, DType::i32);
  for (std::int64_t i = 0; i < n; ++i)
    t.data<std::int32_t>()[i] = static_cast<std::int32_t>(random_bits({9, salt, 1}, static_cast<std::uint64_t>(i)) %
                                                          static_cast<std::uint32_t>(vocab));
  return t;
}

std::vector<float> values_of(const Tensor& t) { return {t.data<float>(), t.data<float>() + t.numel()}; }

struct Fixture {
  // frozen: number of blocks that are frozen, with the embedding.
  explicit Fixture(const ModelConfig& c, int threads = 2, std::size_t frozen = 0)
      : ctx{Stream::cpu(threads)}, model(c) {
    const std::vector<ModelPart> parts = model.parts();
    for (std::size_t i = 0; frozen > 0 && i <= frozen; ++i)
      for (Param* p : parts[i].params) model.parameters().freeze(*p);
    model.allocate(ctx, 7);
  }

  // Returns the sum of losses. If `gradients` is true, leaves gradients of loss / tokens in the flat buffer.
  double loss(const Tensor& ids, const Tensor& targets, std::int64_t batch, bool gradients) {
    Tape tape;
    ring::Run run{ctx, gradients ? &tape : nullptr, 5, 3, 0, true};
    const std::size_t before = in_use();
    model.parameters().start_step();
    const Sequences seqs = Sequences::uniform(batch, ids.dim(0) / batch, ctx);
    LossHead head;
    head.targets = targets;
    head.scale = 1.0f / static_cast<float>(ids.dim(0));
    const LossOutput out = model.loss(run, ids, seqs, head);
    const double sum = *out.sum.value.data<float>();
    held = in_use() - before;
    if (gradients) tape.backward(out.sum.slot, {}, ctx);
    return sum;
  }
  std::vector<float> gradients() const { return values_of(model.parameters().gradients); }
  Tensor logits(const Tensor& ids, std::int64_t batch) {
    ring::Run run{ctx};
    const Var h = model.hidden(run, ids, Sequences::uniform(batch, ids.dim(0) / batch, ctx));
    return model.logits(run, h.value);
  }

  std::size_t in_use() const { return ctx.stream.allocator()->stats().in_use; }

  ExecContext ctx;
  Decoder model;
  std::size_t held = 0;  // bytes between the last forward and its backward
};

class Families : public testing::TestWithParam<Family> {};

// The loss along a random direction of all parameters changes as predicted by the gradient.
TEST_P(Families, GradientEqualsTheSlopeOfTheLoss) {
  Fixture f(GetParam().config);
  const Tensor ids = tokens(f.ctx, 48, 37, 1), targets = tokens(f.ctx, 48, 37, 2);
  f.loss(ids, targets, 2, true);
  const std::vector<float> g = f.gradients();
  Parameters& p = f.model.parameters();
  for (std::uint32_t trial = 0; trial < 3; ++trial) {
    std::vector<float> direction(g.size());
    double slope = 0, norm = 0;
    for (const Param* param : p.layout())
      for (std::int64_t i = 0; i < param->shape.numel(); ++i) {
        const std::size_t at = static_cast<std::size_t>(param->offset + i);
        direction[at] =
            random_normal({trial, 0, 77}, at) * 0.01f + 0.3f * g[at];  // mostly along the gradient, for a clear signal
        slope += static_cast<double>(direction[at]) * g[at];
        norm += static_cast<double>(direction[at]) * direction[at];
      }
    const auto shifted = [&](double t) {
      float* w = p.values.data<float>();
      const std::vector<float> before(w, w + g.size());
      for (std::size_t i = 0; i < g.size(); ++i) w[i] += static_cast<float>(t) * direction[i];
      const double loss = f.loss(ids, targets, 2, false) / 48;
      std::copy(before.begin(), before.end(), w);
      return loss;
    };
    const double h = 2e-2 / std::sqrt(norm);
    // Fourth-order central difference.
    const double numeric = (8 * (shifted(h) - shifted(-h)) - (shifted(2 * h) - shifted(-2 * h))) / (12 * h);
    EXPECT_NEAR(numeric / slope, 1.0, 0.02) << GetParam().name << " direction " << trial << " slope " << slope;
  }
}

TEST_P(Families, LaterTokensDoNotChangeEarlierLogits) {
  Fixture f(GetParam().config);
  const Tensor ids = tokens(f.ctx, 24, 37, 3);
  const Tensor before = f.logits(ids, 1);
  for (std::int64_t t : {1, 11, 23}) {
    std::int32_t& id = ids.data<std::int32_t>()[t];
    const std::int32_t old = id;
    id = (id + 5) % 37;
    const Tensor after = f.logits(ids, 1);
    EXPECT_EQ(0, std::memcmp(before.raw(), after.raw(), static_cast<std::size_t>(t * 37) * sizeof(float)))
        << "token " << t;
    EXPECT_NE(0, std::memcmp(before.narrow(0, t, 1).raw(), after.narrow(0, t, 1).raw(), 37 * sizeof(float)));
    id = old;
  }
}

TEST_P(Families, CachedLogitsEqualUncachedLogits) {
  Fixture f(GetParam().config);
  const Tensor ids = tokens(f.ctx, 40, 37, 4);  // two sequences of 20 tokens
  const Tensor whole = f.logits(ids, 2);
  KvCache cache = f.model.make_cache(2, 24, f.ctx);
  ring::Run run{f.ctx};
  double worst = 0;
  const auto feed = [&](std::int64_t from, std::int64_t count) {
    Tensor part = f.ctx.empty({2 * count}, DType::i32);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < count; ++i)
        part.data<std::int32_t>()[b * count + i] = ids.data<std::int32_t>()[b * 20 + from + i];
    const Var h = f.model.hidden(run, part, Sequences::uniform(2, count, f.ctx, from), cache);
    const Tensor logits = f.model.logits(run, h.value);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t v = 0; v < 37; ++v) {
          const double got = logits.data<float>()[(b * count + i) * 37 + v];
          const double want = whole.data<float>()[(b * 20 + from + i) * 37 + v];
          ASSERT_TRUE(std::isfinite(got));
          worst = std::max(worst, std::abs(got - want));
        }
  };
  feed(0, 7);
  for (std::int64_t t = 7; t < 20; ++t) feed(t, 1);
  EXPECT_LT(worst, 2e-4) << GetParam().name;
}

TEST_P(Families, RecomputationGivesTheSameBits) {
  const std::int64_t layers = GetParam().config.layers;
  std::vector<ActivationPlan> plans{{{{Recompute::attention}, {Recompute::block}}},
                                    {{{Recompute::mlp}, {}}},
                                    {{{Recompute::full}, {Recompute::block}}}};
  for (const Recompute how : {Recompute::attention, Recompute::mlp, Recompute::block, Recompute::full})
    plans.push_back(ActivationPlan::uniform(layers, how));
  Fixture kept(GetParam().config);
  const Tensor ids = tokens(kept.ctx, 48, 37, 5), targets = tokens(kept.ctx, 48, 37, 6);
  const double loss = kept.loss(ids, targets, 2, true);
  for (const ActivationPlan& plan : plans) {
    Fixture again(GetParam().config);
    again.model.set_activations(plan);
    EXPECT_EQ(again.loss(ids, targets, 2, true), loss);
    EXPECT_EQ(kept.gradients(), again.gradients());
  }
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  EXPECT_GT(norm, 0);
  return std::sqrt(error / norm);
}

// With 48 rows, chunks of 10 leave a remainder. Recomputation is bit-identical, but chunks may change the rounding.
TEST_P(Families, MlpsInChunksGiveTheSameLossAndGradients) {
  Fixture whole(GetParam().config);
  const Tensor ids = tokens(whole.ctx, 48, 37, 5), targets = tokens(whole.ctx, 48, 37, 6);
  const double loss = whole.loss(ids, targets, 2, true);
  const auto chunked = [&](std::int64_t rows, Recompute how) {
    auto f = std::make_unique<Fixture>(GetParam().config);
    f->model.set_mlp_chunk(rows);
    f->model.set_activations(ActivationPlan::uniform(GetParam().config.layers, how));
    EXPECT_NEAR(f->loss(ids, targets, 2, true), loss, rows < 48 ? 1e-6 * loss : 0) << rows;
    return f;
  };
  EXPECT_EQ(chunked(48, Recompute::block)->gradients(), whole.gradients());
  EXPECT_LT(relative_error(chunked(1, Recompute::block)->gradients(), whole.gradients()), 1e-5);
  const std::vector<float> kept = chunked(10, Recompute::none)->gradients();
  EXPECT_LT(relative_error(kept, whole.gradients()), 1e-5);
  for (const Recompute how : {Recompute::attention, Recompute::mlp, Recompute::block, Recompute::full})
    EXPECT_EQ(chunked(10, how)->gradients(), kept);
}

// Makes three steps of gradient descent. Returns the losses.
std::vector<double> descend(Fixture& f, const Tensor& ids, const Tensor& targets, std::int64_t batch) {
  std::vector<double> losses;
  Parameters& p = f.model.parameters();
  for (int step = 0; step < 3; ++step) {
    losses.push_back(f.loss(ids, targets, batch, true));
    float* w = p.values.data<float>();
    const float* g = p.gradients.data<float>();
    for (std::int64_t i = 0; i < p.size(); ++i) w[i] -= 0.1f * g[i];
  }
  return losses;
}

// With 22 sequences, tensors are large enough to be offloaded.
TEST_P(Families, OffloadedActivationsGiveTheSameBits) {
  using enum Recompute;
  for (const Recompute how : {none, attention, mlp, block, full}) {
    Fixture kept(GetParam().config), moved(GetParam().config);
    for (Fixture* f : {&kept, &moved}) f->model.set_mlp_chunk(how == Recompute::block || how == full ? 10 : 0);
    HostOffload offload(moved.ctx, std::size_t{1} << 30);
    kept.model.set_activations({{{how}, {how}}});
    moved.model.set_activations({{{how, true}, {how, true}}}, &offload);
    const Tensor ids = tokens(kept.ctx, 22 * 24, 37, 5), targets = tokens(kept.ctx, 22 * 24, 37, 6);
    EXPECT_EQ(descend(moved, ids, targets, 22), descend(kept, ids, targets, 22));
    EXPECT_EQ(moved.gradients(), kept.gradients());
    const OffloadedBytes& bytes = offload.bytes();
    EXPECT_GT(bytes.moved, 0u);
    EXPECT_EQ(bytes.fetched, bytes.moved);
    EXPECT_EQ(moved.held, kept.held - bytes.moved);
  }
}

// The forward of consecutive blocks is recomputed in the backward, whatever each block then recomputes itself.
TEST_P(Families, RecomputedSegmentsGiveTheSameBits) {
  using enum Recompute;
  ModelConfig config = GetParam().config;
  config.layers = 5;
  for (const auto& [how, segment] : {std::pair{none, 2}, std::pair{block, 3}, std::pair{full, 4}}) {
    Fixture kept(config), again(config);
    for (Fixture* f : {&kept, &again}) f->model.set_mlp_chunk(segment == 3 ? 10 : 0);
    ActivationPlan plan = ActivationPlan::uniform(config.layers, how);
    kept.model.set_activations(plan);
    plan.segments = 4 / segment;
    plan.segment_blocks = segment;
    again.model.set_activations(plan);
    const Tensor ids = tokens(kept.ctx, 48, 37, 5), targets = tokens(kept.ctx, 48, 37, 6);
    EXPECT_EQ(descend(again, ids, targets, 2), descend(kept, ids, targets, 2));
    EXPECT_EQ(again.gradients(), kept.gradients());
    EXPECT_LT(again.held, kept.held);
  }
}

// A block saves its input, attention's output and, if it is large enough, its log-sum-exp: each is offloaded once.
TEST(Decoder, ABlockThatRecomputesOffloadsWhatItSaves) {
  Fixture f(tiny());
  HostOffload offload(f.ctx, std::size_t{1} << 30);
  f.model.set_activations({{{Recompute::block, true}, {Recompute::block}}}, &offload);
  const std::int64_t n = 22 * 24;
  f.loss(tokens(f.ctx, n, 37, 5), tokens(f.ctx, n, 37, 6), 22, true);
  EXPECT_EQ(offload.bytes().moved, 2u * n * 32 * sizeof(float));
  EXPECT_EQ(offload.bytes().late, 0u);
}

// A block that also recomputes attention saves only its input.
TEST(Decoder, ABlockThatRecomputesAllOffloadsItsInput) {
  Fixture f(tiny());
  HostOffload offload(f.ctx, std::size_t{1} << 30);
  f.model.set_activations({{{Recompute::full, true}, {Recompute::full}}}, &offload);
  const std::int64_t n = 22 * 24;
  f.loss(tokens(f.ctx, n, 37, 5), tokens(f.ctx, n, 37, 6), 22, true);
  EXPECT_EQ(offload.bytes().moved, 1u * n * 32 * sizeof(float));
  EXPECT_EQ(offload.bytes().late, 0u);
}

// Records the parts of the model in which a backward ran.
class BackwardParts final : public ScopeListener {
 public:
  explicit BackwardParts(Fixture& f) : subscription_(f.ctx.scopes, *this) {}
  void enter(const ScopeId& id, ScopePass pass) override {
    if (pass == ScopePass::backward) seen_.insert(id.part());
  }
  bool has(const ScopeId& part) const { return seen_.contains(part); }

 private:
  std::set<ScopeId> seen_;
  ScopeSubscription subscription_;
};

// With segments of two blocks, the first segment is frozen, and the first block of the second segment.
TEST_P(Families, TheBackwardEndsAboveFrozenBlocks) {
  using enum Recompute;
  ModelConfig config = GetParam().config;
  config.layers = 5;
  constexpr int kFrozen = 3;
  for (const auto& [how, segments] : {std::pair{none, 0}, std::pair{block, 0}, std::pair{full, 0}, std::pair{mlp, 2}}) {
    Fixture all(config), some(config, 2, kFrozen);
    ActivationPlan plan = ActivationPlan::uniform(config.layers, how);
    plan.segments = segments;
    plan.segment_blocks = segments ? 2 : 0;
    for (Fixture* f : {&all, &some}) {
      f->model.set_activations(plan);
      f->model.set_mlp_chunk(how == full ? 10 : 0);
    }
    const BackwardParts ran(some);
    const Tensor ids = tokens(all.ctx, 48, 37, 5), targets = tokens(all.ctx, 48, 37, 6);
    EXPECT_EQ(some.loss(ids, targets, 2, true), all.loss(ids, targets, 2, true));
    EXPECT_LT(some.held, all.held) << "nothing is kept for a backward that does not run";
    EXPECT_FALSE(ran.has({scopes::embedding}));
    for (int i = 0; i < config.layers; ++i) EXPECT_EQ(ran.has(block_scope(i)), i >= kFrozen) << i;
    EXPECT_TRUE(ran.has({scopes::loss_head}));
    const std::vector<Param*> trained = some.model.parameters().declared(), same = all.model.parameters().declared();
    for (std::size_t i = 0; i < trained.size(); ++i) {
      if (trained[i]->is_frozen()) continue;
      EXPECT_EQ(values_of(trained[i]->var.slot->grad), values_of(same[i]->var.slot->grad)) << trained[i]->parts[0].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Decoder, Families, testing::ValuesIn(families()), [](const auto& i) { return i.param.name; });

TEST(Decoder, APlanAppliesToEachBlock) {
  const auto held = [](const ActivationPlan& plan) {
    Fixture f(tiny());
    f.model.set_activations(plan);
    f.loss(tokens(f.ctx, 48, 37, 5), tokens(f.ctx, 48, 37, 6), 2, true);
    return f.held;
  };
  using enum Recompute;
  const std::size_t all = held({{{none}, {none}}}), least = held({{{block}, {block}}});
  EXPECT_LT(held({{{full}, {full}}}), least);
  const std::size_t no_mlp = held({{{mlp}, {mlp}}}), no_attention = held({{{attention}, {attention}}});
  EXPECT_EQ(held({{{none}, {block}}}), (all + least) / 2);
  EXPECT_EQ(held({{{mlp}, {none}}}), (all + no_mlp) / 2);
  EXPECT_EQ(held({{{mlp}, {attention}}}), (no_mlp + no_attention) / 2);
  EXPECT_LT(least, no_mlp);
  EXPECT_LT(least, no_attention);
  EXPECT_LT(no_mlp, all);
  EXPECT_LT(no_attention, all);
  Fixture f(tiny());
  EXPECT_THROW(f.model.set_activations({{{block}}}), Error) << "the model has two blocks";
  EXPECT_THROW(f.model.set_activations({{{none}, {none, true}}}), Error) << "nobody takes them";
}

TEST(Decoder, InitializesTheSameForAnyThreadCountAndPadding) {
  Fixture one(tiny(), 1);
  ExecContext ctx{Stream::cpu(3)};
  Decoder padded(tiny(), 128);
  padded.allocate(ctx, 7);
  const std::vector<Param*>& a = one.model.parameters().layout();
  const std::vector<Param*>& b = padded.parameters().layout();
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(one.model.parameters().num_elements(), padded.parameters().num_elements());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[i]->parts.size(); ++j) {
      const Tensor x = a[i]->part_of(one.model.parameters().values, a[i]->parts[j]);
      const Tensor y = b[i]->part_of(padded.parameters().values, b[i]->parts[j]);
      ASSERT_EQ(x.shape(), y.shape());
      EXPECT_EQ(0, std::memcmp(x.raw(), y.raw(), x.bytes())) << a[i]->parts[j].name;
    }
}

TEST(Decoder, PaddedVocabularyGivesTheSameLoss) {
  Fixture plain(tiny());
  ExecContext ctx{Stream::cpu(2)};
  Decoder padded(tiny(), 128);
  padded.allocate(ctx, 7);
  const Tensor ids = tokens(ctx, 24, 37, 8), targets = tokens(ctx, 24, 37, 9);
  const double want = plain.loss(ids, targets, 1, false);
  ring::Run run{ctx};
  LossHead head;
  head.targets = targets;
  const double got = *padded.loss(run, ids, Sequences::uniform(1, 24, ctx), head).sum.value.data<float>();
  EXPECT_NEAR(got, want, 1e-4 * want);
}

TEST(Decoder, MicroBatchesAddUpToOneBatch) {
  Fixture f(tiny());
  const Tensor ids = tokens(f.ctx, 48, 37, 1), targets = tokens(f.ctx, 48, 37, 2);
  f.loss(ids, targets, 2, true);
  const std::vector<float> whole = f.gradients();
  f.model.parameters().start_step();
  for (std::int64_t m = 0; m < 2; ++m) {
    Tape tape(m == 1);
    ring::Run run{f.ctx, &tape};
    LossHead head;
    head.targets = targets.narrow(0, m * 24, 24);
    head.scale = 1.0f / 48;
    const LossOutput out = f.model.loss(run, ids.narrow(0, m * 24, 24), Sequences::uniform(1, 24, f.ctx), head);
    tape.backward(out.sum.slot, {}, f.ctx);
  }
  const std::vector<float> parts = f.gradients();
  EXPECT_LT(relative_error(parts, whole), 1e-5);
}

// Queries and keys twice as large give scores four times as large.
TEST(Rope, TheAttentionFactorScalesQueriesAndKeys) {
  ModelConfig c = tiny(), larger = c;
  larger.rope = {.scaling = RopeScaling::yarn, .factor = 1, .attention_factor = 2};
  Fixture plain(c), scaled(larger);
  const Tensor ids = tokens(plain.ctx, 48, 37, 1);
  Parameters& all = plain.model.parameters();
  int doubled = 0;
  for (const Param* p : all.layout())
    for (const LogicalParam& part : p->parts) {
      if (part.name.find(".wq") == std::string::npos && part.name.find(".wk") == std::string::npos) continue;
      Tensor w = p->part_of(all.values, part);
      for (std::int64_t i = 0; i < w.numel(); ++i) w.data<float>()[i] *= 2;
      ++doubled;
    }
  EXPECT_EQ(doubled, 4);
  const Tensor a = plain.logits(ids, 2), b = scaled.logits(ids, 2);
  for (std::int64_t i = 0; i < a.numel(); ++i) EXPECT_NEAR(a.data<float>()[i], b.data<float>()[i], 1e-4) << i;
  EXPECT_EQ(a.numel(), 48 * 37);
}

}  // namespace
}  // namespace ring
