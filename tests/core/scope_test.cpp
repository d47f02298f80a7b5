#include "core/scope.h"

#include <gtest/gtest.h>

#include <optional>

#include "core/check.h"
#include "model/scopes.h"

namespace ring {
namespace {

class Notes final : public ScopeListener {
 public:
  Notes(std::string who, std::vector<std::string>& seen) : who_(std::move(who)), seen_(seen) {}
  void enter(const ScopeId& id, ScopePass) override {
    if (id == refused) fail(who_, " refuses ", id);
    seen_.push_back(str(who_, " +", id));
  }
  void leave(const ScopeId& id, ScopePass) noexcept override { seen_.push_back(str(who_, " -", id)); }
  void after_backward(const ScopeId& id) override { seen_.push_back(str(who_, " after ", id)); }

  std::optional<ScopeId> refused;

 private:
  std::string who_;
  std::vector<std::string>& seen_;
};

struct ScopesTest : testing::Test {
  std::shared_ptr<Scopes> scopes = std::make_shared<Scopes>();
  std::vector<std::string> seen;
  Notes a{"a", seen}, b{"b", seen};
};
using Seen = std::vector<std::string>;

TEST_F(ScopesTest, ListenersAreCalledInOrderAndLeftInReverse) {
  const ScopeSubscription first(scopes, a), second(scopes, b);
  {
    const ScopeGuard block(*scopes, block_scope(2));
    EXPECT_EQ(scopes->current(), block_scope(2));
    const ScopeGuard mlp(*scopes, block_scope(2, scopes::mlp));
    EXPECT_EQ(scopes->current().part(), block_scope(2));
    scopes->after_backward(scopes->current());
  }
  EXPECT_EQ(scopes->current(), ScopeId{});
  EXPECT_EQ(seen, (Seen{"a +blocks.2", "b +blocks.2", "a +blocks.2.mlp", "b +blocks.2.mlp", "a after blocks.2.mlp",
                        "b after blocks.2.mlp", "b -blocks.2.mlp", "a -blocks.2.mlp", "b -blocks.2", "a -blocks.2"}));
}

TEST_F(ScopesTest, AScopeThatOneListenerRefusesIsLeftByTheOthers) {
  const ScopeSubscription first(scopes, a), second(scopes, b);
  b.refused = ScopeId{scopes::loss_head};
  EXPECT_THROW(ScopeGuard(*scopes, {scopes::loss_head}), Error);
  EXPECT_EQ(seen, (Seen{"a +loss_head", "a -loss_head"}));
  EXPECT_EQ(scopes->current(), ScopeId{});
}

TEST_F(ScopesTest, AListenerAddedInsideAScopeSeesOnlyLaterScopes) {
  std::optional<ScopeSubscription> late;
  {
    const ScopeGuard outer(*scopes, {scopes::parameters});
    late.emplace(scopes, a);
    const ScopeGuard inner(*scopes, {scopes::inputs});
  }
  EXPECT_EQ(seen, (Seen{"a +inputs", "a -inputs"}));
}

TEST_F(ScopesTest, AListenerRemovedInsideAScopeDoesNotSeeItsEnd) {
  std::optional<ScopeSubscription> first(std::in_place, scopes, a);
  const ScopeSubscription second(scopes, b);
  {
    const ScopeGuard scope(*scopes, {scopes::optimizer});
    first.reset();
  }
  { const ScopeGuard scope(*scopes, {scopes::inputs}); }
  EXPECT_EQ(seen, (Seen{"a +optimizer", "b +optimizer", "b -optimizer", "b +inputs", "b -inputs"}));
}

TEST_F(ScopesTest, AReplacedSubscriptionEnds) {
  ScopeSubscription subscription(scopes, a);
  subscription = {scopes, b};
  const ScopeGuard scope(*scopes, {scopes::inputs});
  EXPECT_EQ(seen, (Seen{"b +inputs"}));
}

TEST(ScopeId, PrintsReadableNames) {
  EXPECT_EQ(str(ScopeId{}), "other");
  EXPECT_EQ(str(ScopeId{scopes::optimizer_states}), "optimizer states");
  EXPECT_EQ(str(ScopeId{scopes::final_norm}), "final_norm");
  EXPECT_EQ(str(block_scope(0)), "blocks.0");
  EXPECT_EQ(str(block_scope(11, scopes::attention)), "blocks.11.attention");
  EXPECT_EQ(str(scopes::block), "blocks");
}

TEST(ScopeKind, EqualNamesAreEqualKinds) {
  const ScopeKind a{std::string("mixer of states")}, b{"mixer of states"}, other{"a part"};
  EXPECT_EQ(a, b);
  EXPECT_NE(a, other);
  EXPECT_LT(other, a) << "kinds are ordered by their text, not by who was declared first";
  EXPECT_EQ(str(ScopeId{a, 3, other}), "mixer of states.3.a part");
  EXPECT_EQ(str(ScopeId{}), "other");
}

}  // namespace
}  // namespace ring
