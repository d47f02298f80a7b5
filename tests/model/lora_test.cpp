// Low-rank adapters (model.lora): the layer against its definition in float64, and which parameters a model trains.
#include <gtest/gtest.h>

#include <cmath>

#include "core/fields.h"
#include "core/philox.h"
#include "model/decoder.h"
#include "tests/error_of.h"

namespace ring {
namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& t) {
  const auto* v = t.data<float>();
  return {v, v + t.numel()};
}

// Fills the tensor with fixed values in [-0.8, 0.8].
void fill(const Tensor& t, std::uint32_t site) {
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<float>()[i] = static_cast<float>(
        1.6 * to_uniform(random_bits({.seed = 3, .site = site}, static_cast<std::uint64_t>(i))) - 0.8);
}

// A layer with three outputs, of which the first and the last have an adapter.
constexpr std::int64_t kTokens = 5, kIn = 6, kRank = 2;
constexpr std::int64_t kChannels[] = {4, 3, 7}, kOut = 4 + 3 + 7;
constexpr double kScale = 1.5;  // alpha 3 / rank 2

struct LayerValues {
  Values x, w, bias, a, b;
};

// Returns y = W x + bias + scale * B A x for each token, in float64.
Values layer_oracle(const LayerValues& v) {
  Values y;
  const auto at = [](const Values& m, std::int64_t row, std::int64_t columns, std::int64_t column) {
    return m[static_cast<std::size_t>(row * columns + column)];
  };
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::int64_t row = 0, adapted = 0, b_row = 0;
    for (std::int64_t output = 0; output < 3; ++output) {
      const bool has_adapter = output != 1;
      for (std::int64_t j = 0; j < kChannels[output]; ++j, ++row) {
        double sum = v.bias[static_cast<std::size_t>(row)];
        for (std::int64_t c = 0; c < kIn; ++c) sum += at(v.w, row, kIn, c) * at(v.x, t, kIn, c);
        for (std::int64_t r = 0; has_adapter && r < kRank; ++r) {
          double h = 0;
          for (std::int64_t c = 0; c < kIn; ++c) h += at(v.a, adapted * kRank + r, kIn, c) * at(v.x, t, kIn, c);
          sum += kScale * at(v.b, b_row, kRank, r) * h;
        }
        b_row += has_adapter;
        y.push_back(sum);
      }
      adapted += has_adapter;
    }
  }
  return y;
}

struct Layer {
  explicit Layer(double dropout = 0)
      : linear({params, ""}, {{"wq", 4, 0.1f}, {"wk", 3, 0.1f}, {"wv", 7, 0.1f}}, kIn, true, Cut::outputs,
               LoraConfig{.rank = kRank, .alpha = 3, .targets = {"wq", "wv"}, .dropout = dropout}) {
    for (Param* p : {linear.weight, linear.bias}) params.freeze(*p);
    params.allocate(ctx, 1);
    params.start_step();
    std::uint32_t site = 0;
    for (Param* p : linear.parameters()) fill(p->var.value, ++site);
    x = {ctx.empty({kTokens, kIn}), std::make_shared<GradSlot>()};
    fill(x.value, 9);
  }
  LayerValues values() const {
    return {values_of(x.value), values_of(linear.weight->var.value), values_of(linear.bias->var.value),
            values_of(linear.adapter->a->var.value), values_of(linear.adapter->b->var.value)};
  }
  ExecContext ctx{Stream::cpu(2)};
  Parameters params;
  Linear linear;
  Var x;
};

TEST(Lora, LayerEqualsItsDefinition) {
  const Layer layer;
  EXPECT_EQ(layer.linear.adapter->a->shape, (Shape{2 * kRank, kIn}));
  EXPECT_EQ(layer.linear.adapter->b->shape, (Shape{4 + 7, kRank}));
  ring::Run run{layer.ctx};
  const Tensor y = layer.linear(run, layer.x).value;
  const Values want = layer_oracle(layer.values());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(y.data<float>()[i], want[i], 2e-6) << i;
}

// The loss is a weighted sum of the outputs. Its derivatives are central differences of the oracle in float64.
TEST(Lora, GradientsEqualFiniteDifferences) {
  const Layer layer;
  Tape tape;
  ring::Run run{.ctx = layer.ctx, .tape = &tape};
  const Var y = layer.linear(run, layer.x);
  const Tensor dy = layer.ctx.empty(y.value.shape());
  fill(dy, 10);
  tape.backward(y.slot, dy, layer.ctx);
  const Values cotangent = values_of(dy);
  const auto loss = [&](const LayerValues& v) {
    const Values out = layer_oracle(v);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += cotangent[i] * out[i];
    return sum;
  };
  const LowRankAdapter& adapter = *layer.linear.adapter;
  for (const auto& [name, member, got] : {std::tuple{"x", &LayerValues::x, layer.x.slot->grad},
                                          {"a", &LayerValues::a, adapter.a->var.slot->grad},
                                          {"b", &LayerValues::b, adapter.b->var.slot->grad}}) {
    LayerValues v = layer.values();
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
  const Layer layer(0.5);
  ring::Run run{.ctx = layer.ctx, .seed = 4, .training = true};
  const Tensor y = layer.linear(run, layer.x).value;
  LayerValues v = layer.values(), zeros = v;
  zeros.b.assign(v.b.size(), 0);
  const Values base = layer_oracle(zeros);
  v.w.assign(v.w.size(), 0), v.bias.assign(v.bias.size(), 0);
  v.x = values_of(dropout_add(run, layer.x, {}, 0.5f, layer.linear.adapter->dropout_site).value);
  EXPECT_GT(std::ranges::count(v.x, 0.0), 5);
  const Values added = layer_oracle(v);
  for (std::size_t i = 0; i < base.size(); ++i) EXPECT_NEAR(y.data<float>()[i], base[i] + added[i], 2e-6) << i;
  ring::Run evaluation{layer.ctx};
  const Values whole = layer_oracle(layer.values());
  const Tensor z = layer.linear(evaluation, layer.x).value;
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(z.data<float>()[i], whole[i], 2e-6) << i;
}

// --- Decoders.
ModelConfig config_with(const std::string& more) {
  ModelConfig c;
  load_config_text(c,
                   "{vocab_size: 37, context: 40, layers: 2, width: 32, heads: 4, kv_heads: 2, init_std: 0.3" +
                       (more.empty() ? "" : ", " + more) + "}",
                   "test");
  return c.resolved();
}

Tensor logits_of(Decoder& model, const ExecContext& ctx) {
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

const std::vector<std::string>& models() {
  static const std::vector<std::string> all = {
      "", "mlp: gelu_tanh, biases: all, norm: layer", "norm_place: sub", "mlp: relu2",
      "mixers: [gated_delta_net, attention], gated_delta_net: {key_heads: 2, key_width: 8}"};
  return all;
}

// Adapters start with B = 0, so the model computes what it computes without them. Once B is not zero, each adapter
// changes the result.
TEST(Lora, NewAdaptersChangeNothing) {
  const ExecContext ctx{Stream::cpu(2)};
  for (const std::string& settings : models()) {
    Decoder plain(config_with(settings)),
        adapted(config_with(settings + (settings.empty() ? "" : ", ") + "lora: {rank: 3}"));
    plain.allocate(ctx, 7);
    adapted.allocate(ctx, 7);
    const Tensor want = logits_of(plain, ctx), got = logits_of(adapted, ctx);
    for (std::int64_t i = 0; i < want.numel(); ++i)
      ASSERT_NEAR(got.data<float>()[i], want.data<float>()[i], 1e-5) << settings << " " << i;
    for (Param* p : adapted.parameters().declared()) {
      if (!p->adapter || !p->parts[0].name.ends_with("lora_b.weight")) continue;
      fill(p->var.value, 11);
      const Tensor changed = logits_of(adapted, ctx);
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
    Decoder model(config_with(settings));
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
  EXPECT_EQ(names(models().back() + ", lora: {rank: 4}").size(), 2u * (10 + 7));
}

TEST(Lora, SettingsAreChecked) {
  const auto problem = [](const std::string& settings) { return error_of([&] { config_with(settings); }); };
  EXPECT_PRED2(contains, problem("lora: {rank: 4, targets: [wq, wqq]}"), "no linear layer 'wqq'");
  EXPECT_PRED2(contains, problem("lora: {rank: 4, targets: [gate], alpha: 3}, mlp: relu2"), "'gate'");
  EXPECT_PRED2(contains, problem("lora: {rank: 4, targets: [wz]}"), "'wz'");
  EXPECT_PRED2(contains, problem("lora: {alpha: 4}"), "rank: 0 makes no adapters");
  EXPECT_PRED2(contains, problem("lora: {rank: -1}"), "lora.rank");
  EXPECT_PRED2(contains, problem("lora: {rank: 4, dropout: .nan}"), "lora.dropout");
  EXPECT_EQ(problem("lora: {rank: 4, targets: [gate, all], dropout: 0.1}"), "");
  EXPECT_EQ(config_with("lora: {rank: 4}").lora.scale(), 2);
  EXPECT_EQ(config_with("lora: {rank: 4, alpha: 2}").lora.scale(), 0.5);
}

}  // namespace
}  // namespace ring
