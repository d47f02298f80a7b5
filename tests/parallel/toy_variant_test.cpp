// A variant of attention is a folder and a line. This one adds a learned linear function of the layer's input to the
// output of its heads. Only this file knows it, and still it trains, resumes, generates, and runs in every layout.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/fields.h"
#include "kernels/elementwise.h"
#include "model/attention/kinds.h"
#include "model/attention_variant.h"
#include "model/decoder.h"
#include "model/patterns.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

class MixedIn final : public AttentionVariant {
 public:
  explicit MixedIn(const VariantSetup& s)
      : linear_(s.at, {{"mixed_in", s.config.heads * s.config.head_dim, 0.1f}}, s.config.width, false, Cut::outputs) {}
  ParamList parameters() const override { return linear_.parameters(); }
  Var attend(AttentionLayerCall& call, const std::function<Var()>& attend) const override {
    const Var mixed = linear_(call.run, call.x);
    return add(call.run, attend(), mixed);
  }
  std::shared_ptr<VariantCache> make_cache(const CacheSetup&) const override;
  Tensor of(const NewTokens& tokens) const { return linear_(tokens.run, tokens.x).value; }

 private:
  Linear linear_;
};

class MixedInCache final : public VariantCache {
 public:
  explicit MixedInCache(const MixedIn& layer) : layer_(layer) {}
  bool decode(const AttentionDecode& args, const NewTokens& tokens) const override {
    attention_decode_kernel(args, tokens.run.ctx);
    const Tensor mixed = layer_.of(tokens), heads = args.out.view(mixed.shape());
    axpby_kernel({.x = mixed, .y = heads, .out = heads, .alpha = 1, .beta = 1}, tokens.run.ctx);
    return true;
  }

 private:
  const MixedIn& layer_;
};

std::shared_ptr<VariantCache> MixedIn::make_cache(const CacheSetup&) const {
  return std::make_shared<MixedInCache>(*this);
}

const AttentionVariantKind kMixedIn{
    .make = [](const VariantSetup& s) -> std::unique_ptr<AttentionVariant> {
      return s.settings.kind == "mixed_in" ? std::make_unique<MixedIn>(s) : nullptr;
    },
    .missing = [](std::int64_t tensors, std::int64_t) { return str("no weights to mix in: ", tensors); },
    .unexpected = [](std::int64_t tensors) { return str("weights to mix in: ", tensors); }};

class DistToyVariant : public testing::Test {
 protected:
  void SetUp() override {
    attention_variants().push_back(&kMixedIn);
    attention_kinds().push_back({.name = "mixed_in",
                                 .keys = "all before it",
                                 .settings = {},
                                 .validate = {},
                                 .pattern = [](const AttentionConfig&, const ModelSizes&) { return Pattern(); },
                                 .text = {}});
  }
  void TearDown() override {
    attention_variants().pop_back();
    attention_kinds().pop_back();
    std::filesystem::remove_all(folder_);
  }
  static TrainingOptions options(int steps, std::vector<std::string> more = {}) {
    TrainingOptions o;
    o.steps = steps;
    o.overrides = {"model.attention.kind=mixed_in", "optimizer.eps=1e-4"};
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  static Training trained(const TrainingOptions& o) {
    Training t = train_on_ranks(o);
    EXPECT_EQ(t.errors, "");
    return t;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-variant-" + std::to_string(getpid()))).string();
};

TEST_F(DistToyVariant, TrainsAndResumes) {
  const Training whole = trained(options(8));
  EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
  EXPECT_TRUE(whole.tensors.contains("model.blocks.1.attention.mixed_in.weight"));
  TrainingOptions half = options(4), rest = options(4);
  half.save = folder_;
  rest.load = trained(half).checkpoint;
  const Training second = trained(rest);
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
}

TEST_F(DistToyVariant, StartsInARunWhoseCheckpointLacksIt) {
  TrainingOptions without = options(2, {"model.attention.kind=dense"}), with = options(1);
  without.save = folder_;
  with.load = trained(without).checkpoint;
  EXPECT_TRUE(trained(with).tensors.contains("model.blocks.0.attention.mixed_in.weight"));
}

TEST_F(DistToyVariant, EveryLayoutComputesWhatOneProcessDoes) {
  const Training one = trained(options(4));
  for (const std::vector<std::string>& layout : {std::vector<std::string>{"parallel.cp=2"},
                                                 {"parallel.tp=2"},
                                                 {"parallel.zero=3", "train.micro_batch=2"},
                                                 {"train.recompute=full", "train.micro_batch=2"}}) {
    TrainingOptions o = options(4, layout);
    o.ranks = 2;
    const Training two = trained(o);
    EXPECT_LT(largest_difference(one, two), 1e-4) << layout[0];
    EXPECT_LT(largest_loss_difference(one, two), 1e-5) << layout[0];
  }
}

TEST_F(DistToyVariant, GeneratesThroughItsCache) {
  const ExecContext ctx{Stream::cpu(2)};
  ModelConfig c = tiny_config().model;
  load_config_text(c, "{vocab_size: 37, attention: {kind: mixed_in}}", "toy");
  Decoder model(c.resolved());
  model.allocate(ctx, 7);
  ring::Run run{ctx};
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const std::int64_t length = std::ssize(ids);
  const Var h = model.hidden(run, from_host(ids, ctx.stream), Sequences::uniform(1, length, ctx));
  const std::vector<float> want = to_host<float>(model.logits(run, h.value), ctx.stream);
  KvCache cache = model.make_cache(1, length, ctx);
  for (std::int64_t from = 0, count = 3; from < length; from += count, count = 1) {
    const std::vector<std::int32_t> part(ids.begin() + from, ids.begin() + from + count);
    const Var last = model.hidden(run, from_host(part, ctx.stream), Sequences::uniform(1, count, ctx, from), cache);
    const std::vector<float> got = to_host<float>(model.logits(run, last.value), ctx.stream);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[static_cast<std::size_t>(from) * 37 + i], 2e-4) << from;
  }
}

}  // namespace
}  // namespace ring::test
