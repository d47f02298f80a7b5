#include "engine/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "core/fields.h"
#include "engine/attention_advice.h"
#include "engine/memory_kinds.h"
#include "engine/resolve.h"
#include "inspect/memory_picture.h"

namespace ring {
namespace {

PlanRequest question(const char* device, const std::vector<std::string>& settings = {}) {
  Config c;
  std::vector<std::string> all = {"data.path=none",         "train.steps=10",     "train.batch_size=8",
                                  "model.vocab_size=50304", "model.context=2048", "model.layers=8",
                                  "model.width=512",        "model.heads=8",      "model.kv_heads=4",
                                  "model.positions=rope",   "model.norm=rms",     "model.mlp=swiglu"};
  all.insert(all.end(), settings.begin(), settings.end());
  override_config(c, all);
  const Backend backend = std::string(device) == "cpu" ? Backend::cpu : Backend::cuda;
  PlanRequest q;
  q.config = resolve_config(c, c.model.vocab_size, 1, backend, false);
  q.rates = shipped_rates(device, 2);
  q.budget = std::size_t{64} << 30;
  return q;
}

std::size_t bytes_of(const PlannedStep& p, const std::string& name) {
  const std::vector<MemoryKind> kinds = memory_by_kind(p);
  return std::ranges::find(kinds, name, &MemoryKind::name)->bytes;
}

TEST(Planner, PlansLayoutsOfDevicesThatAreNotHere) {
  for (const char* device : {"h100", "cpu"}) {
    PlanRequest q = question(device);
    q.world = 8;
    const std::vector<PlannedStep> all = plan_layouts(q);
    ASSERT_GE(all.size(), 8u);
    for (const PlannedStep& p : all) {
      EXPECT_LE(p.peak, q.budget);
      EXPECT_GT(p.seconds(), 0);
      EXPECT_GT(p.mfu, 0);
      EXPECT_LE(p.mfu, 1);
    }
    for (std::size_t i = 1; i < all.size(); ++i) EXPECT_GE(1.001 * all[i].seconds(), all[i - 1].seconds()) << i;
  }
}

TEST(Planner, DegreesAreAllDivisorsOfTheProcesses) {
  PlanRequest q = question("cpu", {"train.batch_size=12", "model.context=3072"});
  q.world = 6;
  q.fixed.tp = 1;
  q.fixed.zero = 0;
  std::set<std::int64_t> degrees;
  const Layouts all = try_layouts(q);
  for (const PlannedStep& p : all.fit) degrees.insert(p.config.parallel.cp);
  EXPECT_EQ(degrees, (std::set<std::int64_t>{1, 2, 3, 6})) << all.error;
}

TEST(Planner, PipelineStagesWaitForTheBubbleAndHaveTheirOwnPeaks) {
  const std::vector<std::string> settings = {"model.tied_embeddings=false", "train.micro_batch=1",
                                             "train.batch_size=16"};
  PlanRequest one = question("h100", settings), q = one;
  one.fixed = {1, 1, 1, 0};
  q.config.parallel.pp = 4;
  q.world = 8;
  const std::vector<PlannedStep> alone = plan_layouts(one), all = plan_layouts(q);
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0].bubble, 0);
  ASSERT_GE(all.size(), 3u);  // dp 2 with zero 0 and 1, cp 2, tp 2
  bool found = false;
  for (const PlannedStep& p : all) {
    EXPECT_EQ(p.layout.find("pp 4, "), 0u) << p.layout;
    ASSERT_EQ(p.stage_peaks.size(), 4u);
    EXPECT_EQ(p.peak, std::ranges::max(p.stage_peaks));
    ASSERT_EQ(p.stage_seconds.size(), 4u);
    if (p.layout != "pp 4, dp 2") continue;
    found = true;
    EXPECT_DOUBLE_EQ(p.bubble, 3.0 / (8 + 3));
    EXPECT_GT(p.seconds(), alone[0].seconds() / 8 / (1 - p.bubble)) << "stages are no faster than their share";
    EXPECT_LT(p.seconds(), 2 * alone[0].seconds() / 8 / (1 - p.bubble));
    EXPECT_LT(p.peak, alone[0].peak);
    q.fixed = {2, 1, 1, 0};
    q.config.parallel.pp_slices = 4;
    const std::vector<PlannedStep> slices = plan_layouts(q);
    ASSERT_EQ(slices.size(), 1u);
    EXPECT_EQ(slices[0].layout, "pp 4, 4 slices, dp 2");
    EXPECT_DOUBLE_EQ(slices[0].bubble, 3.0 / (4 * 8 + 3));
    // The first stage holds 7 quarters of a sequence instead of 4 whole sequences, plus keys of earlier slices.
    EXPECT_LT(slices[0].peak, p.peak);
    EXPECT_LT(bytes_of(slices[0], "kept"), bytes_of(p, "kept") * 3 / 4);
    EXPECT_GT(bytes_of(slices[0], "kept"), bytes_of(p, "kept") * 7 / 16);
    std::size_t kinds = 0;
    for (const MemoryKind& kind : memory_by_kind(slices[0])) kinds += kind.bytes;
    EXPECT_EQ(kinds, slices[0].peak);
  }
  EXPECT_TRUE(found);
}

PlannedStep plan_of_stages(const std::vector<std::string>& more) {
  PlanRequest q = question("h100", {"model.tied_embeddings=false", "model.vocab_size=1024", "train.micro_batch=1",
                                    "train.batch_size=16"});
  override_config(q.config, {"parallel.pp=4", "parallel.dp=2"});
  override_config(q.config, more);
  q.world = 8;
  return plan_step(q).value();
}

TEST(Planner, StagesCanShardGradients) {
  const PlannedStep one = plan_of_stages({"parallel.zero=1"}), two = plan_of_stages({"parallel.zero=2"});
  const auto shard = static_cast<double>(two.gradients - two.gradient_buffers);
  EXPECT_NEAR(shard, static_cast<double>(one.gradients) / 2, 0.01 * shard);
  EXPECT_LT(two.peak, one.peak);
}

// Stages are divided by FLOPs. By predicted times the division may be better, and a bad one certainly is not the best.
TEST(Planner, ABetterDivisionIsFoundByPredictedTimes) {
  const PlannedStep bad = plan_of_stages({"parallel.pp_division=[4,2,1,1]"});
  ASSERT_EQ(bad.better_division.size(), 4u);
  EXPECT_GT(bad.stage_seconds[0], bad.stage_seconds[2]);
  std::string division;
  std::int64_t blocks = 0;
  for (const std::int64_t n : bad.better_division) {
    blocks += n;
    division += str(division.empty() ? "" : ",", n);
  }
  EXPECT_EQ(blocks, 8);
  const PlannedStep good = plan_of_stages({str("parallel.pp_division=[", division, "]")});
  EXPECT_TRUE(good.better_division.empty());
  EXPECT_LT(good.seconds(), bad.seconds());
}

// Eight processes with a batch of one sequence each: ZeRO stages 1 and 2 send the same messages, and stage 2 holds
// less.
TEST(Planner, OfEquallyFastLayoutsTheSmallestIsFirst) {
  PlanRequest q = question("h100");
  q.world = 8;
  q.rates.collective_bytes_per_second = 0;  // messages take no time, so that layouts tie
  std::size_t calls = 0, layouts = 0;
  const Layouts found = try_layouts(q, [&](std::size_t done, std::size_t all, const PlannedStep*) {
    EXPECT_EQ(done, calls++);
    layouts = all;
  });
  EXPECT_EQ(calls, layouts);
  EXPECT_GE(layouts, found.fit.size());
  int ties = 0;
  for (std::size_t i = 1; i < found.fit.size(); ++i) {
    if (found.fit[i].seconds() != found.fit[i - 1].seconds()) continue;
    ++ties;
    EXPECT_LE(found.fit[i - 1].peak, found.fit[i].peak) << found.fit[i].layout;
  }
  EXPECT_GT(ties, 0);
}

// The number of blocks changes: memory is planned with the largest number, time with the last.
TEST(Planner, PlansChangingAttentionWithItsLargestMemoryAndLastTime) {
  const auto planned = [](const std::string& keep) {
    const auto p = plan_step(question("h100", {"model.attention={kind: block_sparse, block: 64, rules: [{pattern: "
                                               "content, keep: " +
                                               keep + "}]}"}));
    EXPECT_TRUE(p) << keep;
    return p.value_or(PlannedStep{});
  };
  const PlannedStep changing = planned("[[0, 32], [1e6, 4]]"), largest = planned("32"), last = planned("4");
  EXPECT_EQ(changing.peak, largest.peak);
  EXPECT_EQ(changing.compute_seconds, last.compute_seconds);
  EXPECT_EQ(changing.mfu, last.mfu);
  EXPECT_LT(changing.compute_seconds, largest.compute_seconds);
  const PlannedStep fewer = planned("32, mass: 0.5");
  EXPECT_EQ(fewer.peak, largest.peak) << "keep is what there is room for";
  EXPECT_EQ(fewer.compute_seconds, largest.compute_seconds);
}

TEST(Planner, ZeroShardsStates) {
  PlanRequest q = question("h100");
  q.world = 4;
  std::vector<std::size_t> states;
  for (const std::int64_t zero : {0, 1, 2, 3}) {
    q.config.parallel.zero = zero;
    const auto p = plan_step(q);
    ASSERT_TRUE(p);
    states.push_back(p->weights + p->gradients + p->optimizer_states);
  }
  EXPECT_TRUE(std::ranges::is_sorted(states, std::greater{})) << "each stage shares more";
  EXPECT_LT(states[3], states[0] / 2);
}

// Checks the bytes on the host, the staging memory, and the transfer time that no update hides.
TEST(Planner, StatesOnTheHostSaveMemoryAndTakeTime) {
  PlanRequest q = question("h100");
  const auto here = plan_step(q);
  q.config.optimizer.offload = StateOffload::all;
  q.config.optimizer.offload_staging_bytes = 0;
  const auto away = plan_step(q);
  ASSERT_TRUE(here && away);
  EXPECT_EQ(here->host, 0u);
  EXPECT_EQ(away->host, here->optimizer_states / 8 * 12);
  const std::size_t staging = std::size_t{3} * (64 << 20);
  EXPECT_LE(away->lasting, here->lasting - away->host + staging);
  const double one_way = static_cast<double>(away->host) / q.rates.host_bytes_per_second;
  EXPECT_LT(away->seconds(), here->seconds() + one_way);
  EXPECT_GT(away->seconds(),
            here->seconds() + 0.9 * one_way - static_cast<double>(staging) / q.rates.host_bytes_per_second);
  q.budget = away->peak;
  EXPECT_FALSE(plan_step(question("h100")).value().peak <= q.budget);
}

// Staging is limited by the size of the states and leaves a little of the budget free. Each staged byte saves waiting
// time.
TEST(Planner, StagingTakesTheRemainingMemoryAndSavesTime) {
  PlanRequest q = question(
      "h100", {"optimizer.offload=all", "optimizer.offload_chunk_bytes=1048576", "optimizer.offload_staging_bytes=0"});
  q.config.train.batch_size = 64;
  q.config.train.micro_batch = 2;
  const auto min_bytes = plan_step(q);
  q.config.optimizer.offload_staging_bytes = kAutoStaging;
  const auto most = plan_step(q);
  ASSERT_TRUE(min_bytes && most);
  EXPECT_GT(most->optimizer_states, most->host / 128 * 127) << "there is room for all, in whole chunks";
  EXPECT_LT(most->optimizer_states, most->host + (1 << 20));
  const double rate = q.rates.host_bytes_per_second;
  const double hidden =
      static_cast<double>(min_bytes->host - min_bytes->optimizer_states) / rate;  // the update also hides some
  EXPECT_LT(min_bytes->seconds() - most->seconds(), hidden);
  EXPECT_GT(min_bytes->seconds() - most->seconds(), 0.7 * hidden);
  const std::size_t room = std::size_t{100} << 20;
  q.budget = (min_bytes->peak + room) * 25 / 24;
  const auto some = plan_step(q);
  ASSERT_TRUE(some);
  EXPECT_EQ(some->peak, some->activations.peak);
  EXPECT_LE(some->peak, min_bytes->peak + room);
  EXPECT_GT(some->peak, min_bytes->peak + room - (2 << 20));
  EXPECT_NEAR(min_bytes->seconds() - some->seconds(), static_cast<double>(some->peak - min_bytes->peak) / rate, 1e-6);
  q.config.optimizer.offload_staging_bytes = some->config.optimizer.offload_staging_bytes;
  EXPECT_EQ(plan_step(q)->peak, some->peak);
  EXPECT_EQ(plan_step(q)->seconds(), some->seconds());
}

TEST(Planner, LessMemoryTakesMoreTimeUntilNothingFits) {
  PlanRequest q = question("h100");
  const auto roomy = plan_step(q);
  ASSERT_TRUE(roomy);
  q.budget = roomy->peak * 7 / 10;
  const auto tight = plan_step(q);
  ASSERT_TRUE(tight);
  EXPECT_LE(tight->peak, q.budget);
  EXPECT_GT(tight->seconds(), roomy->seconds());
  EXPECT_NE(memory_picture(*tight).find("recomputes"), std::string::npos);
  q.budget = roomy->weights;
  EXPECT_FALSE(plan_step(q));
  EXPECT_TRUE(plan_layouts(q).empty());
}

// The automatic choice is as fast as the fastest fixed size, and chunks are not used if everything fits.
TEST(Planner, MlpChunksAreTheFastestThatFit) {
  PlanRequest q = question("h100", {"model.context=65536", "train.batch_size=1", "model.width=1024",
                                    "model.mlp_width=8192", "train.loss_chunk_bytes=100e6"});
  q.config.train.mlp_chunk = kAutoMlpChunk;
  const auto roomy = plan_step(q);
  ASSERT_TRUE(roomy);
  EXPECT_EQ(roomy->config.train.mlp_chunk, 0);
  bool chosen = false;
  for (const double share : {0.8, 0.6, 0.5, 0.4, 0.3}) {
    q.budget = static_cast<std::size_t>(share * static_cast<double>(roomy->peak));
    const auto best = plan_step(q);
    for (const std::int64_t tokens : {0, 32768, 16384, 8192, 4096}) {
      PlanRequest with = q;
      with.config.train.mlp_chunk = tokens;
      const auto other = plan_step(with);
      ASSERT_TRUE(best || !other) << share << " " << tokens;
      if (!other) continue;
      const bool smaller = tokens > 0 && best->config.train.mlp_chunk > tokens;
      EXPECT_LE(best->seconds(), other->seconds()) << share << " " << tokens;
      EXPECT_TRUE(best->seconds() < other->seconds() || smaller || tokens == best->config.train.mlp_chunk);
      chosen |= best->config.train.mlp_chunk > 0;
    }
  }
  EXPECT_TRUE(chosen);
}

// Whole sequences if they fit, otherwise the largest chunks that fit, with one sequence at a time.
TEST(Planner, SequenceChunksAreTheLargestThatFit) {
  PlanRequest q = question("h100", {"model.context=65536", "train.batch_size=2", "train.micro_batch=2",
                                    "train.recompute=full", "train.loss_chunk_bytes=100e6"});
  q.config.train.sequence_chunk = kAutoSequenceChunk;
  const auto roomy = plan_step(q);
  ASSERT_TRUE(roomy);
  EXPECT_EQ(roomy->config.train.sequence_chunk, 0);
  q.config.train.micro_batch = kAutoMicroBatch;
  std::set<std::int64_t> chosen;
  for (const double share : {0.9, 0.45, 0.3, 0.2, 0.15}) {
    q.budget = static_cast<std::size_t>(share * static_cast<double>(roomy->peak));
    const StepSizes sizes = fit_step_sizes(q);
    chosen.insert(sizes.sequence_chunk);
    EXPECT_TRUE(sizes.micro_batch == 1 || sizes.sequence_chunk == 0) << share;
    PlanRequest with = q;
    with.config.train.micro_batch = 1;
    with.config.train.sequence_chunk = sizes.sequence_chunk;
    if (!plan_step(with)) {
      EXPECT_EQ(sizes.sequence_chunk, 4096) << share << ": nothing fits, so the least was chosen";
    }
    for (std::int64_t larger = 2 * sizes.sequence_chunk; sizes.sequence_chunk && larger < 65536; larger *= 2) {
      with.config.train.sequence_chunk = larger;
      EXPECT_FALSE(plan_step(with)) << share << ": " << larger;
    }
  }
  EXPECT_TRUE(chosen.contains(0));
  EXPECT_GE(chosen.size(), 3u);
}

TEST(Planner, SequencesThatCannotBeInChunksStayWhole) {
  PlanRequest q = question("h100", {"model.context=65536", "train.batch_size=1", "train.sequence_chunk=auto",
                                    "train.diagnostics_interval=10"});
  q.budget = std::size_t{1} << 30;
  EXPECT_EQ(fit_sequence_chunk(q), 0);
  EXPECT_FALSE(plan_step(q));
}

TEST(Planner, MoreMemoryAndMoreDevicesHoldLongerContexts) {
  PlanRequest q = question("h100", {"train.batch_size=1"});
  q.budget = std::size_t{4} << 30;
  const std::int64_t small = longest_context(q).tokens;
  q.budget = std::size_t{8} << 30;
  const std::int64_t large = longest_context(q).tokens;
  q.world = 2;
  const std::int64_t shared = longest_context(q).tokens;
  EXPECT_GT(small, 1024);
  EXPECT_GT(large, small);
  EXPECT_GT(shared, large);
}

// The table of layouts offloads optimizer states if nothing else fits, and so does the search.
TEST(Planner, TheLongestContextFitsAsInTheTable) {
  PlanRequest q = question(
      "h100", {"train.batch_size=1", "train.micro_batch=1", "model.layers=2", "optimizer.offload_chunk_bytes=1048576"});
  const auto roomy = plan_step(q);
  ASSERT_TRUE(roomy);
  q.budget = roomy->peak;
  for (const std::int64_t host : {std::int64_t{0}, std::int64_t{64} << 20}) {
    q.config.train.activation_offload_bytes = q.host = host;
    const LongestContext longest = longest_context(q);
    ASSERT_GT(longest.tokens, 1024);
    const Layouts there = try_layouts(longest.request);
    ASSERT_EQ(there.fit.size(), 1u);
    EXPECT_EQ(there.fit[0].config.model.context, longest.tokens);
    EXPECT_EQ(there.fit[0].host_lasting > 0, host == 0) << "the states have room on the host";
    q.config.model.context = (longest.tokens / 1024 * 9 / 8 + 1) * 1024;
    EXPECT_TRUE(try_layouts(q).fit.empty()) << longest.tokens << " is not the longest";
  }
}

// With train.sequence_chunk: auto, a context that does not fit as a whole is tried in chunks. Host memory, which holds
// the keys of earlier chunks, is then the limit.
TEST(Planner, TheLongestContextMayNeedChunks) {
  PlanRequest q =
      question("h100", {"train.batch_size=1", "model.layers=2", "train.recompute=none",
                        "train.activation_offload_bytes=200MB", "model.attention={kind: window, window: 512}"});
  q.budget = std::size_t{4} << 30;
  q.host = q.config.train.activation_offload_bytes;
  const std::int64_t whole = longest_context(q).tokens;
  q.config.train.sequence_chunk = kAutoSequenceChunk;
  const LongestContext chunked = longest_context(q);
  EXPECT_GE(chunked.tokens, 4 * whole);
  const Layouts there = try_layouts(chunked.request);
  ASSERT_EQ(there.fit.size(), 1u) << there.error;
  EXPECT_GT(there.fit[0].config.train.sequence_chunk, 0);
}

TEST(Planner, FixedDegreesAreKept) {
  PlanRequest q = question("cpu", {"model.layers=1", "train.micro_batch=1", "train.batch_size=8"});
  q.world = 4;
  const auto names = [&] {
    std::set<std::string> all;
    for (const PlannedStep& p : plan_layouts(q)) all.insert(p.layout);
    return all;
  };
  const std::set<std::string> all = names();
  const std::pair<FixedDegrees, const char*> fixed[] = {
      {{.dp = 2}, "dp 2"}, {{.cp = 2}, "cp 2"}, {{.tp = 2}, "tp 2"}, {{.zero = 3}, "zero 3"}, {{.tp = 4}, "tp 4"}};
  for (const auto& [degrees, text] : fixed) {
    std::set<std::string> expected;
    for (const std::string& layout : all)
      if (layout.find(text) != std::string::npos) expected.insert(layout);
    q.fixed = degrees;
    std::set<std::string> kept = names();
    kept.erase("tp 4, zero 3");  // the second setting is given, but has no effect without replicas
    EXPECT_EQ(kept, expected) << text;
    EXPECT_FALSE(expected.empty()) << text;
    EXPECT_EQ(q.fixed.text(), text);
  }
  q.fixed = {.cp = 3, .tp = 2};
  const Layouts none = try_layouts(q);
  EXPECT_TRUE(none.fit.empty());
  EXPECT_NE(none.error.find("cp 3, tp 2"), std::string::npos) << none.error;
}

TEST(Planner, AStoppedSearchKeepsItsResults) {
  PlanRequest q = question("cpu", {"model.layers=1", "train.micro_batch=1", "train.batch_size=8"});
  q.world = 4;
  const std::size_t all = plan_layouts(q).size();
  constexpr std::size_t kTried = 3;
  std::size_t begun = 0;
  double best = 0;
  q.stopped = [&] { return begun > kTried; };
  const Layouts some = try_layouts(q, [&](std::size_t done, std::size_t count, const PlannedStep* step) {
    EXPECT_EQ(done, begun++);
    EXPECT_GE(count, all);
    EXPECT_EQ(step != nullptr, done > 0);
    if (step) best = step->seconds();
  });
  EXPECT_EQ(some.tried, kTried);
  EXPECT_GE(some.count, all);
  ASSERT_EQ(some.fit.size(), kTried);
  EXPECT_EQ(std::ranges::min(some.fit, {}, &PlannedStep::seconds).seconds(), best);
  EXPECT_THROW(longest_context(q), PlanStopped);
}

TEST(Planner, AdvisesEveryKindOfAttention) {
  PlanRequest q = question("h100", {"model.context=32768", "train.batch_size=1"});
  const std::vector<AttentionAdvice> all = advise_attention(q, std::nullopt);
  ASSERT_EQ(all.size(), 8u);
  const AttentionAdvice &dense = all[0], &window = all[1], &dilated = all[2];
  for (const AttentionAdvice& a : all) {
    ASSERT_TRUE(a.step) << a.yaml;
    EXPECT_LE(a.pairs, 1) << a.yaml;
    EXPECT_LE(a.flops, dense.flops) << a.yaml;
    EXPECT_LE(a.share, dense.share) << a.yaml;
    Config c;  // the fragment is the planned setting
    override_config(c, {"data.path=none", "train.steps=1", "model.attention=" + a.yaml});
    EXPECT_EQ(to_yaml(c.model.attention), to_yaml(a.attention));
  }
  EXPECT_EQ(dense.pairs, 1);
  EXPECT_GT(dense.share, 0.25);
  EXPECT_LE(window.share, 0.27);
  EXPECT_EQ(dilated.attention.segments, (std::vector<std::int64_t>{2048, 4096, 8192, 16384, 32768}));
  EXPECT_EQ(dilated.attention.rates, (std::vector<std::int64_t>{1, 2, 4, 8, 16}));
  std::vector<std::string> names;
  for (const AttentionAdvice& a : all) names.push_back(a.name);
  EXPECT_EQ(names, (std::vector<std::string>{"dense", "window", "dilated", "hierarchical", "content", "learned",
                                             "importance", "pools"}));
  for (const AttentionAdvice& a : {all[4], all[5], all[6]}) {  // the same number of tokens as the window
    EXPECT_EQ(a.attention.rules[0].keep * a.attention.block, window.attention.window) << a.yaml;
    const double own = 0.5 / static_cast<double>(a.attention.rules[0].keep);  // a query sees half of its own block
    EXPECT_NEAR(a.pairs, window.pairs, (own + 0.01) * window.pairs) << a.yaml;
  }
  EXPECT_GT(all[7].pairs, window.pairs);  // pools come on top
}

TEST(Planner, HostMemoryMakesContextsLonger) {
  PlanRequest q = question("h100", {"model.context=32768", "train.batch_size=1"});
  const auto longest = [&](std::int64_t host) {
    q.config.train.activation_offload_bytes = q.host = host;
    q.budget = std::size_t{4} << 30;
    return longest_context(q).tokens;
  };
  EXPECT_GT(longest(std::int64_t{64} << 30), longest(0));
}

// Messages of tensor-parallel rows overlap with their block, but collectives of embedding and head are exposed. This
// also holds if all devices are slices of one model.
TEST(Planner, MessagesOfTensorParallelRowsOverlapWithTheirBlocks) {
  PlanRequest q = question("h200", {"model.width=2048", "model.heads=16"});
  q.world = 2;
  q.config.parallel.tp = 2;
  const auto step = plan_step(q);
  const double link = q.rates.link_bytes_per_second;
  q.rates.link_bytes_per_second = link / 1000;
  const auto slow = plan_step(q);
  q.rates.link_bytes_per_second = q.rates.collective_bytes_per_second = 0;  // unknown rates
  const auto silent = plan_step(q);
  ASSERT_TRUE(step && slow && silent);
  EXPECT_EQ(silent->exposed_seconds, 0);
  // The embedding, the head and their gradients each exchange half of all tokens.
  const double rows = 8.0 * 2048 * 2048 * 2 / 2;
  EXPECT_GT(step->exposed_seconds, 4 * rows / 317e9);
  EXPECT_LT(step->exposed_seconds, 2 * (4 * rows / 317e9 + 8 * 30e-6));
  // There are 4 messages per layer forward and 6 backward.
  EXPECT_NEAR(slow->exposed_seconds, 10 * 8 * rows / (link / 1000), 0.02 * 10 * 8 * rows / (link / 1000));
}

// A window as long as the context keeps the pairs of dense attention. The rank with the last contiguous chunk has most
// of these pairs; zigzag chunks distribute them evenly.
TEST(Planner, TimeIsThatOfTheBusiestRank) {
  const auto seconds = [](ContextLayoutChoice layout) {
    PlanRequest q = question("h100", {"model.context=65536", "train.batch_size=1", "train.recompute=none",
                                      "model.attention={kind: window, window: 65536}"});
    q.world = 8;
    q.rates.bytes_per_second = 1e18;  // so that only pairs take time
    q.config.parallel.cp = 8;
    q.config.parallel.cp_schedule = ContextSchedule::ring;
    q.config.parallel.cp_layout = layout;
    const auto p = plan_step(q);
    EXPECT_TRUE(p);
    return p.value_or(PlannedStep{}).attention_seconds;
  };
  const double zigzag = seconds(ContextLayoutChoice::zigzag), contiguous = seconds(ContextLayoutChoice::contiguous);
  EXPECT_GT(zigzag, 0);
  EXPECT_NEAR(contiguous / zigzag, 15.0 / 8, 0.1);  // chunk i of 0 .. 7 has i + 1/2 of the 32 pairs of chunks
}

TEST(Planner, EachPrecisionUsesItsRates) {
  std::vector<double> seconds;
  for (const char* precision : {"train.precision=bf16", "train.precision=tf32", "train.precision=fp32"}) {
    const auto step = plan_step(question("h200", {precision}));
    ASSERT_TRUE(step);
    seconds.push_back(step->seconds());
  }
  EXPECT_GT(seconds[1], 1.5 * seconds[0]);
  EXPECT_GT(seconds[2], 1.5 * seconds[1]);
}

TEST(Planner, KindsOfMemoryAddUpToThePeak) {
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{}, {"train.recompute=full"}, {"train.ema=0.99"}, {"optimizer.offload=all"}}) {
    PlanRequest q = question("h100", settings);
    q.world = 4;
    q.config.model.layers = 2;
    q.config.train.micro_batch = 1;
    for (const PlannedStep& p : plan_layouts(q)) {
      std::size_t all = 0;
      for (const MemoryKind& kind : memory_by_kind(p)) {
        EXPECT_LE(kind.bytes, p.peak) << p.layout << kind.name;
        all += kind.bytes;
      }
      EXPECT_EQ(all, p.peak) << p.layout;
      const bool turns = p.layout.find("zero 2") != std::string::npos || p.layout.find("zero 3") != std::string::npos;
      EXPECT_EQ(bytes_of(p, "buffers") > 0, turns) << p.layout;
    }
  }
}

// Expected bytes follow from tensor sizes: with `full`, each block saves its input in bf16. With ZeRO-3, a rank holds a
// quarter of the states, and its buffers are a separate kind.
TEST(Planner, KindsOfMemoryFollowFromTensorSizes) {
  PlanRequest q = question("h100", {"train.recompute=full", "train.micro_batch=4"});
  const auto one = plan_step(q);
  ASSERT_TRUE(one);
  const std::size_t input = std::size_t{4} * 2048 * 512 * 2;
  EXPECT_GE(bytes_of(*one, "kept"), 8 * input);
  EXPECT_LE(bytes_of(*one, "kept"), 11 * input) << "and of what is around the blocks";
  q.config.train.recompute = RecomputeChoice::none;
  EXPECT_GT(bytes_of(*plan_step(q), "kept"), 3 * bytes_of(*one, "kept"));
  q.world = 4;
  q.config.train.batch_size = 16;
  q.config.parallel.zero = 3;
  const auto shared = plan_step(q);
  ASSERT_TRUE(shared);
  for (const char* kind : {"weights", "gradients", "optimizer"})
    EXPECT_NEAR(static_cast<double>(bytes_of(*shared, kind)), 0.25 * static_cast<double>(bytes_of(*one, kind)),
                0.01 * static_cast<double>(bytes_of(*one, kind)))
        << kind;
}

TEST(Planner, ALayoutThatDoesNotFitNamesASufficientBudget) {
  for (const char* device : {"h100", "cpu"}) {
    PlanRequest q = question(device, {"model.layers=4"});
    q.world = 2;
    q.budget = 1 << 20;
    const Layouts none = try_layouts(q);
    EXPECT_TRUE(none.fit.empty());
    ASSERT_GE(none.too_large.size(), 4u);
    const auto& [layout, min_bytes] = none.too_large.front();
    q.budget = min_bytes;
    const Layouts some = try_layouts(q);
    ASSERT_EQ(some.fit.size(), 1u) << device << " " << layout;
    EXPECT_EQ(some.fit.front().layout, layout);
    EXPECT_LE(some.fit.front().peak, min_bytes);
    q.budget = min_bytes - min_bytes / 50;
    EXPECT_TRUE(try_layouts(q).fit.empty()) << device;
  }
}

// States go to the host only if nothing else makes a layout fit, and only as far as the host has memory.
TEST(Planner, StatesGoToTheHostIfALayoutFitsInNoOtherWay) {
  PlanRequest q = question("h100", {"optimizer.offload_chunk_bytes=1048576", "train.micro_batch=1"});
  q.budget = 1 << 20;
  std::size_t min_bytes = 0;
  ASSERT_FALSE(plan_step(q, &min_bytes));
  q.budget = min_bytes;
  ASSERT_EQ(try_layouts(q).fit.size(), 1u);
  EXPECT_EQ(try_layouts(q).fit[0].host_lasting, 0u) << "it fits on the device";
  q.budget = min_bytes - min_bytes / 10;
  const Layouts moved = try_layouts(q);
  ASSERT_EQ(moved.fit.size(), 1u);
  const PlannedStep& p = moved.fit[0];
  EXPECT_NE(p.config.optimizer.offload, StateOffload::none);
  EXPECT_GT(p.host_lasting, 0u);
  EXPECT_LE(p.peak, q.budget);
  q.config.train.activation_offload_bytes = q.host = static_cast<std::int64_t>(p.host_lasting) + (64 << 20);
  const Layouts shared = try_layouts(q);
  ASSERT_EQ(shared.fit.size(), 1u);
  EXPECT_LE(shared.fit[0].host, p.host_lasting + (64 << 20));
  q.config.train.activation_offload_bytes = q.host = static_cast<std::int64_t>(p.host_lasting) / 2;
  EXPECT_TRUE(try_layouts(q).fit.empty());
}

// Invalid settings are not reported as a lack of memory.
TEST(Planner, SettingsWithoutALayoutGiveTheReason) {
  PlanRequest q = question("cpu");
  q.config.train.micro_batch = 3;
  const Layouts none = try_layouts(q);
  EXPECT_TRUE(none.fit.empty() && none.too_large.empty());
  EXPECT_NE(none.error.find("train.micro_batch"), std::string::npos) << none.error;
}

}  // namespace
}  // namespace ring
