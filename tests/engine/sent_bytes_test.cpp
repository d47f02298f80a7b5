// Bytes that a rank sends, compared with values derived by hand for a small model.
#include "engine/sent_bytes.h"

#include <gtest/gtest.h>

#include "core/fields.h"
#include "engine/resolve.h"
#include "tests/error_of.h"

namespace ring {
namespace {

constexpr double kLayers = 2, kKvHeads = 4, kHeadDim = 32, kTokens = 1024;
// Bytes of one token's key and value in bf16, and of their gradients in fp32, of all layers and KV heads.
constexpr double kKeys = kLayers * kKvHeads * kHeadDim * 2 * 2;
constexpr double kGradients = kLayers * kKvHeads * kHeadDim * 2 * 4;

// A model with 1024 tokens per rank, one sequence per step and one rank on each node, so that rings have one level.
PlanRequest request(const std::vector<std::string>& settings = {}) {
  Config c;
  std::vector<std::string> all = {
      "data.path=none",           "train.steps=10",        "train.batch_size=1", "train.recompute=none",
      "train.micro_batch=1",      "model.vocab_size=1024", "model.context=1024", "model.layers=2",
      "model.width=256",          "model.heads=8",         "model.kv_heads=4",   "model.mlp_width=1024",
      "parallel.cp_schedule=ring"};
  all.insert(all.end(), settings.begin(), settings.end());
  override_config(c, all);
  const ParallelConfig given = c.parallel;
  c.parallel = {};
  PlanRequest q;
  q.config = resolve_config(c, c.model.vocab_size, 1, Backend::cuda, false);
  q.config.parallel = given;
  q.rates = shipped_rates("h100");
  q.budget = std::size_t{64} << 30;
  q.world.per_node = 1;
  return q;
}

const std::vector<std::int64_t> kRanks = {1, 8, 256, 262144};

// With zigzag, rank r of P holds chunks r and 2P - 1 - r. Its keys of chunk r are needed by the P - 1 other ranks,
// its keys of chunk 2P - 1 - r by the r ranks before it. It attends to the chunks i of the P - 1 others, and to the
// chunks 2P - 1 - j of the P - 1 - r ranks behind it, and returns their gradients. Keys travel in forward and backward.
// With exact messages, gradients take as many bytes as both transfers of keys, so that every rank sends (P - 1 + r) +
// (P - 1 + P - 1 - r) = 3 (P - 1) chunks of half of its tokens.
TEST(SentBytes, ADenseRingSendsThreeHalvesOfAShardToEachOtherRank) {
  const SentTable table = count_sent_bytes(request(), kRanks);
  EXPECT_EQ(table.rank_tokens, 1024);
  EXPECT_EQ(table.step_tokens, 1024);
  ASSERT_EQ(table.rows.size(), kRanks.size());
  for (const SentRow& row : table.rows) {
    EXPECT_EQ(row.error, "");
    EXPECT_EQ(row.context, row.cp * 1024);
    const double others = static_cast<double>(row.cp - 1);
    EXPECT_NEAR(row.sent.context, 1.5 * others * kTokens * 2 * kKeys, 1e-6 * others) << row.cp;
    EXPECT_FALSE(row.upper_bound);
    EXPECT_EQ(row.sent.tensor, 0);
    EXPECT_EQ(row.sent.gathers, 0) << "zero: 0 gathers nothing";
    EXPECT_NEAR(row.sent.between_nodes, row.sent.all(), 1e-6 * row.sent.all()) << "every rank is a node";
  }
  static_assert(kGradients == 2 * kKeys);
}

// On nodes of 2 ranks, each pair of counterparts runs a ring of half as many ranks with twice the rows of half the
// heads: 3 (P / 2 - 1) chunks of a rank's tokens, by the count above. Inside a node, a rank sends half of the heads of
// its rows: q, k, v and the output in the forward; q, k, v, the output and four gradients in the backward (bf16); and
// log-sum-exps (f32) of its peer's rows and of its own.
TEST(SentBytes, HybridSendsHeadsInTheNodeAndNodesRowsBetweenNodes) {
  constexpr double kHeads = 8;
  PlanRequest q = request({"parallel.cp_schedule=hybrid"});
  q.world.per_node = 2;
  const double inside =
      kTokens * kLayers * (3 * (kHeads + kKvHeads) * kHeadDim * 2 + kHeads * 4);  // half of 6, and of 2 x 4 bytes
  for (const SentRow& row : count_sent_bytes(q, {2, 8, 256}).rows) {
    EXPECT_EQ(row.error, "");
    const double between = 1.5 * static_cast<double>(row.cp / 2 - 1) * kTokens * 2 * kKeys;
    EXPECT_NEAR(row.sent.context, inside + between, 1e-6 * inside) << row.cp;
    const double reductions = row.cp > 2 ? row.sent.reductions / 2 : 0;  // one of a node's two ranks passes them on
    EXPECT_NEAR(row.sent.between_nodes, between + reductions, 1e-6 * inside) << row.cp;
  }
}

// A window of w tokens reaches w - 1 tokens of the ranks before. A rank sends their keys twice and returns the
// gradients of as many: the same bytes on any number of ranks.
TEST(SentBytes, AWindowSendsTheSameOnAnyNumberOfRanks) {
  for (const std::int64_t window : {256, 1024, 30 * 1024}) {
    const PlanRequest q = request({"model.attention={kind: window, window: " + std::to_string(window) + "}"});
    const double expected = static_cast<double>(window - 1) * (2 * kKeys + kGradients);
    for (const SentRow& row : count_sent_bytes(q, {256, 262144}).rows) {
      // A message has the keys from the first to the last one that a query of the other rank sees.
      EXPECT_NEAR(row.sent.context, expected, 0.01 * expected) << window << " on " << row.cp;
      EXPECT_FALSE(row.upper_bound);
    }
  }
}

TEST(SentBytes, ALongerReachThanTheRingsGivesAnUpperBound) {
  const PlanRequest q = request({"model.attention={kind: window, window: 204800}"});
  const SentTable table = count_sent_bytes(q, {8, 4096});
  EXPECT_FALSE(table.rows[0].upper_bound);
  EXPECT_TRUE(table.rows[1].upper_bound);
  EXPECT_GE(table.rows[1].sent.context, 204799 * (2 * kKeys + kGradients));
}

// Elements of the blocks' matrices, and of the embedding and the head, which have the same size.
double blocks_of(const Config& c) {
  const ModelConfig& m = c.model;
  const auto width = static_cast<double>(m.width), mlp = static_cast<double>(m.mlp_width);
  const double qkv = width * static_cast<double>((m.heads + 2 * m.kv_heads) * m.head_dim);
  return static_cast<double>(m.layers) * (qkv + width * width + 2 * width * mlp);
}
double tables_of(const Config& c) { return 2 * static_cast<double>(c.model.vocab_size * c.model.width); }

// In a ring of P ranks, a reduce-scatter or an all-gather sends (P - 1) / P of the tensor, an all-reduce twice as much.
// Gradients have 4 bytes, gathered weights 2. In a step of two micro-batches, zero: 3 reduces in each of them. It
// gathers the two blocks once, because it has buffers for two, and embedding and head, which share a buffer, in each
// micro-batch.
TEST(SentBytes, ZeroSendsTheBytesOfRingCollectives) {
  for (const int zero : {0, 1, 3}) {
    const PlanRequest q = request({"parallel.zero=" + std::to_string(zero), "model.positions=rope", "model.mlp=gelu",
                                   "model.tied_embeddings=false", "train.batch_size=2"});
    const double blocks = blocks_of(q.config), tables = tables_of(q.config);
    const double reduced = (zero == 1 ? 4 : 8) * (blocks + tables);
    const double gathered = zero == 0 ? 0 : 2 * (blocks + (zero == 3 ? 2 : 1) * tables);
    for (const SentRow& row : count_sent_bytes(q, kRanks).rows) {
      const double share = static_cast<double>(row.cp - 1) / static_cast<double>(row.cp);
      // Norms and the sums of losses are a thousandth.
      EXPECT_NEAR(row.sent.reductions, share * reduced, 0.002 * share * reduced) << "zero " << zero << ", " << row.cp;
      EXPECT_NEAR(row.sent.gathers, share * gathered, 0.002 * share * gathered) << "zero " << zero << ", " << row.cp;
    }
  }
}

TEST(SentBytes, TensorParallelMessagesDoNotGrow) {
  const PlanRequest q = request({"parallel.tp=2"});
  const SentTable table = count_sent_bytes(q, {1, 262144});
  EXPECT_GT(table.rows[0].sent.tensor, 0);
  EXPECT_NEAR(table.rows[1].sent.tensor, table.rows[0].sent.tensor, 1e-6 * table.rows[0].sent.tensor);
}

TEST(SentBytes, ADegreeWithoutALayoutSaysWhy) {
  const SentTable table = count_sent_bytes(request({"parallel.cp_schedule=all_to_all"}), {4, 8});
  EXPECT_EQ(table.rows[0].error, "");
  EXPECT_NE(table.rows[1].error.find("KV heads"), std::string::npos) << table.rows[1].error;
  PlanRequest q = request();
  q.budget = 1 << 20;
  EXPECT_NE(error_of([&] { count_sent_bytes(q, {8}); }).find("needs at least"), std::string::npos);
}

}  // namespace
}  // namespace ring
