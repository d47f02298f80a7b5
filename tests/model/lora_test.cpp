// Low-rank adapters (model.lora): the layer against its definition in float64, and which parameters a model trains.
#include <gtest/gtest.h>

#include <cmath>

#include "core/fields.h"
#include "core/philox.h"
#include "model/decoder.h"
#include "tests/error_of.h"

namespace ring {
namespace {

using Doubles = std::vector<double>;

Doubles doubles_of(const Tensor& t) {
  const auto* v = t.data<float>();
  return {v, v + t.numel()};
}

// Fills the tensor with fixed values in [-0.8, 0.8].
void set_values(const Tensor& t, std::uint32_t site) {
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<float>()[i] = static_cast<float>(
        1.6 * to_uniform(random_bits({.seed = 3, .site = site}, static_cast<std::uint64_t>(i))) - 0.8);
}

// A layer with three outputs, of which the first and the last have an adapter.
constexpr std::int64_t kLoraRows = 5, kInputs = 6, kLoraRank = 2;
constexpr std::int64_t kChannelsOf[] = {4, 3, 7}, kAllOutputs = 4 + 3 + 7;
constexpr double kLoraScale = 1.5;  // alpha 3 / rank 2

struct LoraValues {
  Doubles x, w, bias, a, b;
};

// Returns y = W x + bias + scale * B A x for each token, in float64.
Doubles lora_oracle(const LoraValues& v) {
  Doubles y;
  const auto at = [](const Doubles& m, std::int64_t row, std::int64_t columns, std::int64_t column) {
    return m[static_cast<std::size_t>(row * columns + column)];
  };
  for (std::int64_t t = 0; t < kLoraRows; ++t) {
    std::int64_t row = 0, adapted = 0, b_row = 0;
    for (std::int64_t output = 0; output < 3; ++output) {
      const bool has_adapter = output != 1;
      for (std::int64_t j = 0; j < kChannelsOf[output]; ++j, ++row) {
        double sum = v.bias[static_cast<std::size_t>(row)];
        for (std::int64_t c = 0; c < kInputs; ++c) sum += at(v.w, row, kInputs, c) * at(v.x, t, kInputs, c);
        for (std::int64_t r = 0; has_adapter && r < kLoraRank; ++r) {
          double h = 0;
          for (std::int64_t c = 0; c < kInputs; ++c)
            h += at(v.a, adapted * kLoraRank + r, kInputs, c) * at(v.x, t, kInputs, c);
          sum += kLoraScale * at(v.b, b_row, kLoraRank, r) * h;
        }
        b_row += has_adapter;
        y.push_back(sum);
      }
      adapted += has_adapter;
    }
  }
  return y;
}

struct LoraLayer {
  explicit LoraLayer(double dropout = 0)
      : linear({params, ""}, {{"wq", 4, 0.1f}, {"wk", 3, 0.1f}, {"wv", 7, 0.1f}}, kInputs, true, Cut::outputs,
               LoraConfig{.rank = kLoraRank, .alpha = 3, .targets = {"wq", "wv"}, .dropout = dropout}) {
    for (Param* p : {linear.weight, linear.bias}) params.freeze(*p);
    params.allocate(ctx, 1);
    params.start_step();
    std::uint32_t site = 0;
    for (Param* p : linear.parameters()) set_values(p->var.value, ++site);
    x = {ctx.empty({kLoraRows, kInputs}), std::make_shared<GradSlot>()};
    set_values(x.value, 9);
  }
  LoraValues values() const {
    return {doubles_of(x.value), doubles_of(linear.weight->var.value), doubles_of(linear.bias->var.value),
            doubles_of(linear.adapter->a->var.value), doubles_of(linear.adapter->b->var.value)};
  }
  ExecContext ctx{Stream::cpu(2)};
  Parameters params;
  Linear linear;
  Var x;
};

TEST(Lora, LayerEqualsItsDefinition) {
  const LoraLayer layer;
  EXPECT_EQ(layer.linear.adapter->a->shape, (Shape{2 * kLoraRank, kInputs}));
  EXPECT_EQ(layer.linear.adapter->b->shape, (Shape{4 + 7, kLoraRank}));
  ring::Run run{layer.ctx};
  const Tensor y = layer.linear(run, layer.x).value;
  const Doubles want = lora_oracle(layer.values());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(y.data<float>()[i], want[i], 2e-6) << i;
}

// The loss is a weighted sum of the outputs. Its derivatives are central differences of the oracle in float64.
TEST(Lora, GradientsEqualFiniteDifferences) {
  const LoraLayer layer;
  Tape tape;
  ring::Run run{.ctx = layer.ctx, .tape = &tape};
  const Var y = layer.linear(run, layer.x);
  const Tensor dy = layer.ctx.empty(y.value.shape());
  set_values(dy, 10);
  tape.backward(y.slot, dy, layer.ctx);
  const Doubles cotangent = doubles_of(dy);
  const auto loss = [&](const LoraValues& v) {
    const Doubles out = lora_oracle(v);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += cotangent[i] * out[i];
    return sum;
  };
  const LowRankAdapter& adapter = *layer.linear.adapter;
  for (const auto& [name, member, got] : {std::tuple{"x", &LoraValues::x, layer.x.slot->grad},
                                          {"a", &LoraValues::a, adapter.a->var.slot->grad},
                                          {"b", &LoraValues::b, adapter.b->var.slot->grad}}) {
    LoraValues v = layer.values();
    ASSERT_EQ(static_cast<std::size_t>(got.numel()), (v.*member).size());
    for (std::size_t i = 0; i < (v.*member).size(); ++i) {
      const double before = (v.*member)[i], step = 1e-5;
      (v.*member)[i] = before + step;
      const double above = loss(v);
      (v.*member)[i] = before - step;
      const double below = loss(v);
      (v.*member)[i] = before;
      EXPECT_NEAR(got.data<float>()[i], (above - below) / (2 * step), 1e-5) << name << " " << i;
    }
  }
  EXPECT_EQ(layer.linear.weight->var.slot, nullptr);
  EXPECT_EQ(layer.linear.bias->var.slot, nullptr);
}

// In training, only the adapter reads x with dropout.
TEST(Lora, DropoutAppliesToTheInputOfAdapters) {
  const LoraLayer layer(0.5);
  ring::Run run{.ctx = layer.ctx, .seed = 4, .training = true};
  const Tensor y = layer.linear(run, layer.x).value;
  LoraValues v = layer.values(), zeros = v;
  zeros.b.assign(v.b.size(), 0);
  const Doubles base = lora_oracle(zeros);
  v.w.assign(v.w.size(), 0), v.bias.assign(v.bias.size(), 0);
  v.x = doubles_of(dropout_add(run, layer.x, {}, 0.5f, layer.linear.adapter->dropout_site).value);
  EXPECT_GT(std::ranges::count(v.x, 0.0), 5);
  const Doubles added = lora_oracle(v);
  for (std::size_t i = 0; i < base.size(); ++i) EXPECT_NEAR(y.data<float>()[i], base[i] + added[i], 2e-6) << i;
  ring::Run evaluation{layer.ctx};
  const Doubles whole = lora_oracle(layer.values());
  const Tensor z = layer.linear(evaluation, layer.x).value;
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(z.data<float>()[i], whole[i], 2e-6) << i;
}

// --- Decoders.
ModelConfig lora_config(const std::string& more) {
  ModelConfig c;
  load_config_text(c,
                   "{vocab_size: 37, context: 40, layers: 2, width: 32, heads: 4, kv_heads: 2, init_std: 0.3" +
                       (more.empty() ? "" : ", " + more) + "}",
                   "test");
  return c.resolved();
}

Tensor lora_logits(Decoder& model, const ExecContext& ctx) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 40; ++i) ids.push_back(i * 17 % 37);
  ring::Run run{ctx};
  const Var hidden = model.hidden(run, from_host(ids, ctx.stream), Sequences::uniform(1, 40, ctx));
  return model.logits(run, hidden.value);
}

std::vector<std::string> adapters_of(Decoder& model) {
  std::vector<std::string> names;
  for (const Param* p : model.parameters().declared())
    for (const LogicalParam& part : p->parts)
      if (p->adapter) names.push_back(part.name);
  return names;
}

const std::vector<std::string>& lora_models() {
  static const std::vector<std::string> all = {
      "", "mlp: gelu_tanh, biases: all, norm: layer", "norm_place: sub", "mlp: relu2",
      "mixers: [gated_delta_net, attention], gated_delta_net: {key_heads: 2, key_width: 8}"};
  return all;
}

// Adapters start with B = 0, so the model computes what it computes without them. Once B is not zero, each adapter
// changes the result.
TEST(Lora, NewAdaptersChangeNothing) {
  const ExecContext ctx{Stream::cpu(2)};
  for (const std::string& settings : lora_models()) {
    Decoder plain(lora_config(settings)),
        adapted(lora_config(settings + (settings.empty() ? "" : ", ") + "lora: {rank: 3}"));
    plain.allocate(ctx, 7);
    adapted.allocate(ctx, 7);
    const Tensor want = lora_logits(plain, ctx), got = lora_logits(adapted, ctx);
    for (std::int64_t i = 0; i < want.numel(); ++i)
      ASSERT_NEAR(got.data<float>()[i], want.data<float>()[i], 1e-5) << settings << " " << i;
    for (Param* p : adapted.parameters().declared()) {
      if (!p->adapter || !p->parts[0].name.ends_with("lora_b.weight")) continue;
      set_values(p->var.value, 11);
      const Tensor changed = lora_logits(adapted, ctx);
      double difference = 0;
      for (std::int64_t i = 0; i < want.numel(); ++i)
        difference = std::max<double>(difference, std::abs(changed.data<float>()[i] - want.data<float>()[i]));
      EXPECT_GT(difference, 1e-3) << settings << " " << p->parts[0].name;
      for (std::int64_t i = 0; i < p->var.value.numel(); ++i) p->var.value.data<float>()[i] = 0;
    }
  }
}

TEST(Lora, TargetsSelectLinearLayers) {
  const auto names = [](const std::string& settings) {
    Decoder model(lora_config(settings));
    return adapters_of(model);
  };
  EXPECT_EQ(names("").size(), 0u);
  EXPECT_EQ(names("lora: {rank: 4}").size(), 2u * 2 * 7);
  EXPECT_EQ(names("lora: {rank: 4, targets: [wv, down]}"),
            (std::vector<std::string>{"blocks.0.attention.wv.lora_a.weight", "blocks.0.attention.wv.lora_b.weight",
                                      "blocks.0.mlp.down.lora_a.weight", "blocks.0.mlp.down.lora_b.weight",
                                      "blocks.1.attention.wv.lora_a.weight", "blocks.1.attention.wv.lora_b.weight",
                                      "blocks.1.mlp.down.lora_a.weight", "blocks.1.mlp.down.lora_b.weight"}));
  // Per block of a gated delta net: wq, wk, wv, wa, wb, wz, wo, and the MLP's three.
  EXPECT_EQ(names(lora_models().back() + ", lora: {rank: 4}").size(), 2u * (10 + 7));
}

TEST(Lora, SettingsAreChecked) {
  const auto problem = [](const std::string& settings) { return error_of([&] { lora_config(settings); }); };
  EXPECT_PRED2(contains, problem("lora: {rank: 4, targets: [wq, wqq]}"), "no linear layer 'wqq'");
  EXPECT_PRED2(contains, problem("lora: {rank: 4, targets: [gate], alpha: 3}, mlp: relu2"), "'gate'");
  EXPECT_PRED2(contains, problem("lora: {rank: 4, targets: [wz]}"), "'wz'");
  std::vector<SettingProblem> unused;
  LoraConfig{.alpha = 4, .targets = {"wq"}, .dropout = 0.1}.validate(unused);
  ASSERT_EQ(unused.size(), 3u);
  EXPECT_PRED2(contains, unused[0].text, "alpha: has no effect with rank: 0");
  LoraConfig{}.validate(unused);
  EXPECT_EQ(unused.size(), 3u);
  EXPECT_PRED2(contains, problem("lora: {rank: -1}"), "lora.rank");
  EXPECT_PRED2(contains, problem("lora: {rank: 4, dropout: .nan}"), "lora.dropout");
  EXPECT_EQ(problem("lora: {rank: 4, targets: [gate, all], dropout: 0.1}"), "");
  EXPECT_EQ(lora_config("lora: {rank: 4}").lora.scale(), 2);
  EXPECT_EQ(lora_config("lora: {rank: 4, alpha: 2}").lora.scale(), 0.5);
}

}  // namespace
}  // namespace ring
