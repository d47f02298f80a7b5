// Training on pairs of answers: the loss of a step against its definition, its gradient against finite differences,
// resuming, and every layout against one process.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "comm/mesh/mesh.h"
#include "core/fields.h"
#include "core/host_tensor.h"
#include "core/philox.h"
#include "data/token_store.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "tests/parallel/one_process.h"
#include "tests/trainer/tiny.h"
#include "text/tokenizer.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

// Pairs of answers with 1 to 20 tokens after prompts with 3 to 14 tokens.
class PairCorpus {
 public:
  PairCorpus() : folder_(fs::temp_directory_path() / str("ringmaster-pairs-", getpid())) {
    fs::create_directories(folder_);
    TokenStoreWriter writer(path(), 257, true);
    for (const Split split : {Split::train, Split::validation})
      for (std::uint64_t pair = 0; pair < (split == Split::train ? 60 : 12); ++pair)
        for (const std::uint64_t answer : {0, 1}) {
          writer.begin_document(split);
          writer.append(split, tokens(3 + random_bits({7, 0, 0}, pair) % 12, pair * pair), false);
          writer.append(split, tokens(1 + random_bits({8, 0, 0}, 2 * pair + answer) % 20, 100 * answer + pair % 5));
        }
    writer.finish(*bytes_tokenizer(), str("a test", kPairsInSource, "tokens"));
  }
  ~PairCorpus() { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "pairs.h5").string(); }

 private:
  static std::vector<std::int32_t> tokens(std::uint64_t n, std::uint64_t first) {
    std::vector<std::int32_t> all(n);
    for (std::size_t i = 0; i < n; ++i) all[i] = static_cast<std::int32_t>((first + 3 * i) % 257);
    return all;
  }
  fs::path folder_;
};

Overrides overrides(const Overrides& more) {
  static const PairCorpus corpus;
  Overrides all = {"data.path=" + corpus.path(),
                   "data.packing={documents: true, best_fit: 16}",
                   "model.context=128",
                   "model.heads=8",
                   "model.kv_heads=4",
                   "model.head_dim=8",
                   "train.batch_size=4",
                   "train.micro_batch=2",
                   "preference={loss: dpo, beta: 0.5}"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A trainer in this process, whose step can be looked into.
struct OneTrainer {
  explicit OneTrainer(const Overrides& more)
      : mesh(mesh_of_one()),
        config(resolve_config(settings(more), 257, *mesh)),
        ctx(make_exec_context(config)),
        loader(open_corpora(config.data), loader_options(config, *mesh)),
        trainer(config, ctx, *mesh, loader) {}
  static Config settings(const Overrides& more) {
    Config c = tiny_config();
    c.run.threads = 1;
    c.data.prefetch = 0;
    c.schedule.warmup_steps = 1;
    override_config(c, overrides(more));
    return c;
  }
  // Returns the sum of the log-probabilities of the targets of each document in the batch, each computed alone.
  std::vector<AnswerScore> scores(const Batch& b) {
    std::vector<AnswerScore> all;
    for (std::size_t d = 0; d < b.starts.size(); ++d) {
      const auto part = [&](const std::vector<std::int32_t>& of) {
        return from_host(std::vector(of.begin() + b.starts[d], of.begin() + b.starts[d] + b.lengths[d]), ctx.stream);
      };
      ring::Run run{.ctx = ctx};
      LossHead head;
      head.targets = part(b.targets);
      const LossOutput out = trainer.model().loss(run, part(b.inputs), Sequences::uniform(1, b.lengths[d], ctx), head);
      AnswerScore score;
      for (const float loss : to_host<float>(out.token_loss, ctx.stream))
        score.log_probability -= static_cast<double>(loss), score.targets += loss != 0;
      all.push_back(score);
    }
    return all;
  }
  std::vector<Batch> next_batches() {
    Loader other(open_corpora(config.data), loader_options(config, *mesh),
                 static_cast<std::uint64_t>(trainer.next_sample()));
    return {other.next(), other.next()};
  }

  std::unique_ptr<Mesh> mesh;
  Config config;
  ExecContext ctx;
  Loader loader;
  Trainer trainer;
};

// The first step has a margin of 0. The second one has the margins by which the weights have changed.
TEST(DistPreference, LossEqualsItsDefinition) {
  OneTrainer one({"optimizer.lr=3e-3"});
  OneTrainer initial({});
  EXPECT_NEAR(one.trainer.step().loss, std::log(2), 1e-6);
  double loss = 0, chosen = 0, rejected = 0, correct = 0, pairs = 0;
  for (const Batch& b : one.next_batches()) {
    const std::vector<AnswerScore> now = one.scores(b), before = initial.scores(b);
    ASSERT_EQ(now.size(), b.documents.size());
    for (std::size_t d = 0; d < now.size(); d += 2, ++pairs) {
      const double c = 0.5 * (now[d].log_probability - before[d].log_probability),
                   r = 0.5 * (now[d + 1].log_probability - before[d + 1].log_probability);
      loss += std::log1p(std::exp(r - c));
      chosen += c, rejected += r, correct += c > r;
    }
  }
  ASSERT_GT(pairs, 4);
  const StepReport second = one.trainer.step();
  EXPECT_EQ(second.valid, pairs);
  EXPECT_NEAR(second.loss, loss / pairs, 1e-5);
  EXPECT_GT(std::abs(second.loss - std::log(2)), 1e-3);
  ASSERT_TRUE(second.pairs);
  EXPECT_NEAR(second.pairs->chosen, chosen / pairs, 1e-4);
  EXPECT_NEAR(second.pairs->rejected, rejected / pairs, 1e-4);
  EXPECT_NEAR(second.pairs->correct, correct / pairs, 1e-6);
}

// The loss of simpo needs no reference, so it is a function of the weights alone: moving them along the gradient
// changes it by the gradient's norm.
TEST(DistPreference, GradientIsThatOfTheLoss) {
  const Overrides simpo = {"preference={loss: simpo, beta: 2, gamma: 1}", "optimizer.clip=0"};
  OneTrainer one(simpo);
  const std::vector<Batch> batches = one.next_batches();
  const StepReport step = one.trainer.step();
  const std::vector<float> gradient = to_host<float>(one.trainer.model().parameters().gradients, one.ctx.stream);
  double squares = 0;
  for (const float g : gradient) squares += static_cast<double>(g) * static_cast<double>(g);
  const double norm = std::sqrt(squares);
  EXPECT_NEAR(norm, step.norm, 1e-4 * norm);
  const auto loss_at = [&](double distance) {
    OneTrainer moved(simpo);
    const Tensor& values = moved.trainer.model().parameters().values;
    for (std::size_t i = 0; i < gradient.size(); ++i)
      values.data<float>()[i] += static_cast<float>(distance * static_cast<double>(gradient[i]) / norm);
    double loss = 0, pairs = 0;
    for (const Batch& b : batches) {
      const std::vector<AnswerScore> s = moved.scores(b);
      for (std::size_t d = 0; d < s.size(); d += 2, ++pairs)
        loss += std::log1p(
            std::exp(1 - 2 * (s[d].log_probability / s[d].targets - s[d + 1].log_probability / s[d + 1].targets)));
    }
    return loss / pairs;
  };
  EXPECT_NEAR(loss_at(0), step.loss, 1e-5);
  constexpr double kDistance = 1e-2;
  EXPECT_NEAR((loss_at(kDistance) - loss_at(-kDistance)) / (2 * kDistance), norm, 2e-2 * norm);
}

TrainingOptions preference_run(int ranks, const Overrides& more) {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = 6;
  o.overrides = overrides({"model.dropout=0.1"});
  o.overrides.insert(o.overrides.end(), more.begin(), more.end());
  o.validate = true;
  return o;
}

TEST(DistPreference, ResumesExactly) { expect_resume_is_exact(preference_run, 3, "ringmaster-preference-resume"); }

class DistPreferenceLayouts : public LayoutTest {};

INSTANTIATE_TEST_SUITE_P(
    All, DistPreferenceLayouts,
    testing::Values(Layout{"dp2", 2, {"parallel.zero=1"}}, Layout{"zero3", 2, {"parallel.zero=3"}},
                    Layout{"tp2", 2, {"parallel.tp=2"}}, Layout{"pp2", 2, {"parallel.pp=2"}},
                    Layout{"cp2_ring", 2, {"parallel.cp=2", "parallel.cp_schedule=ring"}},
                    Layout{"cp2_gather", 2, {"parallel.cp=2", kGather}},
                    Layout{"tp2_cp2", 4, {"parallel.tp=2", "parallel.cp=2"}},
                    Layout{"pp2_zero1_ipo", 4, {"parallel.pp=2", "preference={loss: ipo, beta: 0.1}"}},
                    Layout{"lora_tp2", 2, {"parallel.tp=2", "model.lora={rank: 4}"}},
                    Layout{"simpo_cp2", 2, {"parallel.cp=2", "preference={loss: simpo, beta: 2, gamma: 1}"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistPreferenceLayouts, EqualsOneProcess) { expect_equal_to_one_process(GetParam(), preference_run); }

}  // namespace
}  // namespace ring::test
