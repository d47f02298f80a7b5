#include "core/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ring {
namespace {

// Expects that blocks that live at the same time do not overlap, and that the plan's numbers agree with its offsets.
void expect_sound(const std::vector<BlockLife>& blocks, const MemoryPlan& plan, std::size_t align) {
  ASSERT_EQ(plan.offsets.size(), blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].escapes()) {
      EXPECT_EQ(plan.offsets[i], MemoryPlan::kNowhere);
      continue;
    }
    EXPECT_EQ(plan.offsets[i] % align, 0u);
    EXPECT_LE(plan.offsets[i] + blocks[i].bytes, plan.bytes);
    for (std::size_t j = 0; j < i; ++j) {
      if (blocks[j].escapes() || blocks[j].end < blocks[i].begin) continue;
      const bool apart =
          plan.offsets[j] + blocks[j].bytes <= plan.offsets[i] || plan.offsets[i] + blocks[i].bytes <= plan.offsets[j];
      EXPECT_TRUE(apart) << "blocks " << j << " and " << i << " overlap";
    }
  }
  EXPECT_GE(plan.bytes, plan.live_peak);
}

// Returns the largest number of bytes that live at once, by checking the beginning of each block's life.
std::size_t peak_of(const std::vector<BlockLife>& blocks, std::size_t align) {
  std::size_t peak = 0;
  for (const BlockLife& at : blocks) {
    std::size_t live = 0;
    for (const BlockLife& b : blocks)
      if (!b.escapes() && b.begin <= at.begin && at.begin < b.end) live += (b.bytes + align - 1) / align * align;
    peak = std::max(peak, live);
  }
  return peak;
}

// Returns the blocks of a step like a transformer's: each layer saves some tensors for backward and makes temporary
// ones. Backward frees the saved tensors in reverse order and makes temporary ones of other sizes.
std::vector<BlockLife> training_step(int layers, int micro_batches, std::size_t unit) {
  std::vector<BlockLife> blocks;
  std::uint32_t clock = 0;
  const auto allocate = [&](std::size_t bytes) {
    blocks.push_back({bytes, clock++});
    return blocks.size() - 1;
  };
  const auto free = [&](std::size_t i) { blocks[i].end = clock++; };
  for (int m = 0; m < micro_batches; ++m) {
    std::vector<std::vector<std::size_t>> kept;
    for (int l = 0; l < layers; ++l) {
      const std::size_t temporary = allocate(3 * unit);
      kept.push_back({allocate(unit), allocate(unit / 128), allocate(3 * unit), allocate(unit)});
      free(temporary);
      const std::size_t wide = allocate(4 * unit);
      kept.back().push_back(allocate(8 * unit));
      free(wide);
    }
    const std::size_t logits = allocate(20 * unit), grad = allocate(unit);
    free(logits);
    std::size_t flowing = grad;
    for (int l = layers - 1; l >= 0; --l) {
      const std::size_t a = allocate(8 * unit), b = allocate(4 * unit), next = allocate(unit);
      for (const std::size_t k : kept[static_cast<std::size_t>(l)]) free(k);
      free(a), free(flowing), free(b);
      flowing = next;
    }
    free(flowing);
  }
  return blocks;
}

TEST(MemoryPlan, NoBlocksNeedNoMemory) {
  const MemoryPlan plan = plan_memory({}, 256);
  EXPECT_EQ(plan.bytes, 0u);
  EXPECT_EQ(plan.live_peak, 0u);
}

TEST(MemoryPlan, BlocksWithDisjointLifetimesShareMemory) {
  const std::vector<BlockLife> blocks = {{1000, 0, 1}, {900, 2, 5}, {300, 3, 4}, {77, 6}};
  const MemoryPlan plan = plan_memory(blocks, 256);
  expect_sound(blocks, plan, 256);
  EXPECT_EQ(plan.bytes, 1024u + 512u);
  EXPECT_EQ(plan.live_peak, 1024u + 512u);
  EXPECT_EQ(plan.offsets[0], 0u);
}

TEST(MemoryPlan, ATrainingStepNeedsLittleMoreThanItsLivePeak) {
  for (const int layers : {1, 2, 12, 28}) {
    const std::vector<BlockLife> blocks = training_step(layers, 1, 1 << 20);
    const MemoryPlan plan = plan_memory(blocks, 256);
    expect_sound(blocks, plan, 256);
    EXPECT_EQ(plan.live_peak, peak_of(blocks, 256));
    EXPECT_LE(static_cast<double>(plan.bytes), 1.03 * static_cast<double>(plan.live_peak)) << layers << " layers";
  }
}

TEST(MemoryPlan, MicroBatchesGetTheSameOffsets) {
  const std::vector<BlockLife> one = training_step(4, 1, 12345), many = training_step(4, 7, 12345);
  const MemoryPlan a = plan_memory(one, 64), b = plan_memory(many, 64);
  expect_sound(many, b, 64);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.live_peak, b.live_peak);
  for (std::size_t i = 0; i < many.size(); ++i) EXPECT_EQ(b.offsets[i], a.offsets[i % one.size()]);
}

TEST(MemoryPlan, RandomLifetimesArePlanned) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    std::vector<BlockLife> blocks;
    std::vector<std::size_t> live;
    std::uint32_t clock = 0;
    while (blocks.size() < 150) {
      if (live.empty() || random() % 5 < 3) {
        live.push_back(blocks.size());
        blocks.push_back({random() % (random() % 2 ? 500 : 100000) + 1, clock++});
      } else {
        const std::size_t k = random() % live.size();
        if (random() % 20) blocks[live[k]].end = clock++;  // otherwise the block is never freed
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(k));
      }
    }
    const MemoryPlan plan = plan_memory(blocks, 256);
    expect_sound(blocks, plan, 256);
    EXPECT_EQ(plan.live_peak, peak_of(blocks, 256));
    EXPECT_LE(static_cast<double>(plan.bytes), 1.15 * static_cast<double>(plan.live_peak));
  }
}

}  // namespace
}  // namespace ring
