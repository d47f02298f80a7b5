#include "parallel/fsdp_reducer.h"
#include "model/decoder.h"
#include "model/scopes.h"

#include <gtest/gtest.h>

#include <cmath>

#include "comm/self.h"
#include "core/philox.h"
#include "tests/comm/ranks.h"
#include "tests/trainer/tiny.h"

namespace ring::test {
namespace {

double gradient(int rank, int micro, std::int64_t place) {
  const auto site = static_cast<std::uint32_t>(micro);
  return random_normal({5, static_cast<std::uint32_t>(rank), site}, static_cast<std::uint64_t>(place));
}

// Gradients that the test does not write: a parameter in every micro-batch, and a whole unit in one of them.
constexpr const char* kUnused = "blocks.1.attention_norm.weight";
bool skipped(const FsdpUnit& unit, int micro) { return unit.scope == block_scope(0) && micro == 1; }

// Writes gradients like a backward: the first write overwrites, so that previous contents must not count.
void write(const FsdpUnit& unit, const Param& p, int rank, int micro) {
  GradSlot& slot = *p.var.slot;
  RING_CHECK(!slot.written, unit.scope, " was not opened anew");
  for (std::int64_t i = 0; i < slot.grad.numel(); ++i) {
    slot.grad.data<float>()[i] = static_cast<float>(gradient(rank, micro, p.offset + i));
  }
  slot.written = true;
}

double wanted(const FsdpUnit& unit, const Param& p, int ranks, int micros, std::int64_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; ++r)
    for (int m = 0; m < micros; ++m)
      if (!skipped(unit, m) && p.parts[0].name != kUnused) sum += gradient(r, m, p.offset + i);
  return sum;
}

void run_micro_batch(FsdpReducer& reducer, const FsdpUnits& units, const ExecContext& ctx, int rank, int micro) {
  for (std::size_t at = units.units.size(); at-- > 0;) {
    const FsdpUnit& unit = units.units[at];
    if (skipped(unit, micro)) continue;
    reducer.begin_unit(at, ctx);
    reducer.begin_unit(at, ctx);  // a second user of the unit
    for (const Param* p : unit.params)
      if (p->parts[0].name != kUnused) write(unit, *p, rank, micro);
    reducer.end_unit(at, ctx);
  }
}

class DistUnitReducer : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DistUnitReducer, testing::Values(1, 2, 3));

TEST_P(DistUnitReducer, OwnersGetTheSumsOverRanksAndMicroBatches) {
  const auto errors = run_ranks(GetParam(), [](Communicator& c) {
    const ExecContext ctx{Stream::cpu(1)};
    ModelConfig config = tiny_config().model;
    config.layers = 4;
    Decoder model(config);
    model.parameters().lay_out();
    const std::vector<ShardPiece> plan = plan_shards(model.parameters(), c.size());
    const FsdpUnits units = make_fsdp_units(model, plan);
    const FlatBuffer own{ctx.zeros({shard_size(plan, c.rank())}), false};
    FsdpReducer reducer(c, units, ctx, DType::f32, {}, own);
    for (const int micros : {1, 3}) {
      reducer.start_step();
      for (int m = 0; m < micros; ++m) run_micro_batch(reducer, units, ctx, c.rank(), m);
      reducer.finish_step(ctx);
      for (const FsdpUnit& unit : units.units)
        for (const FsdpUnitPiece& u : unit.pieces) {
          if (u.piece.owner != c.rank()) continue;
          const float* got = own.of(u.piece).data<float>();
          for (std::int64_t i = 0; i < u.piece.numel; ++i) {
            const std::int64_t place = u.piece.offset - u.piece.param->offset + i;
            const double want = wanted(unit, *u.piece.param, c.size(), micros, place);
            RING_CHECK(std::abs(got[i] - want) <= 1e-5, unit.scope, " ", u.piece.param->parts[0].name, " element ",
                       place, " is ", got[i], ", wanted ", want);
          }
        }
    }
  });
  EXPECT_EQ(joined(errors), "");
}

// The buffer of a block is free only after its gradients were taken.
TEST(FsdpReducer, TwoUnitsInOneBufferAreRefused) {
  const ExecContext ctx{Stream::cpu(1)};
  ModelConfig config = tiny_config().model;
  config.layers = 3;
  Decoder model(config);
  model.parameters().lay_out();
  const std::vector<ShardPiece> plan = plan_shards(model.parameters(), 1);
  const FsdpUnits units = make_fsdp_units(model, plan);
  const auto comm = make_self_communicator();
  FsdpReducer reducer(*comm, units, ctx, DType::f32, {}, {ctx.zeros({shard_size(plan, 0)}), false});
  const auto unit_of = [&](int block) { return units.units_of_part[units.find_part(block_scope(block)).value()][0]; };
  reducer.begin_unit(unit_of(2), ctx);
  reducer.begin_unit(unit_of(1), ctx);
  EXPECT_THROW(reducer.begin_unit(unit_of(0), ctx), Error);
  EXPECT_FALSE(units.find_part(block_scope(3)));
  EXPECT_FALSE(units.find_part(block_scope(1, scopes::mlp)));
}

}  // namespace
}  // namespace ring::test
