// Compares the real trainer with rows that are divided by the pairs of their documents to a run with one process.

#include "tests/parallel/one_process.h"

namespace ring::test {
namespace {

struct BalancedKind {
  std::string name;
  Overrides overrides;
};
void PrintTo(const BalancedKind& k, std::ostream* out) { *out << k.name; }

const std::string kBalanced = "parallel.cp_layout=balanced";
const std::string kDropout = "model.attention_dropout=0.2";  // depends on the numbers of rows

class DistBalancedLayout : public testing::TestWithParam<BalancedKind> {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  static TrainingOptions options(int ranks, const Overrides& more) {
    Overrides attention = GetParam().overrides;
    attention.push_back("data.packing.documents=true");
    return short_run(ranks, attention, more);
  }
};
INSTANTIATE_TEST_SUITE_P(
    Kinds, DistBalancedLayout,
    testing::Values(
        BalancedKind{"dense", {kDropout}},
        BalancedKind{"window",
                     {"model.attention.kind=window", "model.attention.window=24", "model.attention.sinks=2", kDropout}},
        BalancedKind{"mixed",
                     {"model.attention_layers=[{layers: '1', attention: {kind: block_sparse, block: 64, rules: "
                      "[{pattern: content, keep: 2}], pools: [8]}}]"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(DistBalancedLayout, EqualsOneProcess) {
  for (const std::string& schedule : {std::string("ring"), std::string("gather")})
    for (const int cp : {2, 4}) {
      SCOPED_TRACE(schedule + " on " + std::to_string(cp));
      expect_equal_to_one_process({"", cp, {str("parallel.cp=", cp), "parallel.cp_schedule=" + schedule, kBalanced}},
                                  options);
    }
  SCOPED_TRACE("two replicas of two ranks");
  expect_equal_to_one_process({"", 4, {kRing[0], kRing[1], kBalanced, "parallel.zero=1"}}, options);
}

TEST_P(DistBalancedLayout, ResumeIsExact) {
  const auto on_two = [](int, const Overrides& more) {
    TrainingOptions o = options(2, more);
    o.overrides.insert(o.overrides.end(), {kRing[0], kRing[1], kBalanced});
    return o;
  };
  expect_resume_is_exact(on_two, 2, "balanced_" + GetParam().name);
}

}  // namespace
}  // namespace ring::test
