// Plans of several nodes: messages over two rates, small layouts in place of large ones, and the search.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "core/fake.h"
#include "core/fields.h"
#include "engine/devices.h"
#include "engine/layout_estimate.h"
#include "engine/layouts.h"
#include "engine/resolve.h"
#include "engine/scaled_step.h"
#include "engine/step_time.h"

namespace ring {
namespace {

PlanRequest request_of_nodes(WorldSize world, const std::vector<std::string>& settings = {}) {
  Config c;
  std::vector<std::string> all = {"data.path=none",        "train.steps=10",        "train.batch_size=16",
                                  "train.recompute=block", "model.vocab_size=1024", "model.context=8192",
                                  "model.layers=2",        "model.width=256",       "model.heads=8",
                                  "model.kv_heads=4",      "model.mlp_width=1024"};
  all.insert(all.end(), settings.begin(), settings.end());
  override_config(c, all);
  PlanRequest q;
  q.config = resolve_config(c, c.model.vocab_size, 1, Backend::cuda, false);
  q.rates = shipped_rates("h100");
  q.rates.node_link_bytes_per_second = 50e9;
  q.rates.node_link_seconds = 10e-6;
  q.budget = std::size_t{64} << 30;
  q.world = world;
  return q;
}

// The expected seconds are written down from the ring algorithm, with a rate of 1 GB/s in a node and 100 MB/s between
// nodes. Latencies are 0.
TEST(NodeLink, SharesTheLinkOfANodeAmongItsRanks) {
  DeviceRates r = shipped_rates("h100");
  r.collective_bytes_per_second = r.link_bytes_per_second = 1e9;
  r.node_link_bytes_per_second = 1e8;
  r.collective_seconds = r.link_seconds = r.call_seconds = r.node_link_seconds = 0;
  const auto gather = [&](int ranks, int nodes, int on_node) {
    FakeTransfer t{.group = "dp", .operation = "all_gather", .bytes = 16'000'000, .ranks = ranks};
    t.nodes = nodes;
    t.ranks_on_node = on_node;
    t.ranks_of_node = 8;
    return seconds_of(r, t);
  };
  EXPECT_DOUBLE_EQ(gather(8, 1, 8), 0.016 * 7 / 8);
  // One group on all 16 ranks: 15/16 of the bytes enter each node once.
  EXPECT_DOUBLE_EQ(gather(16, 2, 8), 0.16 * 15 / 16);
  // Eight groups of two ranks, one rank of each on a node: the link carries half of the bytes of all eight.
  EXPECT_DOUBLE_EQ(gather(2, 2, 1), 8 * 0.16 / 2);
  FakeTransfer exchange{.group = "cp", .operation = "exchange", .bytes = 4'000'000, .ranks = 16};
  exchange.nodes = 2;
  exchange.ranks_on_node = exchange.ranks_of_node = 8;
  EXPECT_DOUBLE_EQ(seconds_of(r, exchange), 0.004) << "no message leaves the node";
  exchange.bytes_between_nodes = 1'000'000;
  EXPECT_DOUBLE_EQ(seconds_of(r, exchange), 0.08) << "eight ranks send 1 MB each";
  EXPECT_DOUBLE_EQ(seconds_between_nodes(r, exchange), 0.08);
  r.node_link_bytes_per_second = 0;
  EXPECT_DOUBLE_EQ(seconds_of(r, exchange), 0.004) << "an unknown link takes no time";
}

// A layout whose ring and micro-batches are extrapolated, and the same layout simulated in full.
TEST(ScaledStep, ExtrapolatesTheFullDryStep) {
  for (const char* attention : {"{kind: dense}", "{kind: window, window: 256}"}) {
    PlanRequest q = request_of_nodes(
        {64, 4}, {"train.micro_batch=1", "train.batch_size=10", std::string("model.attention=") + attention});
    q.config.parallel.dp = 2;
    q.config.parallel.cp = 32;
    q.config.parallel.cp_ranks_per_node = 4;
    q.config.parallel.zero = 2;
    const std::vector<ScaledStep> small = scaled_steps(q.config, q.world);
    ASSERT_EQ(small.size(), 4u) << "two rings and two numbers of micro-batches";
    double weights = 0;
    for (const ScaledStep& s : small) {
      weights += s.weight;
      EXPECT_EQ(s.config.model.context / s.config.parallel.cp, 8192 / 32);
      EXPECT_EQ(s.world.ranks, 64) << "ZeRO shards among as many ranks";
      EXPECT_LE(s.config.parallel.cp, 16);
    }
    EXPECT_NEAR(weights, 1, 1e-12);
    const auto planned = plan_step(q);
    ASSERT_TRUE(planned);
    const int busiest = std::string(attention).find("window") == std::string::npos ? 0 : 31;  // contiguous chunks
    const DryStep full = dry_step(q.config, q.world, planned->activations.plan, busiest);
    StepTime time(q.rates, precision_of(q.config));
    time.add(full, 1);
    time.finish(full, 5);
    EXPECT_NEAR(planned->compute_seconds, time.compute_seconds(), 0.02 * time.compute_seconds()) << attention;
    EXPECT_NEAR(planned->exposed_seconds, time.exposed_seconds(), 0.02 * time.exposed_seconds() + 1e-6) << attention;
    const DryStep first = dry_step(q.config, q.world, planned->activations.plan);
    EXPECT_NEAR(static_cast<double>(planned->peak), static_cast<double>(first.peak()),
                0.02 * static_cast<double>(first.peak()))
        << attention;
  }
}

TEST(ScaledStep, LeavesSmallLayoutsAsTheyAre) {
  PlanRequest q = request_of_nodes({16, 8}, {"train.micro_batch=1", "train.batch_size=2"});
  q.config.parallel.cp = 8;
  const std::vector<ScaledStep> small = scaled_steps(q.config, q.world);
  ASSERT_EQ(small.size(), 1u);
  EXPECT_EQ(small[0].weight, 1);
  EXPECT_EQ(small[0].config.model.context, q.config.model.context);
  q.world = 16;  // on one node
  EXPECT_EQ(scaled_steps(q.config, q.world).size(), 1u);
}

TEST(ClusterPlan, PlacesGroupsAsAFakeMeshDoes) {
  const WorldSize world{48, 8};
  for (const auto& [dp, cp, tp] : {std::tuple(6, 2, 4), std::tuple(3, 16, 1), std::tuple(24, 1, 2)}) {
    MeshLayout layout{.axes = {{"dp", dp}, {"cp", cp}, {"tp", tp}}, .unions = {{"dp", "cp"}}, .device = {}};
    layout.emulate_nodes = world.per_node;
    std::map<std::string, FakeTransfer> seen;
    const auto mesh = Mesh::fake(layout, 0, [&](const FakeTransfer& t) { seen[t.group] = t; });
    const FakeMode fake;
    const Stream stream = Stream::create({});
    const Tensor t = Tensor::empty({8}, DType::f32, stream);
    for (const AxisNames& names : {AxisNames{"dp"}, {"cp"}, {"tp"}, {"dp", "cp"}})
      mesh->group(names).all_reduce(t, Reduce::sum).wait(stream);
    const std::tuple<const char*, int, int> groups[] = {
        {"dp", dp, cp * tp}, {"cp", cp, tp}, {"tp", tp, 1}, {"dp x cp", dp * cp, tp}};
    for (const auto& [name, ranks, stride] : groups) {
      if (!seen.contains(name)) continue;  // a group of one rank sends nothing
      const FakeTransfer placed = placement_of_group(ranks, stride, world);
      EXPECT_EQ(seen[name].nodes, placed.nodes) << name << " of " << dp << " " << cp << " " << tp;
      EXPECT_EQ(seen[name].ranks_on_node, placed.ranks_on_node) << name;
      EXPECT_EQ(seen[name].ranks_of_node, 8);
      EXPECT_EQ(placed.ranks_of_node, 8);
    }
  }
}

// In one ring over two nodes of 4, every rank sends to the rank `distance` ahead: of a node's 4 ranks, min(distance, 4)
// send to the other node.
TEST(ClusterPlan, CountsTheMessagesThatLeaveANode) {
  MeshLayout layout{.axes = {{"cp", 8}}, .unions = {}, .device = {}};
  layout.emulate_nodes = 4;
  double between = -1;
  const auto mesh = Mesh::fake(layout, 0, [&](const FakeTransfer& t) { between = t.bytes_between_nodes; });
  const FakeMode fake;
  const Stream stream = Stream::create({});
  const Tensor t = Tensor::empty({100}, DType::f32, stream);
  const auto exchange = [&](int to, int from) {
    mesh->axis("cp").exchange({{t, to}}, {{t, from}}).wait(stream);
    return between;
  };
  for (int distance = 1; distance < 8; ++distance)
    EXPECT_EQ(exchange(distance, 8 - distance), 100.0 * std::min({distance, 4, 8 - distance})) << distance;
  EXPECT_EQ(exchange(1, 3), 0) << "a ring inside the node";
  EXPECT_EQ(exchange(4, 4), 400) << "counterparts on the two nodes";
}

TEST(ClusterPlan, ASlowLinkCostsTimeAndAFastOneNothing) {
  PlanRequest q = request_of_nodes({16, 8}, {"train.micro_batch=1"});
  q.config.parallel.dp = 16;
  q.config.parallel.zero = 3;
  const auto seconds = [&](double rate) {
    q.rates.node_link_bytes_per_second = rate;
    return plan_step(q).value_or(PlannedStep{}).seconds();
  };
  q.rates.node_link_seconds = 0;
  const double endless = seconds(1e18), fast = seconds(50e9), slow = seconds(1e9);
  EXPECT_LT(fast, slow);
  EXPECT_LE(endless, fast);
  q.world = 16;  // on one node
  EXPECT_DOUBLE_EQ(endless, plan_step(q)->seconds());
}

TEST(ClusterPlan, DegreesNeedNotBePowersOfTwo) {
  PlanRequest q =
      request_of_nodes({18, 6}, {"train.batch_size=18", "train.micro_batch=1", "model.context=9216", "model.heads=6",
                                 "model.kv_heads=3", "model.width=384", "model.mlp_width=1152"});
  std::set<std::vector<std::int64_t>> degrees;
  for (const PlannedStep& p : try_layouts(q).fit) {
    const ParallelConfig& c = p.config.parallel;
    EXPECT_EQ(c.dp * c.cp * c.tp, 18);
    EXPECT_TRUE(6 % (c.cp * c.tp) == 0 || c.cp * c.tp % 6 == 0) << p.layout << " divides no node";
    EXPECT_EQ(c.cp_ranks_per_node, c.cp * c.tp > 6 && c.tp < 6 ? 6 / c.tp : 0) << p.layout;
    degrees.insert({c.dp, c.cp, c.tp});
  }
  for (const std::vector<std::int64_t>& d :
       {std::vector<std::int64_t>{18, 1, 1}, {6, 3, 1}, {6, 1, 3}, {1, 18, 1}, {1, 6, 3}, {3, 2, 3}, {9, 2, 1}})
    EXPECT_TRUE(degrees.contains(d)) << d[0] << " " << d[1] << " " << d[2];
  EXPECT_FALSE(degrees.contains({2, 9, 1})) << "9 ranks end in the middle of a node";
}

// The layouts with the best estimates contain one that is as good as the best of all.
TEST(ClusterPlan, ASearchByEstimateFindsAGoodLayout) {
  for (const double rate : {1e9, 50e9}) {
    PlanRequest q = request_of_nodes({16, 4}, {"train.batch_size=16", "train.micro_batch=1"});
    q.rates.node_link_bytes_per_second = rate;
    const Layouts all = try_layouts(q);
    q.max_layouts = 8;
    const Layouts some = try_layouts(q);
    ASSERT_FALSE(some.fit.empty());
    EXPECT_GT(all.fit.size(), 3 * some.fit.size());
    EXPECT_EQ(some.tried + some.slower, all.count);
    EXPECT_LE(some.fit.front().seconds(), 1.02 * all.fit.front().seconds())
        << some.fit.front().layout << " instead of " << all.fit.front().layout;
  }
}

// A two-level ring passes the keys of all ranks around inside each node. Hybrid sends each rank's heads inside the node
// only once, and sends as much between nodes as the ring does. So with a slow link inside the node, hybrid is faster.
TEST(ClusterPlan, HybridIsPlannedBesideTheRing) {
  PlanRequest q = request_of_nodes({16, 4}, {"train.batch_size=1", "train.micro_batch=1", "model.context=131072"});
  q.rates.link_bytes_per_second = 1e9;
  q.fixed = {.dp = 1, .cp = 16, .tp = 1, .zero = 0};
  const auto schedules = [&] {
    std::vector<ContextSchedule> all;
    for (const PlannedStep& p : try_layouts(q).fit) all.push_back(p.config.parallel.cp_schedule);
    return all;
  };
  using enum ContextSchedule;
  EXPECT_EQ(schedules(), (std::vector{hybrid, automatic}));
  const std::vector<PlannedStep> both = try_layouts(q).fit;
  EXPECT_EQ(both[0].layout, "cp 16 hybrid");
  EXPECT_EQ(both[0].config.parallel.cp_ranks_per_node, 4);
  EXPECT_LT(both[0].seconds(), 0.5 * both[1].seconds());
  q.max_layouts = 1;
  EXPECT_EQ(schedules(), std::vector{hybrid}) << "the estimate knows hybrid's time";
  q.max_layouts = 0;
  q.config.parallel.cp_schedule = ring;
  EXPECT_EQ(schedules(), std::vector{ring}) << "as given";
  q.config.parallel.cp_schedule = automatic;
  q.config.model.kv_heads = 2;
  EXPECT_EQ(schedules(), std::vector{automatic}) << "4 ranks of a node cannot share 2 heads";
  q.config.parallel.cp_schedule = hybrid;
  EXPECT_NE(try_layouts(q).error.find("2 (model.kv_heads: 2) cannot be divided among 4"), std::string::npos);
  q.world = 16;  // on one node
  EXPECT_NE(try_layouts(q).error.find("2 (model.kv_heads: 2) cannot be divided among 16"), std::string::npos);
}

// A run may leave the number of ranks per node to its placement, which a dry step does not know if it is given only the
// number of processes. The two KV heads cannot be divided among all four ranks.
TEST(ClusterPlan, MemoryOfHybridIsPredictedBeforeRanksArePlaced) {
  PlanRequest q = request_of_nodes(
      {4, 2}, {"train.batch_size=1", "train.micro_batch=1", "model.kv_heads=2", "parallel.cp_schedule=hybrid"});
  q.config.parallel.dp = 1;
  q.config.parallel.cp = 4;
  const auto peak = [&](WorldSize world) {
    return dry_step(q.config, world, ActivationPlan::uniform(2, Recompute::none)).peak();
  };
  EXPECT_EQ(peak(4), peak({4, 2}));
  q.config.parallel.cp_ranks_per_node = 4;
  EXPECT_THROW(peak(4), Error);
}

// Two nodes of four ranks. Each rank exchanges three quarters of its heads inside the node, and attends with one of the
// KV heads. With zigzag, the first node has the chunks 0 and 3 of 256 tokens, and the second node 1 and 2. Of the
// messages between the nodes, those to the first node are longer: keys and values of 512 tokens (bf16), twice. Those
// from the first node are the gradients (f32). All ranks of a node send at the same time.
TEST(ClusterPlan, TimesOfHybridAreThoseOfItsBytes) {
  PlanRequest q = request_of_nodes({8, 4}, {"train.batch_size=1", "train.micro_batch=1", "model.context=1024",
                                            "train.recompute=none", "parallel.cp_schedule=hybrid"});
  q.config.parallel.dp = 1;
  q.config.parallel.cp = 8;
  q.config.parallel.cp_ranks_per_node = 4;
  const DryStep step = dry_step(q.config, q.world, ActivationPlan::uniform(2, Recompute::none));
  double node = 0, between = 0, seconds = 0;
  for (const DryTransfer& t : step.transfers) {
    if (t.transfer.group == "cp in node") {
      node += static_cast<double>(t.transfer.bytes);
      EXPECT_EQ(t.transfer.nodes, 1);
    }
    if (t.transfer.group != "cp between nodes") continue;
    between += t.transfer.bytes_between_nodes;
    seconds += seconds_of(q.rates, t.transfer);
  }
  constexpr double kLayers = 2, kTokens = 128, kHeads = 8, kKvHeads = 4, kDim = 32, kBf16 = 2;
  EXPECT_DOUBLE_EQ(node, kLayers * 0.75 * kTokens * (6 * (kHeads + kKvHeads) * kDim * kBf16 + 2 * kHeads * 4));
  EXPECT_DOUBLE_EQ(between, kLayers * 512 * 2 * kDim * (kBf16 + kBf16 + 4));
  EXPECT_DOUBLE_EQ(seconds, kLayers * 3 * 10e-6 + 4 * between / 50e9);
}

// The layouts with the best estimates are too large; those that share a sequence most fit.
TEST(ClusterPlan, ASearchGoesOnUntilALayoutFits) {
  PlanRequest q = request_of_nodes(
      {64, 8}, {"model.context=262144", "train.batch_size=64", "train.micro_batch=1", "train.recompute=full"});
  q.fixed = {.dp = 1, .cp = 64, .tp = 1, .zero = 3};
  const std::vector<PlannedStep> smallest = plan_layouts(q);
  ASSERT_EQ(smallest.size(), 1u);
  q.fixed = {};
  q.budget = smallest[0].peak + smallest[0].peak / 16;
  q.max_layouts = 1;
  const Layouts found = try_layouts(q);
  ASSERT_FALSE(found.fit.empty());
  EXPECT_GE(found.too_large.size(), 3u) << "the first layouts that were tried fit, so this tests nothing";
}

TEST(ClusterPlan, PlansSixtyFiveThousandGpus) {
  PlanRequest q = request_of_nodes({65536, 8}, {"model.context=4194304", "train.batch_size=64", "train.micro_batch=1"});
  q.max_layouts = 2;
  const Layouts found = try_layouts(q);
  ASSERT_FALSE(found.fit.empty()) << found.error;
  EXPECT_GT(found.slower, 0u);
  for (const PlannedStep& p : found.fit) {
    const ParallelConfig& c = p.config.parallel;
    EXPECT_EQ(c.dp * c.cp * c.tp, 65536);
    EXPECT_EQ(64 % c.dp, 0);
    EXPECT_LE(p.peak, q.budget);
    EXPECT_GT(p.seconds(), 0);
    EXPECT_LE(p.mfu, 1);
    // The settings are valid for that many processes.
    EXPECT_EQ(plan_of(p.config, 65536).world(), 65536);
  }
}

TEST(ClusterPlan, SettingsThatNoLayoutDividesGiveTheReason) {
  PlanRequest q = request_of_nodes({14, 7}, {"train.batch_size=3", "model.context=8"});
  const Layouts none = try_layouts(q);
  EXPECT_TRUE(none.fit.empty());
  EXPECT_NE(none.error.find("train.batch_size"), std::string::npos) << none.error;
}

// Collectives that overlap with kernels delay these kernels by a fraction of the collectives' time inside the node.
TEST(StepTimes, HiddenCollectivesDelayKernels) {
  const DeviceRates rates = shipped_rates("h200");
  const DryCall kernel{{scopes::optimizer}, ScopePass::backward, "matmul", {.flops = 10 * rates.bf16.products}};
  const FakeTransfer sum{.group = "dp", .operation = "all_reduce", .bytes = 1'000'000'000, .ranks = 2};
  const double alone = seconds_of(rates, sum);
  const auto exposed = [&](std::size_t kernels, std::size_t collectives) {
    DryStep step;
    step.calls.assign(kernels, kernel);
    step.transfers.assign(collectives, {kernel.part, kernel.pass, sum});
    StepTime time(rates, Precision::bf16);
    time.add(step, 1);
    time.finish(step, 1);
    return time.exposed_seconds();
  };
  EXPECT_GT(exposed(1, 100), 0.3 * 100 * alone) << "10 s of kernels hide 0.3 s of messages, but wait for some";
  EXPECT_LT(exposed(1, 100), 100 * alone);
  EXPECT_NEAR(exposed(1, 200), 2 * exposed(1, 100), 1e-9);
  EXPECT_NEAR(exposed(0, 100), 100 * alone, 1e-9) << "nothing hides them";
}

}  // namespace
}  // namespace ring
