// Warnings about attention settings that have no effect on a run's sequences.
#include "tests/trainer/runs.h"

namespace ring::test {
namespace {

class IdleAttention : public Runs {
 protected:
  // Returns the output of a short run on samples of 256 tokens, each one document.
  std::string output_of_run(const std::vector<std::string>& more, const std::string& processes = "1") const {
    std::vector<std::string> words =
        train("run", {"--fresh", "train.steps=1", "train.batch_size=1", "train.micro_batch=1", "model.context=256",
                      "train.eval_interval=0", "model.dropout=0"});
    words.insert(words.end(), more.begin(), more.end());
    if (processes != "1") words.insert(words.begin() + 1, {"launch", "--nproc-per-node", processes, "--"});
    const Finished done = run_process(words);
    EXPECT_EQ(done.code, 0) << done.output;
    return done.output;
  }
  bool warns(const std::string& of, const std::vector<std::string>& more) const {
    return output_of_run(more).find(of) != std::string::npos;
  }
};

TEST_F(IdleAttention, IndexersWithNothingToChooseFromAreNamed) {
  const auto learned = [](const char* local) {
    return std::string("model.attention={kind: block_sparse, block: 64, rules: [{pattern: learned, local: ") + local +
           ", keep: 4}]}";
  };
  const std::string warning = "model.attention.rules[0]: pattern: learned";
  EXPECT_FALSE(warns(warning, {learned("2")}));
  EXPECT_TRUE(warns(warning, {learned("2"), "train.context=128"})) << "sequences are shorter than samples";
  const auto with = [&](std::size_t longest) {
    std::ofstream text(folder_ / "short.txt");
    for (int i = 0; i < 20; ++i) text << std::string(100, 'a') << "\n\n";
    text << std::string(longest, 'b') << "\n";
    text.close();
    const Finished done = ring({"data", "prepare", "--input", path("short.txt"), "--tokenizer", "bytes", "--document",
                                "blank-line", "--validation-fraction", "0", "--output", path("short.h5"), "--force"});
    EXPECT_EQ(done.code, 0) << done.output;
    return std::vector<std::string>{learned("3"), "data.packing.documents=true", "data.packing.align=64",
                                    "data.path=" + path("short.h5")};
  };
  EXPECT_FALSE(warns(warning, with(220)));
  EXPECT_TRUE(warns(warning, with(150))) << "no document has a fourth block";
}

TEST_F(IdleAttention, ListsThatAreTooLongAreNamed) {
  EXPECT_TRUE(
      warns("model.attention.heads: a list of 9",
            {"model.attention={kind: block_sparse, block: 64, rules: [{}], heads: [0, 0, 0, 0, 0, 0, 0, 0, 0]}"}));
  EXPECT_TRUE(warns("model.attention.pools: [16, 256]: no pool of 256",
                    {"model.attention={kind: window, window: 8, pools: [16, 256]}"}));
}

TEST_F(IdleAttention, WindowsThatCoverAllTokensAreNamed) {
  const std::string warning = "model.attention.window: 256";
  EXPECT_TRUE(warns(warning, {"model.attention={kind: window, window: 256}"}));
  EXPECT_FALSE(warns("model.attention.window", {"model.attention={kind: window, window: 255}"}));
}

TEST_F(IdleAttention, KeysThatNoRankRequestsAreNamedOnce) {
  const auto warnings = [&](const std::string& schedule) {
    const std::string text =
        output_of_run({"parallel.cp=2", "parallel.cp_keys=referenced", "parallel.cp_schedule=" + schedule,
                       "model.attention={kind: block_sparse, block: 64, rules: [{pattern: content, keep: 2}]}"},
                      "2");
    const std::string warning = "parallel.cp_keys: referenced";
    int n = 0;
    for (auto at = text.find(warning); at != std::string::npos; at = text.find(warning, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(warnings("all_to_all"), 1);
  EXPECT_EQ(warnings("ring"), 0);
}

}  // namespace
}  // namespace ring::test
