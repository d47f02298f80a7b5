// Layers that share a selection (model.attention.layers_per_selection), and attention settings that change by tokens,
// in a decoder.

#include <gtest/gtest.h>

#include <optional>

#include "core/fields.h"
#include "core/philox.h"
#include "kernels/attention/blocks.h"
#include "model/activation_plan.h"
#include "model/attention_schedule.h"
#include "model/decoder.h"
#include "model/patterns.h"
#include "tests/kept_blocks.h"

namespace ring::test {
namespace {

constexpr std::int64_t kTokens = 320;

ModelConfig shared_config(const std::string& attention, const std::string& layers = "[]") {
  ModelConfig c;
  load_config_text(c,
                   str("{vocab_size: 37, context: ", kTokens,
                       ", layers: 5, width: 32, heads: 4, kv_heads: 2, init_std: 0.3, attention: ", attention,
                       ", attention_layers: ", layers, "}"),
                   "test");
  return c.resolved();
}

std::string content(const std::string& keep, int reuse) {
  return str("{kind: block_sparse, block: 64, rules: [{pattern: content, keep: ", keep,
             "}], layers_per_selection: ", reuse, "}");
}

Tensor some_tokens(const ExecContext& ctx) {
  std::vector<std::int32_t> ids;
  for (std::uint64_t i = 0; i < kTokens; ++i) ids.push_back(static_cast<std::int32_t>(random_bits({3, 1, 4}, i) % 37));
  return from_host(ids, ctx.stream);
}

// Returns the selection that each layer used in one pass, as a word of bits for each query block and KV head.
std::vector<std::vector<std::int32_t>> selections_of(Decoder& model, const ExecContext& ctx) {
  std::vector<std::vector<std::int32_t>> all;
  for (DecoderBlock& b : model.blocks())
    b.attention()->watch = [&](const AttendedHeads& a) {
      const Tensor& kept = a.selection.kept;
      all.push_back(kept.defined() ? bits_of_kept(kept, 1, ctx) : std::vector<std::int32_t>{});
    };
  ring::Run run{ctx};
  model.hidden(run, some_tokens(ctx), Sequences::uniform(1, kTokens, ctx));
  for (DecoderBlock& b : model.blocks()) b.attention()->watch = nullptr;
  return all;
}

TEST(SharingLayers, AreNeighboursOfOneSection) {
  using Layers = std::vector<std::int64_t>;
  EXPECT_EQ(selection_sources(shared_config(content("2", 1))), (Layers{-1, -1, -1, -1, -1}));
  EXPECT_EQ(selection_sources(shared_config(content("2", 2))), (Layers{0, 0, 2, 2, 4}));
  EXPECT_EQ(selection_sources(shared_config(content("2", 9))), (Layers{0, 0, 0, 0, 0}));
  EXPECT_EQ(selection_sources(shared_config(content("2", 3), "[{layers: '2', attention: {}}]")),
            (Layers{0, 0, -1, 3, 3}));
  EXPECT_EQ(selection_sources(shared_config("{}", str("[{layers: '1-3', attention: ", content("2", 2), "}]"))),
            (Layers{-1, 1, 1, 3, -1}));
}

TEST(SharedSelections, EqualThatOfTheFirstLayer) {
  const ExecContext ctx{Stream::cpu(2)};
  Decoder shared(shared_config(content("2", 2))), alone(shared_config(content("2", 1)));
  for (Decoder* model : {&shared, &alone}) model->allocate(ctx, 7);
  const auto got = selections_of(shared, ctx), own = selections_of(alone, ctx);
  ASSERT_EQ(got.size(), 5u);
  EXPECT_EQ(got[0], own[0]) << "the first layer sees the same";
  EXPECT_EQ(got[1], got[0]);
  EXPECT_NE(got[1], own[1]) << "or the test would not tell";
  EXPECT_NE(got[2], got[1]) << "the next group selects by itself";
  EXPECT_EQ(got[3], got[2]);
}

// A token affects nothing before it, through all layers that share a selection.
TEST(SharedSelections, DoNotSeeTheFuture) {
  const ExecContext ctx{Stream::cpu(2)};
  Decoder model(shared_config(content("2", 3)));
  model.allocate(ctx, 7);
  const Tensor ids = some_tokens(ctx);
  ring::Run run{ctx};
  const auto logits = [&] {
    return to_host<float>(
        model.logits(run, model.hidden(run, ids, Sequences::uniform(1, kTokens, ctx)).value).view({-1}), ctx.stream);
  };
  const std::vector<float> before = logits();
  bool later = false;
  for (const std::int64_t u : {63, 64, 130, 191, 192, 319}) {
    std::int32_t& id = ids.data<std::int32_t>()[u];
    id = (id + 5) % 37;
    const std::vector<float> after = logits();
    for (std::int64_t i = 0; i < u * 37; ++i)
      ASSERT_EQ(before[static_cast<std::size_t>(i)], after[static_cast<std::size_t>(i)]) << u;
    later = later || before != after;
    id = (id + 32) % 37;
  }
  EXPECT_TRUE(later);
}

// Gradients of recomputed segments when a group of sharing layers reaches from one segment into the next.
TEST(SharedSelections, AreReusedInRecomputedSegments) {
  const ExecContext ctx{Stream::cpu(2)};
  const auto gradients = [&](int segments) {
    Decoder model(shared_config(content("2", 3)));
    model.allocate(ctx, 7);
    ActivationPlan plan;
    plan.blocks.resize(5);
    plan.segments = segments, plan.segment_blocks = segments ? 2 : 0;
    model.set_activations(plan);
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape};
    LossHead head;
    head.targets = some_tokens(ctx);
    const Sequences seqs = Sequences::uniform(1, kTokens, ctx);
    const LossOutput loss = model.loss(run, some_tokens(ctx), seqs, head);
    tape.backward(loss.sum.slot, {}, ctx);
    std::vector<float> all;
    for (const Param* p : model.parameters().layout()) {
      const std::vector<float> one = to_host<float>(p->var.slot->grad.view({-1}), ctx.stream);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  EXPECT_EQ(gradients(0), gradients(2));
}

TEST(AttentionSchedule, GivesTheSettingsOfItsTokens) {
  const ModelConfig c = shared_config(content("[[0, 5], [1000, 3], [2000, 4]]", 1),
                                      str("[{layers: '3', attention: ", content("[[0, 2], [1500, 4]]", 1), "}]"));
  EXPECT_EQ(c.attention.rules[0].keep, 5) << "the largest";
  EXPECT_EQ(attention_change_points(c), (std::vector<std::int64_t>{1000, 1500, 2000}));
  const auto keeps = [&](std::int64_t tokens) {
    const ModelConfig now = with_attention_at(c, tokens);
    EXPECT_TRUE(attention_change_points(now).empty());
    return std::pair(now.attention.rules[0].keep, now.attention_layers[0].attention.rules[0].keep);
  };
  EXPECT_EQ(keeps(0), std::pair(std::int64_t{5}, std::int64_t{2}));
  EXPECT_EQ(keeps(999), std::pair(std::int64_t{5}, std::int64_t{2}));
  EXPECT_EQ(keeps(1000), std::pair(std::int64_t{3}, std::int64_t{2}));
  EXPECT_EQ(keeps(1500), std::pair(std::int64_t{3}, std::int64_t{4}));
  EXPECT_EQ(keeps(kAfterAllTokens), std::pair(std::int64_t{4}, std::int64_t{4}));
}

TEST(AttentionSchedule, IsFollowedByADecoder) {
  const ExecContext ctx{Stream::cpu(2)};
  Decoder model(shared_config(content("[[0, 5], [1000, 2]]", 1))), two(shared_config(content("2", 1)));
  for (Decoder* m : {&model, &two}) m->allocate(ctx, 7);
  EXPECT_EQ(model.config().attention.rules[0].keep, 5);
  EXPECT_TRUE(model.set_attention_tokens(0));
  EXPECT_FALSE(model.set_attention_tokens(999));
  const auto all = selections_of(model, ctx);
  EXPECT_EQ(all[0][4 * 2], 0b11111) << "every block up to the last one's own";
  EXPECT_TRUE(model.set_attention_tokens(1000));
  EXPECT_EQ(model.config().attention.rules[0].keep, 2) << "caches are made for what it computes";
  EXPECT_EQ(selections_of(model, ctx), selections_of(two, ctx));
  EXPECT_TRUE(model.set_attention_tokens(0)) << "steps may be undone";
  EXPECT_EQ(selections_of(model, ctx), all);
  EXPECT_FALSE(two.set_attention_tokens(5000)) << "nothing changes there";
}

}  // namespace
}  // namespace ring::test
