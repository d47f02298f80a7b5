// In the backward, listeners learn the scope in which the kernels' forward was recorded.
#include <gtest/gtest.h>

#include "autograd/tape.h"
#include "kernels/elementwise.h"
#include "kernels/observers.h"
#include "model/scopes.h"

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
  void enter_scope(const ScopeId& id, const ExecContext&) override { open_.push_back(str(id)); }
  void enter_step(std::string_view op, const ExecContext&) override { open_.emplace_back(op); }
  void leave(const ExecContext&) override {
    ASSERT_FALSE(open_.empty());
    open_.pop_back();
  }
  bool balanced() const { return open_.empty(); }
  std::vector<std::string> calls;

 private:
  std::vector<std::string> open_;
};

// Computes y = 2 x in a scope.
Var twice(const Run& run, const ScopeId& id, const Var& x, std::string_view op) {
  const ScopeGuard scope = run.enter(id);
  const Tensor y = run.ctx.empty(x.value.shape());
  axpby_kernel({.x = x.value, .out = y, .alpha = 2}, run.ctx);
  return run.record(op, y, x.slot, [](const Backward& back, const SlotPtr& input) {
    const Sink s = back.sink(input, back.grad().shape(), DType::f32);
    axpby_kernel({.x = back.grad(), .out = s.dst, .alpha = 2}, back.ctx);
  });
}

TEST(TapeScopes, AreEnteredAgainInTheBackward) {
  const auto path = std::make_shared<Path>();
  const ExecContext ctx{.stream = Stream::cpu(1), .observer = path};
  const ObservedScopes observed(ctx);
  Tape tape;
  const ring::Run run{.ctx = ctx, .tape = &tape};
  const Var x{from_host<float>({1, 2}, ctx.stream), std::make_shared<GradSlot>()};
  Var y = twice(run, {}, x, "outside");
  y = twice(run, block_scope(0, scopes::attention), y, "first");
  y = twice(run, block_scope(0, scopes::mlp), y, "second");
  y = twice(run, block_scope(0, scopes::mlp), y, "third");
  y = twice(run, block_scope(0), y, "fourth");
  y = twice(run, block_scope(1), y, "fifth");
  y = twice(run, block_scope(0), y, "sixth");
  path->calls.clear();
  tape.backward(y.slot, from_host<float>({1, 1}, ctx.stream), ctx);
  EXPECT_EQ(path->calls,
            (std::vector<std::string>{"backward/blocks.0/sixth/axpby", "backward/blocks.1/fifth/axpby",
                                      "backward/blocks.0/fourth/axpby", "backward/blocks.0/blocks.0.mlp/third/axpby",
                                      "backward/blocks.0/blocks.0.mlp/second/axpby",
                                      "backward/blocks.0/blocks.0.attention/first/axpby", "backward/outside/axpby"}));
  EXPECT_TRUE(path->balanced());
  EXPECT_EQ(to_host<float>(x.slot->grad, ctx.stream), (std::vector<float>{128, 128}));
}

}  // namespace
}  // namespace ring::test
