#pragma once
// A fixture with a folder for each test, which is removed at the end.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/launcher/files.h"

namespace ring::test {

class ScratchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ring_launcher_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path dir_;
};

}  // namespace ring::test
