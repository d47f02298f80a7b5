// The file of measured choices.
#include "kernels/tuning.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/check.h"

namespace ring {
namespace {

class TuningFile : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("ringmaster-tuning-" + std::to_string(getpid()) + ".yaml");
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::filesystem::path path_;
};

TEST_F(TuningFile, KeepsWhatWasRecorded) {
  Tuning first(path_);
  EXPECT_EQ(first.find("a"), std::nullopt);
  first.record("a", "1");
  first.record("b", "2");
  first.save();
  const Tuning second(path_);
  EXPECT_EQ(second.find("a"), "1");
  EXPECT_EQ(second.find("b"), "2");
  EXPECT_EQ(second.text(), first.text());
}

TEST_F(TuningFile, KeepsAChoiceThatReplacesAnother) {
  {
    Tuning first(path_);
    first.record("a", "1");
    first.save();
  }
  Tuning second(path_);
  const std::string before = second.text();
  second.record("a", "2");
  second.save();
  EXPECT_EQ(Tuning(path_).find("a"), "2");
  EXPECT_NE(Tuning(path_).text(), before);
}

TEST_F(TuningFile, ChoicesOfAnotherProcessReplaceItsOwn) {
  Tuning first(path_), second("");
  first.record("a", "1");
  first.record("b", "2");
  second.record("b", "3");
  second.record("c", "4");
  const std::uint64_t before = first.generation();
  EXPECT_EQ(first.adopt(second.text()), 1u);  // b; c is new
  EXPECT_EQ(second.adopt(first.text()), 0u);
  EXPECT_EQ(first.find("b"), "3");
  EXPECT_EQ(first.text(), second.text());
  EXPECT_NE(first.generation(), before);
  const std::uint64_t same = first.generation();
  first.adopt(second.text());
  EXPECT_EQ(first.generation(), same);
  EXPECT_THROW(first.adopt("nonsense"), Error);
  first.save();
  EXPECT_EQ(Tuning(path_).find("c"), "4");
}

TEST_F(TuningFile, IsNotWrittenWithoutChange) {
  Tuning tuning(path_);
  tuning.save();
  EXPECT_FALSE(std::filesystem::exists(path_));
  tuning.record("a", "1");
  tuning.save();
  std::filesystem::remove(path_);
  tuning.record("a", "1");
  tuning.save();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TuningFile, NamesTheLineThatItCannotRead) {
  std::ofstream(path_) << "# a comment\nnonsense\n";
  try {
    Tuning tuning(path_);
    FAIL() << "it was read";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(path_.string() + ":2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace ring
