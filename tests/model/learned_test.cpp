// Attention with an indexer (pattern: learned) in a whole model: it is causal, indexer losses do not reach the trunk,
// the indexer's gradient is that of its loss, and during the warm-up attention is dense.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/fields.h"
#include "core/philox.h"
#include "model/decoder.h"
#include "tests/model/index_biases.h"

namespace ring {
namespace {

constexpr std::int64_t kTokens = 64 * 7 + 10;

ModelConfig learned_config(const std::string& attention) {
  ModelConfig c;
  load_config_text(c,
                   "{vocab_size: 37, context: 512, layers: 2, width: 32, heads: 4, kv_heads: 2, init_std: 0.3, "
                   "attention: " +
                       attention + "}",
                   "test");
  return c.resolved();
}
const std::string kKeep = "first: 1, keep: 4";
ModelConfig learned(const std::string& more = "", const std::string& rule = kKeep, int distances = 5) {
  return learned_config(str("{kind: block_sparse, block: 64, rules: [{pattern: learned, local: 1, ", rule,
                            "}], index_heads: 2, index_head_dim: 8, index_distances: ", distances, more, "}"));
}
const std::string kMass = "keep: 7, mass: 0.55";

Tensor tokens(const ExecContext& ctx, std::int64_t n = kTokens) {
  const Tensor t = ctx.empty({n}, DType::i32);
  for (std::int64_t i = 0; i < n; ++i)
    t.data<std::int32_t>()[i] = static_cast<std::int32_t>(random_bits({9, 3, 1}, static_cast<std::uint64_t>(i)) % 37);
  return t;
}

// A model and tokens of two documents. The second begins in the middle.
struct Problem {
  ExecContext ctx{Stream::cpu(2)};
  Decoder model;
  Tensor ids = tokens(ctx);

  explicit Problem(const ModelConfig& c, bool train_indexers = true) : model(c) {
    if (!train_indexers)
      for (Param* p : test::params_named(model, "attention.index.")) model.parameters().freeze(*p);
    model.allocate(ctx, 7);
    test::fill_index_biases(model);
  }
  Sequences sequences() const {
    const Tensor positions = ctx.empty({kTokens}, DType::i32);
    for (std::int64_t i = 0; i < kTokens; ++i)
      positions.data<std::int32_t>()[i] = static_cast<std::int32_t>(i < 100 ? i : i - 100);
    return {.offsets = {0, 100, kTokens}, .positions = positions};
  }
  Tensor hidden() {
    Run run{ctx};
    return model.hidden(run, ids, sequences()).value;
  }
  // Runs forward and backward. Returns the sum of the indexers' losses.
  double forward_backward() {
    Tape tape;
    Run run{.ctx = ctx, .tape = &tape};
    run.probes.auxiliary_loss = ctx.zeros({1});
    const Sequences s = sequences();
    model.parameters().start_step();
    const LossOutput out = model.loss(run, ids, s, {.targets = ids});
    tape.backward(out.sum.slot, {}, ctx);
    return run.probes.auxiliary_loss.data<float>()[0];
  }
  std::vector<float> gradient(const Param& p) const {
    const Tensor& g = p.var.slot->grad;
    return {g.data<float>(), g.data<float>() + g.numel()};
  }
};

bool is_indexer(const Param& p) { return p.parts[0].name.find(".index.") != std::string::npos; }

void expect_no_future(const ModelConfig& c) {
  Problem p(c);
  const Tensor before = p.hidden();
  const std::size_t row = static_cast<std::size_t>(before.dim(1)) * sizeof(float);
  int later = 0;
  for (const std::int64_t at : {0, 63, 64, 99, 100, 163, 164, 290, 427, 428, 456}) {
    std::int32_t& id = p.ids.data<std::int32_t>()[at];
    const std::int32_t was = std::exchange(id, (id + 5) % 37);
    const Tensor after = p.hidden();
    EXPECT_EQ(std::memcmp(before.raw(), after.raw(), row * static_cast<std::size_t>(at)), 0) << at;
    later += std::memcmp(before.raw(), after.raw(), before.bytes()) != 0;
    id = was;
  }
  EXPECT_EQ(later, 11);
}
TEST(LearnedBlocks, DoNotLookAhead) { expect_no_future(learned()); }
TEST(LearnedBlocks, DoNotLookAheadWithAMass) { expect_no_future(learned("", kMass)); }

// A document packed behind another one selects the same blocks as it does alone.
TEST(LearnedBlocks, StayWithinADocument) {
  Problem p(learned());
  const Tensor packed = p.hidden();
  const std::int64_t count = kTokens - 100;
  ring::Run run{p.ctx};
  const Tensor alone = p.model.hidden(run, p.ids.narrow(0, 100, count), Sequences::uniform(1, count, p.ctx)).value;
  for (std::int64_t i = 0; i < alone.numel(); ++i)
    EXPECT_NEAR(alone.data<float>()[i], packed.narrow(0, 100, count).data<float>()[i], 1e-4);
}

TEST(LearnedBlocks, DoNotChangeGradientsOfTheTrunk) {
  Problem learns(learned()), frozen(learned(), false);
  EXPECT_GT(learns.forward_backward(), 0);
  EXPECT_EQ(frozen.forward_backward(), 0);
  const auto a = learns.model.parameters().declared(), b = frozen.model.parameters().declared();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (is_indexer(*a[i])) {
      const std::vector<float> g = learns.gradient(*a[i]);
      EXPECT_TRUE(std::ranges::any_of(g, [](float x) { return x != 0; })) << a[i]->parts[0].name;
      continue;
    }
    EXPECT_EQ(learns.gradient(*a[i]), frozen.gradient(*b[i])) << a[i]->parts[0].name;
  }
}

// With all other parameters frozen, the indexers get the same gradients.
TEST(LearnedBlocks, LearnWithFrozenTrunk) {
  Problem all(learned()), alone(learned());
  for (Param* p : alone.model.parameters().declared())
    if (!is_indexer(*p)) p->var.slot = nullptr;
  EXPECT_EQ(all.forward_backward(), alone.forward_backward());
  const auto a = all.model.parameters().declared(), b = alone.model.parameters().declared();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!is_indexer(*a[i])) continue;
    EXPECT_EQ(all.gradient(*a[i]), alone.gradient(*b[i]));
  }
}

// Compares differences of the loss along some directions with the gradient of a parameter.
void expect_gradient_of_loss(Problem& p, Param& param) {
  p.forward_backward();
  const std::vector<float> gradient = p.gradient(param);
  float* const w = param.var.value.data<float>();
  const std::vector<float> start(w, w + param.var.value.numel());
  for (std::uint32_t k = 0; k < 4; ++k) {
    double want = 0;
    const auto moved = [&](double step) {
      want = 0;
      for (std::size_t i = 0; i < start.size(); ++i) {
        const double direction = random_bits({4, k, 2}, i) % 2 ? 1 : -1;
        w[i] = static_cast<float>(start[i] + step * direction);
        want += direction * gradient[i];
      }
      return p.forward_backward();
    };
    const double got = (moved(1e-3) - moved(-1e-3)) / 2e-3;
    const double steps_of_f32 = 2 * 6e-8 * p.forward_backward() / 2e-3;  // the rounding of the loss in f32
    EXPECT_NEAR(got, want, 0.002 * std::abs(want) + steps_of_f32) << param.parts[0].name << k;
  }
  std::ranges::copy(start, w);
}

// While all blocks are kept, the loss is continuous. The last layer's indexer is tested, since no other loss depends on
// it.
TEST(LearnedBlocks, HaveTheGradientOfTheirLoss) {
  Problem p(learned(", index_warmup_steps: 9"));
  EXPECT_TRUE(p.model.set_attention_step(0));
  const std::vector<Param*> params = test::params_named(p.model, "blocks.1.attention.index.");
  ASSERT_EQ(params.size(), 2u);
  for (Param* param : params) expect_gradient_of_loss(p, *param);
}

// Biases are initialized to 0, where they do not change any bit of the scores, and do not decay.
TEST(LearnedBlocks, BeginWithZeroDistanceBiases) {
  Problem with(learned()), without(learned("", kKeep, 0));
  const std::vector<Param*> params = test::params_named(with.model, "blocks.1.attention.index.");
  EXPECT_EQ(params[1]->parts[0].name, "blocks.1.attention.index.distance.bias");
  EXPECT_EQ(params[1]->shape, (Shape{2 * 5}));
  EXPECT_TRUE(params[0]->decay);
  EXPECT_FALSE(params[1]->decay);
  const Tensor filled = with.hidden(), plain = without.hidden();
  with.model.allocate(with.ctx, 7);
  EXPECT_NE(std::memcmp(filled.raw(), plain.raw(), plain.bytes()), 0);
  EXPECT_EQ(std::memcmp(with.hidden().raw(), plain.raw(), plain.bytes()), 0);
}

void expect_all_in_warmup(const std::string& rule) {
  Problem warm(learned(", index_warmup_steps: 3", rule)), dense(learned_config("{kind: dense}"));
  const Tensor selected = warm.hidden();
  EXPECT_TRUE(warm.model.set_attention_step(0));
  EXPECT_FALSE(warm.model.set_attention_step(2));
  const Tensor all = warm.hidden(), want = dense.hidden();
  double worst = 0;
  for (std::int64_t i = 0; i < all.numel(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(all.data<float>()[i]) - want.data<float>()[i]));
  EXPECT_LT(worst, 1e-4);
  EXPECT_TRUE(warm.model.set_attention_step(3));
  EXPECT_EQ(std::memcmp(warm.hidden().raw(), selected.raw(), selected.bytes()), 0);
  EXPECT_NE(std::memcmp(all.raw(), selected.raw(), selected.bytes()), 0);
}
TEST(LearnedBlocks, AreAllBlocksWhileTheIndexerWarmsUp) { expect_all_in_warmup("first: 1, keep: 4"); }
TEST(LearnedBlocks, AreAllBlocksWithAMassWhileTheIndexerWarmsUp) { expect_all_in_warmup(kMass); }

// Recomputed layers select and learn as in the first pass.
TEST(LearnedBlocks, RecomputeWithTheSameBits) {
  Problem kept(learned());
  const double loss = kept.forward_backward();
  for (const Recompute how : {Recompute::attention, Recompute::block, Recompute::full})
    for (const std::int64_t segments : {0, 1}) {
      Problem again(learned());
      ActivationPlan plan;
      plan.blocks.assign(2, {.recompute = how});
      plan.segments = segments, plan.segment_blocks = segments;
      again.model.set_activations(plan);
      EXPECT_EQ(again.forward_backward(), loss);
      const auto a = kept.model.parameters().declared(), b = again.model.parameters().declared();
      for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(kept.gradient(*a[i]), again.gradient(*b[i]));
    }
}

}  // namespace
}  // namespace ring
