// Who watches kernels learns in the backward which part of the model recorded them.
#include <gtest/gtest.h>

#include "autograd/tape.h"
#include "kernels/elementwise.h"

namespace ring::test {
namespace {

class Path final : public KernelObserver {
 public:
  void call(const KernelCall& c, const ExecContext&, const std::function<void()>& run) override {
    run();
    std::string at;
    for (const std::string& name : open_) at += name + "/";
    calls.push_back(at + std::string(c.slot));
  }
  void push(std::string_view name, const ExecContext&) override { open_.emplace_back(name); }
  void pop(const ExecContext&) override {
    ASSERT_FALSE(open_.empty());
    open_.pop_back();
  }
  bool balanced() const { return open_.empty(); }
  std::vector<std::string> calls;

 private:
  std::vector<std::string> open_;
};

// y = 2 x
Var twice(Tape& tape, const ExecContext& ctx, const Var& x, std::string_view name) {
  const Tensor y = ctx.empty(x.value.shape());
  axpby_kernel({.x = x.value, .out = y, .alpha = 2}, ctx);
  return tape.record(name, y, {x.slot}, [](Backward& back) {
    const Sink s = back.sink(0, back.grad().shape(), DType::f32);
    axpby_kernel({.x = back.grad(), .out = s.dst, .alpha = 2}, back.ctx);
  });
}

TEST(TapeParts, BackwardNamesPartAndOp) {
  const auto path = std::make_shared<Path>();
  const ExecContext ctx{.stream = Stream::cpu(1), .observer = path};
  Tape tape;
  Var x{from_host<float>({1, 2}, ctx.stream), std::make_shared<GradSlot>()};
  Var y = twice(tape, ctx, x, "outside");
  EXPECT_EQ(tape.enter_part("a"), "");
  y = twice(tape, ctx, y, "first");
  y = twice(tape, ctx, y, "second");
  EXPECT_EQ(tape.enter_part("b"), "a");
  y = twice(tape, ctx, y, "third");
  EXPECT_EQ(tape.enter_part("a"), "b");
  y = twice(tape, ctx, y, "fourth");
  path->calls.clear();
  tape.backward(y.slot, from_host<float>({1, 1}, ctx.stream), ctx);
  EXPECT_EQ(path->calls,
            (std::vector<std::string>{"backward/a/fourth/axpby", "backward/b/third/axpby", "backward/a/second/axpby",
                                      "backward/a/first/axpby", "backward/outside/axpby"}));
  EXPECT_TRUE(path->balanced());
  EXPECT_EQ(to_host<float>(x.slot->grad, ctx.stream), (std::vector<float>{32, 32}));
}

}  // namespace
}  // namespace ring::test
