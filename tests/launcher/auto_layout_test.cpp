// `parallel: auto`: train chooses the layout, records it, and keeps it when the run is resumed.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/launcher/training.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using test::read_file;

class DistAutoLayout : public test::TrainingRuns {
 protected:
  std::string log() const { return read_file(dir_ / "log"); }
  bool says(const std::string& text) const { return log().find(text) != std::string::npos; }

  std::vector<std::string> with(int processes, const std::string& directory,
                                const std::vector<std::string>& settings) const {
    std::vector<std::string> words = launch(processes, directory, "parallel=auto");
    words.insert(words.end(), settings.begin(), settings.end());
    return words;
  }
  // Returns the value of a key of `parallel` in the run's config.yaml, as text.
  std::string value(const std::string& directory, const std::string& key) const {
    std::istringstream lines(read_file(dir_ / directory / "config.yaml"));
    std::string line;
    while (std::getline(lines, line) && line != "parallel:") continue;
    const std::string begin = "  " + key + ": ";
    while (std::getline(lines, line))
      if (line.starts_with(begin)) return line.substr(begin.size());
    return "";
  }
  int degree(const std::string& directory, const std::string& key) const { return std::stoi(value(directory, key)); }
};

TEST_F(DistAutoLayout, ChoosesALayoutOfAllProcessesAndRecordsIt) {
  ASSERT_EQ(run(launch(1, "given")), 0) << log();
  const std::vector<double> expected = losses("given");
  for (const int n : {1, 2, 4}) {
    const std::string directory = "auto" + std::to_string(n);
    ASSERT_EQ(run(with(n, directory, {})), 0) << log();
    EXPECT_EQ(degree(directory, "dp") * degree(directory, "cp") * degree(directory, "tp"), n);
    EXPECT_EQ(value(directory, "chosen"), "[dp, cp, tp, zero]");
    const std::string yaml = "{dp: " + value(directory, "dp") + ", cp: " + value(directory, "cp") +
                             ", tp: " + value(directory, "tp") + ", zero: " + value(directory, "zero") + "}";
    const std::size_t at = log().find("parallel: " + yaml + " is the fastest of ");
    ASSERT_NE(at, std::string::npos) << log();
    EXPECT_EQ(log().find("parallel: ", at + 1), std::string::npos) << "more than one rank says it: " << log();
    const std::vector<double> now = losses(directory);
    ASSERT_EQ(now.size(), expected.size());
    // Sums of fp32 in a different order: 1e-5 relative after 8 steps.
    for (std::size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], expected[i], 1e-5 * expected[i]) << n << ", " << i;
  }
}

TEST_F(DistAutoLayout, GivenDegreesWin) {
  ASSERT_EQ(run(with(4, "cp", {"parallel.cp=2", "parallel.zero=1"})), 0) << log();
  EXPECT_EQ(degree("cp", "cp"), 2);
  EXPECT_EQ(degree("cp", "zero"), 1);
  EXPECT_EQ(degree("cp", "dp") * degree("cp", "tp"), 2);
  EXPECT_EQ(value("cp", "chosen"), "[dp, tp]");
  // The same in a file, where one key is auto.
  std::ofstream(dir_ / "t.yaml", std::ios::app) << "parallel: {tp: auto, dp: 1, zero: 0}\n";
  ASSERT_EQ(run(launch(2, "tp")), 0) << log();
  EXPECT_EQ(degree("tp", "tp"), 2);
  EXPECT_EQ(value("tp", "cp"), "1");
  EXPECT_EQ(value("tp", "chosen"), "[tp]");
}

TEST_F(DistAutoLayout, AResumedRunKeepsItsLayoutUnlessTheProcessesChange) {
  ASSERT_EQ(run(with(4, "r", {"train.steps=4", "parallel.dp=2"})), 0) << log();
  const std::string cp = value("r", "cp"), zero = value("r", "zero");
  EXPECT_EQ(value("r", "chosen"), "[cp, tp, zero]");
  // The same settings: with the rates of another machine, auto might choose differently.
  ASSERT_EQ(run(with(4, "r", {"train.steps=8", "parallel.dp=2", "--allow-changes"})), 0) << log();
  EXPECT_TRUE(says("keeps the layout of the run: {dp: 2,")) << log();
  EXPECT_TRUE(says("resuming from step 4")) << log();
  EXPECT_EQ(value("r", "cp"), cp);
  EXPECT_EQ(value("r", "zero"), zero);
  // The run itself, on as many processes: nothing is chosen.
  ASSERT_EQ(run({"launch", "-n", "4", "--", "train", "r", "train.steps=12", "--allow-changes"}), 0) << log();
  EXPECT_FALSE(says("parallel: ")) << log();
  EXPECT_EQ(value("r", "chosen"), "[cp, tp, zero]");
  // On two processes, the given degree stays.
  ASSERT_EQ(run({"launch", "-n", "2", "--", "train", "r", "train.steps=16", "--allow-changes"}), 0) << log();
  EXPECT_TRUE(says("chooses a new layout: the run had {dp: 2,")) << log();
  EXPECT_TRUE(says("not a layout of 2 processes with dp 2")) << log();
  EXPECT_TRUE(says("resuming from step 12")) << log();
  EXPECT_EQ(degree("r", "dp"), 2);
  EXPECT_EQ(degree("r", "cp") * degree("r", "tp"), 1);
  // A degree on the command line is no longer a chosen one.
  ASSERT_EQ(run({"launch", "-n", "2", "--", "train", "r", "train.steps=18", "parallel.dp=1", "parallel.cp=2",
                 "--allow-changes"}),
            0)
      << log();
  EXPECT_EQ(degree("r", "cp"), 2);
  EXPECT_EQ(value("r", "chosen"), "[tp, zero]");
}

TEST_F(DistAutoLayout, WrongWordsAndDegreesAreNamed) {
  for (const char* setting :
       {"parallel=fast", "parallel=\"auto\"", "parallel.tp=fast", "parallel.cp_layout=automatic"}) {
    EXPECT_EQ(run({"train", "t.yaml", setting}), 1);
    EXPECT_TRUE(says("command line: ")) << setting << ": " << log();
  }
  EXPECT_EQ(run({"train", "t.yaml", "parallel=fast"}), 1);
  EXPECT_TRUE(says("expected auto or a section of `key: value`, got fast")) << log();
  EXPECT_EQ(run(with(2, "bad", {"parallel.dp=3"})), 1);
  EXPECT_TRUE(says("no layout of 2 processes has the given parallel degrees dp 3")) << log();
  // Nothing fits: the budget is below the size of the weights.
  EXPECT_EQ(run(with(2, "small", {"train.memory_budget=20000"})), 1);
  EXPECT_TRUE(says("found no layout of 2 processes that fits into")) << log();
  EXPECT_FALSE(fs::exists(dir_ / "small")) << "a run that does not start writes nothing";
}

}  // namespace
}  // namespace ring
