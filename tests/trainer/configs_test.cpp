// The settings files in configs/.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/fields.h"
#include "engine/config.h"
#include "engine/devices.h"
#include "engine/resolve.h"
#include "model/decoder.h"
#include "parallel/parallelize.h"
#include "tests/error_of.h"
#include "tests/paths.h"
#include "trainer/trainer.h"

namespace ring {
namespace {

constexpr config::Synonyms kNone{};  // shipped files need no synonyms

Config load_file(const std::string& name) {
  Config c;
  load_config(c, test::source_dir() + "/configs/" + name, {}, &kNone);
  return c;
}

struct Published {
  const char* file;
  std::int64_t parameters;
};
void PrintTo(const Published& p, std::ostream* out) { *out << p.file; }

class ParameterCount : public testing::TestWithParam<Published> {};

TEST_P(ParameterCount, EqualsThePublishedOne) {
  const Decoder model(load_file(GetParam().file).model);  // declares parameters, allocates nothing
  EXPECT_EQ(model.parameters().num_elements(), GetParam().parameters);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, ParameterCount,
    testing::Values(Published{"gpt2_124m.yaml", 124'439'808}, Published{"qwen2.5_0.5b.yaml", 494'032'768},
                    Published{"qwen2.5_1.5b.yaml", 1'543'714'304}, Published{"llama_1b.yaml", 1'100'048'384},
                    Published{"llama_1b_dilated_256k.yaml", 1'100'048'384}, Published{"llama3_8b.yaml", 8'030'261'248}),
    [](const auto& i) {
      std::string name = std::filesystem::path(i.param.file).stem().string();
      for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      return name;
    });

// scripts/hybrid_experiment.sh compares these models.
TEST(Configs, ModelsOfTheHybridExperimentHaveEqualSizes) {
  const auto parameters = [](const char* name) {
    Config c = load_file(name);
    c.model.vocab_size = 256;  // a small embedding, which is equal in all
    return static_cast<double>(Decoder(c.model.resolved()).parameters().num_elements());
  };
  const double dense = parameters("hybrid_dense.yaml");
  for (const char* name : {"hybrid.yaml", "hybrid_selected.yaml"})
    EXPECT_NEAR(parameters(name) / dense, 1, 0.02) << name;
}

std::vector<std::string> names_of_configs() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_dir() + "/configs"))
    if (entry.is_regular_file()) names.push_back(entry.path().filename().string());
  return names;
}

TEST(Configs, EveryFileLoads) {
  for (const std::string& name : names_of_configs()) EXPECT_NO_THROW(load_file(name)) << name;
  EXPECT_GE(names_of_configs().size(), 11u);
}

std::string mistakes(const std::string& sections) {
  return error_of([&] {
    Config c;
    load_config_text(c, "data: {path: a.h5}\ntrain: {steps: 1}\nmodel: {layers: 2}\n" + sections, "my.yaml", {},
                     &kNone);
  });
}

TEST(Configs, MistakesInGroupsAreReportedWithTheirLine) {
  const std::string groups =
      "optimizer:\n  groups:\n    - {match: [\"blocks.2.*\"], lr: 1e-3}\n    - match: [\"*.wq.*\"]\n      lr: 1e-2\n"
      "    - match: [\"blocks.*\"]\n      kind: ";
  const std::string told = mistakes(groups + "adamw\n");
  EXPECT_TRUE(told.starts_with("my.yaml:6: optimizer.groups[0].match[0]: \"blocks.2.*\" matches no")) << told;
  EXPECT_TRUE(contains(told, "\nmy.yaml:7: optimizer.groups[1]: later entries")) << told;
  EXPECT_EQ(mistakes("optimizer:\n  lr: 1e-3\n  groups:\n    - match: [\"*norm*\"]\n      kind: muon\n"),
            "my.yaml:8: optimizer.groups[0].kind: muon updates none of the entry's parameters. Leave it out");
  EXPECT_EQ(mistakes("optimizer: {groups: [{match: [\"blocks.1.*\", final_norm.weight], lr: 1e-3}]}\n"), "");
}

TEST(Configs, SettingsWithoutEffectAreRefused) {
  const std::string muon = mistakes("optimizer:\n  muon:\n    iterations: 3\n");
  EXPECT_TRUE(muon.starts_with("my.yaml:6: optimizer.muon.iterations: 3") && contains(muon, "kind: muon")) << muon;
  const std::string decay = mistakes("schedule:\n  decay_steps: 10\n");
  EXPECT_TRUE(decay.starts_with("my.yaml:5: schedule: decay_steps: 10") && contains(decay, "kind: wsd")) << decay;
  EXPECT_EQ(mistakes("schedule: {decay_steps: 10, kind: wsd}\noptimizer: {kind: muon, muon: {iterations: 3}}\n"), "");
}

// In files for several GPUs, every rank gets an equal share of batches, heads, vocabulary and rows.
TEST(Configs, LayoutsDivideEvenly) {
  std::map<std::string, int> worlds;
  for (const std::string& name : names_of_configs()) {
    const Config asked = load_file(name);
    const ParallelConfig& p = asked.parallel;
    const auto world = static_cast<int>(std::max<std::int64_t>(p.dp, 1) * p.cp * p.tp);
    if (world == 1) continue;
    worlds[name] = world;
    const ParallelPlan plan = plan_of(asked, world);
    EXPECT_EQ(plan.world(), world) << name;
    const Config c = resolve_config(asked, asked.model.vocab_size, world);
    for (int rank = 0; rank < plan.tp; ++rank) {
      Decoder slice(c.model, 128);  // declares parameters, allocates nothing
      slice.shard({rank, plan.tp});
      EXPECT_EQ(slice.parameters().num_elements(), Decoder(c.model).parameters().num_elements()) << name;
    }
  }
  EXPECT_EQ(worlds.size(), 8u);
  for (const int world : {4, 8})
    EXPECT_EQ(std::ranges::count_if(worlds, [&](const auto& w) { return w.second == world; }), 4) << world;
}

TEST(Configs, CoverEveryKindOfAttention) {
  const auto kind = [](const char* file) { return load_file(file).model.attention.kind; };
  EXPECT_EQ(kind("nanogpt_cpu.yaml"), "dense");
  EXPECT_EQ(kind("shakespeare_window.yaml"), "window");
  EXPECT_EQ(kind("shakespeare_dilated.yaml"), "dilated");
  EXPECT_EQ(kind("shakespeare_block_sparse.yaml"), "block_sparse");
  EXPECT_EQ(kind("llama_1b_dilated_256k.yaml"), "dilated");
}

TEST(ResolveConfig, FillsInMissingSettings) {
  Config c;
  c.train.tokens = 1000;
  c.train.batch_size = 6;
  c.model.context = 10;
  const Config r = resolve_config(c, 65, 3);
  EXPECT_EQ(r.model.vocab_size, 65);
  EXPECT_EQ(r.train.steps, 17);  // 60 tokens per step
  EXPECT_EQ(plan_of(r, 3).micro_batch, 2);
  EXPECT_GT(r.run.threads, 0);
}

std::string message(const Config& c, std::int64_t vocab, int ranks) {
  try {
    resolve_config(c, vocab, ranks);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(ResolveConfig, RefusesSizesThatDoNotFit) {
  Config c;
  c.train.steps = 1;
  c.model.vocab_size = 100;
  const std::string vocab = message(c, 101, 1);
  EXPECT_TRUE(contains(vocab, "model.vocab_size: 100") && contains(vocab, "vocabulary of 101")) << vocab;
  c.train.batch_size = 12;
  const std::string batch = message(c, 50, 5);
  EXPECT_TRUE(contains(batch, "train.batch_size: 12") && contains(batch, "5 replicas")) << batch;
  c.train.micro_batch = 5;
  const std::string micro_batch = message(c, 50, 2);
  EXPECT_TRUE(contains(micro_batch, "train.micro_batch: 5") && contains(micro_batch, "6 sequences")) << micro_batch;
}

// Sizes set to auto stay auto: the run chooses them and checks its choice.
TEST(ResolveConfig, KeepsAutomaticSizes) {
  Config c;
  c.train.steps = 1;
  c.train.micro_batch = kAutoMicroBatch;
  c.train.mlp_chunk = kAutoMlpChunk;
  c.train.batch_size = 1 << 30;  // more tokens than kernels can number
  ResolvedConfig r = resolve_config(c, 50);
  EXPECT_EQ(r.train.micro_batch, kAutoMicroBatch);
  EXPECT_EQ(r.train.mlp_chunk, kAutoMlpChunk);
  r.train.micro_batch = 4;
  check_sizes(r, 1);
  for (const std::int64_t rows : {3, 1 << 30}) {
    r.train.micro_batch = rows;
    EXPECT_THROW(check_sizes(r, 1), Error) << rows;
  }
}

template <class Settings>
constexpr bool kResolves = requires(Settings c) {
  resolve_config(c, 50);
};
static_assert(kResolves<Config> && !kResolves<ResolvedConfig>, "settings are resolved once");

// The ranks of cp do not always hold the same number of tokens.
TEST(ResolveConfig, TensorParallelismDividesWhatEachRankHolds) {
  Config c;
  c.train.steps = c.train.batch_size = c.train.micro_batch = 1;
  c.parallel.cp = c.parallel.tp = 2;
  c.parallel.cp_layout = ContextLayoutChoice::contiguous;
  c.model.vocab_size = 100;
  c.model.context = 10;  // 5 tokens on each rank
  const std::string first = message(c, 50, 4);
  EXPECT_TRUE(contains(first, "the 5 tokens") && contains(first, "rank 0 of cp")) << first;
  c.parallel.cp_layout = ContextLayoutChoice::zigzag;  // pieces of 2, 3, 2 and 3: 5 tokens on each rank
  EXPECT_TRUE(contains(message(c, 50, 4), "the 5 tokens")) << message(c, 50, 4);
  c.parallel.cp = 3;
  c.parallel.cp_layout = ContextLayoutChoice::contiguous;
  c.model.context = 14;  // 4, 5 and 5 tokens, although 14 / 3 rounds down to 4
  const std::string second = message(c, 50, 6);
  EXPECT_TRUE(contains(second, "5 tokens") && contains(second, "rank 1 of cp")) << second;
  c.parallel.cp = 2;
  c.model.attention.kind = "dilated";
  c.model.attention.segments = {4, 16};
  c.model.attention.rates = {1, 2};
  c.model.context = 36;  // segments of 16 on each rank: 16 and 20 tokens, although 36 / 2 = 18
  c.parallel.tp = 4;
  EXPECT_EQ(message(c, 50, 8), "");
}

}  // namespace
}  // namespace ring
