// Updates of a shard are bit-identical wherever states, and values of which kernels read copies, are stored.
#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/step_state.h"
#include "kernels/elementwise.h"
#include "model/params.h"
#include "optim/groups.h"
#include "optim/kinds.h"
#include "tests/late_stream.h"

namespace ring::test {
namespace {

// v = keep v + g; w = w - lr v, and its copy in the type of the weights.
class Halves final : public UpdateRule {
 public:
  explicit Halves(float keep = 0.5f) : keep_(keep) {}
  std::vector<StateKind> states() const override { return {{"v"}}; }
  void update(const ParameterUpdate& u, const ExecContext& ctx) const override {
    const StepState& s = *reinterpret_cast<const StepState*>(u.step.raw());
    if (!s.accepted) return;
    axpby_kernel({u.gradients, u.states[0], u.states[0], 1, keep_}, ctx);
    axpby_kernel({u.states[0], u.values, u.values, -s.lr, 1}, ctx);
    if (u.weights.defined()) cast_kernel({u.values, u.weights}, ctx);
  }

 private:
  float keep_;
};

// Computes new values from gradients only.
class Descent final : public UpdateRule {
 public:
  std::vector<StateKind> states() const override { return {}; }
  void update(const ParameterUpdate& u, const ExecContext& ctx) const override {
    axpby_kernel({u.gradients, u.values, u.values, -0.1f, 1}, ctx);
  }
};

using Bytes = std::vector<std::uint8_t>;

class OptimizerTest : public testing::Test {
 protected:
  OptimizerTest() {
    optimizer_kinds()["halves"] = [](const OptimizerConfig&, std::uint64_t) { return std::make_unique<Halves>(); };
    optimizer_kinds()["thirds"] = [](const OptimizerConfig&, std::uint64_t) { return std::make_unique<Halves>(0.3f); };
    optimizer_kinds()["descent"] = [](const OptimizerConfig&, std::uint64_t) { return std::make_unique<Descent>(); };
  }
  ~OptimizerTest() override {
    optimizer_kinds().erase("halves");
    optimizer_kinds().erase("thirds");
    optimizer_kinds().erase("descent");
  }

  // Two vectors and three matrices, with gaps between them. No chunk size below divides any of them.
  struct Model {
    Model(const ExecContext& ctx, const ParamTypes& types, const OptimizerConfig& config = {}) {
      const Init normal{Init::Kind::normal, 1};
      params.add({{"a", 0, 37, normal}}, 0);
      params.add({{"b", 0, 31, normal}}, 7);
      params.add({{"c", 0, 5, normal}}, 0);
      params.add({{"d", 0, 50, normal}}, 13);
      params.add({{"e", 0, 3, normal}}, 3);
      bind_groups(config, params);
      params.allocate(ctx, 5, types);
      shard = own_everything(params);
    }
    Parameters params;
    OwnedShard shard;
  };

  Tensor state(std::uint32_t step, bool accepted) const {
    Tensor t = ctx.zeros({sizeof(StepState)}, DType::u8);
    StepState s;
    s.step = step, s.lr = 0.1f, s.clip = 0.5f, s.accepted = accepted;
    std::memcpy(t.raw(), &s, sizeof s);
    return t;
  }
  static void add_bytes(Bytes& all, const Tensor& t) {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(t.raw());
    all.insert(all.end(), begin, begin + t.bytes());
  }
  Bytes bytes_of(const Model& m, const Optimizer& optimizer) const {
    Bytes all;
    optimizer.wait_for_copies(ctx.stream);
    add_bytes(all, m.params.values);
    add_bytes(all, m.params.weights);
    for (const OptimizerState& s : optimizer.states()) {
      add_bytes(all, s.buffer.flat);
      if (s.fp8) add_bytes(all, s.scales);
    }
    return all;
  }
  void update(Model& m, Optimizer& optimizer, std::uint32_t step, bool accepted) const {
    optimizer.begin_step();
    float* const g = m.params.gradients.data<float>();
    for (std::int64_t i = 0; i < m.params.gradients.numel(); ++i)
      g[i] = static_cast<float>((i * 31 + step * 7) % 17) - 8;
    optimizer.update(state(step, accepted), ctx);
  }
  // Returns the bytes of all values and states after some steps, of which the third is not accepted.
  Bytes trained(const OptimizerConfig& config, const ParamTypes& types) const {
    Model m(ctx, types, config);
    Optimizer optimizer(config, m.shard, 3, ctx);
    for (std::uint32_t step = 0; step < 5; ++step) {
      const Bytes before = bytes_of(m, optimizer);
      update(m, optimizer, step, step != 2);
      EXPECT_EQ(bytes_of(m, optimizer) == before, step == 2) << "step " << step;
    }
    return bytes_of(m, optimizer);
  }

  const ExecContext ctx{Stream::cpu(1)};
  const ParamTypes plain{}, copied{.weights = DType::bf16};
};

TEST_F(OptimizerTest, WhereStatesLiveChangesNoBit) {
  struct Case {
    const char* kind;
    MomentType moments;
    ParamTypes types;
  };
  for (const auto& [kind, moments, types] :
       {Case{"adamw", MomentType::f32, plain}, Case{"adamw", MomentType::fp8, plain},
        Case{"halves", MomentType::f32, plain}, Case{"halves", MomentType::f32, copied}}) {
    OptimizerConfig config{.kind = kind, .moments = moments};
    const Bytes here = trained(config, types);
    for (const StateOffload offload : {StateOffload::states, StateOffload::all, StateOffload::weights})
      for (const std::int64_t bytes : {64, 1024, 3000, 1 << 26})
        for (const std::int64_t staging : {std::int64_t{0}, 5 * bytes, std::int64_t{1} << 30}) {
          config.offload = offload;
          config.offload_chunk_bytes = bytes;
          config.offload_staging_bytes = staging;
          EXPECT_EQ(trained(config, types), here) << kind << ", chunks of " << bytes << " of " << staging;
          const LateCopies late;
          EXPECT_EQ(trained(config, types), here) << kind << ", chunks of " << bytes << " of " << staging << ", late";
        }
  }
}

// Several kinds share the host buffers, their parameters are interleaved, and some parameters are frozen.
TEST_F(OptimizerTest, LanesOfSeveralKindsAreTransferredSeparately) {
  OptimizerConfig config{.kind = "halves"};
  config.groups = {{.match = {"b", "c"}, .kind = "thirds"}, {.match = {"d"}, .frozen = true}};
  const Bytes here = trained(config, copied), plain = trained({.kind = "halves"}, copied);
  EXPECT_NE(here, plain);
  for (const StateOffload offload : {StateOffload::states, StateOffload::all, StateOffload::weights})
    for (const std::int64_t bytes : {64, 1024, 1 << 26})
      for (const std::int64_t staging : {std::int64_t{0}, 7 * bytes}) {
        config.offload = offload;
        config.offload_chunk_bytes = bytes;
        config.offload_staging_bytes = staging;
        EXPECT_EQ(trained(config, copied), here) << "chunks of " << bytes << " of " << staging;
        const LateCopies late;
        EXPECT_EQ(trained(config, copied), here) << "chunks of " << bytes << " of " << staging << ", late";
        Model m(ctx, copied, config);
        const Optimizer optimizer(config, m.shard, 3, ctx);
        EXPECT_EQ(staging_bytes(config, m.shard, copied), optimizer.device_bytes());
        EXPECT_EQ(state_bytes(config, m.shard), optimizer.state_bytes());
        EXPECT_EQ(optimizer.state_bytes(), 4 * static_cast<std::size_t>(m.params.trained_size()));
      }
}

TEST_F(OptimizerTest, ReportsTheBytesOnHostAndDevice) {
  for (const ParamTypes& types : {plain, copied})
    for (const StateOffload offload :
         {StateOffload::none, StateOffload::states, StateOffload::all, StateOffload::weights}) {
      Model m(ctx, types);
      const OptimizerConfig config{.kind = "adamw", .offload = offload, .offload_chunk_bytes = 1200};
      const std::size_t before = ctx.stream.allocator()->stats().in_use;
      const Optimizer optimizer(config, m.shard, 3, ctx);
      EXPECT_EQ(ctx.stream.allocator()->stats().in_use - before, optimizer.device_bytes());
      const auto n = static_cast<std::size_t>(m.params.size());
      const bool copies = types.separate_master(), weights = offload == StateOffload::weights;
      const std::size_t values = weights || (offload == StateOffload::all && copies) ? 4 : 0;
      EXPECT_EQ(optimizer.state_bytes(), 8 * n);
      EXPECT_EQ(optimizer.host_bytes(),
                offload == StateOffload::none ? 0 : (8 + values + (weights && copies ? 2 : 0)) * n);
      EXPECT_EQ(staging_bytes(config, m.shard, types), offload == StateOffload::none ? 0 : optimizer.device_bytes());
    }
}

// A block of 16 elements has 16 codes and a scale for each of the two moments.
TEST_F(OptimizerTest, Fp8MomentsTakeACodeAndAShareOfAScale) {
  for (const StateOffload offload : {StateOffload::none, StateOffload::states}) {
    Model m(ctx, plain);
    const OptimizerConfig config{
        .kind = "adamw", .moments = MomentType::fp8, .offload = offload, .offload_chunk_bytes = 340};
    const std::size_t before = ctx.stream.allocator()->stats().in_use;
    const Optimizer optimizer(config, m.shard, 3, ctx);
    EXPECT_EQ(ctx.stream.allocator()->stats().in_use - before, optimizer.device_bytes());
    const auto n = static_cast<std::size_t>(m.params.size());
    EXPECT_EQ(optimizer.state_bytes(), 34 * n / 16);
    EXPECT_EQ(state_bytes(config, m.shard), optimizer.state_bytes());
    if (offload == StateOffload::none) continue;
    EXPECT_EQ(optimizer.host_bytes(), optimizer.state_bytes());
    EXPECT_EQ(optimizer.device_bytes(), 3 * 340u) << "three chunks of 160 elements";
    EXPECT_EQ(staging_bytes(config, m.shard, plain), optimizer.device_bytes());
  }
}

TEST_F(OptimizerTest, Fp8MomentsNeedWholeBlocks) {
  Parameters params;
  const Init normal{Init::Kind::normal, 1};
  params.add({{"a", 0, 3, normal}, {"b", 3, 16, normal}}, 7);  // b begins at element 21
  bind_groups({}, params);
  params.allocate(ctx, 5, plain);
  const OwnedShard shard = own_everything(params);
  EXPECT_NO_THROW(Optimizer({.moments = MomentType::f32}, shard, 3, ctx));
  try {
    Optimizer({.moments = MomentType::fp8}, shard, 3, ctx);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("optimizer.moments: fp8: b does not consist of blocks"), std::string::npos)
        << e.what();
  }
}

TEST_F(OptimizerTest, StagingMayChangeBetweenSteps) {
  OptimizerConfig config{.kind = "halves", .offload_chunk_bytes = 128};
  Model here(ctx, copied), away(ctx, copied);
  Optimizer a(config, here.shard, 3, ctx);
  a.set_staging(1000, ctx);
  EXPECT_EQ(a.host_bytes(), 0u) << "nothing travels";
  config.offload = StateOffload::all;
  const LateCopies late;
  Optimizer b(config, away.shard, 3, ctx);
  for (std::uint32_t step = 0; step < 6; ++step) {
    if (step % 2) b.set_staging(step == 5 ? 0 : 128 * (3 + step), ctx);
    EXPECT_EQ(b.device_bytes(), std::size_t{128} * (step == 5 ? 3 : step > 2 ? 6 : step > 0 ? 4 : 3)) << step;
    update(here, a, step, true);
    update(away, b, step, true);
  }
  EXPECT_EQ(bytes_of(away, b), bytes_of(here, a));
}

// After wait_for_copies() for a piece, this piece is back on the host, even if all copies are as late as events allow.
TEST_F(OptimizerTest, APieceIsCompleteBeforeTheOthers) {
  OptimizerConfig config{.kind = "halves", .offload_chunk_bytes = 128};
  Model here(ctx, copied);
  Optimizer a(config, here.shard, 3, ctx);
  update(here, a, 0, true);
  config.offload = StateOffload::weights;
  for (const std::int64_t staging : {0, 600, 20'000})  // 20,000: room for all chunks
    for (const ShardPiece& piece : here.shard.pieces) {
      const LateCopies late;
      config.offload_staging_bytes = staging;
      Model away(ctx, copied);
      Optimizer b(config, away.shard, 3, ctx);
      const auto bytes = [](const Model& m, const ShardPiece& p) {
        Bytes all;
        add_bytes(all, m.shard.weights.of(p));
        return all;
      };
      update(away, b, 0, true);
      b.wait_for_copies(ctx.stream, piece);
      EXPECT_EQ(bytes(away, piece), bytes(here, piece)) << piece.param->parts[0].name << ", " << staging;
      const ShardPiece& last = here.shard.pieces.back();
      if (piece.offset < last.offset && staging == 20'000) {
        EXPECT_NE(bytes(away, last), bytes(here, last));
      }
    }
}

// With weights on the host, begin_step() fetches one chunk, and each prefetch_next() the next one.
TEST_F(OptimizerTest, ChunksMayBeFetchedOneByOne) {
  OptimizerConfig config{.kind = "halves", .offload_chunk_bytes = 128, .offload_staging_bytes = 2000};
  Model here(ctx, copied), away(ctx, copied);
  Optimizer a(config, here.shard, 3, ctx);
  config.offload = StateOffload::weights;
  const LateCopies late;
  Optimizer b(config, away.shard, 3, ctx);
  for (std::uint32_t step = 0; step < 4; ++step) {
    b.prefetch_next();  // outside of a step: fetches nothing
    update(here, a, step, true);
    b.begin_step();
    for (std::uint32_t i = 0; i < 10 * step; ++i) b.prefetch_next();
    std::memcpy(away.params.gradients.raw(), here.params.gradients.raw(), here.params.gradients.bytes());
    b.update(state(step, true), ctx);
  }
  EXPECT_EQ(bytes_of(away, b), bytes_of(here, a));
}

TEST_F(OptimizerTest, MayHaveNoStates) {
  OptimizerConfig config{.kind = "descent"};
  Model here(ctx, plain), away(ctx, plain);
  Optimizer a(config, here.shard, 3, ctx);
  config.offload = StateOffload::all;
  Optimizer b(config, away.shard, 3, ctx);
  EXPECT_EQ(b.host_bytes() + b.device_bytes(), 0u);
  EXPECT_EQ(staging_bytes(config, here.shard, plain), 0u);
  update(here, a, 0, true);
  update(away, b, 0, true);
  EXPECT_EQ(bytes_of(away, b), bytes_of(here, a));
  Model untouched(ctx, plain);
  EXPECT_NE(bytes_of(untouched, a), bytes_of(here, a));
}

TEST(LaneRange, IsClippedAtBothEnds) {
  const LaneRange range{.range = {.first = {.offset = 1000, .shard_offset = 320}, .numel = 48}, .at = 32};
  const auto expect_part = [&](std::int64_t begin, std::int64_t n, std::int64_t at, std::int64_t numel) {
    const LaneSlice part = range.intersect(begin, n);
    EXPECT_EQ(part.piece.numel, numel);
    if (numel == 0) return;
    EXPECT_EQ(part.at, at);
    EXPECT_EQ(part.piece.offset, 1000 + at - 32);
    EXPECT_EQ(part.piece.shard_offset, 320 + at - 32);
  };
  expect_part(0, 100, 32, 48);
  expect_part(32, 48, 32, 48);
  expect_part(48, 16, 48, 16);
  expect_part(0, 48, 32, 16);
  expect_part(64, 64, 64, 16);
  expect_part(0, 32, 0, 0);
  expect_part(80, 16, 0, 0);
}

}  // namespace
}  // namespace ring::test
