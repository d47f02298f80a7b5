// Batch sizes and contexts that change with the seen tokens: their steps, and the results of these steps.

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "comm/gloo/gloo.h"
#include "core/philox.h"
#include "data/loader.h"
#include "data/token_store.h"
#include "engine/resolve.h"
#include "tests/error_of.h"
#include "tests/parallel/training.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

TokenSchedule random_schedule(std::uint64_t seed) {
  TokenSchedule all;
  std::int64_t tokens = 0;
  for (std::uint64_t i = 0; i < 2 + random_bits({seed, 0, 0}, 0) % 4; ++i) {
    all.push_back({tokens, static_cast<double>(1 + random_bits({seed, 0, 1}, i) % 9)});
    tokens += static_cast<std::int64_t>(1 + random_bits({seed, 0, 2}, i) % 300);  // a step may skip some values
  }
  return all;
}

TEST(BatchSchedule, StepsAndTokensMatchAStepByStepCount) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    TrainConfig c;
    c.batch_sizes = random_schedule(seed);
    const auto context = static_cast<std::int64_t>(1 + random_bits({seed, 0, 3}, 0) % 40);
    const auto from = static_cast<std::int64_t>(random_bits({seed, 0, 4}, 0) % 500);
    std::int64_t trained_by = from;
    for (std::int64_t step = 0; step < 60; ++step) {
      EXPECT_EQ(tokens_of_steps(c, context, step, from), trained_by - from) << seed << ", step " << step;
      EXPECT_EQ(steps_of_tokens(c, context, trained_by, from), step) << seed << ", " << trained_by << " tokens";
      EXPECT_EQ(steps_of_tokens(c, context, trained_by + 1, from), step + 1) << seed << ", " << trained_by << " tokens";
      trained_by += batch_size_at(c, trained_by) * context;
    }
  }
}

TEST(BatchSchedule, TokensOfARunBecomeSteps) {
  Config c = tiny_config();
  override_config(c, {"train.batch_size=[[0, 4], [1000, 8]]", "train.steps=0", "train.tokens=2000", "data.path=a.h5"});
  c = resolve_config(c, 257);
  EXPECT_EQ(c.train.steps, 8 + 4) << "8 of 4 x 32 tokens, 1024 in all, and 4 of 8 x 32";
}

TEST(BatchSchedule, AnEpochEndsWithItsLastSample) {
  const auto folder = std::filesystem::temp_directory_path() / str("ring_epochs_", getpid());
  std::filesystem::create_directories(folder);
  const std::string file = (folder / "a.h5").string();
  write_documents(file, 40, 4, [](std::uint64_t) { return 50; });
  Config c = tiny_config();
  override_config(c, {"train.batch_size=[[0, 4], [320, 8]]", "train.steps=0", "train.epochs=1.5", "data.path=" + file});
  const Corpora corpora = open_corpus(file);
  const SampleMap map(corpora, c.model.context, c.run.seed, c.data.packing);
  const auto samples = static_cast<std::int64_t>(std::ceil(1.5 * static_cast<double>(map.windows(0))));
  ASSERT_GT(samples, 30);
  resolve_length(c, corpora);
  EXPECT_EQ(c.train.steps, 3 + (samples - 12 + 7) / 8) << "3 of 4 samples, then 8";
  Config endless = tiny_config();
  endless.train.steps = 0;
  EXPECT_NE(error_of([&] { resolve_length(endless, corpora); }).find("train.steps: expected the length"),
            std::string::npos);
  endless.train.minutes = 1;
  resolve_length(endless, corpora);
  EXPECT_EQ(endless.train.steps, 0);
  std::filesystem::remove_all(folder);
}

const std::vector<std::string> kSchedule = {"train.batch_size=[[0, 4], [256, 8], [1024, 4]]", "train.micro_batch=2",
                                            "model.dropout=0.1", "train.steps=8"};

Training trained_by(std::vector<std::string> overrides, int steps, int ranks = 1, const std::string& load = "",
                    const std::string& save = "") {
  TrainingOptions o;
  o.ranks = ranks;
  o.steps = steps;
  o.overrides = std::move(overrides);
  o.load = load;
  o.save = save;
  Training t = train_on_ranks(o);
  EXPECT_EQ(t.errors, "");
  return t;
}

// Expects that three runs with constant values, of 2, 3 and 3 steps, each resumed from the previous one, equal one run
// whose value, the first of `schedule`, changes: in samples, random numbers, rate and bits.
void expect_consecutive_runs(const std::vector<std::string>& schedule, const std::array<int, 3>& values) {
  const auto folder = std::filesystem::temp_directory_path() / str("ring_schedules_", getpid());
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const Training whole = trained_by(schedule, 8);
  const auto with = [&](int value, int steps, const std::string& load, const std::string& save) {
    std::vector<std::string> overrides = schedule;
    overrides[0] = str(schedule[0].substr(0, schedule[0].find('=') + 1), value);
    return trained_by(overrides, steps, 1, load, save);
  };
  const Training first = with(values[0], 2, "", path("a")), second = with(values[1], 3, first.checkpoint, path("b")),
                 third = with(values[2], 3, second.checkpoint, "");
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), second.losses.begin(), second.losses.end());
  losses.insert(losses.end(), third.losses.begin(), third.losses.end());
  EXPECT_EQ(whole.losses, losses);
  for (const auto& [name, tensor] : whole.tensors) EXPECT_EQ(tensor, third.tensors.at(name)) << name;
  std::filesystem::remove_all(folder);
}

void expect_the_same_on_two_ranks(const std::vector<std::string>& schedule) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  const Training one = trained_by(schedule, 8);
  for (const char* layout : {"parallel.zero=3", "parallel.cp=2", "parallel.tp=2"}) {
    std::vector<std::string> overrides = schedule;
    overrides.push_back(layout);
    const Training two = trained_by(overrides, 8, 2);
    EXPECT_LT(largest_loss_difference(one, two), 1e-5) << layout;
    EXPECT_LT(largest_difference(one, two), 2e-3) << layout;
  }
}

TEST(BatchSchedule, EqualsConsecutiveRunsOfConstantSize) { expect_consecutive_runs(kSchedule, {4, 8, 4}); }
TEST(BatchSchedule, IsTheSameOnSeveralRanks) { expect_the_same_on_two_ranks(kSchedule); }

// Steps have 128 tokens: two steps with 8 tokens per sequence, three with 16, then whole samples of 32.
const std::vector<std::string> kContexts = {"train.context=[[0, 8], [256, 16], [640, 32]]", "train.batch_size=4",
                                            "train.micro_batch=2", "model.dropout=0.1", "train.steps=8"};

TEST(ContextSchedule, EqualsConsecutiveRunsOfConstantContext) { expect_consecutive_runs(kContexts, {8, 16, 32}); }
TEST(ContextSchedule, IsTheSameOnSeveralRanks) { expect_the_same_on_two_ranks(kContexts); }

// Tokens repeat every 8 positions, and the corpus has one sample. When shortened, its sequences equal the one sample of
// a model with a context of 8.
TEST(ContextSchedule, ShortenedSamplesEqualAShorterContext) {
  const auto folder = std::filesystem::temp_directory_path() / str("ring_cuts_", getpid());
  std::filesystem::create_directories(folder);
  const auto first_step = [&](int context, int cut) {
    const std::string file = (folder / str(context, ".h5")).string();
    TokenStoreWriter writer(file, 257);
    std::vector<std::int32_t> tokens;
    for (int i = 0; i <= context; ++i) tokens.push_back(20 + 4 * (i % 8) * (i % 8));
    writer.begin_document(Split::train);
    writer.append(Split::train, tokens);
    writer.finish(*bytes_tokenizer(), "a test");
    return trained_by({str("model.context=", context), str("train.context=", cut), "data.path=" + file}, 1);
  };
  const Training whole = first_step(32, 0), cut = first_step(32, 8), small = first_step(8, 0);
  EXPECT_NEAR(cut.losses[0], small.losses[0], 1e-6 * small.losses[0]);
  EXPECT_NEAR(cut.norms[0], small.norms[0], 1e-5 * small.norms[0]);
  EXPECT_GT(std::abs(whole.norms[0] - small.norms[0]), 1e-3 * small.norms[0]) << "otherwise the test shows nothing";
  std::filesystem::remove_all(folder);
}

TEST(ContextSchedule, DividesTheSamples) {
  const auto refusal = [](const std::vector<std::string>& overrides) -> std::string {
    try {
      Config c = tiny_config();
      c.data.path = "a.h5";
      override_config(c, overrides);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({"train.context=[[0, 4], [100, 32]]"}), "");
  EXPECT_NE(refusal({"train.context=12"}).find("train.context: expected"), std::string::npos);
  EXPECT_NE(refusal({"train.context=12"}).find("model.context, got 12"), std::string::npos);
  EXPECT_NE(refusal({"train.context=[[0, 8], [9, 64]]"}).find("model.context, got 64"), std::string::npos);
  EXPECT_NE(refusal({"train.context=[[0, 8], [9, 0]]"}).find("train.context"), std::string::npos)
      << refusal({"train.context=[[0, 8], [9, 0]]"});
}

}  // namespace
}  // namespace ring::test
