// A whole model over a sequence that ranks share: every schedule selects the same blocks as one process, in all kinds
// of selecting layers, and nothing looks ahead.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "core/fields.h"
#include "core/philox.h"
#include "model/decoder.h"
#include "parallel/context/batch.h"
#include "tests/comm/ranks.h"
#include "tests/kept_blocks.h"
#include "tests/model/index_biases.h"

namespace ring::test {
namespace {

constexpr std::int64_t kTokens = 64 * 7 + 10, kWidth = 64;
constexpr int kLayers = 3;
using Ids = std::vector<std::int32_t>;

struct Rules {
  std::string name, attention;
};
void PrintTo(const Rules& r, std::ostream* out) { *out << r.name; }

ModelConfig config_of(const Rules& r) {
  ModelConfig c;
  load_config_text(
      c,
      str("{vocab_size: 37, context: ", kTokens, ", layers: ", kLayers, ", width: ", kWidth,
          ", heads: 8, kv_heads: 4, init_std: 0.3, attention: {kind: block_sparse, block: 64, ", r.attention, "}}"),
      "test");
  return c.resolved();
}

Ids some_ids(std::int64_t changed = -1) {
  Ids ids;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    const std::uint32_t drawn = random_bits({9, 3, 1}, static_cast<std::uint64_t>(i)) % 37;
    ids.push_back(static_cast<std::int32_t>(i == changed ? (drawn + 5) % 37 : drawn));
  }
  return ids;
}

struct ExchangeWay {
  const char* name;
  ContextSchedule schedule;
  ContextKeys keys = ContextKeys::all;
};
constexpr ExchangeWay kWays[] = {{"all_to_all", ContextSchedule::all_to_all},
                                 {"ring", ContextSchedule::ring},
                                 {"ring of referenced keys", ContextSchedule::ring, ContextKeys::referenced},
                                 {"gather", ContextSchedule::gather},
                                 {"gather of referenced keys", ContextSchedule::gather, ContextKeys::referenced}};

// Results of a pass: hidden states [N,C] of the whole sequence, and the selection of each layer and KV head as a word
// of bits per query block, merged over ranks.
struct Pass {
  std::vector<float> hidden;
  std::map<std::pair<int, std::int64_t>, std::vector<std::int32_t>> selected;
};

void watch_selections(Decoder& model, std::int64_t first_head, const ExecContext& ctx, std::mutex& mutex, Pass& pass) {
  for (int layer = 0; layer < kLayers; ++layer)
    model.blocks()[static_cast<std::size_t>(layer)].attention()->watch = [=, &ctx, &mutex,
                                                                          &pass](const AttendedHeads& a) {
      const std::lock_guard lock(mutex);
      if (!a.selection.kept.defined()) return;
      const std::vector<std::int32_t> bits = bits_of_kept(a.selection.kept, 1, ctx);
      for (std::int64_t h = 0; h < a.heads.count; ++h) {
        std::vector<std::int32_t>& words = pass.selected[{layer, first_head + a.heads.first + h}];
        words.resize(static_cast<std::size_t>(a.selection.kept.dim(0)));
        for (std::size_t row = 0; row < words.size(); ++row) {
          const std::int32_t word =
              bits[row * static_cast<std::size_t>(a.selection.kept.dim(1)) + static_cast<std::size_t>(h)];
          if (static_cast<std::uint32_t>(word) >> row & 1u) words[row] |= word;  // others' rows lack their own block
        }
      }
    };
}

// Runs the passes over these tokens, one after the other, in one process or on ranks.
std::vector<Pass> on_one(const ModelConfig& c, const std::vector<Ids>& all) {
  const ExecContext ctx{Stream::cpu(1)};
  Decoder model(c);
  model.allocate(ctx, 7);
  fill_index_biases(model);
  std::vector<Pass> passes(all.size());
  std::mutex mutex;
  for (std::size_t i = 0; i < all.size(); ++i) {
    watch_selections(model, 0, ctx, mutex, passes[i]);
    Run run{ctx};
    const Tensor y = model.hidden(run, from_host(all[i], ctx.stream), Sequences::uniform(1, kTokens, ctx)).value;
    passes[i].hidden = to_host<float>(y.view({-1}), ctx.stream);
  }
  return passes;
}

std::vector<Pass> on_ranks(const ModelConfig& c, const std::vector<Ids>& all, int ranks, const ExchangeWay& way,
                           ContextLayoutKind kind, std::int64_t align) {
  std::vector<Pass> passes(all.size());
  for (Pass& p : passes) p.hidden.assign(kTokens * kWidth, NAN);
  std::mutex mutex;
  const auto errors = run_ranks(ranks, [&](Communicator& comm) {
    const ExecContext ctx{Stream::cpu(1)};
    Decoder model(c);
    model.allocate(ctx, 7);
    fill_index_biases(model);
    ContextBatches batches(comm, ContextLayout(kind, kTokens, ranks, align), way.schedule, {.keys = way.keys});
    for (std::size_t i = 0; i < all.size(); ++i) {
      Batch whole;
      whole.inputs = whole.targets = all[i];
      whole.sample_indices = {0};
      const Batch part = batches.part(whole);
      const bool shares_heads = way.schedule == ContextSchedule::all_to_all;
      watch_selections(model, shares_heads ? comm.rank() * c.kv_heads / ranks : 0, ctx, mutex, passes[i]);
      Run run{ctx};
      const Sequences seqs = batches.sequences(part, {}, ctx);
      batches.set_up_run(run, 1, seqs);
      const Tensor y = model.hidden(run, from_host(part.inputs, ctx.stream), seqs).value;
      for (const LocalRows& h : seqs.shards->rows_by_rank[static_cast<std::size_t>(comm.rank())])
        std::copy_n(y.data<float>() + h.first * kWidth, h.count * kWidth, passes[i].hidden.begin() + h.global * kWidth);
    }
    comm.barrier().synchronize();
  });
  EXPECT_EQ(joined(errors), "");
  return passes;
}

class DistSelectedBlocks : public testing::TestWithParam<Rules> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(
    Rules, DistSelectedBlocks,
    testing::Values(Rules{"content", "rules: [{pattern: content, local: 1, first: 1, keep: 4}]"},
                    Rules{"mass", "rules: [{pattern: content, local: 1, keep: 6, mass: 0.55}]"},
                    Rules{"learned_mass",
                          "rules: [{pattern: learned, local: 1, keep: 6, mass: 0.55}], index_heads: 2, "
                          "index_head_dim: 8"},
                    Rules{"layers_per_selection",
                          "rules: [{pattern: content, local: 1, first: 1, keep: 4}], layers_per_selection: 2"},
                    Rules{"learned",
                          "rules: [{pattern: learned, local: 1, first: 1, keep: 4}], index_heads: 2, "
                          "index_head_dim: 8, index_distances: 5"},
                    Rules{"mixed",
                          "rules: [{pattern: learned, local: 1, keep: 3}, {local: 2}], heads: [1, 0, 0, 1], "
                          "index_heads: 2, index_head_dim: 8"}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistSelectedBlocks, AreThoseOfOneProcess) {
  const ModelConfig c = config_of(GetParam());
  const Pass want = on_one(c, {some_ids()})[0];
  EXPECT_FALSE(want.selected.empty());
  for (const ExchangeWay& way : kWays)
    for (const int ranks : {2, 4})
      for (const auto kind : {ContextLayoutKind::zigzag, ContextLayoutKind::contiguous})
        for (const std::int64_t align : {1, 64}) {
          SCOPED_TRACE(str(way.name, ", ", ranks, " ranks"));
          const Pass got = on_ranks(c, {some_ids()}, ranks, way, kind, align)[0];
          for (std::size_t i = 0; i < want.hidden.size(); ++i) ASSERT_NEAR(got.hidden[i], want.hidden[i], 2e-5) << i;
          for (const auto& [head, words] : got.selected)
            EXPECT_EQ(words, want.selected.at(head)) << "layer " << head.first << ", " << head.second;
          EXPECT_FALSE(got.selected.empty());
        }
}

// Some changes are at the ends of blocks: anything that saw the whole block would change.
TEST_P(DistSelectedBlocks, DoNotLookAhead) {
  const std::vector<std::int64_t> changed = {0, 63, 64, 191, 255, 290, 319, 383, 447};
  std::vector<Ids> all = {some_ids()};
  for (const std::int64_t at : changed) all.push_back(some_ids(at));
  for (const ExchangeWay& way : kWays) {
    const std::vector<Pass> got = on_ranks(config_of(GetParam()), all, 2, way, ContextLayoutKind::zigzag, 64);
    for (std::size_t i = 0; i < changed.size(); ++i) {
      const auto until = changed[i] * kWidth;
      const auto first = [&](const Pass& p) { return std::vector(p.hidden.begin(), p.hidden.begin() + until); };
      const auto last = [&](const Pass& p) { return std::vector(p.hidden.begin() + until, p.hidden.end()); };
      EXPECT_EQ(first(got[i + 1]), first(got[0])) << way.name << ", " << changed[i];
      EXPECT_NE(last(got[i + 1]), last(got[0])) << way.name << ", " << changed[i];
    }
  }
}

}  // namespace
}  // namespace ring::test
