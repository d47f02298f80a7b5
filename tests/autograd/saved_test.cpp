// Values saved from the forward for the backward, which may be stored elsewhere in between.
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

// y = act(x w^T). The first op saves x, the second one the product.
Var two_ops(ring::Run& run, const Var& x, const Var& w) { return activate(run, linear(run, x, w), Activation::gelu); }

TEST_F(SavedTest, HooksTakeEveryTensorButParameters) {
  HostStore store;
  Tape tape;
  ring::Run run{.ctx = ctx, .tape = &tape, .saving = {.hooks = &store}};
  const Var w = parameter("w", {8, 8});
  two_ops(run, input("x", {4, 8}), w);
  EXPECT_EQ(store.packed, 2);
  EXPECT_EQ(store.bytes, 2u * 4 * 8 * sizeof(float));
  run.saving.recompute = true;
  two_ops(run, input("x", {4, 8}), w);
  EXPECT_EQ(store.packed, 3) << "the product has a recipe, which makes it from x";
  linear(run, input("x", {4, 8}), w, {}, input("residual", {4, 8}));
  EXPECT_EQ(store.packed, 5) << "x, once for the backward and the recipe; the residual for the recipe alone";
}

TEST_F(SavedTest, NothingIsSavedWithoutATape) {
  HostStore store;
  ring::Run run{.ctx = ctx, .saving = {.hooks = &store}};
  two_ops(run, input("x", {4, 8}), parameter("w", {8, 8}));
  EXPECT_EQ(store.packed, 0);
}

TEST_F(SavedTest, OffloadedValuesGiveTheSameGradients) {
  const auto gradients = [&](HostStore* store, bool recompute) {
    Tape tape;
    ring::Run run{.ctx = ctx, .tape = &tape, .saving = {.recompute = recompute, .hooks = store}};
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

// A step's saved tensors are fetched while the step that follows it in the forward runs backward.
TEST_F(SavedTest, EachStepIsAnnouncedOneStepAhead) {
  HostStore store;
  Tape tape;
  ring::Run run{.ctx = ctx, .tape = &tape, .saving = {.hooks = &store}};
  std::vector<std::string> seen;
  store.on_prefetch = [&] { seen.emplace_back("prefetch"); };
  Var x = input("x", {4, 8});
  for (const char* op : {"first", "second", "third"})
    x = run.record(op, x.value, x.slot, run.save(x),
                   [&seen, op](const Backward& back, const SlotPtr& input, const Saved& saved) {
                     seen.push_back(str(op, " begins"));
                     saved.get(back.ctx);
                     back.accumulate(input, back.grad());
                   });
  tape.backward(x.slot, input("seed", {4, 8}).value, ctx);
  EXPECT_EQ(seen, (std::vector<std::string>{"prefetch", "prefetch", "third begins", "prefetch", "second begins",
                                            "first begins"}));
  EXPECT_EQ(store.unannounced, 0);
}

TEST_F(SavedTest, ARecipeComputesAllItsOutputsOnce) {
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

template <class T>
struct Two {
  T first, second;
};
template <class T>
struct Three {
  Two<T> two;
  T third;
};

TEST_F(SavedTest, NamedFieldsKeepTheirValues) {
  const Tensor a = input("a", {2}).value, b = input("b", {3}).value, c = input("c", {4}).value;
  const Three<Saved> saved{{Saved(a), Saved(b)}, Saved(c)};
  const Three<Tensor> tensors = get_all(saved, ctx);
  EXPECT_EQ(tensors.two.first.raw(), a.raw());
  EXPECT_EQ(tensors.two.second.raw(), b.raw());
  EXPECT_EQ(tensors.third.raw(), c.raw());
  const auto turn = [](const ExecContext&, const Three<Tensor>& t) {
    return Three<Tensor>{{t.third, t.two.first}, t.two.second};
  };
  const Three<Tensor> turned = get_all(save_to_recompute(saved, turn), ctx);
  EXPECT_EQ(turned.two.first.raw(), c.raw());
  EXPECT_EQ(turned.two.second.raw(), a.raw());
  EXPECT_EQ(turned.third.raw(), b.raw());
}

// A backward rule gets its own inputs and saved values by name; its step releases the values that the rule takes.
TEST_F(SavedTest, ARuleReadsInputsAndSavedValuesByName) {
  Tape tape;
  const ring::Run run{.ctx = ctx, .tape = &tape};
  const Var x = input("x", {4}), w = input("w", {4});
  bool unique = false;
  const Var y = run.record("test", input("y", {4}).value, Two<SlotPtr>{x.slot, nullptr},
                           Two<Saved>{Saved(w.value), Saved(input("only", {4}).value)},
                           [&unique](const Backward& back, const Two<SlotPtr>& inputs, Two<Saved>& of) {
                             unique = of.second.take(back.ctx).unique();
                             back.accumulate(inputs.first, of.first.get(back.ctx));
                             back.accumulate(inputs.second, back.grad());
                             EXPECT_FALSE(back.sink(inputs.second, {4}, DType::f32).dst.defined());
                           });
  tape.backward(y.slot, input("seed", {4}).value, ctx);
  EXPECT_EQ(x.slot->grad.raw(), w.value.raw());
  EXPECT_TRUE(unique) << "a rule may overwrite what it takes";
}

// A captured tensor would be invisible to memory planning.
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
