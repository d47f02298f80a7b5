// `ringmaster bench blocks`, as a user starts it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "core/check.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class BenchBlocks : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / str("ringmaster-bench-blocks-", getpid());
    fs::create_directories(folder_);
    std::ofstream(file()) << "run: {threads: 2, device: cpu}\n"
                             "model: {context: 1024, layers: 3, width: 32, heads: 2, kv_heads: 1, mlp: swiglu}\n"
                             "data: {path: none.h5}\ntrain: {batch_size: 2, steps: 8}\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file() const { return (folder_ / "tiny.yaml").string(); }
  Finished blocks(const Words& words, const std::string& seconds = "0.001") const {
    Words all = {ring_binary(), "bench", "blocks", file(), "--seconds", seconds};
    all.insert(all.end(), words.begin(), words.end());
    return run_process(all);
  }
  void expect_refused(const Words& words, int code, const std::string& part) const {
    const Finished end = blocks(words);
    EXPECT_EQ(end.code, code) << end.output;
    EXPECT_NE(end.output.find(part), std::string::npos) << part << "\n" << end.output;
  }
  static std::string attention(const std::string& settings) {
    return "model.attention={kind: block_sparse, block: 64, " + settings + "}";
  }

  fs::path folder_;
};

// A row of the table "block keys routing forward backward all share % kernels".
struct Row {
  int block = 0;
  double keys = 0, routing = 0, forward = 0, backward = 0, all = 0, share = 0;
  std::string percent, forward_kernel, backward_kernel;
};
std::vector<Row> rows_of(const std::string& output) {
  std::vector<Row> rows;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Row r;
    if (words >> r.block >> r.keys >> r.routing >> r.forward >> r.backward >> r.all >> r.share >> r.percent >>
        r.forward_kernel >> r.backward_kernel)
      rows.push_back(r);
  }
  return rows;
}

std::vector<std::string> settings_of(const std::string& output) {
  const std::regex setting(R"('(model\.[^']*)')");
  std::vector<std::string> all;
  for (std::sregex_iterator at(output.begin(), output.end(), setting), end; at != end; ++at) all.push_back((*at)[1]);
  return all;
}

// Returns the mean number of keys of the newest blocks that a query of 1024 tokens sees.
double mean_keys(int block, int keep) {
  double pairs = 0;
  for (int t = 0; t < 1024; ++t) pairs += std::min(t / block, keep - 1) * block + t % block + 1;
  return pairs / 1024;
}

void expect_times(const Row& r, bool selects) {
  EXPECT_GT(r.forward, 0);
  EXPECT_GT(r.backward, 0);
  EXPECT_EQ(r.routing > 0, selects);
  EXPECT_NEAR(r.all, r.forward + r.backward + r.routing, 2e-3);  // rounded in the output
  EXPECT_NEAR(r.share, 100 * r.routing / r.all, 0.06 + 0.2 * r.share) << r.routing << " of " << r.all;
  EXPECT_EQ(r.percent, "%");
  EXPECT_EQ(r.forward_kernel + r.backward_kernel, "blocked,blocked");
}

TEST_F(BenchBlocks, MeasuresBothSizesAndPrintsAValidSetting) {
  const Finished end = blocks({attention("rules: [{pattern: content, keep: 4}]")});
  ASSERT_EQ(end.code, 0) << end.output;
  const std::vector<Row> rows = rows_of(end.output);
  ASSERT_EQ(rows.size(), 2u) << end.output;
  EXPECT_EQ(rows[0].block, 64);
  EXPECT_EQ(rows[1].block, 128);
  for (const Row& r : rows) expect_times(r, true);
  EXPECT_NEAR(rows[0].keys, mean_keys(64, 4), 0.06);
  EXPECT_NEAR(rows[1].keys, mean_keys(128, 2), 0.06);
  const std::vector<std::string> settings = settings_of(end.output);
  ASSERT_EQ(settings.size(), 1u) << end.output;
  const Finished shown =
      run_process({ring_binary(), "config", "show", file(), attention("rules: [{local: 9}]"), settings[0]});
  EXPECT_EQ(shown.code, 0) << shown.output;
  const bool wide = settings[0].find("block: 128") != std::string::npos;
  for (const std::string& part :
       {std::string("kind: block_sparse"), str("block: ", wide ? 128 : 64), str("keep: ", wide ? 2 : 4)})
    EXPECT_NE(shown.output.find(part), std::string::npos) << settings[0] << "\n" << shown.output;
}

TEST_F(BenchBlocks, MeasuresEachKindOfLayer) {
  std::ofstream(folder_ / "own.blocks") << "0-15: 0\n";
  const Finished end = blocks({attention("rules: [{pattern: learned, keep: 4}], index_warmup_steps: 100"),
                               "model.attention_layers=[{layers: 1, attention: {kind: block_sparse, block: 128, rules: "
                               "[{local: 2}]}}, {layers: "
                               "2, attention: {kind: block_sparse, block: 64, rules: [{pattern: file, file: " +
                                   (folder_ / "own.blocks").string() + "}]}}]"});
  ASSERT_EQ(end.code, 0) << end.output;
  const std::vector<Row> rows = rows_of(end.output);
  ASSERT_EQ(rows.size(), 4u) << end.output;
  for (std::size_t i = 0; i < 4; ++i) expect_times(rows[i], i < 2);
  EXPECT_EQ(rows[2].block, 128) << "the one that the settings have comes first";
  const std::vector<std::string> settings = settings_of(end.output);
  ASSERT_EQ(settings.size(), 2u) << end.output;
  EXPECT_TRUE(settings[0].starts_with("model.attention={block: ")) << settings[0];
  EXPECT_TRUE(settings[1].starts_with("model.attention_layers[0].attention={block: ")) << settings[1];
  EXPECT_NE(end.output.find("model.attention_layers[1].attention: left out"), std::string::npos) << end.output;
}

// Settings of learned pools are left out together with the pools.
TEST_F(BenchBlocks, PoolsAreLeftOut) {
  const std::string rules = "rules: [{pattern: content, keep: 4}], pools: [16]";
  const Finished end = blocks({attention(rules + ", pooling: learned, pool_gates: true")});
  ASSERT_EQ(end.code, 0) << end.output;
  const std::vector<Row> rows = rows_of(end.output);
  ASSERT_EQ(rows.size(), 2u) << end.output;
  for (const Row& r : rows) expect_times(r, true);
}

TEST_F(BenchBlocks, SharedSelectionsCountByTheirShare) {
  const auto routing = [&](int reuse) {
    const Finished end =
        blocks({attention(str("rules: [{pattern: content, keep: 4}], layers_per_selection: ", reuse))}, "0.02");
    const std::vector<Row> rows = rows_of(end.output);
    EXPECT_EQ(rows.size(), 2u) << end.output;
    return rows.empty() ? 0 : rows[0].routing;
  };
  EXPECT_LT(routing(64), 0.25 * routing(1));
}

TEST_F(BenchBlocks, LongSequencesAreShortenedByDefault) {
  const std::string rules = attention("rules: [{local: 2}]");
  const Finished cut = blocks({rules, "model.context=8192", "train.batch_size=1"});
  EXPECT_NE(cut.output.find("4096 tokens instead of model.context: 8192"), std::string::npos) << cut.output;
  const Finished whole = blocks({rules, "model.context=8192", "train.batch_size=1", "--length", "512"});
  EXPECT_EQ(whole.output.find("instead of model.context"), std::string::npos) << whole.output;
  EXPECT_EQ(rows_of(whole.output).size(), 2u) << whole.output;
}

TEST_F(BenchBlocks, RefusesSettingsWithoutASizeToChoose) {
  expect_refused({}, 1, "tiny.yaml: no layer has kind: block_sparse");
  expect_refused({attention("rules: [{pattern: file, file: own.blocks}]")}, 1,
                 "model.attention.rules: pattern: file fixes");
  expect_refused({attention("rules: [{pattern: content, keep: 16}]")}, 1,
                 "model.attention.rules: with blocks of 64 they keep all");
  expect_refused({attention("rules: [{local: 2}]"), "--length", "128"}, 1, "sequences of 128 tokens");
  expect_refused({attention("rules: [{local: 2}]"), "--length", "-1"}, 2, "--length: must be in [0");
  expect_refused({"model.attention.block=100"}, 1, "model.attention.block");
}

}  // namespace
}  // namespace ring::test
