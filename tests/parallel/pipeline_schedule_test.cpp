// Properties of pipeline schedules, for all shapes up to 8 stages and 32 units (micro-batches or slices).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/philox.h"
#include "model/flops.h"
#include "parallel/stages.h"
#include "tests/error_of.h"

namespace ring {
namespace {

using Pass = PipelinePass;

// Calls fn(shape, order, table) for every shape that a schedule supports.
template <class Fn>
void for_all_shapes(const Fn& fn) {
  for (int stages = 2; stages <= 8; ++stages)
    for (const auto& [parts, slices] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {1, 3}, {1, 8}})
      for (int micro_batches = 1; micro_batches * slices <= 32; ++micro_batches) {
        const PipelineShape shape{stages, parts, micro_batches, slices};
        if (parts > 1 && micro_batches % stages) {
          EXPECT_THROW(make_pipeline_table(shape, PipelineOrder::interleaved), Error);
          continue;
        }
        for (const PipelineOrder order :
             {PipelineOrder::one_f_one_b, PipelineOrder::eager_1f1b, PipelineOrder::interleaved}) {
          if ((order == PipelineOrder::interleaved) != (parts > 1)) continue;
          SCOPED_TRACE(str(stages, " stages, ", parts, " parts, ", micro_batches, " micro-batches of ", slices,
                           " slices, order ", static_cast<int>(order)));
          fn(shape, order, make_pipeline_table(shape, order));
          if (testing::Test::HasFailure()) return;
        }
      }
}

// Forwards run in the order of micro-batches and slices. Backwards run through the slices of each micro-batch in
// reverse.
TEST(PipelineSchedule, EachStageRunsEachOfItsActionsOnceInOrder) {
  for_all_shapes([](const PipelineShape& shape, PipelineOrder, const PipelineTable& table) {
    ASSERT_EQ(std::ssize(table), shape.stages);
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::map<std::pair<Pass, int>, int> next;  // passes so far, by kind and part
      for (const PipelineAction& a : table[static_cast<std::size_t>(stage)]) {
        EXPECT_EQ(shape.stage_of(a.part), stage);
        const int i = next[{a.pass, a.part}]++, micro = i / shape.slices, slice = i % shape.slices;
        const int expected = a.pass == Pass::forward ? slice : shape.slices - 1 - slice;
        EXPECT_EQ(a.unit, micro * shape.slices + expected) << "part " << a.part;
        if (a.pass == Pass::backward) {
          EXPECT_LT(a.unit, (next[{Pass::forward, a.part}])) << "a backward before its forward";
        }
      }
      EXPECT_EQ(std::ssize(next), 2 * shape.parts);
      for (const auto& [key, count] : next) EXPECT_EQ(count, shape.micro_batches * shape.slices);
    }
  });
}

TEST(PipelineSchedule, TheBubbleAndTheActivationsInFlightAreAsPredicted) {
  for_all_shapes([](const PipelineShape& shape, PipelineOrder order, const PipelineTable& table) {
    const std::int64_t busy = std::int64_t{3} * shape.parts * shape.units();
    const std::int64_t end = simulate(shape, table, {1, 2}).end;
    // Exactly (end - busy) / end = (p - 1) / (v n m + p - 1).
    EXPECT_EQ((end - busy) * (shape.parts * shape.units() + shape.stages - 1), end * (shape.stages - 1));
    EXPECT_NEAR(bubble(shape), 1 - static_cast<double>(busy) / static_cast<double>(end), 1e-12);
    for (int stage = 0; stage < shape.stages; ++stage) {
      const int later = shape.stages - stage - 1;
      const int ahead = order == PipelineOrder::one_f_one_b ? later : 2 * later;
      const int most = ahead + (shape.parts == 1 ? shape.slices : (shape.parts - 1) * shape.stages + 1);
      const std::vector<PipelineAction>& actions = table[static_cast<std::size_t>(stage)];
      EXPECT_EQ(max_in_flight(actions), std::min(most, shape.parts * shape.units()));
      if (shape.parts > 1) continue;
      // Just before the last backward of a micro-batch, slices of later micro-batches are already in flight.
      const int others = (most - 1 + shape.slices - 1) / shape.slices;
      EXPECT_EQ(max_micro_batches_in_flight(shape, actions), std::min(1 + others, shape.micro_batches));
    }
  });
}

// Executes the steps of all stages with transfers that begin only once both sides have reached them, and that a stage
// runs one after another, as a transport without buffers does. Actions wait for the message that they need.
class Transport {
 public:
  Transport(const PipelineShape& shape, const PipelineTable& table, const PipelineTicks& ticks) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      const std::vector<StageStep> steps = lower_to_steps(shape, table, stage, ticks);
      steps_.emplace_back(steps.begin(), steps.end());
    }
    shape_ = shape;
  }

  // Returns false if stages wait for each other forever.
  bool run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (std::size_t s = 0; s < steps_.size(); ++s)
        while (!steps_[s].empty() && advance(static_cast<int>(s))) progress = true;
    }
    return std::ranges::all_of(steps_, [](const auto& left) { return left.empty(); });
  }

 private:
  bool advance(int stage) {
    std::deque<StageStep>& steps = steps_[static_cast<std::size_t>(stage)];
    const StageStep& step = steps.front();
    return step.action ? compute(stage, *step.action) : transfer(stage);
  }

  bool compute(int stage, const PipelineAction& a) {
    const bool first = a.pass == Pass::forward ? a.part == 0 : a.part + 1 == shape_.all_parts();
    if (!first && !arrived_.contains(key(a))) return false;
    if (a.pass == Pass::backward && !done_.contains(key({Pass::forward, a.part, a.unit}))) return false;
    done_.insert(key(a));
    steps_[static_cast<std::size_t>(stage)].pop_front();
    return true;
  }

  // All transfers that are connected to the first one of this stage begin together, if each is the next on its stages.
  bool transfer(int stage) {
    std::set<int> group;
    std::vector<int> look = {stage};
    while (!look.empty()) {
      const int s = look.back();
      look.pop_back();
      if (!group.insert(s).second) continue;
      if (steps_[static_cast<std::size_t>(s)].empty()) return false;
      const StageStep& step = steps_[static_cast<std::size_t>(s)].front();
      if (step.action) return false;
      for (const auto& [mine, sends] : {std::pair{step.send, true}, {step.receive, false}}) {
        if (!mine) continue;
        const std::deque<StageStep>& theirs = steps_[static_cast<std::size_t>(mine->peer)];
        if (theirs.empty() || theirs.front().action) return false;
        const std::optional<PipelineMessage>& other = sends ? theirs.front().receive : theirs.front().send;
        if (!other || other->peer != s || !(other->consumer == mine->consumer)) return false;
        look.push_back(mine->peer);
      }
    }
    for (const int s : group) {
      const StageStep& step = steps_[static_cast<std::size_t>(s)].front();
      if (step.send) {
        const PipelineAction& to = step.send->consumer;
        const int from = to.pass == Pass::forward ? to.part - 1 : to.part + 1;
        EXPECT_TRUE(done_.contains(key({to.pass, from, to.unit}))) << "a message is sent before it was computed";
      }
      if (step.receive) arrived_.insert(key(step.receive->consumer));
      steps_[static_cast<std::size_t>(s)].pop_front();
    }
    return true;
  }

  static std::tuple<Pass, int, int> key(const PipelineAction& a) { return {a.pass, a.part, a.unit}; }

  PipelineShape shape_;
  std::vector<std::deque<StageStep>> steps_;
  std::set<std::tuple<Pass, int, int>> done_, arrived_;
};

TEST(PipelineSchedule, TransfersWithoutBuffersNeverWaitForEachOther) {
  for_all_shapes([](const PipelineShape& shape, PipelineOrder order, const PipelineTable& table) {
    EXPECT_TRUE(Transport(shape, table, ticks_of_messages(order, shape)).run());
  });
}

// Each stage runs its messages, of c ticks, one after another. With f + b = 6, a round trip of a micro-batch takes
// 2 * (6 + c), during which 1F1B computes two micro-batches and eager 1F1B computes three. Two stages hide messages of
// 3 ticks, and more stages those that take as long as a forward.
TEST(PipelineSchedule, EagerOrderHidesMessages) {
  constexpr int kUnits = 48;
  for (int stages = 2; stages <= 8; ++stages)
    for (const auto& [forward, backward] : {std::pair{2, 4}, {3, 3}, {1, 5}})
      for (const int slices : {1, 4})
        for (int message = 0; message <= (stages == 2 ? 3 : forward); ++message) {
          SCOPED_TRACE(str(stages, " stages, forward ", forward, ", ", slices, " slices, message ", message));
          const PipelineShape shape{stages, 1, kUnits / slices, slices};
          const std::vector<PipelineTicks> ticks(static_cast<std::size_t>(stages), {forward, backward, message});
          // The schedule cannot hide the messages of the first micro-batch on its way to the last stage and back. With
          // slices, the last stage starts with several forwards, and at most as many further messages are not hidden.
          const int messages = 2 * (stages - 1) * (slices > 1 ? 2 : 1);
          const std::int64_t bound = 6 * (kUnits + stages - 1) + messages * message;
          EXPECT_LE(simulate_transfers(shape, PipelineOrder::eager_1f1b, ticks), bound);
          EXPECT_GE(simulate_transfers(shape, PipelineOrder::one_f_one_b, ticks), (6 + message) * (kUnits - stages));
        }
}

// Longer messages take the time of the step: each stage has two of them per micro-batch, or four if it has two
// neighbours, of which a send and a receive may run at the same time.
TEST(PipelineSchedule, LongMessagesDetermineTheTime) {
  for (const int stages : {2, 4}) {
    const PipelineShape shape{stages, 1, 32};
    const std::vector<PipelineTicks> ticks(static_cast<std::size_t>(stages), {1, 2, 100});
    const std::int64_t eager = simulate_transfers(shape, PipelineOrder::eager_1f1b, ticks);
    EXPECT_GE(eager, 2 * 100 * 32);
    EXPECT_LE(eager, (2 * 32 + 4 * stages) * (100 + 3));
  }
}

// A unit takes 6 ticks in the first stage and 4 in the second. In 1F1B, a gradient is sent together with the next
// hidden state, although it is ready earlier, so the slower stage waits for every message. Eager 1F1B sends the two
// separately.
TEST(PipelineSchedule, SlowerStagesWaitForMessagesOnlyInPlain1F1B) {
  constexpr int kUnits = 40;
  for (const int message : {1, 3}) {
    const std::vector<PipelineTicks> ticks = {{2, 4, message}, {2, 2, message}};
    const auto ends = [&](PipelineOrder order, int period) {
      const std::int64_t end = simulate_transfers({2, 1, kUnits}, order, ticks);
      EXPECT_GE(end, period * kUnits);
      EXPECT_LE(end, period * kUnits + 4 + 2 * message);  // one unit of the other stage, and its messages
    };
    ends(PipelineOrder::one_f_one_b, 6 + message);
    ends(PipelineOrder::eager_1f1b, 6);
  }
}

TEST(PipelineSchedule, WithoutMessageTimeTransfersCostNothing) {
  for_all_shapes([](const PipelineShape& shape, PipelineOrder order, const PipelineTable& table) {
    if (shape.units() % 8) return;
    const std::vector<PipelineTicks> ticks(static_cast<std::size_t>(shape.stages));
    EXPECT_EQ(simulate_transfers(shape, order, ticks), simulate(shape, table, {}).end);
  });
}

// With backward times that differ from twice the forward, the tables still run to the end.
TEST(PipelineSchedule, RunsToTheEndWithOtherDurations) {
  for_all_shapes([](const PipelineShape& shape, PipelineOrder, const PipelineTable& table) {
    for (const PipelineTicks ticks : {PipelineTicks{1, 1}, {3, 1}, {1, 5}}) {
      const std::int64_t busy = (ticks.forward + ticks.backward) * shape.parts * shape.units();
      EXPECT_GE(simulate(shape, table, ticks).end, busy + (shape.stages - 1) * (ticks.forward + ticks.backward));
    }
  });
}

TEST(PipelineSchedule, ATableInWhichStagesWaitForEachOtherIsReported) {
  const PipelineShape shape{2, 1, 1};
  const PipelineTable swapped = {{{Pass::backward, 0, 0}, {Pass::forward, 0, 0}},
                                 {{Pass::forward, 1, 0}, {Pass::backward, 1, 0}}};
  EXPECT_THROW(simulate(shape, swapped), Error);
}

ModelConfig model_of(std::int64_t layers, std::int64_t vocabulary) {
  ModelConfig m;
  m.layers = layers;
  m.width = 64;
  m.heads = 4;
  m.context = 32;
  m.vocab_size = vocabulary;
  return m.resolved();
}

TEST(PipelineStages, EveryBlockIsInOnePartAndTheHeadTakesThePlaceOfBlocks) {
  for (const std::int64_t vocabulary : {16, 3000, 300'000})
    for (const std::int64_t layers : {2, 5, 8, 31})
      for (int parts = 1; parts <= layers; ++parts) {
        const std::vector<BlockRange> all = divide_blocks(flops_of_blocks(model_of(layers, vocabulary)), parts);
        ASSERT_EQ(std::ssize(all), parts);
        EXPECT_EQ(all.back().end, layers);
        for (std::size_t i = 0; i < all.size(); ++i) {
          EXPECT_LT(all[i].first, all[i].end);
          EXPECT_EQ(all[i].first, i == 0 ? 0 : all[i - 1].end);
          EXPECT_LE(all[i].end - all[i].first, all[0].end - all[0].first + 1);
        }
      }
  const std::vector<BlockRange> even = divide_blocks(flops_of_blocks(model_of(8, 16)), 4);
  for (const BlockRange& part : even) EXPECT_EQ(part.end - part.first, 2);
  // The head costs more than all blocks.
  const std::vector<BlockRange> heavy = divide_blocks(flops_of_blocks(model_of(8, 300'000)), 4);
  EXPECT_EQ(heavy.back().first, 7);
}

double largest_cost(const BlockCosts& costs, const std::vector<BlockRange>& parts) {
  double largest = 0;
  for (const BlockRange& part : parts) largest = std::max(largest, cost_of(costs, part));
  return largest;
}

// Visits every division of `blocks` blocks, from `first` on, into `left` more parts.
void for_all_divisions(std::int64_t first, std::int64_t blocks, int left, std::vector<BlockRange>& parts,
                       const std::function<void()>& visit) {
  if (left == 0) return first == blocks ? visit() : void();
  for (std::int64_t end = first + 1; end <= blocks; ++end) {
    parts.push_back({first, end});
    for_all_divisions(end, blocks, left - 1, parts, visit);
    parts.pop_back();
  }
}

TEST(PipelineStages, NoOtherDivisionHasACheaperLargestPart) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    BlockCosts costs{.embedding = 0.1 * static_cast<double>(seed % 3), .blocks = {}, .head = 1.5};
    for (std::uint64_t i = 0; i < 9; ++i)
      costs.blocks.push_back(1 + static_cast<double>(random_bits({seed, 0, 0}, i) % 8));
    for (int parts = 1; parts <= 9; ++parts) {
      double best = INFINITY;
      std::vector<BlockRange> tried;
      for_all_divisions(0, 9, parts, tried, [&] { best = std::min(best, largest_cost(costs, tried)); });
      EXPECT_NEAR(largest_cost(costs, divide_blocks(costs, parts)), best, 1e-6) << parts << " parts, seed " << seed;
    }
  }
}

double largest_stage(const BlockCosts& costs, const std::vector<BlockRange>& parts, std::size_t stages) {
  std::vector<double> sums(stages);
  for (std::size_t i = 0; i < parts.size(); ++i) sums[i % stages] += cost_of(costs, parts[i]);
  return *std::max_element(sums.begin(), sums.end());
}

TEST(PipelineStages, NoOtherDivisionOfEqualBlocksHasACheaperLargestStage) {
  for (const double head : {0.0, 0.7, 1.5, 2.5, 4.0})
    for (const std::int64_t blocks : {8, 9, 11})
      for (const int stages : {2, 3, 4}) {
        const int parts = 8 / stages;
        const BlockCosts costs{.blocks = std::vector<double>(static_cast<std::size_t>(blocks), 1.0), .head = head};
        double best = INFINITY;
        std::vector<BlockRange> tried;
        for_all_divisions(0, blocks, stages * parts, tried, [&] {
          best = std::min(best, largest_stage(costs, tried, static_cast<std::size_t>(stages)));
        });
        const std::vector<BlockRange> all = divide_blocks(costs, stages, parts);
        ASSERT_EQ(std::ssize(all), stages * parts);
        EXPECT_NEAR(largest_stage(costs, all, static_cast<std::size_t>(stages)), best, 1e-6)
            << blocks << " blocks, " << stages << " stages, head " << head;
      }
}

TEST(PipelineStages, StagesOfBlocksWithDifferentCostsAreNearlyTheBest) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    BlockCosts costs{.embedding = 0.1 * static_cast<double>(seed % 3), .blocks = {}, .head = 1.5};
    for (std::uint64_t i = 0; i < 12; ++i)
      costs.blocks.push_back(1 + static_cast<double>(random_bits({seed, 0, 0}, i) % 8));
    for (const int stages : {2, 3, 4}) {
      const auto of_stages = [&](const std::vector<BlockRange>& all) {
        return largest_stage(costs, all, static_cast<std::size_t>(stages));
      };
      double best = INFINITY;
      std::vector<BlockRange> tried;
      for_all_divisions(0, 12, 2 * stages, tried, [&] { best = std::min(best, of_stages(tried)); });
      const double found = of_stages(divide_blocks(costs, stages, 2));
      EXPECT_LE(found, of_stages(divide_blocks(costs, 2 * stages)) + 1e-6);
      EXPECT_LE(found, 1.15 * best) << stages << " stages, seed " << seed;
    }
  }
}

// Attention of the last four layers covers only a window of a long context, so these layers cost less.
TEST(PipelineStages, LayersWithLessAttentionCountLess) {
  ModelConfig m = model_of(8, 16);
  m.context = 4096;
  LayerAttentionConfig window;
  window.layers = "4-7";
  window.attention.kind = "window";
  window.attention.window = 64;
  m.attention_layers = {window};
  const BlockCosts costs = flops_of_blocks(m);
  EXPECT_GT(costs.blocks[3], 4 * costs.blocks[4]);
  EXPECT_NEAR(cost_of(costs, {0, 8}), flops_per_token(m), 1e-9 * flops_per_token(m));
  EXPECT_EQ(divide_blocks(costs, 2).front().end, 2);
}

TEST(PipelineStages, PartsHaveTheBlocksThatTheSettingsGive) {
  ModelConfig m = model_of(8, 16);
  m.tied_embeddings = false;
  ParallelConfig c;
  c.pp = 2;
  c.pp_division = {3, 5};
  const std::vector<BlockRange> parts = model_parts(m, make_plan(c, m, {4, 1}, 2));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].first, 0);
  EXPECT_EQ(parts[0].end, 3);
  EXPECT_EQ(parts[1].first, 3);
  EXPECT_EQ(parts[1].end, 8);
  const auto refused = [&](const std::vector<std::int64_t>& division) {
    c.pp_division = division;
    return error_of([&] { make_plan(c, m, {4, 1}, 2); });
  };
  EXPECT_NE(refused({8}).find("has 1 number, but parallel.pp: 2 makes 2 parts"), std::string::npos) << refused({8});
  c.pp = 1;
  c.pp_division = {8};
  EXPECT_NE(error_of([&] { make_plan(c, m, {4, 1}, 2); }).find("but parallel.pp is 1"), std::string::npos);
  c.pp = 2;
  EXPECT_NE(refused({3, 4}).find("[3, 4] adds up to 7 blocks, but model.layers is 8"), std::string::npos)
      << refused({3, 4});
}

}  // namespace
}  // namespace ring
