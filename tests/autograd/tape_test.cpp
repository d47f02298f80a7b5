#include "autograd/tape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "model/scopes.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

// A parameter as the trainer makes it: its gradient is bound to memory that is written but never replaced.
struct Parameter {
  Var var;
  int ready = 0;
  Parameter(const std::string& name, const Shape& shape, const ExecContext& ctx)
      : var{make_tensor(shape, DType::f32, random_values(name, shape.numel(), 0.5), ctx),
            std::make_shared<GradSlot>()} {
    var.slot->bound = true;
    var.slot->grad = make_tensor(shape, DType::f32, Values(static_cast<std::size_t>(shape.numel()), NAN), ctx);
    var.slot->on_ready = [this] { ++ready; };
  }
  Parameter(const Parameter&) = delete;
  void next_step() {
    var.slot->written = false;
    ready = 0;
  }
  Values grad() const { return read_values(var.slot->grad); }
};

class TapeTest : public testing::Test {
 protected:
  ring::Run recording(Tape& tape) const { return {.ctx = ctx, .tape = &tape, .seed = 5, .step = 2}; }
  Tensor random(const std::string& name, const Shape& shape) const {
    return make_tensor(shape, DType::f32, random_values(name, shape.numel()), ctx);
  }
  Var input(const std::string& name, const Shape& shape) const {
    return {random(name, shape), std::make_shared<GradSlot>()};
  }
  ExecContext ctx{Stream::cpu(2)};
};

void expect_near(const Values& got, const Values& want, double tolerance = 1e-5) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << i;
}
Values sum(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST_F(TapeTest, OnReadyFiresOnceAfterTheLastOfSeveralUses) {
  Parameter w("w", {8, 8}, ctx), late("late", {8, 8}, ctx);
  Tape tape;
  ring::Run run = recording(tape);
  int ready_when_late_was = -1;
  late.var.slot->on_ready = [&] { ready_when_late_was = w.ready; };
  Var x = input("x", {3, 8});
  const Var y = linear(run, linear(run, linear(run, x, w.var), late.var), w.var);
  EXPECT_EQ(w.var.slot->uses, 2);
  tape.backward(y.slot, random("seed", {3, 8}), ctx);
  EXPECT_EQ(w.ready, 1);
  EXPECT_EQ(ready_when_late_was, 0) << "w was announced before its first use had written";
  EXPECT_EQ(w.var.slot->uses, 0);
  EXPECT_EQ(tape.size(), 0u);
}

TEST_F(TapeTest, ASharedWeightGetsTheSumOfItsUses) {
  Parameter shared("w", {8, 8}, ctx), first("w", {8, 8}, ctx), second("w", {8, 8}, ctx);  // equal values
  const Tensor seed = random("seed", {3, 8});
  auto through = [&](const Var& a, const Var& b) {
    Tape tape;
    ring::Run run = recording(tape);
    const Var y = linear(run, activate(run, linear(run, input("x", {3, 8}), a), Activation::gelu), b);
    tape.backward(y.slot, seed, ctx);
  };
  through(shared.var, shared.var);
  through(first.var, second.var);
  expect_near(shared.grad(), sum(first.grad(), second.grad()));
  EXPECT_EQ(shared.ready, 1);
}

// Token embedding and loss head of a model with tied embeddings.
void run_tied(const ExecContext& ctx, Tape& tape, const Var& table, const Var& head) {
  ring::Run run{.ctx = ctx, .tape = &tape};
  const Tensor ids = make_tensor({4}, DType::i32, {1, 3, 1, 0}, ctx);
  const Var x = embedding(run, ids, table);
  const LossOutput loss =
      cross_entropy_head(run, x, head, {.targets = make_tensor({4}, DType::i32, {3, 1, 0, 2}, ctx), .vocab = 5});
  tape.backward(loss.sum.slot, {}, ctx);
}

TEST_F(TapeTest, TiedWeightsAreReadyOnceAndAddUp) {
  Parameter tied("w", {5, 8}, ctx), table("w", {5, 8}, ctx), head("w", {5, 8}, ctx);
  Tape a, b;
  run_tied(ctx, a, tied.var, tied.var);
  run_tied(ctx, b, table.var, head.var);
  EXPECT_EQ(tied.ready, 1);
  EXPECT_EQ(table.ready, 1);
  EXPECT_EQ(head.ready, 1);
  expect_near(tied.grad(), sum(table.grad(), head.grad()));
}

TEST_F(TapeTest, TheHeadsWeightIsNotReadyBeforeTheBackward) {
  Parameter w("w", {5, 8}, ctx);
  Tape tape;
  ring::Run run = recording(tape);
  const LossOutput loss = cross_entropy_head(run, input("x", {4, 8}), w.var,
                                             {.targets = make_tensor({4}, DType::i32, {3, 1, 0, 2}, ctx), .vocab = 5});
  EXPECT_EQ(w.ready, 0);
  tape.backward(loss.sum.slot, {}, ctx);
  EXPECT_EQ(w.ready, 1);
}

TEST_F(TapeTest, MicroBatchesAccumulateAndAnnounceInTheFinalPass) {
  Parameter w("w", {6, 8}, ctx);
  Values want;
  for (int micro = 0; micro < 3; ++micro) {
    auto pass = [&](Parameter& p, bool final_pass) {
      Tape tape(final_pass);
      ring::Run run = recording(tape);
      const Var y = linear(run, input(str("x", micro), {3, 8}), p.var);
      tape.backward(y.slot, random(str("seed", micro), {3, 6}), ctx);
    };
    Parameter alone("w", {6, 8}, ctx);
    pass(alone, true);
    want = want.empty() ? alone.grad() : sum(want, alone.grad());
    EXPECT_EQ(w.ready, 0);
    pass(w, micro == 2);
  }
  EXPECT_EQ(w.ready, 1);
  expect_near(w.grad(), want);
  w.next_step();  // the next step's first write overwrites again
  Tape tape;
  ring::Run run = recording(tape);
  const Var y = linear(run, input("x0", {3, 8}), w.var);
  tape.backward(y.slot, ctx.zeros({3, 6}), ctx);
  EXPECT_EQ(w.grad(), Values(48, 0.0));
  EXPECT_EQ(w.ready, 1);
}

// A block that uses w twice and applies dropout, as a decoder layer does.
Var block(ring::Run& run, const Var& x, const Var& w) {
  const Var hidden = activate(run, linear(run, x, w), Activation::gelu);
  return checkpoint_boundary(dropout_add(run, linear(run, hidden, w), x, 0.3f, 17));
}

TEST_F(TapeTest, RecomputationGivesTheSameBitsAndAnnouncesOnce) {
  Parameter plain("w", {8, 8}, ctx), again("w", {8, 8}, ctx);
  const Tensor seed = random("seed", {9, 8});
  auto pass = [&](Parameter& w, bool recomputed, Var& x) {
    Tape tape;
    ring::Run run = recording(tape);
    Var y = x;
    run.saving.recompute = recomputed;
    for (int layer = 0; layer < 3; ++layer) y = block(run, y, w.var);
    const Values value = read_values(y.value);
    tape.backward(y.slot, seed, ctx);
    return value;
  };
  Var x1 = input("x", {9, 8}), x2 = input("x", {9, 8});
  EXPECT_EQ(pass(plain, false, x1), pass(again, true, x2));
  EXPECT_EQ(again.grad(), plain.grad());
  EXPECT_EQ(read_values(x2.slot->grad), read_values(x1.slot->grad));
  EXPECT_EQ(again.ready, 1);
  EXPECT_EQ(plain.ready, 1);
}

TEST_F(TapeTest, RecomputationHoldsOnlyTheInput) {
  const auto bytes_held = [&](bool recomputed) {
    Parameter w("w", {64, 64}, ctx);
    Tape tape;
    ring::Run run = recording(tape);
    Var y = input("x", {512, 64});
    const std::size_t before = ctx.stream.allocator()->stats().in_use;
    run.saving.recompute = recomputed;
    for (int layer = 0; layer < 4; ++layer) y = block(run, y, w.var);
    return ctx.stream.allocator()->stats().in_use - before;
  };
  const std::size_t activation = 512 * 64 * 4;
  EXPECT_EQ(bytes_held(true), 4 * activation);
  EXPECT_GE(bytes_held(false), 12 * activation);
}

TEST_F(TapeTest, AnMlpSavesOrRecomputesItsHiddenValues) {
  const std::size_t activation = 512 * 64 * 4;
  const Tensor seed = random("seed", {512, 64});
  const auto pass = [&](bool recomputed, Values& gradient) {
    Parameter w("w", {64, 64}, ctx);
    Tape tape;
    ring::Run run = recording(tape);
    Var x = input("x", {512, 64}), y = x;
    const std::size_t before = ctx.stream.allocator()->stats().in_use;
    run.saving.recompute = recomputed;
    for (int layer = 0; layer < 4; ++layer) {
      const Var inside = mlp_gelu_tanh(run, y, w.var, {}, w.var, {}, y);  // its output is recomputed from its input
      y = checkpoint_boundary(activate(run, inside, Activation::gelu));
    }
    const std::size_t held = ctx.stream.allocator()->stats().in_use - before;
    tape.backward(y.slot, seed, ctx);
    gradient = w.grad();
    EXPECT_EQ(w.ready, 1);
    return held / activation;
  };
  Values keeping, again;
  EXPECT_EQ(pass(false, keeping), 4u * 4);  // input and output of its activation, its output, the layer's output
  EXPECT_EQ(pass(true, again), 4u);
  EXPECT_EQ(again, keeping);
}

TEST_F(TapeTest, AGradientGivenTwiceIsNotCorruptedByLaterAdditions) {
  Tape tape;
  ring::Run run = recording(tape);
  const Var x = input("x", {4, 8}), z = input("z", {4, 8});
  const Var a = activate(run, x, Activation::relu2), b = activate(run, z, Activation::relu2);
  const Var t = activate(run, a, Activation::gelu);  // adds to a's gradient after add() passed it on by reference
  const Var y = add(run, add(run, a, b), t);
  const Tensor seed = random("seed", {4, 8});
  const Values seed_values = read_values(seed);
  tape.backward(y.slot, seed, ctx);
  EXPECT_EQ(read_values(seed), seed_values) << "the caller's seed was written to";
  Values want = read_values(z.value);  // d relu2 = 2 max(z, 0)
  for (std::size_t i = 0; i < want.size(); ++i) want[i] = 2 * std::max(0.0, want[i]) * seed_values[i];
  expect_near(read_values(z.slot->grad), want, 1e-6);
}

TEST_F(TapeTest, AValueAddedToItselfGetsTwiceTheGradient) {
  Tape tape;
  ring::Run run = recording(tape);
  const Var x = input("x", {4, 8});
  const Tensor seed = random("seed", {4, 8});
  const Values once = read_values(seed);
  tape.backward(add(run, x, x).slot, seed, ctx);
  EXPECT_EQ(read_values(x.slot->grad), sum(once, once));
  EXPECT_EQ(read_values(seed), once);
}

TEST_F(TapeTest, AGradientGivenToAParameterIsCopiedIntoItsBucket) {
  Parameter p("p", {4, 8}, ctx);
  Tape tape;
  ring::Run run = recording(tape);
  const std::byte* bucket = p.var.slot->grad.raw();
  const Tensor seed = random("seed", {4, 8});
  tape.backward(add(run, input("x", {4, 8}), p.var).slot, seed, ctx);
  EXPECT_EQ(p.var.slot->grad.raw(), bucket);
  EXPECT_EQ(p.grad(), read_values(seed));
}

TEST_F(TapeTest, AnUnusedOutputIsSkippedButReleasesItsParameters) {
  Parameter used("u", {8, 8}, ctx), unused("v", {8, 8}, ctx);
  Tape tape;
  ring::Run run = recording(tape);
  const Var x = input("x", {3, 8});
  const Var y = linear(run, x, used.var);
  linear(run, x, unused.var);
  tape.backward(y.slot, random("seed", {3, 8}), ctx);
  EXPECT_FALSE(unused.var.slot->written);
  EXPECT_EQ(unused.ready, 1) << "whoever waits for this parameter must not wait for ever";
  EXPECT_EQ(unused.var.slot->uses, 0);
  EXPECT_TRUE(used.var.slot->written);
}

TEST_F(TapeTest, ATapeThatNeverRanLeavesNoUsesBehind) {
  Parameter w("w", {8, 8}, ctx);
  {
    Tape tape;
    ring::Run run = recording(tape);
    linear(run, input("x", {3, 8}), w.var);
    EXPECT_EQ(w.var.slot->uses, 1);
  }
  EXPECT_EQ(w.var.slot->uses, 0);
  EXPECT_EQ(w.ready, 0);
  Tape tape;
  ring::Run run = recording(tape);
  tape.backward(linear(run, input("x", {3, 8}), w.var).slot, random("seed", {3, 8}), ctx);
  EXPECT_EQ(w.ready, 1);
}

TEST_F(TapeTest, MemoryFallsWhileTheBackwardRuns) {
  Tape tape;
  ring::Run run = recording(tape);
  Var y = input("x", {256, 64});
  const Allocator& allocator = *ctx.stream.allocator();
  std::vector<std::size_t> in_use;
  for (int i = 0; i < 5; ++i) {
    y = activate(run, y, Activation::gelu);
    y = run.record("probe", y.value, y.slot, [&](const Backward& back, const SlotPtr& input) {
      in_use.push_back(allocator.stats().in_use);
      back.accumulate(input, back.grad());
    });
  }
  Tensor seed = random("seed", {256, 64});
  const SlotPtr root = y.slot;
  y = {};
  tape.backward(root, seed, ctx);
  ASSERT_EQ(in_use.size(), 5u);
  for (std::size_t i = 2; i < in_use.size(); ++i) EXPECT_LT(in_use[i], in_use[i - 1]);
}

// A scope begins before its first step of the backward and ends after its parameters are complete.
TEST_F(TapeTest, ListenersSeeTheScopesOfTheBackward) {
  struct Listener final : ScopeListener {
    std::vector<std::string> seen;
    void enter(const ScopeId& id, ScopePass pass) override {
      seen.push_back(str(pass == ScopePass::backward ? "enter " : "forward ", id));
    }
    void leave(const ScopeId& id, ScopePass pass) noexcept override {
      if (pass == ScopePass::backward) seen.push_back(str("leave ", id));
    }
    void after_backward(const ScopeId& id) override { seen.push_back(str("after ", id)); }
  } listener;
  const ScopeSubscription subscription(ctx.scopes, listener);
  Parameter a("a", {8, 8}, ctx), b("b", {8, 8}, ctx);
  a.var.slot->on_ready = [&] { listener.seen.push_back("a ready"); };
  b.var.slot->on_ready = [&] { listener.seen.push_back("b ready"); };
  Tape tape;
  ring::Run run = recording(tape);
  Var x = linear(run, input("x", {3, 8}), a.var);  // outside any scope
  {
    const ScopeGuard scope = run.enter(block_scope(0));
    x = linear(run, linear(run, x, b.var), a.var);
  }
  {
    const ScopeGuard scope = run.enter({scopes::final_norm});
    x = linear(run, x, a.var);
  }
  tape.backward(x.slot, random("seed", {3, 8}), ctx);
  EXPECT_EQ(listener.seen,
            (std::vector<std::string>{"forward blocks.0", "forward final_norm", "enter backward", "enter final_norm",
                                      "after final_norm", "leave final_norm", "enter blocks.0", "b ready",
                                      "after blocks.0", "leave blocks.0", "a ready", "leave backward"}));
}

TEST_F(TapeTest, AThrowingStepLeavesTheTapeDestructible) {
  Parameter w("w", {8, 8}, ctx);
  {
    Tape tape;
    ring::Run run = recording(tape);
    Var y = linear(run, input("x", {3, 8}), w.var);
    y = run.record("bad", y.value, y.slot, [](const Backward&, const SlotPtr&) { fail("broken"); });
    EXPECT_THROW(tape.backward(y.slot, random("seed", {3, 8}), ctx), Error);
  }
  EXPECT_EQ(w.var.slot->uses, 0);
  EXPECT_EQ(w.ready, 0);
}

}  // namespace
}  // namespace ring::test
