// Groups and kinds of updates as a person meets them: in the log, in errors, and where a run goes on with others.
#include "core/check.h"
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class OtherUpdates : public Runs {
 protected:
  std::vector<std::string> short_train(int steps, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), str("train.steps=", steps));
    return train("run", more);
  }
  static void expect_parts(const Finished& done, int code, const std::vector<std::string>& parts) {
    EXPECT_EQ(done.code, code) << done.output;
    for (const std::string& part : parts)
      EXPECT_NE(done.output.find(part), std::string::npos) << "'" << part << "' is not in: " << done.output;
  }
};

TEST_F(OtherUpdates, AreSaidAtTheStart) {
  const std::string groups =
      "optimizer.groups=[{match: ['*norm*'], lr: 0.25}, {match: ['embedding.tokens.*'], frozen: true}]";
  expect_parts(
      run_process(short_train(2, {"optimizer.kind=muon", groups})), 0,
      {"optimizer: embedding.tokens.weight (", "): frozen\n", "): muon, lr 0.", "): adamw, lr 0.25, weight_decay 0\n"});
  expect_parts(run_process(train("other", {"optimizer.groups=[{match: ['*.nrm'], lr: 1}]"})), 1,
               {"optimizer.groups[0].match: \"*.nrm\" names no parameter", "embedding.tokens.weight"});
}

TEST_F(OtherUpdates, AnotherKindTakesOnWhatItCanOfTheStates) {
  ASSERT_EQ(run_process(short_train(4)).code, 0);
  const std::vector<std::string> muon = {"optimizer.kind=muon"};
  expect_parts(run_process(short_train(6, muon)), 1, {"optimizer.kind: adamw -> muon", "--allow-changes"});
  std::vector<std::string> allowed = short_train(6, muon);
  allowed.emplace_back("--allow-changes");
  expect_parts(run_process(allowed), 0, {"the checkpoint lacks", "states of the optimizer, which start anew"});
  const Finished again = run_process(short_train(6, muon));
  expect_parts(again, 0, {"nothing left to do"});
  EXPECT_EQ(again.output.find("start anew"), std::string::npos) << again.output;
}

}  // namespace
}  // namespace ring::test
