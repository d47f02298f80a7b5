#include "kernels/observers.h"

#include <gtest/gtest.h>

#include "core/ranges.h"
#include "kernels/elementwise.h"
#include "model/scopes.h"

namespace ring::test {
namespace {

// Records calls and scopes in a list that observers may share.
class Notes final : public KernelObserver {
 public:
  Notes(std::string who, std::vector<std::string>& seen) : who_(std::move(who)), seen_(seen) {}
  void call(const KernelCall& c, const ExecContext&, const std::function<void()>& run) override {
    seen_.push_back(str(who_, " ", c.slot, " begins"));
    run();
    seen_.push_back(str(who_, " ", c.slot, " ends"));
  }
  void enter_scope(const ScopeId& id, const ExecContext&) override { seen_.push_back(str(who_, " +", id)); }
  void enter_step(std::string_view op, const ExecContext&) override { seen_.push_back(str(who_, " +", op)); }
  void leave(const ExecContext&) override { seen_.push_back(str(who_, " -")); }

 private:
  std::string who_;
  std::vector<std::string>& seen_;
};

void double_of(const Tensor& x, const ExecContext& ctx) { axpby_kernel({.x = x, .out = x, .alpha = 2}, ctx); }

TEST(Observers, SeveralSeeACallWithTheFirstOutermost) {
  std::vector<std::string> seen;
  ExecContext ctx{Stream::cpu(1)};
  const Tensor x = from_host<float>({1, 2, 3}, ctx.stream);
  ctx.observer = combine_observers({std::make_shared<Notes>("a", seen), nullptr, std::make_shared<Notes>("b", seen)});
  {
    const ObservedStep step(ctx, "rope");
    double_of(x, ctx);
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"a +rope", "b +rope", "a axpby begins", "b axpby begins", "b axpby ends",
                                            "a axpby ends", "b -", "a -"}));
  EXPECT_EQ(to_host<float>(x, ctx.stream), (std::vector<float>{2, 4, 6}));  // the kernel ran once
}

// Scopes are reported to the observer that is set when the scope begins.
TEST(Observers, LearnTheScopesOfTheirContext) {
  std::vector<std::string> seen;
  ExecContext ctx{Stream::cpu(1)};
  const ObservedScopes observed(ctx);
  { const ScopeGuard unseen(*ctx.scopes, {scopes::embedding}); }
  ctx.observer = combine_observers({std::make_shared<Notes>("a", seen), std::make_shared<Notes>("b", seen)});
  {
    const ScopeGuard block(*ctx.scopes, block_scope(3));
    const ScopeGuard mlp(*ctx.scopes, block_scope(3, scopes::mlp));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"a +blocks.3", "b +blocks.3", "a +blocks.3.mlp", "b +blocks.3.mlp", "b -",
                                            "a -", "b -", "a -"}));
}

TEST(Observers, AnEmptyListGivesNoObserver) {
  EXPECT_EQ(combine_observers({}), nullptr);
  EXPECT_EQ(combine_observers({nullptr, nullptr}), nullptr);
  std::vector<std::string> seen;
  const auto only = std::make_shared<Notes>("a", seen);
  EXPECT_EQ(combine_observers({nullptr, only}), only);
  const ExecContext ctx{Stream::cpu(1)};
  const ObservedStep step(ctx, "nobody watches");
}

TEST(Observers, RangesAreMarkedOrRefused) {
  if (!range_marks()) {
    try {
      make_range_observer();
      FAIL() << "ranges without anybody to take them";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("make build CUDA=ON"), std::string::npos) << e.what();
    }
    return;
  }
  ExecContext ctx{Stream::cpu(1)};
  const Tensor x = from_host<float>({1}, ctx.stream);
  ctx.observer = make_range_observer();
  const ObservedScopes observed(ctx);
  const ScopeGuard scope(*ctx.scopes, {scopes::optimizer});
  double_of(x, ctx);
  EXPECT_EQ(to_host<float>(x, ctx.stream), (std::vector<float>{2}));
}

}  // namespace
}  // namespace ring::test
