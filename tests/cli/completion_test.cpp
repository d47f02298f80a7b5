// Candidates that shells get when Tab is pressed, and their insertion into the command line.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "cli/candidates.h"
#include "cli/command_line.h"
#include "core/fields.h"
#include "core/fields_parse.h"
#include "engine/config.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring {
namespace {

using Words = std::vector<std::string>;

class Completion : public testing::Test {
 protected:
  Completion() { add_commands(app_); }
  Words after(const Words& words) {
    Words texts;
    for (const Candidate& c : completion_candidates(app_, words)) texts.push_back(c.text);
    return texts;
  }
  bool offers(const Words& words, const std::string& text) {
    const Words all = after(words);
    return std::ranges::find(all, text) != all.end();
  }
  Program app_{"ringmaster", ""};
};

TEST_F(Completion, CommandsAreCompleted) {
  EXPECT_EQ(after({"tra"}), Words{"train"});
  EXPECT_TRUE(offers({""}, "checkpoint"));
  EXPECT_TRUE(offers({"checkpoint", ""}, "verify"));
  EXPECT_FALSE(offers({"checkpoint", "verify", ""}, "verify")) << "a directory stands there";
  EXPECT_EQ(after({"help", "gener"}), Words{"generate"});
  EXPECT_EQ(after({"help", "data", "insp"}), Words{"inspect"});
  EXPECT_EQ(after({"unknown", "tra"}), Words{});
}

TEST_F(Completion, TheCommandOfLaunchIsCompleted) {
  EXPECT_EQ(after({"launch", "-n", "2", "--", "tra"}), Words{"train"});
  EXPECT_EQ(after({"launch", "--", "train", "a.yaml", "optimizer.beta"}),
            (Words{"optimizer.beta1=", "optimizer.beta2="}));
  EXPECT_TRUE(offers({"launch", "--nn"}, "--nnodes"));
  EXPECT_FALSE(offers({"launch", "--", "train", "--nn"}, "--nnodes"));
}

TEST_F(Completion, OptionsAndTheirValuesAreCompleted) {
  EXPECT_EQ(after({"train", "a.yaml", "--allow"}), Words{"--allow-changes"});
  EXPECT_EQ(after({"data", "prepare", "--split", "h"}), Words{"hash"});
  EXPECT_EQ(after({"data", "prepare", "--split=h"}), Words{"--split=hash"});
  EXPECT_EQ(after({"train", "--profile", ""}), Words{}) << "a number stands there";
  EXPECT_TRUE(offers({"train", "--profile", "3", "a.yaml", "run."}, "run.device="));
}

TEST_F(Completion, SettingsAndTheirValuesAreCompleted) {
  EXPECT_EQ(after({"train", "a.yaml", "chec"}), Words{"checkpoint."});
  EXPECT_EQ(after({"train", "a.yaml", "run.device="}), (Words{"run.device=auto", "run.device=cpu", "run.device=cuda"}));
  EXPECT_EQ(after({"train", "a.yaml", "model.biases=n"}), Words{"model.biases=none"});
  EXPECT_EQ(after({"train", "a.yaml", "data.streaming=x"}), Words{});
  EXPECT_EQ(after({"train", "a.yaml", "no.such.thing="}), Words{});
  EXPECT_EQ(after({"train", "chec"}), Words{}) << "the settings file comes first";
}

// Every setting is reached if candidates are accepted one after another.
TEST_F(Completion, EverySettingIsReached) {
  Config config;
  const config::Node root = bind_config(config);
  std::vector<std::string> keys;
  config::collect_keys(root, "", keys);
  for (const std::string& key : keys) {
    if (key.find("[]") != std::string::npos) continue;
    for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1))
      EXPECT_TRUE(offers({"train", "a.yaml", key.substr(0, dot)}, key.substr(0, dot + 1)) ||
                  offers({"train", "a.yaml", key.substr(0, dot)}, key.substr(0, dot) + "="))
          << key;
  }
}

// Runs a line in a shell that finds the program in its PATH. Returns "" if there is no such shell.
std::string run_in_shell(const std::string& shell, const std::string& line) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ring_shell_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink(test::ring_binary(), folder / "ringmaster");
  const test::Finished done =
      test::run_process({"/usr/bin/env", shell, "-c", line}, {{"PATH", folder.string() + ":" + std::getenv("PATH")}});
  std::filesystem::remove_all(folder);
  return done.code == 127 ? "" : done.output;
}

std::string complete_in_bash(const std::string& words, int at) {
  return run_in_shell("bash", "source <(ringmaster completion bash); compopt() { :; }; COMP_WORDS=(" + words +
                                  "); COMP_CWORD=" + std::to_string(at) +
                                  "; _ringmaster; printf '%s\\n' \"${COMPREPLY[@]}\"");
}

// Bash splits words at '=' and replaces the part behind the last '='.
TEST(CompletionScripts, BashCompletes) {
  EXPECT_EQ(complete_in_bash("ringmaster tra", 1), "train\n");
  EXPECT_EQ(complete_in_bash("ringmaster train a.yaml optimizer.ki", 3), "optimizer.kind=\n");
  EXPECT_EQ(complete_in_bash("ringmaster train a.yaml run.device = c", 5), "cpu\ncuda\n");
  EXPECT_EQ(complete_in_bash("ringmaster train a.yaml run.device =", 4), "auto\ncpu\ncuda\n");
  EXPECT_EQ(complete_in_bash("ringmaster train ''", 2), "\n") << "files";
}

TEST(CompletionScripts, FishCompletes) {
  const auto after = [](const std::string& line) {
    return run_in_shell("fish", "ringmaster completion fish | source; complete -C '" + line + "'");
  };
  if (after("").empty()) GTEST_SKIP() << "needs fish";
  EXPECT_EQ(after("ringmaster tra").substr(0, 6), "train\t");
  EXPECT_EQ(after("ringmaster train a.yaml run.device=c"), "run.device=cpu\nrun.device=cuda\n");
}

TEST(CompletionScripts, ZshLoadsTheScript) {
  const std::string loaded =
      run_in_shell("zsh", "compdef() { echo $1 completes $2; }; source <(ringmaster completion zsh)");
  if (loaded.empty()) GTEST_SKIP() << "needs zsh";
  EXPECT_EQ(loaded, "_ringmaster completes ringmaster\n");
}

}  // namespace
}  // namespace ring
