// Sources of kernel choices: the run's record, the program's tables, and a store that runs share.
#include "kernels/tuning.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "core/check.h"
#include "kernels/shipped_choices.h"

namespace ring {
namespace {

class TuningTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("ringmaster-tuning-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    path_ = folder_ / "choices.yaml";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string contents() const {
    std::ifstream in(path_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void replace_contents(const std::string& text) const { std::ofstream(path_) << text; }
  Tuning shared() const { return Tuning(Tuning::Sources{.store = path_}); }
  static std::string error_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  std::filesystem::path folder_, path_;
};

using TuningRecord = TuningTest;
using SharedChoices = TuningTest;

TEST_F(TuningRecord, KeepsRecordedChoices) {
  Tuning first(path_);
  EXPECT_EQ(first.find("a"), std::nullopt);
  EXPECT_EQ(first.record("a", "1"), "1");
  first.record("b", "2");
  first.save_if_changed();
  Tuning second(path_);
  EXPECT_EQ(second.find("a"), "1");
  EXPECT_EQ(second.find("b"), "2");
  EXPECT_EQ(second.text(), first.text());
}

TEST_F(TuningRecord, AdoptedChoicesReplaceItsOwn) {
  Tuning first(path_), second("");
  first.record("a", "1");
  first.record("b", "2");
  second.record("b", "3");
  second.record("c", "4");
  const std::uint64_t before = first.generation();
  EXPECT_EQ(first.merge_record(second.text()), 1u);  // b is replaced; c is new
  EXPECT_NE(first.generation(), before);
  EXPECT_EQ(first.find("b"), "3");
  const std::uint64_t same = second.generation();
  EXPECT_EQ(second.merge_record(first.text()), 0u);
  EXPECT_EQ(second.generation(), same) << "nothing was replaced";
  EXPECT_EQ(first.text(), second.text());
  EXPECT_THROW(first.merge_record("nonsense"), Error);
  first.save_if_changed();
  EXPECT_EQ(Tuning(path_).find("c"), "4");
}

TEST_F(TuningRecord, IsNotWrittenWithoutChange) {
  Tuning tuning(path_);
  tuning.save_if_changed();
  EXPECT_FALSE(std::filesystem::exists(path_));
  tuning.record("a", "1");
  tuning.save_if_changed();
  std::filesystem::remove(path_);
  tuning.record("a", "1");
  tuning.save_if_changed();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TuningRecord, RefusesADamagedFile) {
  Tuning tuning(path_);
  tuning.record("a", "1");
  tuning.save_if_changed();
  const std::string whole = contents();
  for (const std::string& damaged : {std::string("# a comment\n\"a\": \"1\"\n"), whole.substr(0, whole.size() - 1),
                                     whole.substr(0, whole.find('\n') + 1), std::string()}) {
    replace_contents(damaged);
    const std::string error = error_of([&] { Tuning again(path_); });
    EXPECT_NE(error.find(path_.string() + ": the hash"), std::string::npos) << error;
    EXPECT_NE(error.find("Delete it"), std::string::npos) << error;
  }
  replace_contents("# ringmaster choices, version 9, hash 0\n");
  const std::string error = error_of([&] { Tuning again(path_); });
  EXPECT_NE(error.find("version 1, got '# ringmaster choices, version 9"), std::string::npos) << error;
}

TEST_F(TuningRecord, NamesTheLineThatIsNotAChoice) {
  ChoiceMap choices;
  const std::string error = error_of([&] { parse_choices("\"a\": \"1\"\nnonsense\n", "here", choices); });
  EXPECT_EQ(error.find("here:2: expected a choice"), 0u) << error;
}

TEST_F(SharedChoices, AreThoseOfTheFirstRunThatStoredThem) {
  Tuning first = shared(), second = shared();
  EXPECT_EQ(first.find("a"), std::nullopt);
  EXPECT_EQ(second.find("a"), std::nullopt);
  EXPECT_EQ(first.record("a", "1"), "1");
  EXPECT_EQ(second.record("a", "2"), "1");
  EXPECT_EQ(second.find("a"), "1");
  EXPECT_EQ(shared().find("a"), "1");
}

TEST_F(SharedChoices, AreSeenByRunsThatStartedBefore) {
  Tuning early = shared();
  EXPECT_EQ(early.find("a"), std::nullopt);
  shared().record("a", "1");
  EXPECT_EQ(early.find("a"), "1");
}

TEST_F(SharedChoices, EnterTheRecordWhenTheyAreUsed) {
  shared().record("a", "1");
  Tuning run(Tuning::Sources{.record = folder_ / "tuning.yaml", .store = path_});
  run.find("a");
  run.save_if_changed();
  std::filesystem::remove(path_);
  Tuning resumed(Tuning::Sources{.record = folder_ / "tuning.yaml", .store = path_});
  EXPECT_EQ(resumed.find("a"), "1");
}

TEST_F(SharedChoices, DoNotReplaceTheRunsOwn) {
  shared().record("a", "1");
  Tuning run = shared();
  run.merge_record("\"a\": \"2\"\n");
  EXPECT_EQ(run.find("a"), "2");
}

TEST_F(SharedChoices, AreReplacedIfTheyDoNotRun) {
  Tuning first = shared(), second = shared();
  first.record("a", "1");
  EXPECT_EQ(second.record("a", "2", "1"), "2");
  EXPECT_EQ(shared().find("a"), "2");
}

TEST_F(SharedChoices, AreKeptAndAgreeWithManyWriters) {
  constexpr int kWriters = 6, kKeys = 12;
  std::vector<std::vector<std::string>> held(kWriters);
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w)
    writers.emplace_back([&, w] {
      Tuning run = shared();
      for (int k = 0; k < kKeys; ++k) held[w].push_back(run.record("key " + std::to_string(k), std::to_string(w)));
    });
  for (std::thread& t : writers) t.join();
  Tuning after = shared();
  for (int w = 0; w < kWriters; ++w)
    for (int k = 0; k < kKeys; ++k) EXPECT_EQ(held[w][k], after.find("key " + std::to_string(k))) << w << ", " << k;
}

TEST_F(SharedChoices, StayInTheProcessIfTheFileCannotBeWritten) {
  std::ofstream(folder_.string()) << "a file where the store's folder would be";
  Tuning run = shared();
  EXPECT_EQ(run.record("a", "1"), "1");
  EXPECT_EQ(run.find("a"), "1");
  EXPECT_EQ(run.record("b", "2"), "2");
}

TEST_F(SharedChoices, AreNotUsedByRule) {
  shared().record("a", "1");
  Tuning rule(Tuning::Sources{.store = path_, .measures = false});
  EXPECT_EQ(rule.find("a"), std::nullopt);
  rule.record("a", "2");
  EXPECT_EQ(shared().find("a"), "1");
}

TEST_F(SharedChoices, ComeAfterThoseOfTheProgram) {
  if (shipped_choices().empty()) GTEST_SKIP() << "this program carries no tables";
  const auto& [key, choice] = *shipped_choices().begin();
  shared().record(key, "other");
  EXPECT_EQ(Tuning(Tuning::Sources{.shipped = true, .store = path_}).find(key), choice);
  EXPECT_EQ(shared().find(key), "other");
  Tuning rule(Tuning::Sources{.shipped = true, .measures = false});
  EXPECT_EQ(rule.find(key), std::nullopt);
}

TEST_F(SharedChoices, AreTheRunsOwnOnceItUsesThem) {
  shared().record("a", "1");
  Tuning run = shared();
  EXPECT_FALSE(run.has_recorded("a"));
  EXPECT_EQ(run.find("a"), "1");
  EXPECT_TRUE(run.has_recorded("a"));
}

TEST(UserChoices, AreStoredInTheUsersCache) {
  const auto with = [](const char* cache, const char* home) {
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("HOME", home, 1);
    return user_choice_store_path();
  };
  const std::string home = getenv("HOME") ? getenv("HOME") : "";
  EXPECT_EQ(with("/c", "/h"), "/c/ringmaster/choices.yaml");
  EXPECT_EQ(with("", "/h"), "/h/.cache/ringmaster/choices.yaml");
  EXPECT_EQ(with("relative", "/h"), "/h/.cache/ringmaster/choices.yaml");
  EXPECT_EQ(with("", ""), "");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace ring
