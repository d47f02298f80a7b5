// Gated delta net layers: outputs and gradients as in Hugging Face's transformers, generation from the state, settings.
#include "model/gated_delta_net.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/checked.h"
#include "core/fields.h"
#include "model/decoder.h"
#include "model/flops.h"
#include "tests/error_of.h"

namespace ring {
namespace {

// --- The reference of tests/weights/gated_delta_net.py.
struct ExpectedGradient {
  std::string parameter;   // its name in transformers
  double product, length;  // dot product with a fixed vector; L2 norm
};
const std::vector<ExpectedGradient> kGradients = {
    {"x", -31.10669, 86.268195},         {"in_proj_qkv", -27.18874, 317.89407}, {"conv1d", 12.94638, 161.90668},
    {"in_proj_a", -40.90445, 18.118039}, {"in_proj_b", -44.67501, 33.882381},   {"A_log", -8.376679, 7.2891261},
    {"dt_bias", -8.755248, 7.5039099},   {"in_proj_z", 50.81185, 115.95596},    {"norm", -29.62506, 26.446078},
    {"out_proj", -122.2197, 207.51538}};
const std::vector<std::pair<std::int64_t, std::array<double, 4>>> kOutputs = {
    {0, {-0.06388085, -0.1912391, -0.02326455, -0.1000021}},
    {1, {0.09993102, 0.3117024, 0.1653689, 0.1313635}},
    {63, {0.01179896, -0.3558235, -0.1068191, 0.3314913}},
    {64, {-0.05612273, -1.414088, 0.6101655, 1.153394}},
    {149, {0.2818805, 0.3942336, 0.6833898, -0.2814549}}};
constexpr std::int64_t kReferenceTokens = 150, kReferenceWidth = 24;

double reference_value(int site, std::int64_t i, double scale = 1, double offset = 0) {
  return offset + scale * std::sin(0.7 * static_cast<double>(i + 1) + site + 0.013 * std::pow(i % 91, 2));
}
void fill(const Tensor& t, std::int64_t from, int site, double scale = 1, double offset = 0) {
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.data<float>()[i] = static_cast<float>(reference_value(site, from + i, scale, offset));
}

ModelConfig reference_config() {
  ModelConfig c;
  c.vocab_size = 10, c.width = kReferenceWidth, c.norm_eps = 1e-6, c.layers = 1;
  c.mixers = {Mixer::gated_delta_net};
  c.gated_delta_net = {.key_heads = 2, .value_heads = 4, .key_width = 8, .value_width = 16};
  return c.resolved();
}

struct WeightFormula {
  std::size_t param;  // index in GatedDeltaNet::parameters()
  std::int64_t first, rows;
  int site;
  double scale, offset = 0;
};
// a and b share one matrix here, but are two matrices in transformers.
const std::vector<WeightFormula> kWeights = {{0, 0, 96, 0, 0.3}, {1, 0, 384, 1, 0.5},   {2, 0, 4, 2, 0.3},
                                             {2, 4, 4, 3, 0.3},  {3, 0, 4, 4, 0.5},     {4, 0, 4, 5, 1, -2},
                                             {5, 0, 64, 6, 0.3}, {6, 0, 16, 7, 0.2, 1}, {7, 0, 24, 8, 0.2}};

TEST(GatedDeltaNet, EqualsTransformers) {
  const ExecContext ctx{Stream::cpu(2)};
  Parameters params;
  const GatedDeltaNet net({params, ""}, reference_config(), 0);
  params.allocate(ctx, 1);
  params.start_step();
  const ParamList list = net.parameters();
  for (const WeightFormula& w : kWeights)
    fill(list.at(w.param)->var.value.narrow(0, w.first, w.rows), 0, w.site, w.scale, w.offset);
  Tape tape;
  ring::Run run{.ctx = ctx, .tape = &tape};
  const Var x{ctx.empty({kReferenceTokens, kReferenceWidth}), std::make_shared<GradSlot>()};
  fill(x.value, 0, 20);
  ForwardPass pass(1);
  const Var y = net(run, x, Sequences::uniform(1, kReferenceTokens, ctx), {}, pass);
  for (const auto& [token, values] : kOutputs)
    for (std::int64_t c = 0; c < 4; ++c)
      EXPECT_NEAR(y.value.data<float>()[token * kReferenceWidth + c], values[static_cast<std::size_t>(c)], 2e-5)
          << token;
  const Tensor cotangent = ctx.empty(y.value.shape());
  fill(cotangent, 0, 21);
  tape.backward(y.slot, cotangent, ctx);
  std::vector<Tensor> gradients = {x.slot->grad};
  for (const WeightFormula& w : kWeights)
    gradients.push_back(list.at(w.param)->var.slot->grad.narrow(0, w.first, w.rows));
  for (std::size_t i = 0; i < kGradients.size(); ++i) {
    double product = 0, squares = 0;
    for (std::int64_t e = 0; e < gradients[i].numel(); ++e) {
      const double g = gradients[i].data<float>()[e];
      product += g * reference_value(30, e);
      squares += g * g;
    }
    EXPECT_NEAR(product, kGradients[i].product, 2e-5 * kGradients[i].length) << kGradients[i].parameter;
    EXPECT_NEAR(std::sqrt(squares), kGradients[i].length, 2e-5 * kGradients[i].length) << kGradients[i].parameter;
  }
}

// --- Decoders.
ModelConfig hybrid(const std::string& mixers) {
  ModelConfig c;
  load_config_text(
      c,
      "{vocab_size: 37, context: 100, layers: 4, width: 32, heads: 4, kv_heads: 2, init_std: 0.3, mixers: " + mixers +
          ", gated_delta_net: {key_heads: 2, value_heads: 4, key_width: 12, value_width: 8}}",
      "test");
  return c.resolved();
}

Tensor ids_of(const ExecContext& ctx, const std::vector<std::int32_t>& ids) { return from_host(ids, ctx.stream); }

// Generates from two texts in one batch, the second 3 tokens shorter: the prompt in one call, then token by token.
TEST(GatedDeltaNet, GeneratesWhatAWholePassPredicts) {
  for (const char* mixers : {"[gated_delta_net, gated_delta_net, gated_delta_net, attention]", "[gated_delta_net]"})
    for (const std::int32_t prompt : {4, 70}) {
      const ExecContext ctx{Stream::cpu(2)};
      Decoder model(hybrid(mixers));
      model.allocate(ctx, 7);
      const std::int32_t length = prompt + 6;
      std::vector<std::int32_t> text;
      for (std::int32_t i = 0; i < length; ++i) text.push_back(i * 17 % 37);
      ring::Run run{ctx};
      const Tensor want =
          model.logits(run, model.hidden(run, ids_of(ctx, text), Sequences::uniform(1, length, ctx)).value);
      KvCache cache = model.make_cache(2, length, ctx);
      const auto feed = [&](std::int32_t first, std::int32_t end, std::int32_t shorter) {
        std::vector<std::int32_t> ids(text.begin() + first, text.begin() + end), positions;
        ids.insert(ids.end(), text.begin() + std::max(0, first - shorter), text.begin() + end - shorter);
        const std::int32_t long_count = end - first, count = narrow<std::int32_t>(std::ssize(ids));
        for (std::int32_t i = 0; i < count; ++i)
          positions.push_back(i < long_count ? first + i : cache.lengths[1] + i - long_count);
        const Sequences seqs{.offsets = {0, long_count, count}, .positions = ids_of(ctx, positions)};
        const Tensor got = model.logits(run, model.hidden(run, ids_of(ctx, ids), seqs, cache).value);
        for (const auto& [row, token] : {std::pair{long_count - 1, end - 1}, {count - 1, end - shorter - 1}})
          for (std::int64_t c = 0; c < 37; ++c)
            EXPECT_NEAR(got.data<float>()[row * 37 + c], want.data<float>()[token * 37 + c], 2e-4)
                << mixers << " token " << token;
      };
      feed(0, prompt, 3);
      for (std::int32_t t = prompt; t < length; ++t) feed(t, t + 1, 3);
    }
}

TEST(GatedDeltaNet, CountsItsFlops) {
  const ModelConfig c = hybrid("[gated_delta_net]");
  const double matrices = 32 * (2 * 24 + 3 * 32 + 2 * 4) + 3 * 32 * static_cast<double>(c.mlp_width),
               conv = 4 * (2 * 24 + 32), states = 4 * 12 * 8;
  for (const double flops : block_flops_per_token(c)) EXPECT_EQ(flops, 6 * (matrices + conv) + 18 * states);
  EXPECT_EQ(attention_pairs(c), 0);
  EXPECT_EQ(attention_pairs(hybrid("[gated_delta_net, attention]")) * 2, attention_pairs(hybrid("[attention]")));
}

// The initial decay rates are in [1, 16], and the initial steps in about [0.001, 0.1].
TEST(GatedDeltaNet, StartsWithSpreadDecays) {
  const ExecContext ctx{Stream::cpu(1)};
  ModelConfig c = hybrid("[gated_delta_net]");
  c.layers = 1;
  c.gated_delta_net.key_heads = c.gated_delta_net.value_heads = 200;
  Decoder model(c);
  model.allocate(ctx, 7);
  for (const auto& [name, low, high] :
       {std::tuple{"log_decay", 0.0, std::log(16.0)}, {"dt_bias", std::log(0.001), std::log(0.1)}}) {
    double least = 100, most = -100;
    for (const Param* p : model.parameters().layout())
      if (p->parts[0].name == std::string("blocks.0.gated_delta_net.") + name)
        for (std::int64_t i = 0; i < 200; ++i) {
          least = std::min<double>(least, p->var.value.data<float>()[i]);
          most = std::max<double>(most, p->var.value.data<float>()[i]);
        }
    EXPECT_TRUE(low <= least && least < low + 0.1 * (high - low)) << name << " " << least;
    EXPECT_TRUE(high - 0.1 * (high - low) < most && most <= high) << name << " " << most;
  }
}

// --- Settings.
// Returns the first problem of the settings, even if it is only a setting without effect.
std::string error_with(const std::string& settings) {
  ModelConfig c;
  const std::string refused = error_of(
      [&] { load_config_text(c, "{vocab_size: 37, layers: 4, width: 32, heads: 4, " + settings + "}", "test"); });
  std::vector<SettingProblem> problems;
  c.validate(problems);
  return problems.empty() || !refused.empty() ? refused : problems[0].text;
}

TEST(GatedDeltaNet, RefusesSettingsByName) {
  const std::string mixers = "mixers: [gated_delta_net, attention], ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"gated_delta_net: {key_heads: 2}", "gated_delta_net: has no effect"},
      {mixers + "gated_delta_net: {key_heads: 4, value_heads: 6}",
       "gated_delta_net.value_heads: 6 is not a multiple of key_heads = 4. Use 8"},
      {mixers + "gated_delta_net: {conv_kernel: 1}", "gated_delta_net.conv_kernel"},
      {mixers + "attention_layers: [{layers: \"1,2\", attention: {kind: window, window: 8}}]",
       "attention_layers[0].layers: layer 2 is a gated delta net"},
      {mixers + "rope_layers: [{layers: \"0-1\", rope: {theta: 5}}]",
       "rope_layers[0].layers: layer 0 is a gated delta net (model.mixers) and has no attention"},
      {mixers + "attention: {kind: block_sparse, rules: [{pattern: importance, keep: 4}]}",
       "pattern: importance does not support gated delta nets"},
      {mixers + "attention: {kind: block_sparse, rules: [{pattern: content, keep: 4}], layers_per_selection: 2}",
       "layers_per_selection: 2 shares selections between adjacent attention layers"}};
  for (const auto& [settings, message] : cases)
    EXPECT_NE(error_with(settings).find(message), std::string::npos) << settings << ": " << error_with(settings);
  EXPECT_EQ(error_with(mixers + "attention_layers: [{layers: \"1,3\", attention: {kind: window, window: 8}}]"), "");
  EXPECT_EQ(error_with(mixers + "rope_layers: [{layers: \"1,3\", rope: {theta: 5}}]"), "");
}

TEST(GatedDeltaNet, SettingsOfAttentionNeedAttention) {
  for (const std::string setting : {"qk_norm: true", "learned_sinks: true", "attention_scale: 2",
                                    "attention_output_gate: true", "attention_soft_cap: 5", "attention_dropout: 0.1"}) {
    const std::string key = setting.substr(0, setting.find(':')), error = key + ": has no effect, because all layers";
    EXPECT_EQ(error_with(setting + ", mixers: [gated_delta_net]").find(error), 0u) << setting;
    EXPECT_EQ(error_with(setting + ", mixers: [gated_delta_net, attention]"), "") << setting;
  }
}

TEST(GatedDeltaNet, ZerosStandForTheSizesOfAttention) {
  ModelConfig c;
  c.heads = 8, c.head_dim = 24, c.mixers = {Mixer::gated_delta_net};
  const GatedDeltaNetConfig g = c.resolved().gated_delta_net;
  EXPECT_EQ(g.key_heads, 8);
  EXPECT_EQ(g.value_heads, 8);
  EXPECT_EQ(g.key_width, 24);
  EXPECT_EQ(g.value_width, 24);
}

}  // namespace
}  // namespace ring
