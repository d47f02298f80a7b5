// Optimizer groups and kinds as a user meets them: in the log, in errors, and in runs that resume with different ones.
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
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

TEST_F(OtherUpdates, AreLoggedAtTheStart) {
  const std::string groups =
      "optimizer.groups=[{match: ['*norm*'], lr: 0.25}, {match: ['embedding.tokens.*'], frozen: true}]";
  expect_parts(
      run_process(short_train(2, {"optimizer.kind=muon", groups})), 0,
      {"optimizer: embedding.tokens.weight (", "): frozen\n", "): muon, lr 0.", "): adamw, lr 0.25, weight_decay 0\n"});
  expect_parts(run_process(train("other", {"optimizer.groups=[{match: ['*.nrm'], lr: 1}]"})), 1,
               {"optimizer.groups[0].match[0]: \"*.nrm\" matches no parameter", "embedding.tokens.weight"});
}

TEST_F(OtherUpdates, ADifferentKindKeepsTheStatesItCanUse) {
  ASSERT_EQ(run_process(short_train(4)).code, 0);
  const std::vector<std::string> muon = {"optimizer.kind=muon"};
  expect_parts(run_process(short_train(6, muon)), 1, {"optimizer.kind: adamw -> muon", "--allow-changes"});
  std::vector<std::string> allowed = short_train(6, muon);
  allowed.emplace_back("--allow-changes");
  expect_parts(run_process(allowed), 0, {"the checkpoint lacks", "optimizer states, which are reinitialized"});
  const Finished again = run_process(short_train(6, muon));
  expect_parts(again, 0, {"nothing left to do"});
  EXPECT_EQ(again.output.find("are reinitialized"), std::string::npos) << again.output;
}

// Lost states that no change of settings explains are an error, even with --allow-changes.
TEST_F(OtherUpdates, StatesThatWereLostAreAnError) {
  ASSERT_EQ(run_process(short_train(4, {"train.ema=0.9"})).code, 0);
  const fs::path checkpoint = folder_ / "run" / "checkpoints" / "step-000000004";
  const auto expect_refused = [&](const std::string& lost) {
    const std::string manifest = read_text(checkpoint / kManifestName);
    Manifest m = parse_manifest(manifest);
    ASSERT_EQ(m.tensors.erase(lost), 1u) << lost;
    write_text(checkpoint / kManifestName, to_text(m));
    const std::vector<std::string> said = {checkpoint.string(), "missing in the checkpoint: " + lost + "\n",
                                           "run.init_from"};
    expect_parts(run_process(short_train(4, {"train.ema=0.9"})), 1, said);
    expect_parts(run_process(short_train(6, {"train.ema=0.9", "--allow-changes"})), 1, said);
    write_text(checkpoint / kManifestName, manifest);
  };
  expect_refused("optimizer.m.blocks.0.attention.wq.weight");
  expect_refused("ema.blocks.1.mlp.up.weight");
  expect_parts(run_process(short_train(6, {"--allow-changes"})), 0,
               {"train.ema: 0: the checkpoint's average", "is not used"});
}

}  // namespace
}  // namespace ring::test
