#include "parallel/plan.h"
#include "model/decoder.h"

#include <gtest/gtest.h>

#include "core/fields.h"
#include "parallel/ineffective_keys.h"
#include "parallel/parallelize.h"
#include "tests/error_of.h"

namespace ring {
namespace {

// 8 heads and 4 KV heads allow 1, 2 or 4 slices.
ModelConfig model() {
  ModelConfig m;
  m.vocab_size = 64;
  m.context = 64;
  m.layers = 1;
  m.width = 64;
  m.heads = 8;
  m.kv_heads = 4;
  m.mlp_width = 96;
  return m.resolved();
}

ParallelConfig degrees(std::int64_t dp, std::int64_t cp, std::int64_t tp) {
  ParallelConfig c;
  c.dp = dp, c.cp = cp, c.tp = tp;
  return c;
}

std::string refusal(const ParallelConfig& c, int world, const BatchSize& batch = {24, 0}) {
  try {
    make_plan(c, model(), batch, world);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

struct DegreeCase {
  std::string name;
  ParallelConfig asked;
  int world, dp, cp, tp;
};
void PrintTo(const DegreeCase& c, std::ostream* out) { *out << c.name; }

class PlanDegrees : public testing::TestWithParam<DegreeCase> {};

TEST_P(PlanDegrees, FillInOpenDegrees) {
  const DegreeCase& c = GetParam();
  const ParallelPlan p = make_plan(c.asked, model(), {24, 0}, c.world);
  EXPECT_EQ(p.dp, c.dp);
  EXPECT_EQ(p.cp, c.cp);
  EXPECT_EQ(p.tp, c.tp);
  EXPECT_EQ(p.pp, 1);
  EXPECT_EQ(p.world(), c.world);
}

INSTANTIATE_TEST_SUITE_P(Cases, PlanDegrees,
                         testing::Values(DegreeCase{"replicas", degrees(0, 1, 1), 6, 6, 1, 1},
                                         DegreeCase{"replicas_beside_others", degrees(0, 2, 2), 24, 6, 2, 2},
                                         DegreeCase{"context", degrees(0, 0, 1), 8, 1, 8, 1},
                                         DegreeCase{"context_beside_slices", degrees(0, 0, 4), 8, 1, 2, 4},
                                         DegreeCase{"context_beside_replicas", degrees(2, 0, 1), 8, 2, 4, 1},
                                         DegreeCase{"context_beside_both", degrees(2, 0, 2), 8, 2, 2, 2},
                                         DegreeCase{"context_alone", degrees(0, 0, 1), 1, 1, 1, 1},
                                         DegreeCase{"all_given", degrees(2, 2, 2), 8, 2, 2, 2}),
                         [](const auto& info) { return info.param.name; });

TEST(Plan, RefusesDegreesAndNamesOnesThatFit) {
  EXPECT_EQ(
      refusal(degrees(0, 3, 1), 8),
      "parallel.cp: 3 does not divide the 8 processes of this run; parallel.cp can be 1, 2, 4 or 8 here; or start "
      "3 processes: ringmaster launch --nproc-per-node 3 -- train ..");
  EXPECT_EQ(refusal(degrees(0, 1, 4), 6),
            "parallel.tp: 4 does not divide the 6 processes of this run; parallel.tp can be 1 or 2 here; or start 4 "
            "processes: ringmaster launch --nproc-per-node 4 -- train ..");
  EXPECT_EQ(refusal(degrees(0, 3, 2), 8),
            "parallel.cp: 3 x parallel.tp: 2 does not divide the 8 processes of this run; parallel.cp can be 1, 2 or 4 "
            "here; or start 6 processes: ringmaster launch --nproc-per-node 6 -- train ..");
  EXPECT_EQ(refusal(degrees(0, 4, 4), 8),
            "parallel.cp: 4 x parallel.tp: 4 does not divide the 8 processes of this run; parallel.cp can be 1 or 2 "
            "here; parallel.tp can be 1 or 2 here; or start 16 processes: ringmaster launch --nproc-per-node 16 -- "
            "train ..");
  EXPECT_EQ(
      refusal(degrees(0, 2, 1), 1),
      "parallel.cp: 2 does not divide the 1 process of this run; parallel.cp can be 1 here; or start 2 processes: "
      "ringmaster launch --nproc-per-node 2 -- train ..");
  EXPECT_EQ(refusal(degrees(3, 1, 1), 4),
            "parallel.dp: 3 needs 3 processes, but 4 were started: start 3 processes: ringmaster launch "
            "--nproc-per-node 3 -- train .., or set parallel.dp to 4, or to 0 to use what is left");
  EXPECT_EQ(refusal(degrees(3, 0, 2), 8),
            "parallel.dp: 3 x parallel.tp: 2 needs 6 processes, but 8 were started: start 6 processes: ringmaster "
            "launch --nproc-per-node 6 -- train .., or set parallel.dp to 1, 2 or 4, or to 0 to use what is left");
}

TEST(Plan, RefusesSlicesThatDoNotDivideTheModel) {
  EXPECT_EQ(refusal(degrees(0, 1, 3), 6),
            "parallel.tp: 3 does not divide model.heads = 8, model.kv_heads = 4 and model.mlp_width = 96, which tensor "
            "parallelism shards. This model allows 1 or 2 on 6 processes");
}

TEST(Plan, RefusesSlicesOfNormsOverProjections) {
  ModelConfig m = model();
  m.qk_norm = true, m.qk_norm_over = QkNormOver::projection;
  try {
    make_plan(degrees(0, 1, 2), m, {24, 3}, 2);
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("parallel.tp: 2 is not supported with model.qk_norm_over: proj"))
        << e.what();
  }
}

TEST(Plan, SharesTheBatch) {
  const ParallelPlan p = make_plan(degrees(2, 1, 1), model(), {24, 3}, 2);
  EXPECT_EQ(p.micro_batch, 3);
  EXPECT_EQ(p.micro_batches, 4);
  EXPECT_NE(refusal(degrees(0, 1, 1), 5).find("train.batch_size: 24"), std::string::npos);
  EXPECT_NE(refusal(degrees(0, 1, 1), 5).find("5 replicas"), std::string::npos);
  EXPECT_NE(refusal(degrees(0, 1, 1), 2, {24, 5}).find("train.micro_batch: 5"), std::string::npos);
  EXPECT_NE(refusal(degrees(0, 1, 1), 2, {24, 5}).find("12 sequences"), std::string::npos);
}

// Following a message's advice must not lead to another refusal.
TEST(Plan, ARefusedBatchComesWithSizesThatFit) {
  EXPECT_TRUE(refusal(degrees(0, 1, 1), 3, {8, 0}).ends_with("to a multiple of 3"));
  EXPECT_NE(refusal(degrees(0, 1, 1), 3, {8, 2}).find("to a multiple of 6"), std::string::npos);
  EXPECT_EQ(refusal(degrees(0, 1, 1), 3, {6, 2}), "");
  EXPECT_EQ(refusal(degrees(0, 1, 1), 3, {9, 2}),
            "train.micro_batch: 2 does not divide the 3 sequences of each replica (train.batch_size = 9, 3 replicas). "
            "Set it to 1 or 3, or train.batch_size to a multiple of 6");
}

// The micro-batch divides the batches of all sizes.
TEST(Plan, SharesBatchesThatChange) {
  const ParallelPlan p = make_plan(degrees(2, 1, 1), model(), {48, 4, {24, 8}}, 2);
  EXPECT_EQ(p.micro_batch, 4);
  EXPECT_EQ(p.micro_batches, 6) << "of the largest";
  EXPECT_EQ(make_plan(degrees(2, 1, 1), model(), {48, 0, {24, 8}}, 2).micro_batch, 4) << "the smallest step's share";
  EXPECT_NE(refusal(degrees(0, 1, 1), 2, {48, 4, {25}}).find("train.batch_size: 25"), std::string::npos);
  for (const char* part : {"train.micro_batch: 8", "12 sequences", "train.batch_size = 24, 2 replicas",
                           "1, 2, 3, 4, 6 or 12", "all batch sizes to a multiple of 16"})
    EXPECT_NE(refusal(degrees(0, 1, 1), 2, {48, 8, {24}}).find(part), std::string::npos) << part;
  EXPECT_NE(refusal(degrees(0, 1, 1), 1, {48, 0, {36}}).find("train.micro_batch: 0 (36"), std::string::npos);
  EXPECT_NE(refusal(degrees(0, 1, 1), 1, {48, 0, {36}}).find("48 sequences"), std::string::npos);
  EXPECT_TRUE(refusal(degrees(0, 1, 1), 1, {48, 0, {36}}).ends_with("Set it to 1, 2, 3, 4, 6 or 12"));
}

TEST(Plan, RefusesContextsAndSchedulesThatDoNotFit) {
  EXPECT_NE(refusal(degrees(0, 128, 1), 128).find("parallel.cp: 128"), std::string::npos);
  EXPECT_NE(refusal(degrees(0, 128, 1), 128).find("64 tokens"), std::string::npos);
  ParallelConfig nodes = degrees(0, 4, 1);
  nodes.cp_ranks_per_node = 3;
  EXPECT_NE(refusal(nodes, 4).find("parallel.cp_ranks_per_node: 3"), std::string::npos);
  ParallelConfig heads = degrees(0, 4, 2);
  heads.cp_schedule = ContextSchedule::all_to_all;
  EXPECT_NE(refusal(heads, 8).find("2 (model.kv_heads: 4, parallel.tp: 2)"), std::string::npos);
  EXPECT_NE(refusal(heads, 8).find("among 4"), std::string::npos);
  heads.cp_schedule = ContextSchedule::hybrid;
  heads.cp_ranks_per_node = 4;
  EXPECT_EQ(refusal(heads, 8),
            "parallel.cp_schedule: hybrid shares the KV heads among the 4 ranks of cp on each node, but 2 "
            "(model.kv_heads: 4, parallel.tp: 2) cannot be divided among 4. Use parallel.cp_schedule: ring, or set "
            "parallel.cp_ranks_per_node to a divisor of the KV heads and of parallel.cp: 4");
  heads.cp_ranks_per_node = 2;
  EXPECT_EQ(make_plan(heads, model(), {24, 1}, 8).text(), "cp 4 hybrid, tp 2");
  const std::string tokens = refusal(degrees(0, 32, 4), 128, {1, 1});
  EXPECT_NE(tokens.find("parallel.tp: 4"), std::string::npos) << tokens;
  EXPECT_NE(tokens.find("the 2 tokens"), std::string::npos) << tokens;
}

// Late queries see more pools. With all_to_all, ranks divide heads, which all see the same number.
TEST(Plan, RowsWithPoolsAreDividedEvenly) {
  ModelConfig m = model();
  m.attention.kind = "window";
  m.attention.window = 8;
  const auto chunks = [&](ContextSchedule schedule) {
    ParallelConfig c = degrees(1, 2, 1);
    c.cp_schedule = schedule;
    return make_plan(c, m, {24, 0}, 2).cp_layout.chunks(0).size();
  };
  EXPECT_EQ(chunks(ContextSchedule::ring), 1u) << "a window alone";
  m.attention.pools = {4};
  EXPECT_EQ(chunks(ContextSchedule::ring), 2u);
  EXPECT_EQ(chunks(ContextSchedule::gather), 2u);
  EXPECT_EQ(chunks(ContextSchedule::automatic), 1u) << "all_to_all";
}

// model() has 64 tokens. With all_to_all, ranks have the same number of pairs in any layout.
TEST(Plan, PackedRowsAreBalanced) {
  const auto kind = [](ContextSchedule schedule, int ranks, bool packed, ContextLayoutChoice choice = {}) {
    ParallelConfig c = degrees(1, ranks, 1);
    c.cp_schedule = schedule;
    c.cp_layout = choice;
    return make_plan(c, model(), {24, 0, {}, 0, packed}, ranks).cp_layout.kind();
  };
  for (const ContextSchedule s : {ContextSchedule::automatic, ContextSchedule::ring, ContextSchedule::gather}) {
    EXPECT_EQ(kind(s, 2, true), ContextLayoutKind::balanced);
    EXPECT_EQ(kind(s, 2, false), ContextLayoutKind::zigzag);
  }
  EXPECT_EQ(kind(ContextSchedule::all_to_all, 2, true), ContextLayoutKind::zigzag);
  EXPECT_EQ(kind(ContextSchedule::ring, 3, true), ContextLayoutKind::zigzag) << "3 ranks do not divide 64 tokens";
  EXPECT_EQ(kind(ContextSchedule::ring, 2, true, ContextLayoutChoice::zigzag), ContextLayoutKind::zigzag);
  EXPECT_EQ(kind(ContextSchedule::ring, 2, false, ContextLayoutChoice::balanced), ContextLayoutKind::balanced);
  ParallelConfig c = degrees(1, 3, 1);
  c.cp_layout = ContextLayoutChoice::balanced;
  EXPECT_TRUE(
      refusal(c, 3).ends_with("they do not divide the 64 tokens of a row. Set model.context to a multiple of "
                              "3, or parallel.cp_layout: auto"));
}

// model() has 64 tokens and 4 KV heads.
TEST(Plan, RanksThatShareChunksExchangeHeads) {
  const BatchSize chunks{8, 1, {}, 16};
  const ParallelPlan p = make_plan(degrees(1, 2, 2), model(), chunks, 4);
  EXPECT_TRUE(p.in_chunks);
  EXPECT_EQ(p.config.cp_schedule, ContextSchedule::all_to_all);
  EXPECT_EQ(p.cp_layout.ranks(), 4);
  for (const ContextLayout& slices : slices_of_parts(p.cp_layout, 2, 2))
    for (const int rank : {0, 1}) EXPECT_EQ(slices.tokens_of_rank(rank), 8);
  ParallelConfig c = degrees(1, 2, 1);
  c.cp_schedule = ContextSchedule::ring;
  EXPECT_EQ(refusal(c, 2, chunks),
            "train.sequence_chunk: 16 with parallel.cp: 2 needs parallel.cp_schedule: all_to_all, but it is ring. Set "
            "it to all_to_all or auto");
  c.cp_schedule = ContextSchedule::hybrid;
  EXPECT_NE(refusal(c, 2, chunks).find("needs parallel.cp_schedule: all_to_all, but it is hybrid"), std::string::npos);
  c = degrees(1, 8, 1);
  EXPECT_EQ(refusal(c, 8, chunks),
            "train.sequence_chunk: 16 with parallel.cp: 8 shares the KV heads among the ranks of cp "
            "(parallel.cp_schedule: all_to_all), but 4 (model.kv_heads: 4) cannot be divided among 8. Set parallel.cp "
            "to a divisor, or train.sequence_chunk: 0");
  c.cp_schedule = ContextSchedule::gather;
  EXPECT_TRUE(refusal(c, 8, chunks).ends_with("and parallel.cp to a divisor of the KV heads, 4 (model.kv_heads: 4)"));
  c = degrees(1, 2, 1);
  c.cp_messages = ContextMessages::bf16;
  EXPECT_TRUE(refusal(c, 2, chunks).ends_with("but parallel.cp_messages is bf16. Set it to exact"));
  c = degrees(1, 2, 1);
  c.cp_layout = ContextLayoutChoice::zigzag;
  EXPECT_TRUE(refusal(c, 2, chunks).ends_with("but parallel.cp_layout is zigzag. Set it to auto"));
  c.cp_layout = ContextLayoutChoice::balanced;
  EXPECT_TRUE(refusal(c, 2, chunks).ends_with("but parallel.cp_layout is balanced. Set it to auto"));
  EXPECT_EQ(refusal(degrees(1, 4, 1), 4, {8, 1, {}, 3}),
            "train.sequence_chunk: 3: chunk 0 has 2 tokens, of which rank 0 of parallel.cp: 4 would receive none. "
            "Raise train.sequence_chunk");
}

TEST(Plan, RoundedMessagesNeedRingOrGather) {
  ModelConfig m = model();
  ParallelConfig c = degrees(1, 2, 1);
  const auto schedule = [&](ContextSchedule given, ContextMessages messages) {
    c.cp_schedule = given, c.cp_messages = messages;
    return make_plan(c, m, {24, 0}, 2).config.cp_schedule;
  };
  using enum ContextSchedule;
  for (const ContextMessages messages : {ContextMessages::bf16, ContextMessages::fp8}) {
    const std::string error = error_of([&] { schedule(all_to_all, messages); });
    for (const char* part : {"parallel.cp_messages: ", "parallel.cp_schedule is all_to_all", "ring, gather or auto"})
      EXPECT_NE(error.find(part), std::string::npos) << error;
    for (const ContextSchedule given : {automatic, ring, gather}) EXPECT_EQ(schedule(given, messages), given);
  }
  m.attention.pools = {4};
  EXPECT_EQ(schedule(automatic, ContextMessages::exact), all_to_all);
  EXPECT_EQ(schedule(automatic, ContextMessages::bf16), ring);
}

TEST(Plan, NamesReferencedKeysWithoutEffect) {
  const auto idle = [](const std::string& pattern, ContextSchedule schedule, std::int64_t kv_heads,
                       ContextKeys keys = ContextKeys::referenced, int cp = 4) {
    ModelConfig m = model();
    m.context = 1024, m.kv_heads = kv_heads;
    m.attention.kind = "block_sparse", m.attention.block = 64;
    m.attention.rules = {{.pattern = pattern, .keep = pattern == "local_global" ? 0 : 4}};
    ParallelConfig c = degrees(1, cp, 1);
    c.cp_schedule = schedule, c.cp_keys = keys;
    const auto all = ineffective_keys(make_plan(c, m.resolved(), {24, 0}, cp), m.resolved());
    return all.empty() ? "" : all[0];
  };
  using enum ContextSchedule;
  const std::string nothing = "", start = "parallel.cp_keys: referenced, but ";
  const auto begins = [&](const std::string& text, const std::string& how) { return text.starts_with(start + how); };
  for (const std::string pattern : {"content", "learned"}) {
    for (const ContextSchedule schedule : {ring, gather}) EXPECT_EQ(idle(pattern, schedule, 4), nothing);
    EXPECT_EQ(idle(pattern, automatic, 2), nothing) << "heads do not divide: the ring";
    EXPECT_TRUE(begins(idle(pattern, automatic, 4), "parallel.cp_schedule is all_to_all")) << "heads divide";
    EXPECT_TRUE(begins(idle(pattern, all_to_all, 4), "parallel.cp_schedule is all_to_all"));
    EXPECT_EQ(idle(pattern, all_to_all, 4, ContextKeys::automatic), nothing);
    EXPECT_EQ(idle(pattern, all_to_all, 4, ContextKeys::all), nothing);
    EXPECT_EQ(idle(pattern, all_to_all, 4, ContextKeys::referenced, 1), nothing);
  }
  for (const std::string pattern : {"local_global", "importance"})
    for (const ContextSchedule schedule : {automatic, ring, gather, all_to_all})
      EXPECT_TRUE(begins(idle(pattern, schedule, 4), "no layer selects its blocks")) << idle(pattern, schedule, 4);
}

// Returns a model that can be divided into pipeline stages.
ModelConfig model_of_stages() {
  ModelConfig m = model();
  m.layers = 4, m.tied_embeddings = false;
  return m.resolved();
}

// Returns the keys that ineffective_keys() names for a run of `world` processes with the given settings and batch.
std::string ineffective(const std::vector<std::string>& settings, int world, const BatchSize& batch = {24, 1}) {
  const ModelConfig m = model_of_stages();
  ParallelConfig c;
  override_config(c, settings);
  std::string keys;
  for (const std::string& warning : ineffective_keys(make_plan(c, m, batch, world), m))
    keys += (keys.empty() ? "" : " ") + warning.substr(0, warning.find(':'));
  return keys;
}

TEST(Plan, NamesSettingsWithoutEffect) {
  EXPECT_EQ(ineffective({}, 1), "");
  EXPECT_EQ(ineffective({"compress=int8"}, 2), "");
  EXPECT_EQ(ineffective({"compress=int8"}, 1), "parallel.compress");
  EXPECT_EQ(ineffective({"compress=int8", "cp=2"}, 2), "");
  EXPECT_EQ(ineffective({"compress=int8", "tp=2"}, 2), "parallel.compress");
  EXPECT_EQ(ineffective({"compress=topk", "compress_top=0.02"}, 2), "");
  EXPECT_EQ(ineffective({"compress_top=0.02"}, 2), "parallel.compress_top");
  EXPECT_EQ(ineffective({"compress=fp8", "reduce=bf16"}, 2), "parallel.reduce");
  EXPECT_EQ(ineffective({"compress=none", "reduce=bf16", "chosen=[compress]"}, 2), "") << "auto chose none";
  const std::vector<std::string> outer = {"outer_lr=0.5", "outer_momentum=0.8", "outer_bits=8", "outer_fragments=2",
                                          "outer_delay=1"};
  EXPECT_EQ(ineffective(outer, 2),
            "parallel.outer_lr parallel.outer_momentum parallel.outer_fragments parallel.outer_delay "
            "parallel.outer_bits");
  std::vector<std::string> used = outer;
  used.insert(used.end(), {"islands=2", "local_steps=10"});
  EXPECT_EQ(ineffective(used, 2), "");
  EXPECT_EQ(ineffective({"local_steps=10", "outer_bits=8", "outer_lr=0.5"}, 2), "parallel.outer_bits");
  EXPECT_EQ(ineffective({"pp_order=1f1b"}, 1), "parallel.pp_order");
  EXPECT_EQ(ineffective({"pp_order=1f1b", "pp=2"}, 2), "");
}

TEST(Plan, WarnsOfStagesWithASingleMicroBatch) {
  EXPECT_EQ(ineffective({"pp=2"}, 2, {24, 0}), "train.micro_batch");
  EXPECT_EQ(ineffective({"pp=2"}, 2, {24, 12}), "");
  EXPECT_EQ(ineffective({}, 1, {24, 0}), "") << "no stages";
  EXPECT_EQ(ineffective({"pp=2", "pp_slices=4"}, 2, {1, 1}), "");
  ParallelConfig c;
  c.pp = 2;
  const ModelConfig m = model_of_stages();
  const auto warning = [&](std::int64_t sequences) {
    return ineffective_keys(make_plan(c, m, {sequences, 0}, 2), m).at(0);
  };
  EXPECT_NE(warning(24).find("in 50 % of a step. Set it to 3"), std::string::npos) << warning(24);
  EXPECT_NE(warning(6).find("Set it to 1"), std::string::npos) << warning(6);
  EXPECT_NE(warning(1).find("Raise train.batch_size"), std::string::npos) << warning(1);
}

TEST(Plan, SlicesAreChunksThatPassThroughStages) {
  const ModelConfig m = model_of_stages();
  ParallelConfig c = degrees(1, 1, 1);
  c.pp = 2;
  c.pp_slices = 4;
  const auto plan = [&](int world, std::int64_t micro_batch = 1) { return make_plan(c, m, {8, micro_batch}, world); };
  const auto refused = [&](int world, std::int64_t micro_batch = 1) {
    return error_of([&] { plan(world, micro_batch); });
  };
  const ParallelPlan p = plan(2);
  EXPECT_TRUE(p.in_chunks);
  EXPECT_EQ(p.text(), "pp 2, 4 slices");
  EXPECT_EQ(p.forwards(), 32);
  ASSERT_EQ(p.cp_layout.ranks(), 4);
  for (int slice = 0; slice < 4; ++slice) EXPECT_EQ(p.cp_layout.tokens_of_rank(slice), 16);
  EXPECT_EQ(refused(2, 2),
            "parallel.pp_slices: 4 divides one sequence at a time, but train.micro_batch is 2. Set it to 1");
  c.pp_parts = 2;
  EXPECT_TRUE(refused(2).ends_with("but parallel.pp_parts is 2. Set one of the two to 1"));
  c.pp_parts = 1;
  c.tp = 4;
  c.pp_slices = 32;
  EXPECT_NE(refused(8).find("does not divide the 2 tokens of a micro-batch in slice 0"), std::string::npos);
  c.tp = 1;
  c.pp_slices = 65;
  EXPECT_TRUE(refused(2).ends_with("more than the 64 tokens of a sequence (model.context). Lower parallel.pp_slices"));
  c.pp_slices = 4;
  c.cp = 8;
  EXPECT_TRUE(refused(16).ends_with("Set parallel.cp to a divisor, or parallel.pp_slices: 1"));
}

TEST(Plan, TextNamesTheDegrees) {
  ParallelConfig c = degrees(0, 2, 2);
  c.zero = 3;
  EXPECT_EQ(make_plan(c, model(), {24, 0}, 8).text(), "dp 2, cp 2, tp 2, zero 3");
  EXPECT_EQ(make_plan(degrees(0, 1, 1), model(), {24, 0}, 1).text(), "");
}

TEST(ParallelizeTensor, ShardsEveryMatrixAndNoVector) {
  Decoder whole(model(), 16), cut(model(), 16);
  cut.shard({1, 4});
  whole.parameters().lay_out();
  cut.parameters().lay_out();
  EXPECT_EQ(cut.parameters().num_elements(), whole.parameters().num_elements());
  std::int64_t vectors = 0;
  for (const Param* p : cut.parameters().layout()) {
    EXPECT_EQ(p->placement.cut == Cut::none, p->shape.size() == 1) << p->parts[0].name;
    vectors += p->shape.size() == 1;
  }
  EXPECT_EQ(vectors, 3);  // two norms of the block and the final norm
  EXPECT_LT(cut.parameters().size(), whole.parameters().size() / 3);
}

TEST(ParallelizeTensor, RefusesSlicesThatDoNotDivide) {
  Decoder decoder(model());
  EXPECT_THROW(decoder.shard({0, 3}), Error);
}

}  // namespace
}  // namespace ring
