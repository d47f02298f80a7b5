// `ringmaster attention show --text`: readings of a model's attention, compared with sums over single pairs, and the
// command on a run.

#include "inspect/attention_reading.h"

#include <cmath>
#include <fstream>
#include <optional>
#include <random>
#include <regex>
#include <sstream>
#include <tuple>

#include "core/check.h"
#include "core/counted.h"
#include "evaluate/prompt.h"
#include "evaluate/session.h"
#include "kernels/attention/selected/block_select.h"
#include "kernels/attention/selection.h"
#include "tests/cases/attention_oracle.h"
#include "tests/inspect/svg_check.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

ExecContext two_threads() { return {Stream::cpu(2)}; }

Tensor normal(const Shape& shape, unsigned seed, const ExecContext& ctx) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values;
  std::vector<float> all(static_cast<std::size_t>(shape.numel()));
  for (float& x : all) x = values(random);
  return from_host(all, ctx.stream).view(shape);
}

constexpr std::int64_t kLength = 300, kHeads = 4, kKvHeads = 2, kDim = 8;

// Attention of one query of one query head, by definition. count(u): how often key u counts for the query.
struct Row {
  std::vector<double> weight;  // weights of dense attention
  double recall = 0, entropy = 0, dense_entropy = 0;

  template <class Count>
  Row(const AttendedHeads& a, std::int64_t t, std::int64_t head, const Count& count) {
    const float* q = a.q.data<float>() + (t * kHeads + head) * kDim;
    std::vector<double> e;
    double all = 0, kept = 0;
    for (std::int64_t u = 0; u <= t; ++u) {
      const float* k = a.k.data<float>() + (u * kKvHeads + head / (kHeads / kKvHeads)) * kDim;
      double score = 0;
      for (std::int64_t d = 0; d < kDim; ++d) score += double{q[d]} * double{k[d]};
      e.push_back(std::exp(double{a.scale} * score));
      all += e.back(), kept += count(u) * e.back();
    }
    for (std::int64_t u = 0; u <= t; ++u) {
      const double x = e[static_cast<std::size_t>(u)], p = x / all, own = x / kept;
      weight.push_back(p);
      dense_entropy -= p * std::log(p);
      if (count(u) > 0) recall += p, entropy -= count(u) * own * std::log(own);
    }
  }
};

struct Sums {
  double recall = 0, entropy = 0, dense_entropy = 0, pairs = 0;
};

template <class Count>
void expect_reading(const AttendedHeads& a, const Count& count, const std::string& name) {
  const ExecContext ctx = two_threads();
  const LayerReading got = read_attention(a, 10, ctx);
  ASSERT_EQ(got.heads.size(), static_cast<std::size_t>(kKvHeads)) << name;
  constexpr std::int64_t group = kHeads / kKvHeads;
  double pairs = 0;
  for (std::int64_t h = 0; h < kKvHeads; ++h) {
    const HeadReading& head = got.heads[static_cast<std::size_t>(h)];
    Sums want;
    PairCells weights(kLength, 10, CellWhole::queries);
    ASSERT_EQ(weights.size(), 32);
    for (std::int64_t t = 0; t < kLength; ++t) {
      for (std::int64_t u = 0; u <= t; ++u) want.pairs += count(h, t, u);
      for (std::int64_t g = 0; g < group; ++g) {
        const Row row(a, t, h * group + g, [&](std::int64_t u) { return count(h, t, u); });
        want.recall += row.recall, want.entropy += row.entropy, want.dense_entropy += row.dense_entropy;
        for (std::int64_t u = 0; u <= t; ++u)
          weights.kept(t / 32, u / 32) += row.weight[static_cast<std::size_t>(u)] / group;
      }
    }
    constexpr double rows = kLength * group;
    EXPECT_NEAR(head.recall, want.recall / rows, 1e-5) << name << " " << h;
    EXPECT_NEAR(head.entropy, want.entropy / rows, 1e-4) << name << " " << h;
    EXPECT_NEAR(head.dense_entropy, want.dense_entropy / rows, 1e-4) << name << " " << h;
    EXPECT_DOUBLE_EQ(head.cost.pairs, want.pairs) << name << " " << h;
    for (std::int64_t i = 0; i < weights.side(); ++i)
      for (std::int64_t j = 0; j <= i; ++j)
        EXPECT_NEAR(head.weights.kept_share(i, i + 1, j), weights.kept_share(i, i + 1, j), 1e-5)
            << name << " " << i << " " << j;
    pairs += want.pairs / kKvHeads;
  }
  EXPECT_DOUBLE_EQ(got.cost.pairs, pairs) << name;
}

AttendedHeads heads_of(const Pattern& pattern, const ExecContext& ctx) {
  return {.q = normal({kLength, kHeads, kDim}, 1, ctx),
          .k = normal({kLength, kKvHeads, kDim}, 2, ctx),
          .scale = 0.5,
          .pattern = pattern};
}

// picked: nullopt, or the position in each pool of 16 of the token that the pool's weights select. Then pools also have
// gates.
void expect_pools(std::optional<std::int64_t> picked) {
  const ExecContext ctx = two_threads();
  const AttendedHeads plain = heads_of(window(37, 3), ctx);
  AttendedHeads with = heads_of(pooled(window(37, 3), {16, 400}), ctx);
  if (picked) {
    with.v = normal({kLength, kKvHeads, kDim}, 3, ctx);
    for (const std::int64_t size : {16, 400})
      with.pools.push_back({ctx.zeros({kKvHeads, size}), ctx.zeros({kKvHeads, kDim})});
    with.pool_gates = normal({kHeads, kLength}, 4, ctx);
    for (std::int64_t h = 0; h < kKvHeads; ++h) with.pools[0].positions.data<float>()[h * 16 + *picked] = 1000;
  }
  const LayerReading tokens = read_attention(plain, 10, ctx), got = read_attention(with, 10, ctx);
  double pairs = 0;
  for (std::int64_t t = 0; t < kLength; ++t) pairs += static_cast<double>(t / 16);
  constexpr std::int64_t group = kHeads / kKvHeads;
  for (std::int64_t h = 0; h < kKvHeads; ++h) {
    const HeadReading& head = got.heads[static_cast<std::size_t>(h)];
    EXPECT_EQ(head.recall, tokens.heads[static_cast<std::size_t>(h)].recall);
    EXPECT_EQ(head.dense_entropy, tokens.heads[static_cast<std::size_t>(h)].dense_entropy);
    EXPECT_DOUBLE_EQ(head.cost.pairs, tokens.heads[static_cast<std::size_t>(h)].cost.pairs + pairs);
    double entropy = 0;
    for (std::int64_t t = 0; t < kLength; ++t)
      for (std::int64_t g = h * group; g < (h + 1) * group; ++g) {
        std::vector<double> e;
        const auto add = [&](std::int64_t first, std::int64_t count, bool pool) {  // the mean of `count` keys
          double score = 0;
          for (std::int64_t u = first; u < first + count; ++u)
            for (std::int64_t d = 0; d < kDim; ++d)
              score += double{with.q.data<float>()[(t * kHeads + g) * kDim + d]} *
                       double{with.k.data<float>()[(u * kKvHeads + h) * kDim + d]} / static_cast<double>(count);
          const double gate = picked && pool ? double{with.pool_gates.data<float>()[g * kLength + t]} : 0;
          e.push_back(std::exp(double{with.scale} * score + gate));
        };
        for (std::int64_t u = 0; u <= t; ++u)
          if (t - u < 37 || u < 3) add(u, 1, false);
        for (std::int64_t u = 0; u + 16 <= t; u += 16) add(u + picked.value_or(0), picked ? 1 : 16, true);
        double all = 0;
        for (const double x : e) all += x;
        for (const double x : e) entropy -= x / all * std::log(x / all);
      }
    EXPECT_NEAR(head.entropy, entropy / (kLength * group), 1e-4) << h;
  }
}

// Pools are used beside a window: recall is that of the tokens, entropy that of tokens and pools.
TEST(AttentionReading, CountsPools) { expect_pools({}); }
TEST(AttentionReading, CountsLearnedAndGatedPools) { expect_pools(11); }

TEST(AttentionReading, EqualsSumsOverPairs) {
  const BlockRule local{.local = 2}, levels{.kind = BlockRuleKind::hierarchical, .local = 1};
  for (const auto& [name, pattern] :
       std::vector<std::pair<std::string, Pattern>>{{"dense", dense()},
                                                    {"window", window(37, 3)},
                                                    {"dilated", dilated({{32, 1}, {128, 2}, {512, 4}})},
                                                    {"shifted", dilated({{16, 1}, {96, 3}}, false, 7)},
                                                    {"scales", scales()},
                                                    {"blocks", block_sparse(64, {local, levels})}})
    expect_reading(
        heads_of(pattern, two_threads()),
        [&](std::int64_t h, std::int64_t t, std::int64_t u) {
          return multiplicity(pattern, static_cast<std::int32_t>(h), static_cast<std::int32_t>(t),
                              static_cast<std::int32_t>(u), 0);
        },
        name);
}

// The selection decides which keys are kept.
TEST(AttentionReading, FollowsASelection) {
  const ExecContext ctx = two_threads();
  const BlockRule content{.kind = BlockRuleKind::content, .local = 1, .keep = 2}, local{.local = 2};
  AttendedHeads a = heads_of(block_sparse(64, {content, local}), ctx);
  a.selection = select_blocks(a.pattern, a.q, a.k, a.scale, {{0, kLength, 0, 0}}, ctx);
  const SelectedBlocks selected(a.selection);
  const auto count = [&](std::int64_t h, std::int64_t t, std::int64_t u) {
    return selected.keeps(static_cast<std::int32_t>(t / 64), static_cast<std::int32_t>(h),
                          static_cast<std::int32_t>(u / 64));
  };
  expect_reading(a, count, "content");
  // Head 0 omits blocks that head 1 would keep. Otherwise the test could not tell the heads apart.
  EXPECT_NE(read_attention(a, 10, ctx).heads[0].recall, read_attention(a, 10, ctx).heads[1].recall);
}

// Any pattern that keeps every pair has the recall and the entropy of dense attention.
TEST(AttentionReading, OfAllPairsEqualsDense) {
  const ExecContext ctx = two_threads();
  const LayerReading all = read_attention(heads_of(block_sparse(128, {{.local = 3}}), ctx), 10, ctx);
  EXPECT_NEAR(all.mean(&HeadReading::recall), 1, 1e-12);
  EXPECT_NEAR(all.mean(&HeadReading::entropy), all.mean(&HeadReading::dense_entropy), 1e-12);
}

// --- the command ---

class AttentionText : public Runs {
 protected:
  // Layer 0 selects two of four blocks; layer 1 is dense.
  void SetUp() override {
    Runs::SetUp();
    const std::vector<std::string> settings = {"model.context=256", "train.steps=2",
                                               "model.attention={kind: block_sparse, block: 64, rules: [{pattern: "
                                               "content, local: 1, keep: 2}]}",
                                               "model.attention_layers=[{layers: '1', attention: {}}]"};
    const Finished trained = run_process(train("run", settings));
    ASSERT_EQ(trained.code, 0) << trained.output;
  }
  Finished show(std::vector<std::string> more, const std::string& run = "run") const {
    std::vector<std::string> all = {"attention", "show", path(run)};
    all.insert(all.end(), more.begin(), more.end());
    return ring(all);
  }
  std::string output_of(const std::vector<std::string>& more) const {
    const Finished f = show(more);
    EXPECT_EQ(f.code, 0) << f.output;
    return f.output;
  }
  // Returns the cells of the table row that begins with `name`.
  static std::vector<std::string> row_of(const std::string& output, const std::string& name) {
    std::istringstream lines(output.substr(output.find("density")));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream in(line);
      std::vector<std::string> cells(std::istream_iterator<std::string>(in), {});
      if (!cells.empty() && cells[0] == name) return cells;
    }
    ADD_FAILURE() << "no row of " << name << " in:\n" << output;
    return std::vector<std::string>(6);
  }
};

std::string four_digits(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", x);
  return text;
}

TEST_F(AttentionText, ShowsTheAttentionThatTheModelKeeps) {
  const std::string output = output_of({"--text", path("text.txt")});
  EXPECT_TRUE(std::regex_search(output, std::regex("first 256 tokens\\s+of " + path("text.txt")))) << output;
  EXPECT_NE(output.find("Layer 0: block_sparse, blocks of 64: content, local 1, first 0, keep 2"), std::string::npos)
      << output;
  EXPECT_NE(output.find("Weight of a query:"), std::string::npos) << output;
  // The pairs are those of four blocks on the diagonal, and of one block beside three of them.
  const double pairs = 4 * 64 * 65 / 2 + 3 * 64 * 64, causal = 256 * 257 / 2;
  EXPECT_EQ(row_of(output, "0")[1], four_digits(pairs / causal)) << output;
  const std::vector<std::string> dense_row = row_of(output, "1");
  EXPECT_EQ(dense_row[1], "1.0000") << output;
  EXPECT_EQ(dense_row[2], "1.0000") << output;
  EXPECT_EQ(dense_row[3], dense_row[4]) << output;
  EXPECT_EQ(dense_row[5], "1.00x") << output;
  EXPECT_NE(output.find("Recall\nlayer"), std::string::npos) << output;
}

// The table shows the readings of the model. Queries and keys of layer 0 do not depend on its kind: if it becomes
// dense, the entropy of dense attention stays the same.
TEST_F(AttentionText, ShowsTheReadingsOfTheRun) {
  Session session = open_session(path("run"), {.threads = 2});
  std::ifstream file(path("text.txt"));
  std::vector<std::int32_t> tokens =
      prompt_tokens(*session.tokenizer, std::string(std::istreambuf_iterator<char>(file), {}));
  tokens.resize(200);
  std::vector<AttendedHeads> attended;
  session.model->attention_layers()[0]->watch = [&](const AttendedHeads& a) { attended.push_back(a); };
  ring::Run run{session.ctx};
  session.model->hidden(run, from_host(tokens, session.ctx.stream), Sequences::uniform(1, 200, session.ctx));
  ASSERT_EQ(attended.size(), 1u);
  ASSERT_TRUE(attended[0].selection.kept.defined());
  const LayerReading want = read_attention(attended[0], 16, session.ctx);
  const std::string output = output_of({"--text", path("text.txt"), "--length", "200", "--layer", "0"});
  for (std::size_t h = 0; h < want.heads.size(); ++h)
    EXPECT_EQ(row_of(output, std::to_string(h))[2], four_digits(want.heads[h].recall)) << output;
  EXPECT_LT(want.mean(&HeadReading::recall), 0.99);

  const std::string changed =
      output_of({"--text", path("text.txt"), "model.attention={kind: dense, block: 0, rules: []}"});
  const std::string as_trained = output_of({"--text", path("text.txt")});
  EXPECT_EQ(row_of(changed, "0")[2], "1.0000") << changed;
  EXPECT_EQ(row_of(changed, "0")[4], row_of(as_trained, "0")[4]) << changed << as_trained;
}

// If the number of blocks changes by tokens, a checkpoint uses the number of its step. Steps have 1024 tokens.
TEST_F(AttentionText, AttendsAsTheCheckpointDoes) {
  const Finished trained = run_process(train(
      "changing",
      {"model.context=256", "train.steps=3", "checkpoint.interval=1", "checkpoint.keep_last=3",
       "model.attention={kind: block_sparse, block: 64, layers_per_selection: 2, rules: [{pattern: content, keep: "
       "[[0, 4], [1025, 2]]}]}"}));
  ASSERT_EQ(trained.code, 0) << trained.output;
  const auto density = [&](const std::string& run, const char* layer) {
    const Finished f = show({"--text", path("text.txt")}, run);
    EXPECT_EQ(f.code, 0) << f.output;
    return row_of(f.output, layer)[1];
  };
  const std::string sparse = four_digits((4 * 64 * 65 / 2 + 3 * 64 * 64) / (256 * 257 / 2.0));
  EXPECT_EQ(density("changing/checkpoints/step-000000001", "0"), "1.0000");
  EXPECT_EQ(density("changing", "0"), sparse);
  EXPECT_EQ(density("changing", "1"), sparse);
  std::vector<double> logged;
  std::ifstream metrics(path("changing/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);)
    if (const auto json = nlohmann::json::parse(line); json.at("group") == "train")
      logged.push_back(json.at("attention_pairs"));
  ASSERT_EQ(logged.size(), 3u);
  EXPECT_EQ(logged[0], 1);
  EXPECT_EQ(logged[1], 1) << "1024 tokens were trained before the second step";
  EXPECT_EQ(four_digits(logged[2]), sparse);
}

// Settings on the command line do not change the step and the tokens of the checkpoint.
TEST_F(AttentionText, SettingsDoNotChangeTheStep) {
  const Finished trained = run_process(
      train("warming", {"model.context=256", "train.steps=2", "checkpoint.interval=1", "checkpoint.keep_last=2",
                        "model.attention={kind: block_sparse, block: 64, index_warmup_steps: 2, rules: [{pattern: "
                        "learned, local: 1, keep: 2}]}"}));
  ASSERT_EQ(trained.code, 0) << trained.output;
  const auto row = [&](const std::string& run, const std::vector<std::string>& settings) {
    std::vector<std::string> words = {"--text", path("text.txt")};
    words.insert(words.end(), settings.begin(), settings.end());
    const Finished f = show(words, run);
    EXPECT_EQ(f.code, 0) << f.output;
    return row_of(f.output, "0");
  };
  const std::string one = "warming/checkpoints/step-000000001",
                    sparse = four_digits((4 * 64 * 65 / 2 + 3 * 64 * 64) / (256 * 257 / 2.0));
  const std::vector<std::string> warming = row(one, {});
  EXPECT_EQ(warming[1], "1.0000") << "a layer attends to everything until its indexer was trained for two steps";
  EXPECT_EQ(row(one, {"train.log_interval=3"}), warming);
  EXPECT_EQ(row(one, {"parallel.cp=2"}), warming);
  EXPECT_EQ(row(one, {"model.attention.index_warmup_steps=1"})[1], sparse);
  EXPECT_EQ(row("warming", {"train.log_interval=3"})[1], sparse);
  // The run `run` was trained for 2 steps of 1024 tokens.
  const auto changing = [](const char* keep) {
    return str("model.attention={kind: block_sparse, block: 64, rules: [{pattern: content, local: 1, keep: ", keep,
               "}]}");
  };
  EXPECT_EQ(row("run", {changing("[[0, 4], [2048, 2]]")})[1], sparse);
  EXPECT_EQ(row("run", {changing("[[0, 4], [2049, 2]]")})[1], "1.0000");
}

// The picture and the counts contain the blocks that `mass` leaves of `keep`.
TEST_F(AttentionText, CountsTheBlocksThatAreKept) {
  const auto density = [&](const std::string& rule) {
    const std::string output =
        output_of({"--text", path("text.txt"), "model.attention.rules=[{pattern: content, " + rule + "}]"});
    return std::stod(row_of(output, "0")[1]);
  };
  const auto pairs = [](int beside) { return (4 * 64 * 65 / 2 + beside * 64 * 64) / (256 * 257 / 2.0); };
  EXPECT_NEAR(density("keep: 4, mass: 1e-6"), pairs(3), 1e-4) << "one candidate each, of block 1 to 3";
  EXPECT_NEAR(density("keep: 4, mass: 0.9999"), pairs(6), 1e-4) << "all are needed";
  EXPECT_NEAR(density("keep: 3, mass: 0.9999"), pairs(5), 1e-4) << "keep is the most";
}

// The second of two ranks has blocks 2 and 3. Their bits give the number of blocks 0 and 1 that each head, or any head,
// attends to.
TEST_F(AttentionText, ShowsTheKeysOfOtherRanksThatAreAttendedTo) {
  Session session = open_session(path("run"), {.threads = 2});
  std::ifstream file(path("text.txt"));
  std::vector<std::int32_t> tokens =
      prompt_tokens(*session.tokenizer, std::string(std::istreambuf_iterator<char>(file), {}));
  tokens.resize(256);
  BlockSelection selection;
  session.model->attention_layers()[0]->watch = [&](const AttendedHeads& a) { selection = a.selection; };
  ring::Run run{session.ctx};
  session.model->hidden(run, from_host(tokens, session.ctx.stream), Sequences::uniform(1, 256, session.ctx));
  ASSERT_TRUE(selection.kept.defined());
  const SelectedBlocks selected(selection);
  const std::int64_t heads = selection.kept.dim(1);
  ASSERT_GT(heads, 1);
  int by_head = 0, by_any = 0;
  for (int block = 0; block < 2; ++block) {
    int wanted = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto sees = [&](std::int32_t row) { return selected.keeps(row, static_cast<std::int32_t>(h), block); };
      wanted += sees(2) || sees(3);
    }
    by_head += wanted, by_any += wanted > 0;
  }
  char line[80];
  std::snprintf(line, sizeof line, "layer 0: %.1f %% by one KV head, %.1f %% by any of %s\n",
                50.0 * by_head / static_cast<double>(heads), 50.0 * by_any, counted(heads, "KV head").c_str());
  const std::string plain = output_of({"--text", path("text.txt"), "--width", "80"}),
                    output = output_of({"--text", path("text.txt"), "--width", "80", "parallel.cp=2"});
  EXPECT_EQ(output.rfind(plain, 0), 0u) << "what comes before is the same\n" << output << plain;
  const std::string added = output.substr(plain.size());
  EXPECT_NE(added.find("with\nparallel.cp: 2, rows contiguous:\n"), std::string::npos) << added;
  EXPECT_NE(added.find(line), std::string::npos) << line << added;
  EXPECT_NE(added.find(str("layer 1: 100.0 % by one KV head, 100.0 % by any of ", counted(heads, "KV head"), "\n")),
            std::string::npos);
  const std::string one = output_of({"--text", path("text.txt"), "parallel.cp=2", "--layer", "1"});
  EXPECT_EQ(one.find("layer 0: "), std::string::npos) << one;
  EXPECT_NE(one.find("layer 1: 100.0 %"), std::string::npos) << one;
  EXPECT_NE(output_of({"--text", path("text.txt"), "parallel.cp=2", "parallel.cp_layout=zigzag"}).find("rows zigzag:"),
            std::string::npos);
}

TEST_F(AttentionText, DrawsEveryLayer) {
  const std::string all = path("all.svg"), one = path("one.svg");
  output_of({"--text", path("text.txt"), "--svg", all});
  output_of({"--text", path("text.txt"), "--svg", one, "--layer", "1", "--head", "1"});
  const std::string four = config::read_source(all).text, two = config::read_source(one).text;
  expect_well_formed(four);
  expect_well_formed(two);
  EXPECT_NE(four.find("Layer 0: block_sparse"), std::string::npos);
  EXPECT_NE(four.find("Layer 1: dense"), std::string::npos);
  EXPECT_EQ(two.find("Layer 0"), std::string::npos);
  EXPECT_NE(two.find("KV head 1 of"), std::string::npos);
  EXPECT_NE(two.find("weight that a query gives"), std::string::npos);
}

TEST_F(AttentionText, FitsTheWidth) {
  std::istringstream lines(output_of({"--text", path("text.txt"), "--width", "40", "parallel.cp=2"}));
  for (std::string line; std::getline(lines, line);) {
    if (line.find(folder_.string()) != std::string::npos)
      continue;  // a path is broken only if it is longer than a line
    EXPECT_LE(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }), 40) << line;
  }
}

TEST_F(AttentionText, RefusesInputsWithoutWeightsOrText) {
  std::ofstream(path("empty.txt")).close();
  std::ofstream(path("one.txt")) << "a";
  const auto refused = [](const Finished& f, const std::string& why) {
    EXPECT_EQ(f.code, 1) << f.output;
    EXPECT_NE(f.output.find(why), std::string::npos) << f.output;
  };
  refused(show({"--text", path("text.txt")}, "run/config.yaml"), "Give a run");
  fs::create_directories(path("folder"));
  refused(show({"--text", path("text.txt")}, "folder"), "not a run");
  refused(show({"--text", path("one.txt")}), "expected at least 2 tokens");
  refused(show({"--text", path("none.txt")}), path("none.txt"));
  const Finished corpus = show({"--text", path("a.h5")});
  refused(corpus, "but a corpus");
  EXPECT_EQ(corpus.output.find("--as-text"), std::string::npos) << corpus.output;
  refused(show({"--text", path("text.txt"), "--layer", "2"}), "--layer: expected 0 to 1");
  refused(show({"--text", path("text.txt"), "--head", "9"}), "KV heads, got 9");
  EXPECT_EQ(show({"--threads", "1"}).code, 2);
  const std::string text = path("text.txt"), train_it = "run.init_from=" + path("run");
  const Finished learned =
      show({"--text", text,
            "model.attention={kind: block_sparse, block: 64, rules: [{pattern: learned, local: 1, keep: 2}]}"});
  refused(learned, "model.attention: layer 0 of " + path("run"));
  refused(learned, "not trained with an indexer");
  refused(learned, "Use pattern: content");
  refused(learned, train_it);
  for (const auto& [setting, part, remedy] :
       {std::tuple{"pooling: learned", "not trained with learned pools", "Use pooling: mean"},
        {"pool_gates: true", "not trained with pool gates", "Use pool_gates: false"}}) {
    const Finished pools =
        show({"--text", text,
              str("model.attention_layers=[{layers: '1', attention: {kind: window, window: 64, pools: [16], ", setting,
                  "}}]")});
    refused(pools, "model.attention_layers[0].attention: layer 1 of " + path("run"));
    refused(pools, part);
    refused(pools, remedy);
    refused(pools, train_it);
  }
}

}  // namespace
}  // namespace ring::test
