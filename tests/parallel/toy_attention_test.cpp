// A new kind of attention is a file and a name. This one has windows at several scales. Only this file knows it, and
// still it has kernels, training, ranks, generation, pictures and costs.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "comm/gloo/gloo.h"
#include "core/check.h"
#include "core/fields.h"
#include "core/philox.h"
#include "inspect/attention_cost.h"
#include "inspect/attention_picture.h"
#include "kernels/attention/attention.h"
#include "model/attention/kinds.h"
#include "model/decoder.h"
#include "model/flops.h"
#include "model/patterns.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

constexpr std::int64_t kWindow = 5, kScales[] = {1, 3, 10};
constexpr const char* kToy = "{kind: toy, window: 5, rates: [1, 3, 10]}";

AttentionKind toy() {
  return {.name = "toy",
          .keys = "the newest tokens at several scales",
          .settings = {{"window", "tokens that are seen at each scale"},
                       {"rates", "at scale r every r-th token is seen; the first scale is 1"}},
          .validate =
              [](const AttentionConfig& c, std::vector<SettingProblem>& errors) {
                if (c.rates.empty() || c.rates[0] != 1) errors.push_back("rates: kind: toy starts with 1");
              },
          .pattern =
              [](const AttentionConfig& c, const ModelSizes&) {
                Pattern p;
                p.branches.clear();
                for (const std::int64_t rate : c.rates)
                  p.branches.push_back(
                      {.rate = static_cast<std::int32_t>(rate), .window = static_cast<std::int32_t>(c.window)});
                return p;
              },
          .text = {}};
}

// Returns the number of times that token t of a document sees token u, as defined. place: KV head + layer x KV heads.
int times(std::int64_t place, std::int64_t t, std::int64_t u) {
  int scales = 0;
  for (const std::int64_t r : kScales)
    scales += u <= t && t % r == place % r && u % r == place % r && (t - u) / r < kWindow;
  return scales;
}

class DistToyAttention : public testing::Test {
 protected:
  void SetUp() override { attention_kinds().push_back(toy()); }
  void TearDown() override { attention_kinds().pop_back(); }

  static ModelConfig model(std::int64_t context = 128) {
    ModelConfig c = tiny_config().model;
    c.context = context;
    c.init_std = 0.3;
    load_config_text(c, str("attention: ", kToy), "toy");
    return c.resolved();
  }
  static TrainingOptions options(const std::vector<std::string>& more = {}) {
    TrainingOptions o;
    o.steps = 12;
    o.overrides = {"model.context=128",        "train.batch_size=4",       "train.micro_batch=2",
                   "model.attention.kind=toy", "model.attention.window=5", "model.attention.rates=[1,3,10]"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    o.validate = true;
    return o;
  }
};

// --- kernels ---

struct Operands {
  static constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 8;
  std::vector<Span> documents;
  Tensor q, k, v, dout, out, lse, dq, dk, dv;

  Operands(const std::vector<std::int32_t>& offsets, const ExecContext& ctx) : documents(spans_of(offsets, {0})) {
    const std::int64_t n = offsets.back();
    for (Tensor* t : {&q, &dout, &out, &dq}) *t = ctx.empty({n, kHeads, kDim});
    for (Tensor* t : {&k, &v, &dk, &dv}) *t = ctx.empty({n, kKvHeads, kDim});
    lse = ctx.empty({kHeads, n});
    std::uint32_t salt = 0;
    for (const Tensor& t : {q, k, v, dout}) {
      for (std::int64_t i = 0; i < t.numel(); ++i)
        t.data<float>()[i] =
            static_cast<float>(random_bits({3, salt, 1}, static_cast<std::uint64_t>(i)) % 2001) / 1000 - 1;
      ++salt;
    }
  }
  static const float* row(const Tensor& t, std::int64_t n, std::int64_t h) {
    return t.data<float>() + (n * t.dim(1) + h) * kDim;
  }
};

double dot(const float* a, const float* b) {
  double sum = 0;
  for (std::int64_t i = 0; i < Operands::kDim; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

using Values = std::vector<double>;
struct Results {
  Values out, dq, dk, dv;
};

// Adds the result of one query of one head, as defined.
void attend(const Operands& x, const Span& s, std::int64_t layer, std::int64_t h, std::int64_t t, double scale,
            Results& to) {
  const std::int64_t kv = h * Operands::kKvHeads / Operands::kHeads, n = s.first + t;
  const float *q = x.row(x.q, n, h), *dout = x.row(x.dout, n, h);
  Values p(static_cast<std::size_t>(t + 1));
  double sum = 0, delta = 0;
  for (std::int64_t u = 0; u <= t; ++u)
    sum += p[u] = times(kv + layer * Operands::kKvHeads, t, u) * std::exp(scale * dot(q, x.row(x.k, s.first + u, kv)));
  for (std::int64_t u = 0; u <= t; ++u) delta += (p[u] /= sum) * dot(dout, x.row(x.v, s.first + u, kv));
  for (std::int64_t u = 0; u <= t; ++u) {
    const float *k = x.row(x.k, s.first + u, kv), *v = x.row(x.v, s.first + u, kv);
    const double ds = scale * p[u] * (dot(dout, v) - delta);
    for (std::int64_t i = 0; i < Operands::kDim; ++i) {
      const auto query = static_cast<std::size_t>((n * Operands::kHeads + h) * Operands::kDim + i);
      const auto key = static_cast<std::size_t>(((s.first + u) * Operands::kKvHeads + kv) * Operands::kDim + i);
      to.out[query] += p[u] * v[i], to.dq[query] += ds * k[i];
      to.dk[key] += ds * q[i], to.dv[key] += p[u] * dout[i];
    }
  }
}

double error(const Tensor& got, const Values& want) {
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i) {
    difference += std::pow(got.data<float>()[i] - want[static_cast<std::size_t>(i)], 2);
    norm += std::pow(want[static_cast<std::size_t>(i)], 2);
  }
  return std::sqrt(difference / norm);
}

TEST_F(DistToyAttention, KernelsComputeItsDefinition) {
  const ExecContext ctx{Stream::cpu(2)};
  const double scale = 0.5;
  for (std::int64_t layer : {0, 1}) {
    const Operands x({0, 90, 91, 150, 290}, ctx);  // one packed row of independent documents
    const Pattern pattern = pattern_of(model(), layer);
    attention_kernel(Attention{.q = x.q,
                               .k = x.k,
                               .v = x.v,
                               .out = x.out,
                               .lse = x.lse,
                               .queries = x.documents,
                               .keys = x.documents,
                               .scale = static_cast<float>(scale),
                               .pattern = pattern},
                     ctx);
    attention_backward_kernel(AttentionBackward{.q = x.q,
                                                .k = x.k,
                                                .v = x.v,
                                                .out = x.out,
                                                .lse = x.lse,
                                                .dout = x.dout,
                                                .dq = x.dq,
                                                .dk = x.dk,
                                                .dv = x.dv,
                                                .queries = x.documents,
                                                .keys = x.documents,
                                                .scale = static_cast<float>(scale),
                                                .pattern = pattern},
                              ctx);
    const auto wide = static_cast<std::size_t>(x.q.numel()), narrow = static_cast<std::size_t>(x.k.numel());
    Results want{Values(wide), Values(wide), Values(narrow), Values(narrow)};
    for (const Span& s : x.documents)
      for (std::int64_t h = 0; h < Operands::kHeads; ++h)
        for (std::int64_t t = 0; t < s.count; ++t) attend(x, s, layer, h, t, scale, want);
    EXPECT_LT(error(x.out, want.out), 1e-6);
    EXPECT_LT(error(x.dq, want.dq), 2e-6);
    EXPECT_LT(error(x.dk, want.dk), 2e-6);
    EXPECT_LT(error(x.dv, want.dv), 2e-6);
  }
}

// --- the decoder ---

std::vector<std::int32_t> ids(std::int64_t count) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<std::int32_t>(random_bits({9, 4, 1}, static_cast<std::uint64_t>(i)) % 257));
  return out;
}

TEST_F(DistToyAttention, TheFutureDoesNotLeak) {
  const ExecContext ctx{Stream::cpu(2)};
  const ModelConfig c = model();
  Decoder decoder(c);
  decoder.allocate(ctx, 7);
  ring::Run run{ctx};
  std::vector<std::int32_t> tokens = ids(c.context);
  const auto logits = [&] {
    const Var h = decoder.hidden(run, from_host(tokens, ctx.stream), Sequences::uniform(1, c.context, ctx));
    return to_host<float>(decoder.logits(run, h.value).view({-1}), ctx.stream);
  };
  const std::vector<float> before = logits();
  for (const std::int64_t changed : {0, 1, 30, 64, 127}) {
    tokens[static_cast<std::size_t>(changed)] ^= 1;
    const std::vector<float> after = logits();
    tokens[static_cast<std::size_t>(changed)] ^= 1;
    const auto same = static_cast<std::size_t>(changed) * (before.size() / static_cast<std::size_t>(c.context));
    EXPECT_EQ(std::memcmp(before.data(), after.data(), same * sizeof(float)), 0) << changed;
    EXPECT_NE(std::vector<float>(before.begin() + static_cast<std::ptrdiff_t>(same), before.end()),
              std::vector<float>(after.begin() + static_cast<std::ptrdiff_t>(same), after.end()));
  }
}

TEST_F(DistToyAttention, TheCacheGivesTheLogitsOfWholePasses) {
  const ExecContext ctx{Stream::cpu(2)};
  const ModelConfig c = model();
  Decoder decoder(c);
  decoder.allocate(ctx, 7);
  ring::Run run{ctx};
  const std::vector<std::int32_t> tokens = ids(c.context);
  const Var h = decoder.hidden(run, from_host(tokens, ctx.stream), Sequences::uniform(1, c.context, ctx));
  const Tensor want = decoder.logits(run, h.value);
  KvCache cache = decoder.make_cache(1, c.context, ctx);
  for (const LayerCache& layer : cache.layers) EXPECT_EQ(layer.token_rows, 4 * 10 + 1);  // reach of the widest scale
  for (std::int64_t from = 0, count = 17; from < c.context; from += count, count = 1) {
    const std::vector<std::int32_t> part(tokens.begin() + from, tokens.begin() + from + count);
    const Var last = decoder.hidden(run, from_host(part, ctx.stream), Sequences::uniform(1, count, ctx, from), cache);
    const Tensor got = decoder.logits(run, last.value);
    const std::int64_t width = got.dim(1);
    for (std::int64_t i = 0; i < count * width; ++i)
      ASSERT_NEAR(got.data<float>()[i], want.data<float>()[from * width + i], 2e-4) << "token " << from + i / width;
  }
}

// --- training ---

TEST_F(DistToyAttention, Trains) {
  const Training t = train_on_ranks(options());
  ASSERT_EQ(t.errors, "");
  EXPECT_LT(t.losses.back(), t.losses.front() - 0.05);
  const Training dense =
      train_on_ranks(options({"model.attention.kind=dense", "model.attention.window=0", "model.attention.rates=[]"}));
  ASSERT_EQ(dense.errors, "");
  EXPECT_NE(t.losses.back(), dense.losses.back());
}

TEST_F(DistToyAttention, IsShardedAmongRanksLikeAnyOther) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Training alone = train_on_ranks(options());
  ASSERT_EQ(alone.errors, "");
  for (const std::vector<std::string>& cut : std::vector<std::vector<std::string>>{
           {"parallel.cp=2", "parallel.cp_schedule=ring"},
           {"parallel.cp=2", "parallel.cp_schedule=ring", "parallel.cp_layout=zigzag"},
           {"parallel.cp=2", "parallel.cp_schedule=gather"},
           {"parallel.cp=2", "parallel.cp_schedule=all_to_all"},
           {"parallel.tp=2"}}) {
    TrainingOptions o = options(cut);
    o.ranks = 2;
    const Training two = train_on_ranks(o);
    ASSERT_EQ(two.errors, "") << cut.back();
    EXPECT_LE(largest_loss_difference(alone, two), 2e-5) << cut.back();
    EXPECT_LE(largest_difference(alone, two), 5e-3) << cut.back();
    EXPECT_LE(std::abs(alone.validation - two.validation), 2e-5 * alone.validation) << cut.back();
  }
}

// --- pictures and costs ---

TEST_F(DistToyAttention, IsDrawnAndCounted) {
  constexpr std::int64_t kLength = 200;
  const ModelConfig c = model(kLength);
  double of_layers = 0;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const Pattern pattern = pattern_of(c, layer);
    double pairs = 0, repeated = 0;
    for (std::int32_t head = 0; head < c.kv_heads; ++head) {
      PairCells want(kLength, 64);
      const PairCells got = cells_of(pattern, head, kLength, 64);
      for (std::int64_t t = 0; t < kLength; ++t)
        for (std::int64_t u = 0; u <= t; ++u) {
          const int n = times(head + layer * c.kv_heads, t, u);
          want.kept(t / want.size(), u / want.size()) += n > 0;
          pairs += n, repeated += n > 1;
        }
      for (std::int64_t i = 0; i < want.side(); ++i)
        for (std::int64_t j = 0; j <= i; ++j) ASSERT_EQ(got.kept(i, j), want.kept(i, j)) << i << " " << j;
      EXPECT_NE(text_picture(got, 60).find("░"), std::string::npos);
    }
    const PatternCost cost = cost_of(pattern, c.kv_heads, kLength);
    EXPECT_EQ(cost.pairs, pairs / static_cast<double>(c.kv_heads));
    EXPECT_EQ(cost.repeated, repeated / static_cast<double>(c.kv_heads));
    ASSERT_EQ(cost.parts.size(), std::size(kScales));
    EXPECT_EQ(cost.parts[0].name, "all/10 window 5");
    of_layers += cost.pairs;
  }
  EXPECT_EQ(attention_pairs(c), of_layers);
  EXPECT_EQ(text_of(c.attention), "toy, window 5, rates [1, 3, 10]");
}

// --- settings ---

std::string refused(const std::string& attention) {
  ModelConfig c;
  try {
    load_config_text(c, "attention: " + attention, "test");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST_F(DistToyAttention, ItsSettingsAreExplainedAndChecked) {
  EXPECT_EQ(refused(kToy), "");
  EXPECT_NE(refused("{kind: toy, window: 5}").find("kind: toy starts with 1"), std::string::npos);
  EXPECT_NE(refused("{kind: toy, rates: [1], sinks: 2}").find("sinks: 2 applies to kind: window"), std::string::npos);
  EXPECT_NE(refused("{rates: [1]}").find("rates: [1] applies to kind: dilated and toy"), std::string::npos);
  EXPECT_NE(refused("{kind: toi}").find("toy"), std::string::npos);
  const auto without_blanks = [](std::string text) {  // the reference has line breaks
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
  };
  const std::string reference = without_blanks(describe_config<ModelConfig>());
  for (const char* part : {"`toy`", "blocks, or the newest tokens at several scales",
                           "token itself; toy: tokens that are seen at each scale"})
    EXPECT_NE(reference.find(without_blanks(part)), std::string::npos) << part;
}

}  // namespace
}  // namespace ring::test
