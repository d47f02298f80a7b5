// A new architecture is a class and a name. This one computes attention and MLP from the same norm (Wang and
// Komatsuzaki 2021, GPT-J). Only this file knows it, and still it trains, resumes, and runs on several ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <filesystem>

#include "core/check.h"
#include "core/fields.h"
#include "kernels/matmul.h"
#include "model/architectures.h"
#include "model/attention_layer.h"
#include "model/ffn.h"
#include "model/patterns.h"
#include "model/rope.h"
#include "model/scopes.h"
#include "tests/parallel/training.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

struct Block {
  Block(const ParamPrefix& at, const ModelConfig& c, std::int64_t layer, const Pattern& pattern, const Tensor& inv_freq)
      : norm(at.child("norm"), c.width, c),
        attention(at.child("attention"), c, layer, pattern, inv_freq, 0),
        mlp(at.child("mlp"), c) {}

  Norm norm;
  AttentionLayer attention;
  FeedForward mlp;
};

class ParallelBlocks final : public Model {
 public:
  ParallelBlocks(const ModelConfig& config, std::int64_t vocab_padding) : config_(config.resolved()) {
    const ParamPrefix root{params_, ""};
    const Init normal{Init::Kind::normal, static_cast<float>(config_.init_std)};
    tokens_ = &params_.add({{"embedding.tokens.weight", 0, config_.vocab_size, normal}}, config_.width,
                           {.cut = Cut::outputs, .row_multiple = vocab_padding});
    tokens_->table = true;
    const std::vector<Pattern> patterns = patterns_of(config_);
    for (std::int64_t i = 0; i < config_.layers; ++i)
      blocks_.emplace_back(root.child("blocks." + std::to_string(i)), config_, i, patterns[static_cast<std::size_t>(i)],
                           inv_freq_);
    final_norm_.emplace(root.child("final_norm"), config_.width, config_);
  }

  const ModelConfig& config() const override { return config_; }
  std::vector<ModelPart> parts() const override {
    std::vector<ModelPart> out{{{scopes::embedding}, {tokens_}}};
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      ParamList all = blocks_[i].norm.parameters();
      all += blocks_[i].attention.parameters();
      out.push_back({block_scope(static_cast<std::int64_t>(i)), all += blocks_[i].mlp.parameters()});
    }
    out.push_back({{scopes::final_norm}, final_norm_->parameters()});
    out.push_back({{scopes::loss_head}, {tokens_}});
    return out;
  }
  std::vector<Param*> vocab_tables() const override { return {tokens_}; }
  void allocate_constants(const ExecContext& ctx) override {
    inv_freq_ = from_host(rope_frequencies(config_.rope, config_.head_dim), ctx.stream, Lifetime::run);
  }

  Var hidden(Run& run, const Tensor& ids, const Sequences& seqs) const override {
    Var x = embed(run, ids);
    ForwardPass pass(blocks_.size());
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const ScopeGuard scope = run.enter(block_scope(static_cast<std::int64_t>(i)));
      const Block& b = blocks_[i];
      const Var in = b.norm(run, x);
      x = b.mlp(run, in, b.attention(run, in, seqs, x, pass));
    }
    const ScopeGuard scope = run.enter({scopes::final_norm});
    return (*final_norm_)(run, x);
  }
  Var hidden(Run&, const Tensor&, const Sequences&, KvCache&) const override { fail("parallel blocks have no cache"); }
  LossOutput loss(Run& run, const Tensor& ids, const Sequences& seqs, LossHead head) const override {
    head.vocab = config_.vocab_size;
    const Var x = hidden(run, ids, seqs);
    const ScopeGuard scope = run.enter({scopes::loss_head});
    return cross_entropy_head(run, x, tokens_->var, head);
  }
  Tensor logits(Run&, const Tensor&) const override { fail("parallel blocks have no logits"); }
  void set_activations(const ActivationPlan& plan, SavedTensorHooks*) override {
    for (const BlockPlan& b : plan.blocks) RING_CHECK(b == BlockPlan{}, "parallel blocks save all activations");
  }
  void set_mlp_chunk(std::int64_t rows) override { RING_CHECK(rows == 0, "parallel blocks have no chunks"); }

 private:
  Var embed(Run& run, const Tensor& ids) const {
    const ScopeGuard scope = run.enter({scopes::embedding});
    return vocab_parallel_embedding(run, ids, tokens_->var);
  }
  void on_shard() override {
    const Slice& slice = params_.slice();
    const std::int64_t kv_heads = config_.kv_heads / slice.size;
    const KvHeads own{slice.rank * kv_heads, kv_heads};
    const std::vector<Pattern> patterns = patterns_of(config_, own);
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      blocks_[i].attention.restrict_to_heads(config_.heads / slice.size, own, patterns[i]);
  }

  ModelConfig config_;
  Tensor inv_freq_;
  Param* tokens_;
  std::deque<Block> blocks_;
  std::optional<Norm> final_norm_;
};

class DistToyArchitecture : public testing::Test {
 protected:
  void SetUp() override {
    add_architecture("parallel_blocks", [](const ModelConfig& c, std::int64_t padding) {
      return std::make_unique<ParallelBlocks>(c, padding);
    });
  }
  void TearDown() override {
    remove_architecture("parallel_blocks");
    std::filesystem::remove_all(folder_);
  }
  static TrainingOptions options(int steps, std::vector<std::string> more = {}) {
    TrainingOptions o;
    o.steps = steps;
    o.overrides = {"model.architecture=parallel_blocks", "train.recompute=none", "train.mlp_chunk=0",
                   "optimizer.eps=1e-4"};  // AdamW makes large updates from gradients of pure rounding errors
    o.overrides.insert(o.overrides.end(), more.begin(), more.end());
    return o;
  }
  const std::string folder_ =
      (std::filesystem::temp_directory_path() / ("ringmaster-architecture-" + std::to_string(getpid()))).string();
};

TEST_F(DistToyArchitecture, TrainsAndResumes) {
  TrainingOptions whole_run = options(8);
  whole_run.validate = true;
  const Training whole = train_on_ranks(whole_run);
  ASSERT_EQ(whole.errors, "");
  EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.05);
  EXPECT_LT(whole.validation, whole.losses.front());
  EXPECT_TRUE(whole.tensors.contains("model.blocks.1.norm.weight"));
  EXPECT_FALSE(whole.tensors.contains("model.blocks.1.mlp_norm.weight")) << "it is the decoder";
  TrainingOptions half = options(4);
  half.save = folder_;
  const Training first = train_on_ranks(half);
  ASSERT_EQ(first.errors, "");
  TrainingOptions rest = options(4);
  rest.load = first.checkpoint;
  const Training second = train_on_ranks(rest);
  ASSERT_EQ(second.errors, "");
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end()));
  EXPECT_EQ(second.tensors, whole.tensors);
}

TEST_F(DistToyArchitecture, TwoRanksComputeWhatOneDoes) {
  const Training alone = train_on_ranks(options(4));
  ASSERT_EQ(alone.errors, "");
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"parallel.cp=2"}, std::vector<std::string>{"parallel.tp=2"},
        std::vector<std::string>{"parallel.zero=3", "train.micro_batch=2"}}) {
    TrainingOptions o = options(4, layout);
    o.ranks = 2;
    const Training two = train_on_ranks(o);
    ASSERT_EQ(two.errors, "") << layout[0];
    EXPECT_LT(largest_difference(alone, two), 1e-4) << layout[0];
    EXPECT_LT(largest_loss_difference(alone, two), 1e-5) << layout[0];
  }
}

TEST_F(DistToyArchitecture, IsNamedIfTheKindIsUnknown) {
  Config config = tiny_config();
  try {
    override_config(config, {"model.architecture=parallel_block"});
    FAIL() << "taken";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("parallel_blocks"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ring::test
