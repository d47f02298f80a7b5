// Ops in chunks of rows: properties that the op case of map_chunks cannot express.

#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "tests/comm/ranks.h"
#include "tests/host_store.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

constexpr std::int64_t kChunkRows = 48, kChunkWidth = 8;

Var random_leaf(const std::string& name, const Shape& shape, const ExecContext& ctx) {
  return {make_tensor(shape, DType::f32, random_values(name, shape.numel()), ctx), std::make_shared<GradSlot>()};
}

class ChunksTest : public testing::Test {
 protected:
  Var input(const std::string& name, const Shape& shape) const { return random_leaf(name, shape, ctx); }
  ExecContext ctx{Stream::cpu(2)};
};

Var dropped(ring::Run& run, const Var& x) { return dropout_add(run, x, x, 0.4f, 11); }

TEST_F(ChunksTest, OneChunkIsTheFunctionItself) {
  for (const std::int64_t rows : {std::int64_t{0}, kChunkRows, kChunkRows + 1}) {
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape};
    const Var x = input("x", {kChunkRows, kChunkWidth});
    const Var y = map_chunks(run, x, rows, [&](ring::Run& chunk, const Var& in) {
      EXPECT_EQ(&chunk, &run);
      EXPECT_EQ(in.value.raw(), x.value.raw());
      return in;
    });
    EXPECT_EQ(y.value.raw(), x.value.raw());
    EXPECT_EQ(tape.size(), 0u);
  }
}

TEST_F(ChunksTest, NoRowIsLeftOut) {
  ring::Run run{.ctx = ctx};
  std::vector<std::int64_t> seen;
  const Var x = input("x", {kChunkRows, kChunkWidth});
  const Var y = map_chunks(run, x, 20, [&](ring::Run&, const Var& in) {
    seen.push_back(in.value.dim(0));
    return in;
  });
  EXPECT_EQ(seen, (std::vector<std::int64_t>{20, 20, 8}));
  EXPECT_EQ(read_values(y.value), read_values(x.value));
}

// Dropout masks depend on the global row of each element, also if the run's rows are not consecutive.
TEST_F(ChunksTest, DropoutMasksDoNotDependOnTheChunks) {
  std::vector<std::int32_t> row_numbers(kChunkRows);
  for (std::size_t i = 0; i < row_numbers.size(); ++i) row_numbers[i] = static_cast<std::int32_t>(i * 7 % 200);
  for (const Tensor& rows : {Tensor{}, from_host(row_numbers, ctx.stream)}) {
    const auto result = [&](std::int64_t chunk) {
      Tape tape;
      ring::Run run{.ctx = ctx, .tape = &tape, .seed = 5, .step = 2, .first_row = 1000};
      run.layout.rows = rows;
      const Var x = input("x", {kChunkRows, kChunkWidth});
      const Var y = map_chunks(run, x, chunk, dropped);
      Values all = read_values(y.value);
      tape.backward(y.slot, input("seed", {kChunkRows, kChunkWidth}).value, ctx);
      for (const double g : read_values(x.slot->grad)) all.push_back(g);
      return all;
    };
    const Values whole = result(0);
    for (const std::int64_t chunk : {1, 7, 16, 47}) EXPECT_EQ(result(chunk), whole) << chunk;
  }
}

TEST_F(ChunksTest, AParameterIsReadyOnceAndLast) {
  Var w = input("w", {kChunkWidth, kChunkWidth});
  int ready = 0, backwards = 0, before = -1;
  w.slot->on_ready = [&] { ++ready, before = backwards; };
  Tape tape;
  ring::Run run{.ctx = ctx, .tape = &tape};
  const Var x = input("x", {kChunkRows, kChunkWidth});
  const Var y = map_chunks(run, x, 10, [&](ring::Run& chunk, const Var& in) {
    const Var out = linear(chunk, in, w);
    return chunk.record("count", out.value, out.slot, [&backwards](const Backward& back, const SlotPtr& input) {
      ++backwards;
      back.accumulate(input, back.grad());
    });
  });
  tape.backward(y.slot, input("seed", {kChunkRows, kChunkWidth}).value, ctx);
  EXPECT_EQ(ready, 1);
  EXPECT_EQ(before, 5);
}

// In the forward and the backward, only one chunk of the intermediate values exists at a time.
TEST_F(ChunksTest, HoldsOneChunkOfRecomputedValues) {
  constexpr std::int64_t rows = 512, hidden = 1024, chunk = 64;
  const std::size_t one = chunk * hidden * sizeof(float), outside = rows * kChunkWidth * sizeof(float);
  const Var x = input("x", {rows, kChunkWidth}), w1 = input("w1", {hidden, kChunkWidth}),
            w2 = input("w2", {kChunkWidth, hidden});
  w1.slot->grad = ctx.zeros(w1.value.shape()), w2.slot->grad = ctx.zeros(w2.value.shape());
  w1.slot->bound = w2.slot->bound = true;
  const Tensor seed = input("seed", {rows, kChunkWidth}).value;
  Allocator& memory = *ctx.stream.allocator();
  memory.reset_peak();
  const std::size_t before = memory.stats().in_use;
  Tape tape;
  ring::Run run{.ctx = ctx, .tape = &tape, .saving = {.recompute = true}};
  const Var y = map_chunks(run, x, chunk, [&](ring::Run& part, const Var& in) {
    return linear(part, activate(part, linear(part, in, w1), Activation::gelu), w2, {}, in);
  });
  EXPECT_EQ(memory.stats().in_use - before, outside) << "the result";
  tape.backward(y.slot, seed, ctx);
  // The first product, its activation and the gradients of both; the result and the gradient of x.
  EXPECT_LT(memory.stats().peak - before, 4 * one + 3 * outside);
}

TEST_F(ChunksTest, AnOffloadedTensorIsFetchedOnce) {
  for (const bool recompute : {false, true}) {
    HostStore store;
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape, .saving = {.recompute = recompute, .hooks = &store}};
    const Var x = input("x", {kChunkRows, kChunkWidth});
    const Var y =
        map_chunks(run, x, 10, [](ring::Run& chunk, const Var& in) { return activate(chunk, in, Activation::relu2); });
    EXPECT_EQ(store.packed, 1);
    tape.backward(y.slot, input("seed", {kChunkRows, kChunkWidth}).value, ctx);
    EXPECT_EQ(store.fetched, 1);
    EXPECT_EQ(store.unannounced, 0);
  }
}

TEST_F(ChunksTest, AFunctionMustKeepItsRows) {
  ring::Run run{.ctx = ctx};
  const auto half = [](ring::Run&, const Var& in) { return Var{in.value.narrow(0, 0, 5), nullptr}; };
  EXPECT_THROW(map_chunks(run, input("x", {kChunkRows, kChunkWidth}), 10, half), Error);
}

// Each process has a chunk of its own rows. Dropout masks and gradients are those of the unchunked call.
TEST(DistChunks, GiveTheSameResultsWithShardedRows) {
  if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  for (const bool placed : {false, true}) {
    const auto errors = run_ranks(3, [placed](Communicator& comm) {
      const ExecContext ctx{Stream::cpu(1)};
      std::vector<std::int32_t> row_numbers(kChunkRows);
      for (std::size_t i = 0; i < row_numbers.size(); ++i) row_numbers[i] = static_cast<std::int32_t>(i * 5 % 100);
      const auto result = [&](std::int64_t chunk) {
        Tape tape;
        ring::Run run{.ctx = ctx,
                      .tape = &tape,
                      .seed = 5,
                      .first_row = 100,
                      .layout = {.tp = &comm},
                      .saving = {.recompute = true}};
        if (placed) run.layout.rows = from_host(row_numbers, ctx.stream);
        const Var x = random_leaf(str("x", comm.rank()), {kChunkRows / 3, kChunkWidth}, ctx),
                  w = random_leaf("w", {4, kChunkWidth}, ctx);
        const Var y = map_chunks(run, x, chunk, [&](ring::Run& part, const Var& in) {
          const Var all = activate(part, all_gather_rows(part, in), Activation::relu2);
          return dropped(part, reduce_scatter_rows(part, all, {}, in));
        });
        Values values = read_values(y.value);
        tape.backward(y.slot, random_leaf(str("seed", comm.rank()), {kChunkRows / 3, kChunkWidth}, ctx).value, ctx);
        for (const double g : read_values(x.slot->grad)) values.push_back(g);
        return values;
      };
      const Values whole = result(0);
      for (const std::int64_t chunk : {1, 10, 21, 47}) RING_CHECK(result(chunk) == whole, "other bits in ", chunk);
    });
    EXPECT_EQ(joined(errors), "");
  }
}

}  // namespace
}  // namespace ring::test
