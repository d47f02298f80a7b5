// What lives from the forward to the backward, and that it may be elsewhere meanwhile.
#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "tests/host_store.h"
#include "tests/op_case.h"

namespace ring::test {
namespace {

class SavedTest : public testing::Test {
 protected:
  Var input(const std::string& name, const Shape& shape) const {
    return {make_tensor(shape, DType::f32, random_values(name, shape.numel()), ctx), std::make_shared<GradSlot>()};
  }
  Var parameter(const std::string& name, const Shape& shape) const {
    Var v = input(name, shape);
    v.slot->bound = true;
    v.slot->grad = ctx.zeros(shape);
    return v;
  }
  ExecContext ctx{Stream::cpu(2)};
};

// y = act(x w^T), and the tensors that each op needs: x; its product.
Var two_ops(ring::Run& run, const Var& x, const Var& w) { return activate(run, linear(run, x, w), Activation::gelu); }

TEST_F(SavedTest, HooksTakeEveryTensorButParameters) {
  HostStore store;
  Tape tape;
  ring::Run run{.ctx = ctx, .tape = &tape, .saved_hooks = &store};
  const Var w = parameter("w", {8, 8});
  two_ops(run, input("x", {4, 8}), w);
  EXPECT_EQ(store.packed, 2);
  EXPECT_EQ(store.bytes, 2u * 4 * 8 * sizeof(float));
  run.recompute = true;
  two_ops(run, input("x", {4, 8}), w);
  EXPECT_EQ(store.packed, 3) << "the product has a recipe, which makes it from x";
}

TEST_F(SavedTest, NothingIsSavedWithoutATape) {
  HostStore store;
  ring::Run run{.ctx = ctx, .saved_hooks = &store};
  two_ops(run, input("x", {4, 8}), parameter("w", {8, 8}));
  EXPECT_EQ(store.packed, 0);
}

TEST_F(SavedTest, WhatIsElsewhereGivesTheSameGradients) {
  const auto gradients = [&](HostStore* store, bool recompute) {
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape, .recompute = recompute, .saved_hooks = store};
    const Var x = input("x", {4, 8}), w = parameter("w", {8, 8});
    const Var y = two_ops(run, two_ops(run, x, w), w);
    tape.backward(y.slot, input("seed", {4, 8}).value, ctx);
    Values all = read_values(x.slot->grad);
    for (const double g : read_values(w.slot->grad)) all.push_back(g);
    return all;
  };
  const Values here = gradients(nullptr, false);
  for (const bool recompute : {false, true}) {
    HostStore store;
    EXPECT_EQ(gradients(&store, recompute), here);
    EXPECT_GT(store.fetched, 0);
    EXPECT_EQ(store.unannounced, 0);
  }
}

// What a step saved comes back while the step behind it in the forward runs.
TEST_F(SavedTest, EachStepIsAnnouncedOneAhead) {
  HostStore store;
  Tape tape;
  ring::Run run{.ctx = ctx, .tape = &tape, .saved_hooks = &store};
  std::vector<std::string> seen;
  store.on_prefetch = [&] { seen.emplace_back("prefetch"); };
  Var x = input("x", {4, 8});
  for (const char* op : {"first", "second", "third"})
    x = run.record(op, x.value, {x.slot}, {run.save(x)}, [&seen, op](Backward& back) {
      seen.push_back(str(op, " begins"));
      back.saved(0);
      back.accumulate(0, back.grad());
    });
  tape.backward(x.slot, input("seed", {4, 8}).value, ctx);
  EXPECT_EQ(seen, (std::vector<std::string>{"prefetch", "prefetch", "third begins", "prefetch", "second begins",
                                            "first begins"}));
  EXPECT_EQ(store.unannounced, 0);
}

TEST_F(SavedTest, ARecipeMakesAllItsOutputsOnce) {
  int made = 0;
  const auto recipe = std::make_shared<Recipe>();
  recipe->from = {Saved(input("x", {4, 8}).value)};
  recipe->make = [&made](const ExecContext& c, const Tensors& from) -> Tensors {
    ++made;
    return {from[0], c.zeros({2})};
  };
  Saved first(recipe, 0), second(recipe, 1);
  EXPECT_EQ(second.get(ctx).shape(), Shape({2}));
  EXPECT_EQ(read_values(first.get(ctx)), random_values("x", 32));
  EXPECT_TRUE(recipe->from.empty()) << "what it was made from is not needed any more";
  const Tensor last = first.take(ctx);
  EXPECT_TRUE(last.unique()) << "whoever takes it may overwrite it";
  EXPECT_EQ(made, 1);
}

// A capture of a tensor would hide it from whoever plans memory.
TEST(KeepsNoTensor, RefusesRulesThatCaptureTensors) {
  const Tensor t;
  const Shape shape{2, 3};
  const auto by_capture = [t](Backward&) { return t.defined(); };
  const auto of_numbers = [shape](Backward&) { return shape.numel(); };
  static_assert(!KeepsNoTensor<decltype(by_capture)>);
  static_assert(KeepsNoTensor<decltype(of_numbers)>);
  static_assert(!KeepsNoTensor<Saved> && !KeepsNoTensor<Var>);
}

}  // namespace
}  // namespace ring::test
